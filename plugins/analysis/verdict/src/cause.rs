//! Causes, their places, and the verdict.

use serde::Serialize;

use crate::text::remedy;

/// Least gain of a cause that is named, as a share of the run's time.
pub const LEAST_GAIN: f64 = 0.02;
/// Most causes that are named.
pub const MOST_CAUSES: usize = 6;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Ranks compute for different times between the same two calls.
    Imbalance,
    /// One rank, or few, computes while the others wait.
    SerialRank,
    /// One rank computes longer than the others, in many places.
    SlowRank,
    /// Each time another rank computes longest between the same two calls.
    VaryingWork,
    /// A barrier makes ranks wait that nothing else makes wait.
    Barrier,
    /// A collective operation.
    Collective,
    /// Many short messages where few would do.
    ShortMessages,
    /// Sends of large messages wait for their receives.
    LateReceiver,
    /// Ranks wait for messages before they compute what may not need them.
    Overlap,
    /// Ranks that exchange much are on different nodes.
    Placement,
    /// The latency of the network, and of the software that sends and receives.
    Latency,
    /// The bandwidth of the network.
    Bandwidth,
    /// A loop computes with one number at a time.
    ScalarLoop,
    /// A line of code waits for caches or memory.
    MemoryBound,
    /// A line of code waits for memory of another socket.
    RemoteMemory,
    /// Threads take lines of memory from each other.
    ContendedLine,
    /// Threads of a loop have unequal work.
    ThreadImbalance,
    /// One thread computes while the others wait.
    SerialThread,
}

impl Kind {
    /// The kinds that a trace shows.
    pub const OF_TRACE: [Kind; 12] = [
        Kind::Imbalance,
        Kind::SerialRank,
        Kind::SlowRank,
        Kind::VaryingWork,
        Kind::Barrier,
        Kind::Collective,
        Kind::ShortMessages,
        Kind::LateReceiver,
        Kind::Overlap,
        Kind::Placement,
        Kind::Latency,
        Kind::Bandwidth,
    ];
    /// The kinds that a window's profile shows.
    pub const OF_WINDOWS: [Kind; 3] = [Kind::MemoryBound, Kind::RemoteMemory, Kind::ContendedLine];
    /// The kinds that the machine code of a window shows.
    pub const OF_CODE: [Kind; 1] = [Kind::ScalarLoop];
    /// The kinds that records of OpenMP show.
    pub const OF_THREADS: [Kind; 2] = [Kind::ThreadImbalance, Kind::SerialThread];

    /// Returns the kind in words, as what may be ruled out.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Imbalance => "imbalance between ranks",
            Kind::SerialRank => "work of one rank alone",
            Kind::SlowRank => "a slow rank",
            Kind::VaryingWork => "work that varies from step to step",
            Kind::Barrier => "barriers",
            Kind::Collective => "collective operations",
            Kind::ShortMessages => "short messages",
            Kind::LateReceiver => "late receivers",
            Kind::Overlap => "waiting that computing could hide",
            Kind::Placement => "placement of ranks",
            Kind::Latency => "latency of messages",
            Kind::Bandwidth => "bandwidth of the network",
            Kind::ScalarLoop => "loops without vector instructions",
            Kind::MemoryBound => "waiting for caches and memory",
            Kind::RemoteMemory => "waiting for memory of other sockets",
            Kind::ContendedLine => "lines of memory that threads take from each other",
            Kind::ThreadImbalance => "imbalance between threads",
            Kind::SerialThread => "code of one thread",
        }
    }
}

/// How a gain is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// From the trace, replayed with the remedy.
    Replayed,
    /// At most this.
    Bound,
}

/// A place in the program: a call, or the code between two calls.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The place as text.
    pub text: String,
    /// Function, file and line of the code that costs the time, where a window has measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// World rank that the place concerns most; `None` for all.
    pub rank: Option<u32>,
}

/// A cause of lost time, with its remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// What happens.
    pub kind: Kind,
    /// How the gain is known.
    pub class: Class,
    /// Time that the remedy saves once the remedies of the replayed causes before are applied, picoseconds.
    pub gain_ps: u64,
    /// The same as a share of the run's time.
    pub gain: f64,
    /// Where it happens.
    pub place: Place,
    /// One sentence on what happens.
    pub what: String,
    /// One sentence on what to try.
    pub remedy: String,
}

/// A kind of cause with no gain worth a remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuledOut {
    /// The kind.
    pub kind: Kind,
    /// The largest gain of such a cause, as a share of the run's time, 0 if there was no candidate.
    pub gain: f64,
}

impl Verdict {
    /// Adds causes of some kinds, which were looked for elsewhere than in the trace. Their gains are bounds. Kinds without a cause are ruled
    /// out.
    pub fn add(&mut self, kinds: &[Kind], causes: Vec<Cause>) {
        for &kind in kinds {
            let gains = causes.iter().filter(|cause| cause.kind == kind);
            let gain = gains.map(|cause| cause.gain).fold(0.0, f64::max);
            if gain < LEAST_GAIN {
                self.ruled_out.push(RuledOut { kind, gain });
            }
        }
        for cause in causes.into_iter().filter(|cause| cause.gain >= LEAST_GAIN) {
            let mut others = self.causes.iter();
            let before = others.position(|other| other.gain < cause.gain);
            let at = before.unwrap_or(self.causes.len());
            self.causes.insert(at, cause);
        }
        self.causes.truncate(MOST_CAUSES);
    }

    /// Returns a cause whose removal saves at most a share of the run's time.
    pub fn at_most(&self, kind: Kind, gain: f64, place: Place, what: String) -> Cause {
        Cause {
            kind,
            class: Class::Bound,
            gain_ps: (gain * self.traced_ps as f64) as u64,
            gain,
            place,
            what,
            remedy: remedy(kind).to_owned(),
        }
    }
}

/// The verdict on a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Time of the traced run from the end of MPI's initialisation, picoseconds.
    pub traced_ps: u64,
    /// What the run takes longer than its replay, picoseconds: connections that MPI makes at first use.
    pub start_up_ps: u64,
    /// Time of the replay without any remedy, picoseconds.
    pub replayed_ps: u64,
    /// Causes, at most [`MOST_CAUSES`]. Replayed ones are in the order in which their remedies are applied.
    pub causes: Vec<Cause>,
    /// Time of the replay with the remedies of all causes that the trace shows, picoseconds.
    pub remedied_ps: u64,
    /// Kinds of causes that were looked for and have less than [`LEAST_GAIN`].
    pub ruled_out: Vec<RuledOut>,
    /// How good the data are: sentences on what makes the gains less certain.
    pub quality: Vec<String>,
}
