//! MPI functions by their numbers in the ABI.

use serde::{Deserialize, Serialize};

macro_rules! functions {
    ($($name:ident = $number:literal $mpi:literal $class:ident;)*) => {
        /// An MPI function; the discriminant is its number in records. Numbers are never reused.
        #[allow(missing_docs, reason = "each variant is the MPI function of that name")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[repr(u16)]
        pub enum Function { $($name = $number,)* }

        impl Function {
            /// Every function, in the order of its numbers.
            pub const ALL: &[Function] = &[$(Function::$name,)*];

            /// The function of this number.
            pub fn from_number(number: u16) -> Option<Function> {
                match number { $($number => Some(Function::$name),)* _ => None }
            }

            /// Its name in the MPI standard, such as `MPI_Send`.
            pub fn name(self) -> &'static str {
                match self { $(Function::$name => $mpi,)* }
            }

            /// What kind of function it is.
            pub fn class(self) -> Class {
                match self { $(Function::$name => Class::$class,)* }
            }
        }
    };
}

/// What a function does, as far as analyses need to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Start and end of MPI.
    Environment,
    /// A blocking send; its record's `destination` and `send_bytes` describe one message.
    Send,
    /// A blocking receive or probe.
    Receive,
    /// A send and a receive in one call.
    SendReceive,
    /// Starts a send.
    StartSend,
    /// Starts a receive.
    StartReceive,
    /// Prepares or starts persistent requests.
    Persistent,
    /// Waits for, tests, frees or cancels requests.
    Completion,
    /// A blocking collective operation.
    Collective,
    /// Starts a collective operation.
    StartCollective,
    /// Makes or frees communicators.
    Communicator,
}

functions! {
    Init = 1 "MPI_Init" Environment;
    InitThread = 2 "MPI_Init_thread" Environment;
    Finalize = 3 "MPI_Finalize" Environment;
    Abort = 4 "MPI_Abort" Environment;
    Send = 10 "MPI_Send" Send;
    Bsend = 11 "MPI_Bsend" Send;
    Ssend = 12 "MPI_Ssend" Send;
    Rsend = 13 "MPI_Rsend" Send;
    Recv = 14 "MPI_Recv" Receive;
    Sendrecv = 15 "MPI_Sendrecv" SendReceive;
    SendrecvReplace = 16 "MPI_Sendrecv_replace" SendReceive;
    Probe = 17 "MPI_Probe" Receive;
    Iprobe = 18 "MPI_Iprobe" Receive;
    Mprobe = 19 "MPI_Mprobe" Receive;
    Improbe = 20 "MPI_Improbe" Receive;
    Mrecv = 21 "MPI_Mrecv" Receive;
    Isend = 30 "MPI_Isend" StartSend;
    Ibsend = 31 "MPI_Ibsend" StartSend;
    Issend = 32 "MPI_Issend" StartSend;
    Irsend = 33 "MPI_Irsend" StartSend;
    Irecv = 34 "MPI_Irecv" StartReceive;
    Imrecv = 35 "MPI_Imrecv" StartReceive;
    SendInit = 40 "MPI_Send_init" Persistent;
    BsendInit = 41 "MPI_Bsend_init" Persistent;
    SsendInit = 42 "MPI_Ssend_init" Persistent;
    RsendInit = 43 "MPI_Rsend_init" Persistent;
    RecvInit = 44 "MPI_Recv_init" Persistent;
    Start = 45 "MPI_Start" Persistent;
    Startall = 46 "MPI_Startall" Persistent;
    Wait = 50 "MPI_Wait" Completion;
    Waitall = 51 "MPI_Waitall" Completion;
    Waitany = 52 "MPI_Waitany" Completion;
    Waitsome = 53 "MPI_Waitsome" Completion;
    Test = 54 "MPI_Test" Completion;
    Testall = 55 "MPI_Testall" Completion;
    Testany = 56 "MPI_Testany" Completion;
    Testsome = 57 "MPI_Testsome" Completion;
    RequestFree = 58 "MPI_Request_free" Completion;
    Cancel = 59 "MPI_Cancel" Completion;
    Barrier = 70 "MPI_Barrier" Collective;
    Bcast = 71 "MPI_Bcast" Collective;
    Reduce = 72 "MPI_Reduce" Collective;
    Allreduce = 73 "MPI_Allreduce" Collective;
    Gather = 74 "MPI_Gather" Collective;
    Gatherv = 75 "MPI_Gatherv" Collective;
    Scatter = 76 "MPI_Scatter" Collective;
    Scatterv = 77 "MPI_Scatterv" Collective;
    Allgather = 78 "MPI_Allgather" Collective;
    Allgatherv = 79 "MPI_Allgatherv" Collective;
    Alltoall = 80 "MPI_Alltoall" Collective;
    Alltoallv = 81 "MPI_Alltoallv" Collective;
    Alltoallw = 82 "MPI_Alltoallw" Collective;
    ReduceScatter = 83 "MPI_Reduce_scatter" Collective;
    ReduceScatterBlock = 84 "MPI_Reduce_scatter_block" Collective;
    Scan = 85 "MPI_Scan" Collective;
    Exscan = 86 "MPI_Exscan" Collective;
    Ibarrier = 100 "MPI_Ibarrier" StartCollective;
    Ibcast = 101 "MPI_Ibcast" StartCollective;
    Ireduce = 102 "MPI_Ireduce" StartCollective;
    Iallreduce = 103 "MPI_Iallreduce" StartCollective;
    Igather = 104 "MPI_Igather" StartCollective;
    Igatherv = 105 "MPI_Igatherv" StartCollective;
    Iscatter = 106 "MPI_Iscatter" StartCollective;
    Iscatterv = 107 "MPI_Iscatterv" StartCollective;
    Iallgather = 108 "MPI_Iallgather" StartCollective;
    Iallgatherv = 109 "MPI_Iallgatherv" StartCollective;
    Ialltoall = 110 "MPI_Ialltoall" StartCollective;
    Ialltoallv = 111 "MPI_Ialltoallv" StartCollective;
    Ialltoallw = 112 "MPI_Ialltoallw" StartCollective;
    IreduceScatter = 113 "MPI_Ireduce_scatter" StartCollective;
    IreduceScatterBlock = 114 "MPI_Ireduce_scatter_block" StartCollective;
    Iscan = 115 "MPI_Iscan" StartCollective;
    Iexscan = 116 "MPI_Iexscan" StartCollective;
    CommDup = 150 "MPI_Comm_dup" Communicator;
    CommSplit = 151 "MPI_Comm_split" Communicator;
    CommCreate = 152 "MPI_Comm_create" Communicator;
    CommFree = 153 "MPI_Comm_free" Communicator;
    CommSplitType = 154 "MPI_Comm_split_type" Communicator;
    CommCreateGroup = 155 "MPI_Comm_create_group" Communicator;
    CommDupWithInfo = 156 "MPI_Comm_dup_with_info" Communicator;
    CommIdup = 157 "MPI_Comm_idup" Communicator;
    CartCreate = 158 "MPI_Cart_create" Communicator;
    CartSub = 159 "MPI_Cart_sub" Communicator;
    GraphCreate = 160 "MPI_Graph_create" Communicator;
    DistGraphCreate = 161 "MPI_Dist_graph_create" Communicator;
    DistGraphCreateAdjacent = 162 "MPI_Dist_graph_create_adjacent" Communicator;
    IntercommCreate = 163 "MPI_Intercomm_create" Communicator;
    IntercommMerge = 164 "MPI_Intercomm_merge" Communicator;
    CommDisconnect = 165 "MPI_Comm_disconnect" Communicator;
}

impl std::fmt::Display for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_functions_correspond() {
        for &function in Function::ALL {
            assert_eq!(Function::from_number(function as u16), Some(function));
            assert!(function.name().starts_with("MPI_"));
        }
        assert_eq!(Function::from_number(0), None);
        assert_eq!(Function::from_number(u16::MAX), None);
        assert!(Function::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
