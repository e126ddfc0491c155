//! Numbers, names and classes of the MPI functions of the ABI.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

macro_rules! functions {
    ($($name:ident = $number:literal $mpi:literal $class:ident;)*) => {
        /// An MPI function; the discriminant is its number in records. Numbers are never reused.
        #[allow(missing_docs, reason = "each variant is the MPI function of that name")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Function { $($name = $number,)* }

        impl Function {
            /// Every function, in ascending order of the numbers.
            pub const ALL: &[Function] = &[$(Function::$name,)*];

            /// Returns the function with this number; `None` if no function has the number.
            pub fn from_number(number: u16) -> Option<Function> {
                match number { $($number => Some(Function::$name),)* _ => None }
            }

            /// Returns the function's name in the MPI standard, such as `MPI_Send`.
            pub fn name(self) -> &'static str {
                match self { $(Function::$name => $mpi,)* }
            }

            /// Returns the class of the function.
            pub fn class(self) -> Class {
                match self { $(Function::$name => Class::$class,)* }
            }

            /// Returns whether the function polls. Of such a function, the tracer reports consecutive calls that find nothing as one poll
            /// run.
            pub fn polls(self) -> bool {
                use Function::*;
                matches!(
                    self,
                    Iprobe | Improbe | Test | Testall | Testany | Testsome | RequestGetStatus | Parrived | WinTest
                )
            }

            /// Returns the variant's name, which serializes the function in human-readable formats.
            fn variant(self) -> &'static str {
                match self { $(Function::$name => stringify!($name),)* }
            }
        }
    };
}

/// Class of an MPI function, as analyses distinguish functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Starts, ends or aborts MPI.
    Environment,
    /// A blocking send; its record's `destination` and `send_bytes` describe one message.
    Send,
    /// A blocking receive, or a probe for a message, blocking or not.
    Receive,
    /// A send and a receive in one call.
    SendReceive,
    /// Starts a send, which completes through a request.
    StartSend,
    /// Starts a receive, which completes through a request.
    StartReceive,
    /// Starts a send and a receive, which complete as one request.
    StartSendReceive,
    /// Prepares persistent sends and receives, or starts persistent requests of any kind.
    Persistent,
    /// Waits for, tests, frees or cancels requests.
    Completion,
    /// Marks partitions of a partitioned send as ready, or tests whether a partition of a partitioned receive has arrived.
    Partition,
    /// A blocking collective operation.
    Collective,
    /// Starts a collective operation.
    StartCollective,
    /// Prepares a persistent collective operation.
    PrepareCollective,
    /// A blocking collective operation with the neighbours in the communicator's topology.
    Neighbor,
    /// Starts a neighbourhood collective operation.
    StartNeighbor,
    /// Prepares a persistent neighbourhood collective operation.
    PrepareNeighbor,
    /// Makes or frees communicators.
    Communicator,
    /// Deals with processes of other worlds: spawn, connect, ports, name service.
    Process,
    /// Makes, changes or frees RMA windows.
    Window,
    /// Begins, ends or synchronises RMA epochs.
    Epoch,
    /// Puts, gets or accumulates; the operation completes when the epoch ends or a flush completes the operation.
    Rma,
    /// Puts, gets or accumulates in another rank's window, with a request.
    StartRma,
    /// Opens, closes or changes files.
    File,
    /// Reads or writes a file, blocking; the record's completion has the bytes read.
    FileTransfer,
    /// Starts to read or write a file, with a request or as the first half of a split collective.
    StartFileTransfer,
    /// The second half of a split collective; its completion has the serial of the first half.
    EndFileTransfer,
    /// Works only on the caller's process: packing, local reductions, buffers of buffered sends, generalized requests.
    Local,
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
    Isendrecv = 36 "MPI_Isendrecv" StartSendReceive;
    IsendrecvReplace = 37 "MPI_Isendrecv_replace" StartSendReceive;
    SendInit = 40 "MPI_Send_init" Persistent;
    BsendInit = 41 "MPI_Bsend_init" Persistent;
    SsendInit = 42 "MPI_Ssend_init" Persistent;
    RsendInit = 43 "MPI_Rsend_init" Persistent;
    RecvInit = 44 "MPI_Recv_init" Persistent;
    Start = 45 "MPI_Start" Persistent;
    Startall = 46 "MPI_Startall" Persistent;
    PsendInit = 47 "MPI_Psend_init" Persistent;
    PrecvInit = 48 "MPI_Precv_init" Persistent;
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
    RequestGetStatus = 60 "MPI_Request_get_status" Completion;
    Pready = 61 "MPI_Pready" Partition;
    PreadyRange = 62 "MPI_Pready_range" Partition;
    PreadyList = 63 "MPI_Pready_list" Partition;
    Parrived = 64 "MPI_Parrived" Partition;
    GrequestStart = 65 "MPI_Grequest_start" Local;
    GrequestComplete = 66 "MPI_Grequest_complete" Local;
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
    BarrierInit = 120 "MPI_Barrier_init" PrepareCollective;
    BcastInit = 121 "MPI_Bcast_init" PrepareCollective;
    ReduceInit = 122 "MPI_Reduce_init" PrepareCollective;
    AllreduceInit = 123 "MPI_Allreduce_init" PrepareCollective;
    GatherInit = 124 "MPI_Gather_init" PrepareCollective;
    GathervInit = 125 "MPI_Gatherv_init" PrepareCollective;
    ScatterInit = 126 "MPI_Scatter_init" PrepareCollective;
    ScattervInit = 127 "MPI_Scatterv_init" PrepareCollective;
    AllgatherInit = 128 "MPI_Allgather_init" PrepareCollective;
    AllgathervInit = 129 "MPI_Allgatherv_init" PrepareCollective;
    AlltoallInit = 130 "MPI_Alltoall_init" PrepareCollective;
    AlltoallvInit = 131 "MPI_Alltoallv_init" PrepareCollective;
    AlltoallwInit = 132 "MPI_Alltoallw_init" PrepareCollective;
    ReduceScatterInit = 133 "MPI_Reduce_scatter_init" PrepareCollective;
    ReduceScatterBlockInit = 134 "MPI_Reduce_scatter_block_init" PrepareCollective;
    ScanInit = 135 "MPI_Scan_init" PrepareCollective;
    ExscanInit = 136 "MPI_Exscan_init" PrepareCollective;
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
    CommIdupWithInfo = 166 "MPI_Comm_idup_with_info" Communicator;
    CommCreateFromGroup = 167 "MPI_Comm_create_from_group" Communicator;
    IntercommCreateFromGroups = 168 "MPI_Intercomm_create_from_groups" Communicator;
    CommSpawn = 180 "MPI_Comm_spawn" Process;
    CommSpawnMultiple = 181 "MPI_Comm_spawn_multiple" Process;
    CommAccept = 182 "MPI_Comm_accept" Process;
    CommConnect = 183 "MPI_Comm_connect" Process;
    CommJoin = 184 "MPI_Comm_join" Process;
    OpenPort = 185 "MPI_Open_port" Process;
    ClosePort = 186 "MPI_Close_port" Process;
    PublishName = 187 "MPI_Publish_name" Process;
    UnpublishName = 188 "MPI_Unpublish_name" Process;
    LookupName = 189 "MPI_Lookup_name" Process;
    CommGetParent = 190 "MPI_Comm_get_parent" Process;
    NeighborAllgather = 200 "MPI_Neighbor_allgather" Neighbor;
    NeighborAllgatherv = 201 "MPI_Neighbor_allgatherv" Neighbor;
    NeighborAlltoall = 202 "MPI_Neighbor_alltoall" Neighbor;
    NeighborAlltoallv = 203 "MPI_Neighbor_alltoallv" Neighbor;
    NeighborAlltoallw = 204 "MPI_Neighbor_alltoallw" Neighbor;
    IneighborAllgather = 205 "MPI_Ineighbor_allgather" StartNeighbor;
    IneighborAllgatherv = 206 "MPI_Ineighbor_allgatherv" StartNeighbor;
    IneighborAlltoall = 207 "MPI_Ineighbor_alltoall" StartNeighbor;
    IneighborAlltoallv = 208 "MPI_Ineighbor_alltoallv" StartNeighbor;
    IneighborAlltoallw = 209 "MPI_Ineighbor_alltoallw" StartNeighbor;
    NeighborAllgatherInit = 210 "MPI_Neighbor_allgather_init" PrepareNeighbor;
    NeighborAllgathervInit = 211 "MPI_Neighbor_allgatherv_init" PrepareNeighbor;
    NeighborAlltoallInit = 212 "MPI_Neighbor_alltoall_init" PrepareNeighbor;
    NeighborAlltoallvInit = 213 "MPI_Neighbor_alltoallv_init" PrepareNeighbor;
    NeighborAlltoallwInit = 214 "MPI_Neighbor_alltoallw_init" PrepareNeighbor;
    WinCreate = 220 "MPI_Win_create" Window;
    WinAllocate = 221 "MPI_Win_allocate" Window;
    WinAllocateShared = 222 "MPI_Win_allocate_shared" Window;
    WinCreateDynamic = 223 "MPI_Win_create_dynamic" Window;
    WinAttach = 224 "MPI_Win_attach" Window;
    WinDetach = 225 "MPI_Win_detach" Window;
    WinFree = 226 "MPI_Win_free" Window;
    WinFence = 227 "MPI_Win_fence" Epoch;
    WinLock = 228 "MPI_Win_lock" Epoch;
    WinUnlock = 229 "MPI_Win_unlock" Epoch;
    WinLockAll = 230 "MPI_Win_lock_all" Epoch;
    WinUnlockAll = 231 "MPI_Win_unlock_all" Epoch;
    WinFlush = 232 "MPI_Win_flush" Epoch;
    WinFlushAll = 233 "MPI_Win_flush_all" Epoch;
    WinFlushLocal = 234 "MPI_Win_flush_local" Epoch;
    WinFlushLocalAll = 235 "MPI_Win_flush_local_all" Epoch;
    WinSync = 236 "MPI_Win_sync" Epoch;
    WinPost = 237 "MPI_Win_post" Epoch;
    WinStart = 238 "MPI_Win_start" Epoch;
    WinComplete = 239 "MPI_Win_complete" Epoch;
    WinWait = 240 "MPI_Win_wait" Epoch;
    WinTest = 241 "MPI_Win_test" Epoch;
    WinSetInfo = 242 "MPI_Win_set_info" Window;
    Put = 250 "MPI_Put" Rma;
    Get = 251 "MPI_Get" Rma;
    Accumulate = 252 "MPI_Accumulate" Rma;
    GetAccumulate = 253 "MPI_Get_accumulate" Rma;
    FetchAndOp = 254 "MPI_Fetch_and_op" Rma;
    CompareAndSwap = 255 "MPI_Compare_and_swap" Rma;
    Rput = 256 "MPI_Rput" StartRma;
    Rget = 257 "MPI_Rget" StartRma;
    Raccumulate = 258 "MPI_Raccumulate" StartRma;
    RgetAccumulate = 259 "MPI_Rget_accumulate" StartRma;
    FileOpen = 270 "MPI_File_open" File;
    FileClose = 271 "MPI_File_close" File;
    FileDelete = 272 "MPI_File_delete" File;
    FileSetSize = 273 "MPI_File_set_size" File;
    FilePreallocate = 274 "MPI_File_preallocate" File;
    FileSetView = 275 "MPI_File_set_view" File;
    FileSync = 276 "MPI_File_sync" File;
    FileSeek = 277 "MPI_File_seek" File;
    FileSeekShared = 278 "MPI_File_seek_shared" File;
    FileSetAtomicity = 279 "MPI_File_set_atomicity" File;
    FileSetInfo = 280 "MPI_File_set_info" File;
    FileGetSize = 281 "MPI_File_get_size" File;
    FileGetPositionShared = 282 "MPI_File_get_position_shared" File;
    FileReadAt = 290 "MPI_File_read_at" FileTransfer;
    FileReadAtAll = 291 "MPI_File_read_at_all" FileTransfer;
    FileRead = 292 "MPI_File_read" FileTransfer;
    FileReadAll = 293 "MPI_File_read_all" FileTransfer;
    FileReadShared = 294 "MPI_File_read_shared" FileTransfer;
    FileReadOrdered = 295 "MPI_File_read_ordered" FileTransfer;
    FileIreadAt = 296 "MPI_File_iread_at" StartFileTransfer;
    FileIreadAtAll = 297 "MPI_File_iread_at_all" StartFileTransfer;
    FileIread = 298 "MPI_File_iread" StartFileTransfer;
    FileIreadAll = 299 "MPI_File_iread_all" StartFileTransfer;
    FileIreadShared = 300 "MPI_File_iread_shared" StartFileTransfer;
    FileReadAtAllBegin = 301 "MPI_File_read_at_all_begin" StartFileTransfer;
    FileReadAtAllEnd = 302 "MPI_File_read_at_all_end" EndFileTransfer;
    FileReadAllBegin = 303 "MPI_File_read_all_begin" StartFileTransfer;
    FileReadAllEnd = 304 "MPI_File_read_all_end" EndFileTransfer;
    FileReadOrderedBegin = 305 "MPI_File_read_ordered_begin" StartFileTransfer;
    FileReadOrderedEnd = 306 "MPI_File_read_ordered_end" EndFileTransfer;
    FileWriteAt = 310 "MPI_File_write_at" FileTransfer;
    FileWriteAtAll = 311 "MPI_File_write_at_all" FileTransfer;
    FileWrite = 312 "MPI_File_write" FileTransfer;
    FileWriteAll = 313 "MPI_File_write_all" FileTransfer;
    FileWriteShared = 314 "MPI_File_write_shared" FileTransfer;
    FileWriteOrdered = 315 "MPI_File_write_ordered" FileTransfer;
    FileIwriteAt = 316 "MPI_File_iwrite_at" StartFileTransfer;
    FileIwriteAtAll = 317 "MPI_File_iwrite_at_all" StartFileTransfer;
    FileIwrite = 318 "MPI_File_iwrite" StartFileTransfer;
    FileIwriteAll = 319 "MPI_File_iwrite_all" StartFileTransfer;
    FileIwriteShared = 320 "MPI_File_iwrite_shared" StartFileTransfer;
    FileWriteAtAllBegin = 321 "MPI_File_write_at_all_begin" StartFileTransfer;
    FileWriteAtAllEnd = 322 "MPI_File_write_at_all_end" EndFileTransfer;
    FileWriteAllBegin = 323 "MPI_File_write_all_begin" StartFileTransfer;
    FileWriteAllEnd = 324 "MPI_File_write_all_end" EndFileTransfer;
    FileWriteOrderedBegin = 325 "MPI_File_write_ordered_begin" StartFileTransfer;
    FileWriteOrderedEnd = 326 "MPI_File_write_ordered_end" EndFileTransfer;
    Pack = 340 "MPI_Pack" Local;
    Unpack = 341 "MPI_Unpack" Local;
    PackExternal = 342 "MPI_Pack_external" Local;
    UnpackExternal = 343 "MPI_Unpack_external" Local;
    ReduceLocal = 344 "MPI_Reduce_local" Local;
    BufferAttach = 345 "MPI_Buffer_attach" Local;
    BufferDetach = 346 "MPI_Buffer_detach" Local;
}

impl Function {
    /// Returns the blocking function that does the same as this function: `MPI_Send` for `MPI_Isend` and `MPI_Send_init`, `MPI_Bcast` for
    /// `MPI_Ibcast` and `MPI_Bcast_init`, `MPI_File_read` for `MPI_File_iread`. Returns the function itself where it blocks already or has
    /// no blocking form.
    pub fn blocking(self) -> Function {
        use Function::*;
        match self {
            Iprobe => Probe,
            Improbe => Mprobe,
            Isend | SendInit | PsendInit => Send,
            Ibsend | BsendInit => Bsend,
            Issend | SsendInit => Ssend,
            Irsend | RsendInit => Rsend,
            Irecv | RecvInit | PrecvInit => Recv,
            Imrecv => Mrecv,
            Isendrecv => Sendrecv,
            IsendrecvReplace => SendrecvReplace,
            Ibarrier | BarrierInit => Barrier,
            Ibcast | BcastInit => Bcast,
            Ireduce | ReduceInit => Reduce,
            Iallreduce | AllreduceInit => Allreduce,
            Igather | GatherInit => Gather,
            Igatherv | GathervInit => Gatherv,
            Iscatter | ScatterInit => Scatter,
            Iscatterv | ScattervInit => Scatterv,
            Iallgather | AllgatherInit => Allgather,
            Iallgatherv | AllgathervInit => Allgatherv,
            Ialltoall | AlltoallInit => Alltoall,
            Ialltoallv | AlltoallvInit => Alltoallv,
            Ialltoallw | AlltoallwInit => Alltoallw,
            IreduceScatter | ReduceScatterInit => ReduceScatter,
            IreduceScatterBlock | ReduceScatterBlockInit => ReduceScatterBlock,
            Iscan | ScanInit => Scan,
            Iexscan | ExscanInit => Exscan,
            IneighborAllgather | NeighborAllgatherInit => NeighborAllgather,
            IneighborAllgatherv | NeighborAllgathervInit => NeighborAllgatherv,
            IneighborAlltoall | NeighborAlltoallInit => NeighborAlltoall,
            IneighborAlltoallv | NeighborAlltoallvInit => NeighborAlltoallv,
            IneighborAlltoallw | NeighborAlltoallwInit => NeighborAlltoallw,
            CommIdup => CommDup,
            CommIdupWithInfo => CommDupWithInfo,
            WinTest => WinWait,
            Rput => Put,
            Rget => Get,
            Raccumulate => Accumulate,
            RgetAccumulate => GetAccumulate,
            FileIreadAt => FileReadAt,
            FileIreadAtAll | FileReadAtAllBegin | FileReadAtAllEnd => FileReadAtAll,
            FileIread => FileRead,
            FileIreadAll | FileReadAllBegin | FileReadAllEnd => FileReadAll,
            FileIreadShared => FileReadShared,
            FileReadOrderedBegin | FileReadOrderedEnd => FileReadOrdered,
            FileIwriteAt => FileWriteAt,
            FileIwriteAtAll | FileWriteAtAllBegin | FileWriteAtAllEnd => FileWriteAtAll,
            FileIwrite => FileWrite,
            FileIwriteAll | FileWriteAllBegin | FileWriteAllEnd => FileWriteAll,
            FileIwriteShared => FileWriteShared,
            FileWriteOrderedBegin | FileWriteOrderedEnd => FileWriteOrdered,
            _ => self,
        }
    }
}

/// Serializes the variant's name in human-readable formats, otherwise the number. New functions thus do not change the serialized form of
/// old ones.
impl Serialize for Function {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(self.variant())
        } else {
            serializer.serialize_u16(*self as u16)
        }
    }
}

impl<'de> Deserialize<'de> for Function {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Function, D::Error> {
        if deserializer.is_human_readable() {
            let name = String::deserialize(deserializer)?;
            let found = Function::ALL
                .iter()
                .find(|function| function.variant() == name);
            found
                .copied()
                .ok_or_else(|| de::Error::custom(format_args!("no MPI function {name}")))
        } else {
            let number = u16::deserialize(deserializer)?;
            Function::from_number(number).ok_or_else(|| {
                de::Error::custom(format_args!("no MPI function has the number {number}"))
            })
        }
    }
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

    #[test]
    fn every_nonblocking_form_has_a_blocking_one() {
        use Class::*;
        for &function in Function::ALL {
            let blocking = function.blocking();
            assert_eq!(blocking.blocking(), blocking);
            let expected = match function.class() {
                StartSend => Some(Send),
                StartReceive => Some(Receive),
                StartSendReceive => Some(SendReceive),
                StartCollective | PrepareCollective => Some(Collective),
                StartNeighbor | PrepareNeighbor => Some(Neighbor),
                StartRma => Some(Rma),
                StartFileTransfer | EndFileTransfer => Some(FileTransfer),
                _ => None,
            };
            if let Some(class) = expected {
                assert_eq!(blocking.class(), class, "{function}");
                // The names of `MPI_Ibcast`, `MPI_Bcast_init`, `MPI_File_iread` and similar functions contain the blocking function's name.
                let plain = blocking
                    .name()
                    .to_lowercase()
                    .replace("mpi_", "")
                    .replace("file_", "");
                let own = function
                    .name()
                    .to_lowercase()
                    .replace("mpi_", "")
                    .replace("file_", "");
                let own = own
                    .trim_end_matches("_init")
                    .trim_end_matches("_begin")
                    .trim_end_matches("_end");
                assert!(
                    own == plain
                        || own.get(1..) == Some(&plain)
                        || own == format!("im{}", &plain[1..]),
                    "{function} of {blocking}"
                );
            }
        }
    }
}
