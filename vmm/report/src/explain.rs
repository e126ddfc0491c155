//! Meanings of figures, in a sentence each, for the headings of tables and the parts of charts.

/// For each figure: the table or chart that contains it, its name there, and its meaning. An empty table name means that the figure has the
/// same meaning in all tables. A name that ends in `*` matches all names that begin like it.
const MEANINGS: &[(&str, &str, &str)] = &[
    // Figures of a window.
    (
        "",
        "instr.",
        "Instructions retired outside MPI, counted. Every CPI is divided by them.",
    ),
    (
        "",
        "CPI",
        "Cycles per instruction: cycles over the instructions retired outside MPI.",
    ),
    (
        "",
        "core",
        "Cycles of the core itself, as if the first cache level served every load.",
    ),
    (
        "",
        "L*",
        "Cycles that misses of this cache level add: misses times latency.",
    ),
    (
        "",
        "mem loc",
        "Cycles that references to the memory of the own socket add.",
    ),
    (
        "",
        "mem rem",
        "Cycles that references to the memory of another socket add.",
    ),
    (
        "",
        "mem other",
        "Cycles that other references to memory add.",
    ),
    (
        "",
        "MPI",
        "Cycles that pass inside MPI calls: executing, stalled and waiting.",
    ),
    (
        "",
        "spinning",
        "Cycles outside MPI calls in which threads wait for others: in OpenMP's runtime, and in loops with PAUSE.",
    ),
    (
        "",
        "unattrib.",
        "Stall cycles that no event of the models accounts for.",
    ),
    (
        "",
        "sum",
        "All modelled cycles: the sum of the columns to the right, without idle.",
    ),
    (
        "",
        "idle",
        "Cycles that vCPUs slept outside MPI calls. They belong to the node, and to no CPI.",
    ),
    ("", "clocks", "Cycles by which the vCPUs' clocks advanced."),
    (
        "",
        "FLOPs",
        "Floating-point operations, counted: an FMA is two, and every lane counts.",
    ),
    (
        "causes",
        "all stalls",
        "CPI of equation (1): the core's cycles and every stall in full.",
    ),
    (
        "causes",
        "core",
        "Executing instructions, with all data in the first level and all branches predicted.",
    ),
    (
        "causes",
        "share",
        "Share of the cycles that the pipeline model gives all code.",
    ),
    (
        "causes",
        "bad spec",
        "Branches that were predicted wrongly.",
    ),
    (
        "causes",
        "TLB",
        "Translations that the first level of the TLB did not have.",
    ),
    (
        "causes",
        "oth cache",
        "Waiting for caches of other cores and sockets.",
    ),
    (
        "cores",
        "on core",
        "The core that a model has timed the code for.",
    ),
    (
        "cores",
        "stalls",
        "Cycles that caches and memory add, every miss counted in full.",
    ),
    (
        "cores",
        "formula",
        "Floating-point rate of one core by the published formula: frequency / (core / alpha + stalls + MPI).",
    ),
    (
        "cores",
        "overlapped",
        "CPI with the stalls divided by the number of misses that overlap.",
    ),
    (
        "blocks",
        "core",
        "The core whose model has no cycles for the block.",
    ),
    (
        "blocks",
        "function",
        "The function that the block begins in.",
    ),
    (
        "blocks",
        "reason",
        "Why the model has no cycles; the block takes the mean of all others.",
    ),
    ("blocks", "share", "Share of the window's instructions."),
    ("mpi terms", "function", "MPI function."),
    (
        "mpi terms",
        "calls",
        "Calls that ended in the window, counted; every poll is a call.",
    ),
    ("mpi terms", "P", "Calls for each instruction outside MPI."),
    (
        "mpi terms",
        "L, cycles",
        "Mean cycles of a call, waiting included.",
    ),
    ("mpi terms", "CPI", "P x L: the function's part of the CPI."),
    (
        "mpi terms",
        "executing",
        "Cycles of instructions inside the calls, of MPI and of the kernel, while the rank did not wait.",
    ),
    (
        "mpi terms",
        "stalled",
        "Cycles of stalls for caches and memory inside the calls, while the rank did not wait.",
    ),
    (
        "mpi terms",
        "waiting",
        "Cycles in which the rank could not go on: a message or another rank had not come. Asleep or polling.",
    ),
    ("events", "event", "The model's name of the event."),
    (
        "events",
        "term",
        "Term of the CPI that the event belongs to.",
    ),
    (
        "events",
        "count",
        "Events outside MPI, counted by the model.",
    ),
    ("events", "P", "Events for each instruction outside MPI."),
    (
        "events",
        "L, cycles",
        "Latency of an event, as the study states it.",
    ),
    ("events", "CPI", "P x L: the event's part of the CPI."),
    ("rates", "in MPI", "Of these, operations inside MPI calls."),
    (
        "rates",
        "alpha",
        "Floating-point operations for each instruction, both outside MPI.",
    ),
    (
        "rates",
        "formula",
        "By the published formula, one core: frequency / (core / alpha + caches + memory + MPI). Near the direct figures only where alpha is near 1.",
    ),
    (
        "rates",
        "direct, busy",
        "Counted operations over the time in which the core was busy, MPI included: of one core.",
    ),
    (
        "rates",
        "direct, window",
        "Counted operations over the window's time, idle time included: of all cores of the row.",
    ),
    ("classes", "x87", "Operations of the x87 unit."),
    (
        "classes",
        "sc. f32",
        "Scalar operations on single precision.",
    ),
    (
        "classes",
        "sc. f64",
        "Scalar operations on double precision.",
    ),
    (
        "classes",
        "128 f32",
        "Operations of 128-bit vectors of single precision; every lane counts.",
    ),
    (
        "classes",
        "128 f64",
        "Operations of 128-bit vectors of double precision; every lane counts.",
    ),
    (
        "classes",
        "256 f32",
        "Operations of 256-bit vectors of single precision; every lane counts.",
    ),
    (
        "classes",
        "256 f64",
        "Operations of 256-bit vectors of double precision; every lane counts.",
    ),
    (
        "privileges",
        "mode",
        "The program (user), or the kernel on its behalf.",
    ),
    (
        "privileges",
        "instr.",
        "Instructions retired, inside and outside MPI.",
    ),
    (
        "privileges",
        "cycles",
        "Cycles of instructions and stalls, without waiting.",
    ),
    (
        "privileges",
        "loads",
        "Data reads, one for each cache line touched.",
    ),
    (
        "privileges",
        "stores",
        "Data writes, one for each cache line touched.",
    ),
    (
        "privileges",
        "fetches",
        "Instruction fetches, one for each cache line entered.",
    ),
    // Figures of a window's code.
    (
        "code",
        "function",
        "The function, without what it calls; module+offset where no symbol is known.",
    ),
    (
        "code",
        "module",
        "Program, library or kernel that has the function.",
    ),
    (
        "code",
        "line",
        "Source line, by the program's debugging information.",
    ),
    ("code", "share", "Share of the cycles of the window's code."),
    (
        "code",
        "cycles",
        "Modelled cycles: core and stalls, without sleeping.",
    ),
    ("code", "instr.", "Instructions retired, counted."),
    ("code", "IPC", "Instructions per cycle."),
    (
        "code",
        "CPI",
        "Cycles for each of the code's own instructions.",
    ),
    ("code", "FLOP", "Floating-point operations, counted."),
    (
        "code",
        "FLOP/B",
        "Floating-point operations for each byte that memory answered (64 bytes for each reference).",
    ),
    (
        "code",
        "L2",
        "References that missed the first level and that the second level answered.",
    ),
    (
        "code",
        "L3",
        "References that the third level or another core's cache answered.",
    ),
    ("code", "memory", "References that memory answered."),
    ("code", "stalled", "Cycles of stalls for caches and memory."),
    (
        "code stack",
        "function",
        "The function, without what it calls.",
    ),
    (
        "code stack",
        "line",
        "Source line, by the program's debugging information.",
    ),
    (
        "code stack",
        "CPI",
        "Cycles for each of the code's own instructions.",
    ),
    ("code stack", "other", "Cycles that other stalls add."),
    (
        "code stack",
        "core: *",
        "Cycles that this further core itself would take for each instruction.",
    ),
    (
        "contended",
        "data",
        "Variable at the line's first used byte, and the line's offset from it; an address on heaps and stacks.",
    ),
    (
        "contended",
        "sharing",
        "True if a vCPU touched bytes that another vCPU wrote; false if each used bytes of its own.",
    ),
    (
        "contended",
        "code",
        "Function and source line that used the line of memory.",
    ),
    (
        "contended",
        "access",
        "Whether the code reads or writes; locked: by an instruction that has the line for itself.",
    ),
    (
        "contended",
        "bytes",
        "Bytes of the line that the code touched, counted from the line's first byte.",
    ),
    ("contended", "vCPUs", "vCPUs that ran the code."),
    (
        "contended",
        "taken",
        "Number of times that the line came from another vCPU.",
    ),
    (
        "contended",
        "cycles",
        "Cycles in which vCPUs waited for the line.",
    ),
    (
        "contended",
        "share",
        "Share of these cycles in all cycles of the window's code.",
    ),
    (
        "roofline",
        "function",
        "The function, with its number in the chart.",
    ),
    (
        "roofline",
        "L1",
        "FLOP for each byte of data accesses (8 bytes each).",
    ),
    (
        "roofline",
        "L*",
        "FLOP for each byte of the lines that this level answered.",
    ),
    (
        "roofline",
        "memory",
        "FLOP for each byte of the lines that memory answered.",
    ),
    (
        "roofline",
        "FLOP/s",
        "Rate while the function runs on one core.",
    ),
    (
        "roofline",
        "limit",
        "The lowest ceiling of the function: the core's peak, a level's latency, or a stated bandwidth.",
    ),
    (
        "roofline",
        "of limit",
        "The function's rate as a share of its lowest ceiling.",
    ),
    // MPI programs of the run.
    ("programs", "program", "Number of the program in the trace."),
    ("programs", "name", "Names of the program's executables."),
    (
        "programs",
        "ranks",
        "Number of ranks in the program's MPI_COMM_WORLD.",
    ),
    (
        "programs",
        "nodes",
        "Number of nodes that the program's ranks ran on.",
    ),
    (
        "programs",
        "from",
        "Virtual time of the program's first entry into MPI.",
    ),
    (
        "programs",
        "to",
        "Virtual time of the program's last exit from MPI.",
    ),
    (
        "programs",
        "calls",
        "Calls of all ranks, counted; every poll is a call.",
    ),
    (
        "programs",
        "in MPI",
        "Virtual time inside MPI calls, summed over the ranks.",
    ),
    // Figures of a program.
    ("run", "rank", "Rank in MPI_COMM_WORLD."),
    ("run", "node", "Node that the rank ran on."),
    ("run", "program", "The rank's program."),
    ("run", "function", "MPI function."),
    ("run", "calls", "Calls, counted; every poll is a call."),
    (
        "run",
        "calls/s",
        "Calls for each second of virtual time, from the first entry into MPI to the last exit.",
    ),
    (
        "run",
        "sent",
        "Bytes that the program passed to the calls to be sent.",
    ),
    ("run", "received", "Bytes that the calls received."),
    ("run", "in MPI", "Virtual time inside MPI calls."),
    ("run", "mean", "Mean virtual time of a call."),
    ("run", "longest", "Virtual time of the longest call."),
    ("run", "total", "Virtual time of all calls together."),
    (
        "run",
        "share",
        "Share of the time from the first entry into MPI to the last exit, of the row's ranks.",
    ),
    ("run", "from", "Rank that sends."),
    ("run", "to", "Rank that receives."),
    (
        "run",
        "to *",
        "What this rank receives from the rank of the row: bytes (B) or messages (msg).",
    ),
    (
        "run",
        "messages",
        "Point-to-point messages, counted where the send begins.",
    ),
    ("run", "bytes", "Bytes of the messages."),
    (
        "sizes",
        "at most",
        "Largest size of the class. A class begins above the largest size of the class before.",
    ),
    (
        "sizes",
        "messages",
        "Point-to-point messages of this class.",
    ),
    (
        "sizes",
        "of messages",
        "Share of all point-to-point messages.",
    ),
    ("sizes", "bytes", "Bytes of the messages of this class."),
    (
        "sizes",
        "of bytes",
        "Share of the bytes of all point-to-point messages.",
    ),
    ("network", "node", "Host name of the node."),
    ("network", "frames out", "Frames that the node sent."),
    ("network", "out", "Bytes of the frames that the node sent."),
    ("network", "frames in", "Frames that the node received."),
    (
        "network",
        "in",
        "Bytes of the frames that the node received.",
    ),
    (
        "network",
        "dropped",
        "Frames that had no destination, or did not fit into the switch's buffer.",
    ),
    (
        "side",
        "line",
        "Line of the source, as the debugging information has it.",
    ),
    ("side", "source", "Text of the line."),
    ("side", "share", "Share of the window's cycles."),
    ("side", "cycles", "Modelled cycles of the line."),
    (
        "side",
        "by cause",
        "The line's cycles by term of the CPI, or by cause where the pipeline model ran. The longest bar is the most expensive line.",
    ),
    (
        "timeline",
        "point to point, one-sided",
        "Calls that send, receive, put or get.",
    ),
    (
        "timeline",
        "completion (wait, test)",
        "Calls that wait for operations that were started before, or look whether they have ended.",
    ),
    (
        "timeline",
        "collective",
        "Calls that all ranks of a communicator make together.",
    ),
    (
        "timeline",
        "set-up",
        "Initialisation and end, communicators, windows, and local calls.",
    ),
    ("timeline", "files", "Calls of MPI-IO."),
    (
        "timeline",
        "measured by a window",
        "When a window of the study measured.",
    ),
    ("sources", "figures", "Kind of figure."),
    ("sources", "unit", "Unit of the figure."),
    (
        "sources",
        "source",
        "Counted by the emulator, modelled by a plug-in, stated in the study, or imported.",
    ),
    ("equations", "number", "Number in the publication."),
    (
        "equations",
        "where",
        "Figure of this report that the equation gives.",
    ),
    ("equations", "equation", "The equation in words."),
];

/// Returns the meaning of a figure in a table or chart (`topic`), or else its meaning in all tables; `None` for an unknown figure.
pub(crate) fn meaning(topic: &str, name: &str) -> Option<&'static str> {
    let of = |topic: &str| {
        let mut all = MEANINGS.iter().filter(|(of, ..)| *of == topic);
        let exact = all.clone().find(|(_, figure, _)| *figure == name);
        let begins = |figure: &str| {
            figure
                .strip_suffix('*')
                .is_some_and(|so| name.starts_with(so))
        };
        exact.or_else(|| all.find(|(_, figure, _)| begins(figure)))
    };
    of(topic).or_else(|| of("")).map(|(.., meaning)| *meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_what_it_does_in_its_table() {
        assert!(meaning("cores", "core").unwrap().contains("itself"));
        assert!(meaning("blocks", "core").unwrap().contains("model"));
        assert_eq!(meaning("stack", "L4+"), meaning("", "L1"));
        assert!(meaning("code", "L2").unwrap().starts_with("References"));
        assert_eq!(meaning("run", "no such figure"), None);
    }

    #[test]
    fn each_meaning_is_a_short_sentence() {
        for (topic, name, meaning) in MEANINGS {
            assert!(
                meaning.ends_with('.') && meaning.len() <= 150,
                "{topic} {name}: {meaning}"
            );
            let same = MEANINGS
                .iter()
                .filter(|(of, figure, _)| (of, figure) == (topic, name));
            assert_eq!(same.count(), 1, "{topic} {name}");
        }
    }
}
