//! Meaning of the numbers in a .prv file, and the .pcf file that declares it.

use std::fmt::Write;

use nodescope_hypercall::{Class, Function};

use crate::labels::communicator_name;
use crate::survey::Survey;

/// Numbers of the event types in a .prv file.
pub(super) mod kind {
    pub(crate) const POINT_TO_POINT: u32 = 50_000_001;
    pub(crate) const COLLECTIVE: u32 = 50_000_002;
    pub(crate) const OTHER: u32 = 50_000_003;
    pub(crate) const RMA: u32 = 50_000_004;
    pub(crate) const FILE: u32 = 50_000_005;
    pub(crate) const SEND_SIZE: u32 = 50_100_001;
    pub(crate) const RECEIVE_SIZE: u32 = 50_100_002;
    pub(crate) const ROOT: u32 = 50_100_003;
    pub(crate) const COMMUNICATOR: u32 = 50_100_004;
    pub(crate) const INSTRUCTIONS: u32 = 42_000_050;
    pub(crate) const CALLER: u32 = 70_000_001;
    pub(crate) const WINDOW: u32 = 90_000_001;
}

/// Names of the states of a thread; the index is the state's number in a .prv file.
pub(super) const STATES: [&str; 17] = [
    "Idle",
    "Running",
    "Not created",
    "Waiting a message",
    "Blocking Send",
    "Synchronization",
    "Test/Probe",
    "Scheduling and Fork/Join",
    "Wait/WaitAll",
    "Blocked",
    "Immediate Send",
    "Immediate Receive",
    "I/O",
    "Group Communication",
    "Tracing Disabled",
    "Others",
    "Send Receive",
];
const COLOURS: [(u8, u8, u8); 17] = [
    (117, 195, 255),
    (0, 0, 255),
    (255, 255, 255),
    (255, 0, 0),
    (255, 0, 174),
    (179, 0, 0),
    (0, 255, 0),
    (255, 255, 0),
    (235, 0, 0),
    (0, 162, 0),
    (255, 0, 255),
    (100, 100, 177),
    (172, 174, 41),
    (255, 144, 26),
    (2, 255, 177),
    (192, 224, 0),
    (66, 66, 66),
];
pub(super) const RUNNING: u64 = 1;
pub(super) const NOT_CREATED: u64 = 2;

/// Returns the number of Paraver's state for a thread that is inside an MPI function.
pub(super) fn state(function: Function) -> u64 {
    use Function::*;
    match function {
        Recv | Mrecv => 3,
        Send | Bsend | Ssend | Rsend => 4,
        Barrier => 5,
        Probe | Iprobe | Mprobe | Improbe | Test | Testall | Testany | Testsome => 6,
        Wait | Waitall | Waitany | Waitsome => 8,
        Sendrecv | SendrecvReplace => 16,
        function => match function.class() {
            Class::StartSend => 10,
            Class::StartReceive => 11,
            Class::Collective | Class::Neighbor => 13,
            Class::File | Class::FileTransfer | Class::EndFileTransfer => 12,
            _ => 15,
        },
    }
}

/// Returns the number of the event type for calls of an MPI function, such as that of point-to-point functions.
pub(crate) fn event_type(function: Function) -> u32 {
    match function.class() {
        Class::Send
        | Class::Receive
        | Class::SendReceive
        | Class::StartSend
        | Class::StartReceive
        | Class::StartSendReceive
        | Class::Persistent
        | Class::Partition
        | Class::Completion => kind::POINT_TO_POINT,
        Class::Collective
        | Class::StartCollective
        | Class::PrepareCollective
        | Class::Neighbor
        | Class::StartNeighbor
        | Class::PrepareNeighbor => kind::COLLECTIVE,
        Class::Epoch | Class::Rma | Class::StartRma => kind::RMA,
        Class::File | Class::FileTransfer | Class::StartFileTransfer | Class::EndFileTransfer => {
            kind::FILE
        }
        _ => kind::OTHER,
    }
}

/// Returns the value that represents an MPI function in events of the function's type ([`event_type`]).
pub(crate) fn event_value(function: Function) -> u64 {
    use Function::*;
    match function {
        Send => 1,
        Recv => 2,
        Isend => 3,
        Irecv => 4,
        Wait => 5,
        Waitall => 6,
        Bcast => 7,
        Barrier => 8,
        Reduce => 9,
        Allreduce => 10,
        Alltoall => 11,
        Alltoallv => 12,
        Gather => 13,
        Gatherv => 14,
        Scatter => 15,
        Scatterv => 16,
        Allgather => 17,
        Allgatherv => 18,
        CommCreate => 21,
        CommDup => 22,
        CommSplit => 23,
        CommFree => 25,
        Scan => 30,
        Init => 31,
        Finalize => 32,
        Bsend => 33,
        Ssend => 34,
        Rsend => 35,
        Ibsend => 36,
        Issend => 37,
        Irsend => 38,
        Test => 39,
        Cancel => 40,
        Sendrecv => 41,
        SendrecvReplace => 42,
        CartCreate => 43,
        CartSub => 49,
        GraphCreate => 54,
        Waitany => 59,
        Waitsome => 60,
        Probe => 61,
        Iprobe => 62,
        ReduceScatter => 80,
        IntercommCreate => 96,
        IntercommMerge => 97,
        Abort => 100,
        BsendInit => 112,
        RequestFree => 115,
        RecvInit => 116,
        SendInit => 117,
        RsendInit => 121,
        SsendInit => 122,
        Start => 123,
        Startall => 124,
        Testall => 125,
        Testany => 126,
        Testsome => 128,
        WinCreate => 63,
        WinFree => 64,
        Put => 65,
        Get => 66,
        Accumulate => 67,
        WinFence => 68,
        WinStart => 69,
        WinComplete => 70,
        WinPost => 71,
        WinWait => 72,
        WinTest => 73,
        WinLock => 74,
        WinUnlock => 75,
        Pack => 76,
        Unpack => 77,
        BufferAttach => 113,
        BufferDetach => 114,
        FileOpen => 141,
        FileClose => 142,
        FileRead => 143,
        FileReadAll => 144,
        FileWrite => 145,
        FileWriteAll => 146,
        FileReadAt => 147,
        FileReadAtAll => 148,
        FileWriteAt => 149,
        FileWriteAtAll => 150,
        CommSpawn => 151,
        CommSpawnMultiple => 152,
        RequestGetStatus => 153,
        Ireduce => 154,
        Iallreduce => 155,
        Ibarrier => 156,
        Ibcast => 157,
        Ialltoall => 158,
        Ialltoallv => 159,
        Iallgather => 160,
        Iallgatherv => 161,
        Igather => 162,
        Igatherv => 163,
        Iscatter => 164,
        Iscatterv => 165,
        IreduceScatter => 166,
        Iscan => 167,
        other => 1000 + other as u64,
    }
}

/// Returns the text of the .pcf: names and colours of states, names of events and of their values.
pub(super) fn configuration(survey: &Survey) -> String {
    let mut text = String::from(
        "DEFAULT_OPTIONS\n\nLEVEL               THREAD\nUNITS               NANOSEC\nLOOK_BACK           100\nSPEED               1\n\
         FLAG_ICONS          ENABLED\nNUM_OF_STATE_COLORS 1000\nYMAX_SCALE          37\n\n\nDEFAULT_SEMANTIC\n\nTHREAD_FUNC          State As Is\n\n\nSTATES\n",
    );
    for (number, name) in STATES.iter().enumerate() {
        let _ = writeln!(text, "{number}    {name}");
    }
    text.push_str("\n\nSTATES_COLOR\n");
    for (number, (red, green, blue)) in COLOURS.iter().enumerate() {
        let _ = writeln!(text, "{number}    {{{red},{green},{blue}}}");
    }
    for (kind, label) in [
        (kind::POINT_TO_POINT, "MPI Point-to-point"),
        (kind::COLLECTIVE, "MPI Collective Comm"),
        (kind::OTHER, "MPI Other"),
        (kind::RMA, "MPI One-sided"),
        (kind::FILE, "MPI I/O"),
    ] {
        let functions = survey.functions.iter();
        let mut functions = functions
            .filter(|&&function| event_type(function) == kind)
            .peekable();
        if functions.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "\n\nEVENT_TYPE\n9    {kind}    {label}\nVALUES");
        for function in functions {
            let _ = writeln!(text, "{}   {function}", event_value(*function));
        }
        text.push_str("0   Outside MPI\n");
    }
    let _ = writeln!(
        text,
        "\n\nEVENT_TYPE\n1    {}    Send Size in MPI Global OP\n1    {}    Recv Size in MPI Global OP\n1    {}    Root in MPI Global OP\n1    {}    Communicator in MPI Global OP",
        kind::SEND_SIZE,
        kind::RECEIVE_SIZE,
        kind::ROOT,
        kind::COMMUNICATOR
    );
    for (number, world) in survey.worlds.iter().enumerate() {
        for (at, communicator) in world.communicators.iter().enumerate() {
            let _ = writeln!(
                text,
                "# communicator {} of application {}: {}",
                at + 1,
                number + 1,
                communicator_name(world, communicator.id)
            );
        }
    }
    let _ = writeln!(
        text,
        "\n\nEVENT_TYPE\n7    {}    Instructions completed",
        kind::INSTRUCTIONS
    );
    if !survey.call_sites.is_empty() {
        let _ = writeln!(
            text,
            "\n\nEVENT_TYPE\n0    {}    Caller at level 1\nVALUES\n0   End",
            kind::CALLER
        );
        for (site, number) in survey.call_sites.iter().zip(1..) {
            let _ = writeln!(text, "{number}   {}", survey.site_name(site));
        }
    }
    let _ = writeln!(
        text,
        "\n\nEVENT_TYPE\n9    {}    Measurement window\nVALUES\n0   closed\n1   open",
        kind::WINDOW
    );
    text
}
