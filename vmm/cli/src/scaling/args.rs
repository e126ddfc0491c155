//! The command line of `nodescope scaling`.

use std::path::PathBuf;

use nodescope_hypercall::Function;
use nodescope_scaling::PlanRequest;

use crate::predict::args::call;

/// `nodescope scaling`.
#[derive(Debug, clap::Args)]
pub struct Scaling {
    /// Folders of results, one for each number of nodes, or the JSON of an earlier analysis. Studies named PROGRAM-NODES are runs of
    /// the same program.
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// Print JSON in place of text (guide: Results and formats).
    #[arg(long)]
    pub json: bool,
    /// Print an HTML page in place of text.
    #[arg(long, conflicts_with = "json")]
    pub html: bool,
    /// Write the charts to this folder, too, as PROGRAM-calls.svg, PROGRAM-cpi.svg, PROGRAM-flops.svg and PROGRAM-host.svg.
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Replace charts that are already there.
    #[arg(long, requires = "svg")]
    pub force: bool,
    /// The window whose CPI and FLOPS are shown; by default the first complete one of each run.
    #[arg(long, value_name = "NAME")]
    pub window: Option<String>,
    /// The MPI program, from 0, where the runs have several.
    #[arg(long, value_name = "N")]
    pub program: Option<usize>,
    /// Compare the time between the same calls of each run, from the traces: from the return of this call of each rank, such as
    /// MPI_Allreduce:10 for its tenth ... Without --from: from MPI_Init to MPI_Finalize.
    #[arg(long, value_name = "CALL", requires = "to", value_parser = call)]
    pub from: Option<(Function, u64)>,
    /// ... to the return of this call.
    #[arg(long, value_name = "CALL", requires = "from", value_parser = call)]
    pub to: Option<(Function, u64)>,
    /// Estimate what a larger cluster would cost the host, by a fit of runs with --host-times: nodes=224,cores=16 and, if need be,
    /// host-cores=12, host-memory="24 GiB", job=TIME and window=TIME of virtual time, exchange=TIME between hosts, latency=1.3us.
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub plan: Option<PlanRequest>,
}
