//! `nodescope calibrate run`: measures what messages cost in guests, and checks predictions with these costs.
//!
//! Costs are measured on a fast network, on which software takes most of a message's time, and written with the study's network. Patterns
//! of messages run on both networks. Those of the study's network are predicted from their trace on the fast one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nodescope_calibrate::check::{check, sequence_options};
use nodescope_calibrate::fit::fit;
use nodescope_calibrate::{ClusterFile, FitOptions, FittedPath, Wire};
use nodescope_cluster::run::TRACE_FILE;
use nodescope_predict::{Cluster, Frames, Library};
use nodescope_study::{Mpi, Study};
use toml::{Table, Value};

use super::{args, read};
use crate::exit::{Exit, Failure};
use crate::results;
use crate::terminal::print;

/// Source of the program that measures.
const PROGRAM: &str = include_str!("../../../../plugins/analysis/calibrate/measure.c");

/// Network on which software costs are measured: its latency in picoseconds and its bandwidth in bytes per second.
const FAST: (u64, u64) = (20_000_000, 12_500_000_000);

/// Number of nodes on which messages meet others.
const NODES: u32 = 4;

/// Most ranks of a node that run the patterns.
const MOST_SLOTS: u32 = 2;

/// Numbers of the MPI programs that the job runs, in their order.
const PAIRS: usize = 0;
const EXCHANGES: usize = 1;
const PATTERNS: usize = 2;
const MEMORY_PAIRS: usize = 3;

/// Measures a study's network, writes the cluster file and prints a summary.
pub fn run(args: &args::Run) -> Result<Exit, Failure> {
    results::refuse_existing(&args.output, args.force)?;
    let study = Study::load(&args.study).map_err(|problems| Failure::of(Exit::Study, &problems))?;
    if study.job.mpi == Mpi::None {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{}: job.mpi is \"none\", so there are no messages to measure; write \"openmpi\" or \"mpich\"",
                args.study.display()
            ),
        ));
    }
    let scratch = tempfile::tempdir();
    let scratch = scratch.map_err(Failure::io("create", &std::env::temp_dir()))?;
    let folder = args.results.as_deref().unwrap_or(scratch.path());
    std::fs::create_dir_all(folder).map_err(Failure::io("create", folder))?;
    let calibration = Calibration {
        study: &study,
        args,
        folder,
    };
    let wire = wire(&study);
    let fast = Wire {
        latency: FAST.0,
        bandwidth: FAST.1,
        ..wire
    };
    let program = calibration.compile()?;
    let measured = calibration.trace("measured", &fast, &program, &calibration.script(true))?;
    let checked = calibration.trace("checked", &wire, &program, &calibration.script(false))?;
    let mut file = calibration.fitted(&measured, &fast)?;
    if let Some(path) = &mut file.network {
        path.fit.retarget(wire);
    }
    calibration.check(&mut file, &measured, &checked)?;
    results::write(&args.output, &file.text())?;
    print(&format!("{}{}\n", file.summary(), args.output.display()))?;
    Ok(Exit::Ok)
}

/// Returns the wire between the nodes of a study. Frames are those of Ethernet with TCP over IPv4: a frame carries the MTU less the
/// headers of IP and TCP with time stamps. Its further bytes are these headers, and Ethernet's header, checksum, preamble and gap.
pub fn wire(study: &Study) -> Wire {
    const IP_AND_TCP: u64 = 20 + 20 + 12;
    const ETHERNET: u64 = 14 + 4 + 8 + 12;
    Wire {
        latency: study.network.link.latency_ps,
        bandwidth: study.network.link.bandwidth / 8,
        envelope: match study.job.mpi {
            // Open MPI's header of a message over TCP: transport and matching.
            Mpi::Openmpi => 24,
            _ => 0,
        },
        frames: Some(Frames {
            payload: u64::from(study.network.mtu) - IP_AND_TCP,
            header: IP_AND_TCP + ETHERNET,
            // TCP acknowledges every second frame (RFC 5681, section 4.2).
            acknowledge: 2,
        }),
    }
}

struct Calibration<'a> {
    study: &'a Study,
    args: &'a args::Run,
    folder: &'a Path,
}

impl Calibration<'_> {
    /// Compiles the program that measures.
    fn compile(&self) -> Result<PathBuf, Failure> {
        let compiler = match (&self.args.mpicc, self.study.job.mpi) {
            (Some(given), _) => given.clone(),
            (None, Mpi::Mpich) => "mpicc.mpich".into(),
            (None, _) => "mpicc.openmpi".into(),
        };
        let source = self.folder.join("measure.c");
        let program = self.folder.join("measure");
        results::write(&source, PROGRAM)?;
        let compiled = Command::new(&compiler)
            .args(["-O2", "-o"])
            .args([&program, &source])
            .output();
        let failed = |what: &str| {
            Failure::new(
                Exit::Host,
                format!(
                    "{}: cannot compile the program that measures: {what}; install the MPI library's compiler (Debian: libopenmpi-dev, libmpich-dev), or name it (--mpicc)",
                    compiler.display()
                ),
            )
        };
        let output = compiled.map_err(|error| failed(&error.to_string()))?;
        match output.status.success() {
            true => Ok(program),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Returns the job's script. It measures costs and runs the patterns, or runs the patterns alone.
    fn script(&self, measures: bool) -> String {
        let names: Vec<String> = (0..NODES).map(|node| format!("node{node}")).collect();
        let launch = |ranks: u32, hosts: &[String], slots: u32, arguments: &str| {
            let hosts: Vec<String> = match self.study.job.mpi {
                Mpi::Mpich => hosts.to_vec(),
                _ => hosts.iter().map(|host| format!("{host}:{slots}")).collect(),
            };
            let (launcher, option) = match self.study.job.mpi {
                Mpi::Mpich => ("mpiexec.hydra -n", "-hosts"),
                _ => ("mpirun.openmpi -np", "--host"),
            };
            format!(
                "{launcher} {ranks} {option} {} ./measure {arguments}\n",
                hosts.join(",")
            )
        };
        // Programs have a rank on each core; beside an idle core, messages cost less.
        let slots = self.cores().min(MOST_SLOTS);
        let patterns = launch(NODES * slots, &names, slots, "check");
        if !measures {
            return format!("#!/bin/sh\nset -e\n{patterns}");
        }
        let mut script = format!(
            "#!/bin/sh\nset -e\n{}{}{patterns}",
            launch(2, &names[..2], 1, PING_PONGS),
            launch(NODES, &names, 1, "")
        );
        let cores = self.cores();
        if cores > 1 {
            script += &launch(2, &names[..1], cores, PING_PONGS);
        }
        script
    }

    fn cores(&self) -> u32 {
        self.study.topology.vcpus()
    }

    /// Runs the study with a script in place of its job on a network, and returns the path of the trace.
    fn trace(
        &self,
        name: &str,
        wire: &Wire,
        program: &Path,
        script: &str,
    ) -> Result<PathBuf, Failure> {
        let results = self.folder.join(name);
        let trace = results.join(TRACE_FILE);
        let done = self.folder.join(format!("{name}.done"));
        let path = self.folder.join(format!("{name}.sh"));
        let study = self.folder.join(format!("{name}.toml"));
        let text = self.text(wire, program, &path)?;
        let is = |path: &Path, text: &str| std::fs::read_to_string(path).is_ok_and(|is| is == text);
        if done.exists() && trace.exists() && is(&study, &text) && is(&path, script) {
            return Ok(trace);
        }
        results::write(&path, script)?;
        results::write(&study, &text)?;
        let nodescope = std::env::current_exe();
        let nodescope = nodescope.map_err(Failure::io("find", Path::new("nodescope")))?;
        let ran = Command::new(&nodescope)
            .args(["run", "--quiet", "--force"])
            .arg(&study)
            .arg("--results")
            .arg(&results)
            .stdout(Stdio::null())
            .status();
        let status = ran.map_err(Failure::io("start", &nodescope))?;
        if !status.success() {
            return Err(Failure::new(
                Exit::JobFailed,
                format!(
                    "the run of {} has failed ({status}); --results DIR keeps what it wrote",
                    study.display()
                ),
            ));
        }
        results::write(&done, "")?;
        Ok(trace)
    }

    /// Returns the study's text with another job, on as many nodes as messages need, on a network.
    fn text(&self, wire: &Wire, program: &Path, script: &Path) -> Result<String, Failure> {
        let fail = |what: String| {
            Failure::new(
                Exit::Study,
                format!("{}: {what}", self.args.study.display()),
            )
        };
        let mut study: Table = (self.study.text.parse())
            .map_err(|error: toml::de::Error| fail(error.message().to_owned()))?;
        let absolute = |path: &Path| -> Result<String, Failure> {
            let path = std::path::absolute(path).map_err(Failure::io("find", path))?;
            let text = path.to_str().map(str::to_owned);
            text.ok_or_else(|| fail(format!("{} is no UTF-8", path.display())))
        };
        let had_windows = study.remove("window").is_some();
        study.remove("results");
        // The environment may hold settings of the MPI library.
        let job = section(&mut study, "job");
        job.retain(|key, _| key == "environment");
        let mpi = match self.study.job.mpi {
            Mpi::Mpich => "mpich",
            _ => "openmpi",
        };
        job.insert("mpi".into(), mpi.into());
        job.insert("script".into(), absolute(script)?.into());
        job.insert(
            "files".into(),
            Value::Array(vec![absolute(program)?.into()]),
        );
        let general = section(&mut study, "study");
        for key in [
            "core",
            "fast_forward",
            "fast_forward_until",
            "host_time_limit",
        ] {
            general.remove(key);
        }
        general.insert("name".into(), "calibration".into());
        general.insert("time_limit".into(), "1 h".into());
        if had_windows {
            general.insert("timing".into(), "none".into());
        }
        let cluster = section(&mut study, "cluster");
        cluster.remove("shared");
        cluster.insert("nodes".into(), i64::from(NODES).into());
        let network = section(&mut study, "network");
        network.insert(
            "latency".into(),
            format!("{}.{:03} ns", wire.latency / 1000, wire.latency % 1000).into(),
        );
        network.insert(
            "bandwidth".into(),
            format!("{} bit/s", wire.bandwidth * 8).into(),
        );
        network.remove("capture");
        // Paths of the study are relative to its folder.
        let folder = self.args.study.parent().unwrap_or(Path::new(""));
        for (table, key) in [
            ("node", "model"),
            ("image", "kernel"),
            ("image", "initramfs"),
            ("image", "root"),
        ] {
            if let Some(Value::Table(table)) = study.get_mut(table)
                && let Some(Value::String(path)) = table.get_mut(key)
                && (is_path(key, path))
            {
                *path = absolute(&folder.join(&*path))?;
            }
        }
        toml::to_string(&study).map_err(|error| fail(error.to_string()))
    }

    /// Fits the costs of both paths.
    fn fitted(&self, trace: &Path, fast: &Wire) -> Result<ClusterFile, Failure> {
        let source = format!("guests of {}", self.args.study.display());
        let path = |pairs, exchanges: Option<usize>, wire| -> Result<FittedPath, Failure> {
            let measured = read::pairs(trace, Some(pairs)).map_err(read::failure)?;
            let exchanged = exchanges
                .map(|exchanges| read::exchanges(trace, Some(exchanges)))
                .transpose()
                .map_err(read::failure)?;
            let options = FitOptions {
                eager_limit: None,
                wire,
            };
            Ok(FittedPath {
                source: source.clone(),
                fit: fit(&measured, exchanged.as_ref(), options).map_err(read::failure)?,
            })
        };
        // Within a node costs are so small that the turns of vCPUs hide those of messages that meet others.
        let memory = (self.cores() > 1).then(|| path(MEMORY_PAIRS, None, None));
        let stem = self.args.output.file_stem().unwrap_or_default();
        Ok(ClusterFile {
            name: (self.args.name.clone()).unwrap_or_else(|| stem.to_string_lossy().into_owned()),
            cores: self.cores(),
            network: Some(path(PAIRS, Some(EXCHANGES), Some(*fast))?),
            memory: memory.transpose()?,
            library: match self.study.job.mpi {
                Mpi::Mpich => Library::Mpich,
                _ => Library::OpenMpi,
            },
            connection_buffer: None,
            // Guests' messages go over TCP, which serves no accesses.
            accesses_in_calls: true,
            checked: None,
        })
    }

    /// Predicts the patterns on the study's network from their trace on the fast one, with several buffers of connections. The best buffer
    /// and its errors go to the file.
    fn check(
        &self,
        file: &mut ClusterFile,
        measured: &Path,
        checked: &Path,
    ) -> Result<(), Failure> {
        let sequences = |trace, program| crate::predict::read(trace, sequence_options(program));
        let (_, elsewhere) = sequences(measured, PATTERNS)?;
        let (_, there) = sequences(checked, 0)?;
        for buffer in BUFFERS {
            let tried = ClusterFile {
                connection_buffer: Some(buffer),
                checked: None,
                ..file.clone()
            };
            let cluster = Cluster::parse(&self.args.output, &tried.text());
            let cluster = cluster.map_err(|problems| Failure::of(Exit::Host, &problems))?;
            let of = check(&elsewhere, &there, &cluster)
                .map_err(|error| Failure::of(Exit::Host, &error))?;
            let Some(of) = of else {
                return Err(Failure::new(
                    Exit::JobFailed,
                    "the patterns of messages did not come to their end; --results DIR keeps the runs",
                ));
            };
            let best = file.checked.as_ref();
            if best.is_none_or(|best| of.messages() < best.messages()) {
                (file.connection_buffer, file.checked) = (Some(buffer), Some(of));
            }
        }
        Ok(())
    }
}

/// Arguments of the program that measures ping-pongs: the largest size in bytes, and seconds for each size. Guests are so regular that a
/// short time suffices.
const PING_PONGS: &str = "4194304 0.002";

/// Buffers of a connection that are tried, bytes. Linux starts with 16 KiB and gives a connection up to 4 MiB as its window grows (tcp(7),
/// `tcp_wmem`).
const BUFFERS: [u64; 4] = [0, 128 << 10, 512 << 10, 4 << 20];

/// Returns a section of a study, which is made if it is missing.
fn section<'a>(study: &'a mut Table, name: &str) -> &'a mut Table {
    let entry = study.entry(name).or_insert_with(|| Table::new().into());
    if !entry.is_table() {
        *entry = Table::new().into();
    }
    match entry {
        Value::Table(table) => table,
        _ => unreachable!("the section has just been made a table"),
    }
}

/// Returns whether a value is a path. A node's model without a dot and a slash is one that is built in.
fn is_path(key: &str, value: &str) -> bool {
    key != "model" || value.contains(['.', '/'])
}
