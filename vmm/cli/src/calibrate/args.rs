//! The command line of `nodescope calibrate run` and `nodescope calibrate retarget`.

use std::path::PathBuf;

use clap::Subcommand;
use nodescope_study::quantity::{ByteRate, Time};

/// Ways to a cluster file beside a fit to measurements that are there.
#[derive(Debug, Subcommand)]
pub enum Way {
    /// Measure what messages cost in guests of a study, and check predictions with these costs.
    Run(Run),
    /// Write a cluster file for another network, with the software costs of one that was measured.
    Retarget(Retarget),
}

/// `nodescope calibrate run`.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The study whose nodes, MPI library and network are measured; its job and its windows are not used.
    #[arg(long, value_name = "FILE")]
    pub study: PathBuf,
    /// The cluster file to write, for nodescope predict --cluster (guide: The cluster file).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The cluster's name; by default the output file's name without its extension.
    #[arg(long)]
    pub name: Option<String>,
    /// Keep the traced runs in this folder. Runs of the same study that are there already are not repeated.
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Compiler of the program that measures, in place of that of the study's MPI library (mpicc.openmpi, mpicc.mpich).
    #[arg(long, value_name = "COMMAND")]
    pub mpicc: Option<PathBuf>,
    /// Replace a file that is already there.
    #[arg(long)]
    pub force: bool,
}

/// `nodescope calibrate retarget`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("wire").required(true).multiple(true).args(["study", "latency", "bandwidth"]))]
pub struct Retarget {
    /// The cluster file with the measured costs.
    #[arg(long, value_name = "FILE")]
    pub costs: PathBuf,
    /// The study whose network and nodes the new file describes.
    #[arg(long, value_name = "FILE")]
    pub study: Option<PathBuf>,
    /// Latency between nodes, such as "50 us", in place of the study's or the measured one.
    #[arg(long, value_name = "TIME")]
    pub latency: Option<Time>,
    /// Bandwidth between nodes, such as "1 Gbit/s" or "125 MB/s".
    #[arg(long, value_name = "RATE", value_parser = super::retarget::rate)]
    pub bandwidth: Option<ByteRate>,
    /// The cluster file to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace a file that is already there.
    #[arg(long)]
    pub force: bool,
}
