//! Programs that SimGrid and the interpreter both replay, and by how much their times may differ.
//!
//! Where the interpreter's messages share links as SimGrid's do, every case must agree within [`WITHIN`]. Where its messages follow one
//! another on a link, only cases without a [`Case::reason`] must. `docs/simgrid.md` explains the others.

use std::path::Path;

use nodescope_loop_tree::{CollectiveKind as Kind, Program};
use nodescope_predict::{
    Algorithm, Cluster, Code, FitError, Options, Selected, Sharing, interpret,
};

use crate::actions::{self, ActionError};
use crate::platform::{Platform, Shape};
use crate::programs::{Halo, collective, ping_pong, ring, shifts, sweep, torus};
use crate::replay::{self, ReplayError};

/// Greatest relative difference from SimGrid's time that needs no explanation.
pub const WITHIN: f64 = 0.05;

/// Reason of a difference: messages share links in SimGrid, and follow one another on a link in the interpreter.
pub const SHARING: &str = "sharing";
/// Case of the comparison: a program on a platform.
#[derive(Debug)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// The program that is replayed.
    pub program: Program,
    /// Platform on which the program is replayed.
    pub platform: Platform,
    /// Cluster for the interpreter, with its choice of algorithms for collectives.
    pub cluster: Cluster,
    /// SimGrid's choice of algorithms for collectives, as options of smpirun.
    pub options: Vec<String>,
    /// Reason for which [`Times::here`] may differ from SimGrid's time by more than [`WITHIN`]; `None` if the two must agree.
    pub reason: Option<&'static str>,
}

/// Times of a case in seconds, and the length of its trace.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The interpreter's time, with messages that follow one another on links.
    pub here: f64,
    /// The interpreter's time, with messages that share links as SimGrid's do.
    pub shared: f64,
    /// SimGrid's time.
    pub there: f64,
    /// Number of actions in SimGrid's trace.
    pub actions: u64,
}

impl Times {
    /// Returns the relative difference of `here` from SimGrid's time.
    pub fn difference(&self) -> f64 {
        self.here / self.there - 1.0
    }

    /// Returns the relative difference of `shared` from SimGrid's time.
    pub fn shared_difference(&self) -> f64 {
        self.shared / self.there - 1.0
    }
}

/// Reason for which a case cannot be written or has no times.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The program cannot be written as a trace.
    #[error(transparent)]
    Actions(#[from] ActionError),
    /// The replay in SimGrid failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The program does not fit on the interpreter's cluster.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// The platform file or a temporary folder cannot be written.
    #[error("cannot write the platform: {0}")]
    Platform(#[from] std::io::Error),
    /// The program did not end in the interpreter.
    #[error("the interpretation has problems: {0}")]
    Problems(String),
}

impl Case {
    fn new(name: String, program: Program, platform: Platform) -> Case {
        Case {
            name,
            program,
            cluster: platform.cluster(),
            platform,
            options: Vec::new(),
            reason: None,
        }
    }

    /// Returns the interpreter's time in seconds, with messages that follow one another on links.
    ///
    /// # Errors
    ///
    /// A program that does not fit on the cluster or does not end.
    pub fn here(&self) -> Result<f64, CaseError> {
        self.on(&self.cluster)
    }

    /// Returns the interpreter's time where messages share links as in SimGrid, seconds.
    ///
    /// # Errors
    ///
    /// A program that does not fit on the cluster or does not end.
    pub fn shared(&self) -> Result<f64, CaseError> {
        self.on(&self.shared_cluster())
    }

    /// Returns the interpreter's cluster, with links that messages share as in SimGrid.
    pub fn shared_cluster(&self) -> Cluster {
        Cluster {
            sharing: Sharing::RoundTrip,
            ..self.cluster.clone()
        }
    }

    fn on(&self, cluster: &Cluster) -> Result<f64, CaseError> {
        let code = Code::new(&self.program);
        let outcome = interpret(&code, cluster, &Options::default())?;
        if !outcome.complete() {
            return Err(CaseError::Problems(format!("{:?}", outcome.problems)));
        }
        Ok(outcome.time as f64 / 1e12)
    }

    /// Writes the trace and the platform for SimGrid into a folder. Returns the number of actions and the options for smpirun.
    ///
    /// # Errors
    ///
    /// Files that cannot be written, and operations without an action.
    pub fn write(&self, folder: &Path) -> Result<(u64, Vec<String>), CaseError> {
        let actions = actions::write(&self.program, folder)?;
        self.platform.write(folder)?;
        let mut options = self.platform.options();
        options.extend(self.options.iter().cloned());
        Ok((actions, options))
    }

    /// Runs SimGrid's replay in a temporary folder, and the interpreter with both kinds of links.
    ///
    /// # Errors
    ///
    /// Fails if SimGrid or the interpreter fails.
    pub fn run(&self) -> Result<Times, CaseError> {
        let folder = tempfile::tempdir()?;
        let (actions, options) = self.write(folder.path())?;
        let ranks = self.program.ranks.len() as u32;
        let replay = replay::run(folder.path(), ranks, &options)?;
        Ok(Times {
            here: self.here()?,
            shared: self.shared()?,
            there: replay.simulated,
            actions,
        })
    }
}

const US: u64 = 1_000_000;

/// Returns a crossbar with a latency of 1.3 us and links of 10 Gbit/s.
fn crossbar(nodes: u32) -> Platform {
    Platform {
        shape: Shape::Crossbar { nodes },
        latency: 1_300_000,
        bandwidth: 1_250_000_000,
        eager_limit: 65536,
    }
}

fn square(side: u32) -> Platform {
    Platform {
        shape: Shape::Torus {
            size: vec![side, side],
        },
        latency: 200_000,
        ..crossbar(side * side)
    }
}

/// Returns cases of point-to-point messages: ping-pong, ring, halo exchange, wave front and shifts; with computation and without.
pub fn point_to_point() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, program, platform, reason| {
        let case = Case::new(name, program, platform);
        cases.push(Case { reason, ..case });
    };
    for bytes in [8, 1024, 65536, 65537, 1_000_000] {
        let name = format!("ping-pong, {bytes} B");
        add(name, ping_pong(bytes, 2000), crossbar(2), None);
    }
    for bytes in [8, 8192, 65536, 200_000] {
        for mean in [0, 10, 100] {
            let name = format!("ring of 16, {bytes} B, {mean} us of work");
            let reason = (bytes == 200_000 && mean == 10).then_some(SHARING);
            add(name, ring(16, bytes, mean * US, 500), crossbar(16), reason);
        }
    }
    for bytes in [8192, 65536, 200_000] {
        for mean in [0, 100] {
            let halo = Halo {
                side: 8,
                bytes,
                mean: mean * US,
                even: false,
                turns: 100,
                allreduce: None,
            };
            let name = |shape| format!("halo of 8 x 8 on a {shape}, {bytes} B, {mean} us of work");
            let reason = (bytes == 200_000 && mean == 100).then_some(SHARING);
            add(name("crossbar"), torus(halo), crossbar(64), reason);
            add(name("torus"), torus(halo), square(8), None);
        }
    }
    for (bytes, mean) in [
        (8, 100),
        (8192, 0),
        (8192, 100),
        (200_000, 0),
        (200_000, 100),
    ] {
        let name = format!("wave front of 6 x 6, {bytes} B, {mean} us of work");
        let reason = (bytes == 8192 && mean == 0).then_some(SHARING);
        add(name, sweep(6, bytes, mean * US, 100), crossbar(36), reason);
    }
    for bytes in [8192, 200_000] {
        let name = |shape| format!("shifts on a {shape}, {bytes} B");
        add(name("crossbar"), shifts(16, bytes, 300), crossbar(16), None);
        add(
            name("torus"),
            shifts(25, bytes, 300),
            square(5),
            Some(SHARING),
        );
    }
    cases
}

/// Sizes of vectors and blocks in bytes: multiples of both numbers of ranks (16 and 13), so that no block is shorter than the others.
const SIZES: [u64; 3] = [1040, 65_520, 399_984];

/// Collectives, each with the interpreter's algorithm and with smpirun's name of the same algorithm.
const ALGORITHMS: [(Kind, Algorithm, &str); 27] = [
    (
        Kind::Barrier,
        Algorithm::Dissemination,
        "barrier:ompi_bruck",
    ),
    (
        Kind::Barrier,
        Algorithm::RecursiveDoubling,
        "barrier:ompi_recursivedoubling",
    ),
    (
        Kind::Barrier,
        Algorithm::Linear,
        "barrier:ompi_basic_linear",
    ),
    (Kind::Bcast, Algorithm::Linear, "bcast:flattree"),
    (
        Kind::Bcast,
        Algorithm::BinomialInTurn,
        "bcast:binomial_tree",
    ),
    (Kind::Bcast, Algorithm::Pipeline, "bcast:NTSL"),
    (
        Kind::Bcast,
        Algorithm::ScatterAllgather,
        "bcast:scatter_LR_allgather",
    ),
    (Kind::Reduce, Algorithm::Linear, "reduce:flat_tree"),
    (Kind::Reduce, Algorithm::Binomial, "reduce:binomial"),
    (
        Kind::Reduce,
        Algorithm::Rabenseifner,
        "reduce:scatter_gather",
    ),
    (
        Kind::Allreduce,
        Algorithm::RecursiveDoubling,
        "allreduce:rdb",
    ),
    (Kind::Allreduce, Algorithm::Ring, "allreduce:lr"),
    (
        Kind::Allreduce,
        Algorithm::Rabenseifner,
        "allreduce:rab_rdb",
    ),
    (Kind::Gather, Algorithm::Linear, "gather:ompi_basic_linear"),
    (Kind::Gather, Algorithm::Binomial, "gather:ompi_binomial"),
    (
        Kind::Scatter,
        Algorithm::Linear,
        "scatter:ompi_basic_linear",
    ),
    (
        Kind::Scatter,
        Algorithm::BinomialAscending,
        "scatter:ompi_binomial",
    ),
    (
        Kind::Allgather,
        Algorithm::RecursiveDoubling,
        "allgather:rdb",
    ),
    (Kind::Allgather, Algorithm::Ring, "allgather:NTSLR"),
    (Kind::Allgather, Algorithm::Bruck, "allgather:bruck"),
    (Kind::Allgatherv, Algorithm::Ring, "allgatherv:mpich_ring"),
    (Kind::Allgatherv, Algorithm::Pairwise, "allgatherv:ring"),
    (Kind::Alltoall, Algorithm::Linear, "alltoall:basic_linear"),
    (Kind::Alltoall, Algorithm::Pairwise, "alltoall:ring"),
    (Kind::Alltoall, Algorithm::Bruck, "alltoall:bruck"),
    (
        Kind::ReduceScatter,
        Algorithm::Pairwise,
        "reduce_scatter:mpich_pair",
    ),
    (
        Kind::ReduceScatter,
        Algorithm::RecursiveHalving,
        "reduce_scatter:ompi_basic_recursivehalving",
    ),
];

/// Returns [`SHARING`] for collectives whose messages meet on links, so that it matters how links are shared; `None` for collectives whose
/// messages do not meet.
fn reason(kind: Kind, algorithm: Algorithm, ranks: u32, bytes: u64) -> Option<&'static str> {
    use Algorithm as A;
    // Messages meet where one rank sends several at once, and where a vector meets those of the next round.
    let (large, folds) = (bytes > 65_536, !ranks.is_power_of_two());
    let meet = match (kind, algorithm) {
        (Kind::Bcast, A::BinomialInTurn) => !large,
        (Kind::Bcast, A::Pipeline | A::ScatterAllgather) => true,
        (Kind::Bcast | Kind::Scatter, A::Linear) => bytes <= 1040,
        (Kind::Scatter, A::BinomialAscending) => bytes <= 1040,
        (Kind::Reduce, A::Rabenseifner) => bytes == 65_520,
        (Kind::Allreduce, A::Rabenseifner | A::RecursiveDoubling) => folds && !large,
        (Kind::Allgather | Kind::ReduceScatter, A::RecursiveDoubling | A::RecursiveHalving) => {
            folds && !large
        }
        (Kind::Allgatherv, A::Ring) => !large,
        (Kind::Allgatherv, A::Pairwise) => !large,
        _ => false,
    };
    meet.then_some(SHARING)
}

/// Returns cases of collectives between barriers, for each algorithm, number of ranks and size.
pub fn collectives() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, algorithm, there) in ALGORITHMS {
        for ranks in [16, 13] {
            for bytes in SIZES {
                let barrier = kind == Kind::Barrier;
                if barrier && bytes > 1024 {
                    continue;
                }
                let bytes = if barrier { 0 } else { bytes };
                let turns = if bytes > 1024 { 20 } else { 100 };
                let platform = crossbar(ranks);
                let segment = match algorithm {
                    Algorithm::Pipeline => 8192,
                    Algorithm::Ring if kind == Kind::Allgatherv => 262_144,
                    _ => 0,
                };
                let program = collective(kind, ranks, bytes, 0, turns);
                let name = match bytes {
                    0 => format!("{} of {ranks}, {algorithm}", kind.name()),
                    _ => format!("{} of {ranks}, {algorithm}, {bytes} B", kind.name()),
                };
                let mut case = Case::new(name, program, platform);
                case.cluster = (case.cluster)
                    .with_algorithm(Kind::Barrier, Algorithm::Dissemination.into())
                    .with_algorithm(kind, Selected { algorithm, segment });
                if !barrier {
                    case.options.push("--cfg=smpi/barrier:ompi_bruck".into());
                }
                case.options.push(format!("--cfg=smpi/{there}"));
                case.reason = reason(kind, algorithm, ranks, bytes);
                cases.push(case);
            }
        }
    }
    cases
}

/// Returns cases that mix computation with an all-reduce, some of them also with a halo exchange.
pub fn mixed() -> Vec<Case> {
    let mut cases = Vec::new();
    for (bytes, mean) in [(8192, 50), (65536, 500)] {
        for platform in [crossbar(64), square(8)] {
            let halo = Halo {
                side: 8,
                bytes,
                mean: mean * US,
                even: false,
                turns: 50,
                allreduce: Some(8),
            };
            let shape = match platform.shape {
                Shape::Crossbar { .. } => "crossbar",
                Shape::Torus { .. } => "torus",
            };
            let name =
                format!("halo and all-reduce of 8 x 8 on a {shape}, {bytes} B, {mean} us of work");
            let mut case = Case::new(name, torus(halo), platform);
            case.cluster =
                (case.cluster).with_algorithm(Kind::Allreduce, Algorithm::RecursiveDoubling.into());
            case.options.push("--cfg=smpi/allreduce:rdb".into());
            cases.push(case);
        }
    }
    for (ranks, bytes) in [(16, 64), (13, 64), (16, 8192), (13, 8192)] {
        let program = collective(Kind::Allreduce, ranks, bytes, 200 * US, 100);
        let name = format!("all-reduce of {ranks}, {bytes} B, 200 us of work");
        let mut case = Case::new(name, program, crossbar(ranks));
        case.cluster = (case.cluster)
            .with_algorithm(Kind::Barrier, Algorithm::Dissemination.into())
            .with_algorithm(Kind::Allreduce, Algorithm::RecursiveDoubling.into());
        case.options.push("--cfg=smpi/barrier:ompi_bruck".into());
        case.options.push("--cfg=smpi/allreduce:rdb".into());
        case.reason = (bytes == 8192).then_some(SHARING);
        cases.push(case);
    }
    cases
}

/// Returns larger cases, to compare how fast SimGrid and the interpreter replay them.
pub fn speed() -> Vec<Case> {
    let halo = |side, allreduce, turns| {
        torus(Halo {
            side,
            bytes: 8192,
            mean: 100 * US,
            even: false,
            turns,
            allreduce,
        })
    };
    let mut cases = vec![
        Case::new("ring of 64".into(), ring(64, 8192, 0, 200), crossbar(64)),
        Case::new("halo of 32 x 32".into(), halo(32, None, 10), crossbar(1024)),
        Case::new(
            "halo of 16 x 16 on a torus, all-reduce".into(),
            halo(16, Some(8), 20),
            square(16),
        ),
        Case::new(
            "all-reduce of 1024".into(),
            collective(Kind::Allreduce, 1024, 8, 0, 5),
            crossbar(1024),
        ),
        Case::new(
            "all-to-all of 64".into(),
            collective(Kind::Alltoall, 64, 1024, 0, 20),
            crossbar(64),
        ),
    ];
    for case in &mut cases {
        for (kind, algorithm, there) in [
            (
                Kind::Barrier,
                Algorithm::Dissemination,
                "barrier:ompi_bruck",
            ),
            (
                Kind::Allreduce,
                Algorithm::RecursiveDoubling,
                "allreduce:rdb",
            ),
            (Kind::Alltoall, Algorithm::Pairwise, "alltoall:ring"),
        ] {
            case.cluster = case.cluster.clone().with_algorithm(kind, algorithm.into());
            case.options.push(format!("--cfg=smpi/{there}"));
        }
    }
    cases
}

/// Returns cases whose traces are imported, folded and predicted: a torus of some 500 ranks, and about a hundred thousand ranks.
pub fn traced() -> Vec<Case> {
    let halo = |side, turns, allreduce| {
        torus(Halo {
            side,
            bytes: 8192,
            mean: 100 * US,
            even: false,
            turns,
            allreduce,
        })
    };
    let mut cases = vec![
        Case::new(
            "halo of 23 x 23 on a torus, all-reduce".into(),
            halo(23, 100, Some(8)),
            square(23),
        ),
        Case::new(
            "halo of 316 x 316 on a torus".into(),
            halo(316, 5, None),
            square(316),
        ),
    ];
    for case in &mut cases {
        case.cluster = (case.cluster.clone())
            .with_algorithm(Kind::Allreduce, Algorithm::RecursiveDoubling.into());
    }
    cases
}

/// Returns cases of about a hundred thousand ranks, only for the interpreter.
pub fn large() -> Vec<Case> {
    let side = 316;
    let halo = |allreduce| Halo {
        side,
        bytes: 8192,
        mean: 100 * US,
        even: true,
        turns: 5,
        allreduce,
    };
    let mut cases = vec![
        Case::new(
            "halo of 316 x 316 on a torus".into(),
            torus(halo(None)),
            square(side),
        ),
        Case::new(
            "halo of 316 x 316, all-reduce".into(),
            torus(halo(Some(8))),
            crossbar(side * side),
        ),
        Case::new(
            "all-reduce of 100000".into(),
            collective(Kind::Allreduce, 100_000, 8, 0, 5),
            crossbar(100_000),
        ),
    ];
    for case in &mut cases {
        case.cluster = (case.cluster.clone())
            .with_algorithm(Kind::Allreduce, Algorithm::RecursiveDoubling.into());
    }
    cases
}
