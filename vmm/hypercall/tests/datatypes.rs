//! In how many pieces the data of a datatype lies in memory.

mod support;

use nodescope_hypercall::{Function, Tag};
use support::{Job, of};

fn blocks_are_counted(flavour: &'static str) {
    let Some(job) = Job::new(flavour, "mpicc", "datatypes.c") else {
        return;
    };
    let all = job.run(1);
    let sent = of(&all[0], Function::Sendrecv);
    assert_eq!(sent.len(), 23);
    for record in sent {
        let blocks = record.element_blocks as u32;
        assert_eq!(record.send_tag, Tag::Value(blocks), "{record:?}");
    }
}

#[test]
fn blocks_are_counted_under_open_mpi() {
    blocks_are_counted("openmpi");
}

#[test]
fn blocks_are_counted_under_mpich() {
    blocks_are_counted("mpich");
}
