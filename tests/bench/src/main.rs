//! `nodescope-bench`: speed of nodescope's guests, compared with other tools for the same purpose and with the host itself.
//!
//! A [`workload`] is a program whose measured parts announce themselves. The program runs on the [`host`], and in guests of nodescope
//! ([`engine`]) and of QEMU ([`tcg`]). Each run gives a [`session`]. A [`comparison`] shows the medians of many sessions.

mod barrier;
mod boot;
mod comparison;
mod cycles;
mod engine;
mod guest;
mod host;
mod machine;
mod micro;
mod node;
mod observers;
mod predict;
mod profile;
mod programs;
mod recordings;
mod ring;
mod scale;
mod session;
mod snapshot;
mod stack;
mod stepped;
mod tcg;
mod threads;
mod time;
mod timed;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use thiserror::Error;

use engine::Engine;

/// Reason for which nothing could be measured.
#[derive(Debug, Error)]
pub enum Failure {
    /// The kernels do not compile.
    #[error("cannot compile the kernels: {0}")]
    Compile(String),
    /// A kernel of this name does not exist: the name, and the names of all kernels.
    #[error("there is no kernel {0}; there are {1}")]
    Kernel(String, String),
    /// The folder of `--image` holds no image.
    #[error("no guest image at {0}; leave --image out, and one is built")]
    Image(PathBuf),
    /// The guest image cannot be built.
    #[error("the guest image cannot be built: {0}")]
    Build(#[from] nodescope_image::ImageError),
    /// A file cannot be read or written, or a program cannot be started.
    #[error("cannot read or write a file, or start a program: {0}")]
    Files(std::io::Error),
    /// A program or a measurement on the host failed.
    #[error("on the host, {0}")]
    Host(String),
    /// The guest failed.
    #[error("the guest failed: {0}")]
    Guest(String),
}

#[derive(Parser)]
#[command(about = "How fast nodescope is; docs/benchmarks.md says what is measured and how")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The kernels in a guest with nothing attached, beside the host and QEMU's TCG.
    Functional(Options),
    /// The kernels in a guest with caches and NUMA attached, beside the host and valgrind's cachegrind.
    Window(Options),
    /// Windows that attribute costs to code, beside windows that do not.
    Attribution(Options),
    /// Windows on a described node with its core, beside windows without the core.
    Timed(Options),
    /// Windows with observers of a shared library, beside windows without them, cachegrind, and a QEMU plug-in.
    Observers(Options),
    /// Debian's hpcc, with nothing attached and with models attached.
    Hpcc(Options),
    /// Booting, beside QEMU's TCG.
    Boot(Options),
    /// Saving and restoring a node, and 64 nodes made of one snapshot.
    Snapshot(Options),
    /// Clusters of growing size that are made of one boot: host memory and time of a node.
    Scale(scale::Options),
    /// Two nodes on two host threads, beside one.
    Threads(Options),
    /// Where the kernels' time goes, with nothing attached and in windows, by perf.
    Profile(Options),
    /// Modelled cycles of a core beside measured ones, on kernels in the first level.
    Core(cycles::Options),
    /// The predicted CPI stack of this machine's processor beside measured cycles.
    Cpi(stack::Options),
    /// The interpreter of predictions beside SimGrid's replay, and on a hundred thousand ranks.
    Predict(Options),
}

/// Options of every measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Print the line of JSON alone.
    #[arg(long)]
    pub json: bool,
    /// Folder of the guest image (vmlinux, initramfs.cpio, root.img); nodescope's own by default, built if need be.
    #[arg(long)]
    image: Option<PathBuf>,
    /// Rounds of interleaved runs; medians are compared.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Engines to measure, all by default; the last one's figures come first in the JSON.
    #[arg(long, value_enum, value_delimiter = ',')]
    engine: Vec<Engine>,
    /// Kernels to run, all by default.
    #[arg(long, value_delimiter = ',')]
    pub kernels: Vec<String>,
    /// Leave QEMU and cachegrind out.
    #[arg(long)]
    pub no_peer: bool,
}

impl Options {
    /// Returns the engines to measure.
    pub fn engines(&self) -> Vec<Engine> {
        match self.engine.as_slice() {
            [] => Engine::ALL.into(),
            chosen => chosen.into(),
        }
    }

    /// Returns the folder of the guest image.
    pub fn image(&self) -> Result<PathBuf, Failure> {
        image(self.image.as_deref())
    }

    /// Returns the peer's version, or None with `--no-peer`. If the peer is missing, prints the reason and returns None.
    pub fn peer(&self, version: impl FnOnce() -> Result<String, String>) -> Option<String> {
        if self.no_peer {
            return None;
        }
        match version() {
            Ok(version) => {
                self.say(&format!("compared with {version}"));
                Some(version)
            }
            Err(reason) => {
                eprintln!("the comparison is skipped: {reason}");
                None
            }
        }
    }

    /// Prints a line of text, unless only JSON is printed.
    pub fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }
}

/// Returns the folder of the guest image: `named`, or nodescope's own image, which is built if it is missing.
pub fn image(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(image) = named else {
        let cache = nodescope_image::default_cache_dir()?;
        let say = &mut |line: &str| eprintln!("{line}");
        let image = nodescope_image::build(&nodescope_image::ImageSpec::debian(), &cache, say)?;
        return Ok(image.dir);
    };
    if image.join("vmlinux").exists() {
        Ok(image.into())
    } else {
        Err(Failure::Image(image.into()))
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().what {
        What::Functional(options) => programs::functional(&options),
        What::Window(options) => programs::window(&options),
        What::Attribution(options) => programs::attribution(&options),
        What::Timed(options) => programs::timed(&options),
        What::Observers(options) => observers::observers(&options),
        What::Hpcc(options) => programs::hpcc(&options),
        What::Boot(options) => boot::boot(&options),
        What::Snapshot(options) => snapshot::snapshot(&options),
        What::Scale(options) => scale::scale(&options),
        What::Threads(options) => threads::threads(&options),
        What::Profile(options) => profile::profile(&options),
        What::Core(options) => cycles::cycles(&options),
        What::Cpi(options) => stack::stack(&options),
        What::Predict(options) => predict::predict(&options),
    };
    match result {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("nodescope-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
