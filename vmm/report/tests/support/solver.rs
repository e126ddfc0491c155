//! A window with a profile: a stencil program of two ranks.

use std::path::Path;

use nodescope_plugin_api::{Context, Counters, Privilege};
use nodescope_profile::{NominalCore, ProfilesFile, Scope, WindowProfile};
use nodescope_report::ReportInput;
use nodescope_window::{NodeRecord, Owner, WindowRecord};

use crate::profiles;
use crate::support::*;

/// Returns a node's record with the counts of the profile as its counters.
fn counted(profile: &WindowProfile, mut node: NodeRecord, owners: Vec<Owner>) -> NodeRecord {
    let core = NominalCore {
        profile,
        cpi_65536: 65_536,
    };
    node.counters.clear();
    node.statistics.clear();
    let mut clock = 0;
    for context in 0..owners.len() as u32 {
        let costs = profile.total(Scope::Context(node.node, context), &core);
        let counters = Counters {
            instructions: costs.instructions as u64,
            long_cycles: costs.long_cycles as u64,
            stall_cycles: costs.stalls.iter().sum::<u128>() as u64,
            loads: costs.loads as u64,
            stores: costs.stores as u64,
            flops: costs.flops.map(|count| count as u64),
            ..Counters::default()
        };
        clock += (costs.cycles_65536() / 65_536) as u64;
        node.counters
            .push((0, Context(context), Privilege::User, counters));
    }
    node.owners = owners;
    node.cycles = vec![(0, clock)];
    node
}

/// Returns the record of a window whose counters agree with the profile.
pub fn record(profile: &WindowProfile) -> WindowRecord {
    use nodescope_hypercall::Function;
    let solver = |number, mpi| match rank(number, mpi) {
        Owner::Rank { rank, mpi, .. } => Owner::Rank {
            rank,
            program: "solver".into(),
            mpi,
        },
        owner => owner,
    };
    let mut record = window(vec![
        counted(
            profile,
            node0(),
            vec![
                Owner::Process {
                    pid: 7,
                    program: "node".into(),
                },
                solver(0, None),
                solver(0, Some(Function::Allreduce)),
            ],
        ),
        counted(
            profile,
            node1(),
            vec![
                solver(1, None),
                solver(1, Some(Function::Send)),
                Owner::Other,
            ],
        ),
    ]);
    record.closed_ps = record.opened_ps + 12_000_000_000;
    record
}

/// Returns a report's input with a profile.
pub fn with_code(folder: &Path) -> ReportInput {
    let profile = profiles::profile("solve");
    let trace = folder.join("trace");
    write_trace(&trace, &events());
    let mut input = input(Some(&trace), vec![record(&profile)]);
    input.profiles = Some(ProfilesFile {
        version: ProfilesFile::VERSION,
        study: "demo".into(),
        study_id: "abc123".into(),
        windows: vec![profile],
    });
    input
}
