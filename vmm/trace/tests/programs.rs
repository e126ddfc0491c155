//! Several MPI programs in one trace: processes belong to the program that started them, and each program is seen as if it were alone.

mod launched;

use std::collections::BTreeSet;

use launched::{Launch, job, pairs};
use nodescope_hypercall::{Function, Peer};
use nodescope_trace::{
    Body, Event, MpiProgram, PendingCalls, ProgramFinder, ProgramList, Unfinished, Wait,
    WaitBuilder,
};

/// Returns the programs of a trace, and the process ids of each.
fn found(events: &[Event]) -> Vec<(MpiProgram, BTreeSet<u32>)> {
    let mut finder = ProgramFinder::default();
    let mut pids: Vec<BTreeSet<u32>> = Vec::new();
    for event in events {
        if let (Some(caller), Body::Mpi(call)) = (finder.caller(event), &event.body) {
            pids.resize(finder.programs().len(), BTreeSet::new());
            pids[caller.program].insert(call.record.thread.pid);
            assert_eq!(Peer::Rank(caller.rank), call.record.rank);
        }
    }
    assert_eq!(finder.settle(), []);
    finder.programs().iter().cloned().zip(pids).collect()
}

fn waits(events: &[Event]) -> Vec<Wait> {
    let mut builder = WaitBuilder::default();
    let mut waits = Vec::new();
    for event in events {
        builder.add(event);
        waits.extend(builder.take());
    }
    waits.extend(builder.finish());
    waits.sort_unstable();
    waits
}

#[test]
fn programs_together_are_those_alone() {
    for (what, programs) in pairs() {
        let together = found(&job(&programs));
        let mut alone: Vec<_> = programs
            .iter()
            .flat_map(|one| found(&job(&[*one])))
            .collect();
        assert_eq!(together.len(), 2, "{what}");
        // Programs that begin at once have no order.
        if together[0] != alone[0] {
            alone.reverse();
        }
        assert_eq!(together, alone, "{what}");
    }
}

#[test]
fn waits_are_those_of_each_program_alone() {
    for (what, programs) in pairs() {
        let together = waits(&job(&programs));
        let mut alone: Vec<Wait> = (programs.iter())
            .flat_map(|one| waits(&job(&[*one])))
            .collect();
        alone.sort_unstable();
        assert!(programs[0].ranks == 1 || !together.is_empty());
        assert_eq!(together, alone, "{what}");
    }
}

#[test]
fn traces_without_ids_are_told_apart_by_order_size_and_name() {
    for (what, programs) in pairs() {
        let programs = programs.map(Launch::without_id);
        let both_at_once = what.starts_with("at the same time") || what == "the same moment";
        let distinct =
            programs[0].name != programs[1].name || programs[0].ranks != programs[1].ranks;
        if both_at_once && !distinct {
            continue;
        }
        let together = found(&job(&programs));
        let alone: Vec<_> = programs
            .iter()
            .flat_map(|one| found(&job(&[*one])))
            .collect();
        assert_eq!(together, alone, "{what}");
    }
}

#[test]
fn ids_that_come_again_and_many_programs_are_kept_apart() {
    // Open MPI's ids are hashes of 16 bits: two launches may have one.
    let mut same = [Launch::new(0, "heat", 2, 10), Launch::new(1, "heat", 2, 11)];
    same[1].id = same[0].id;
    assert_eq!(found(&job(&same)).len(), 2);
    let many: Vec<Launch> = (0..200)
        .map(|number| Launch {
            pid: 100 + 4 * number,
            steps: 1,
            ..Launch::new(number, "heat", 3, u64::from(number % 7))
        })
        .collect();
    let programs = found(&job(&many));
    assert_eq!(programs.len(), 200);
    for (program, pids) in programs {
        assert_eq!((program.ranks.len(), pids.len()), (3, 3));
        let (first, last) = (pids.first().unwrap(), pids.last().unwrap());
        assert_eq!(last - first, 2, "ranks of several launches: {pids:?}");
    }
}

#[test]
fn process_ids_that_come_again_are_new_processes() {
    let first = Launch::new(0, "heat", 2, 10);
    let second = Launch {
        pid: first.pid,
        ..Launch::new(1, "heat", 2, 9000)
    };
    let programs = found(&job(&[first, second]));
    assert_eq!(programs.len(), 2);
    assert_eq!(programs[0].0.calls, 2 * (2 + 3 * 3));
    assert_eq!(programs[1].0.calls, 2 * (2 + 3 * 4));
}

#[test]
fn a_deadlock_in_one_of_two_programs_is_that_of_the_program_alone() {
    let stuck = |program: &Launch, events: &mut Vec<Event>| {
        for rank in 0..program.ranks {
            let mut last = events.iter().rev();
            let own = |event: &&Event| matches!(&event.body, Body::Mpi(call) if call.record.thread.pid == program.pid + rank);
            let Some(Event {
                node,
                body: Body::Mpi(call),
                ..
            }) = last.find(own)
            else {
                panic!("rank {rank} has no call")
            };
            let mut record = call.record.clone();
            (record.function, record.completions) = (Function::Recv, Vec::new());
            record.source = Peer::Rank((rank + 1) % program.ranks);
            let event = Event {
                node: *node,
                sequence: 10_000,
                stamp: call.exit,
                body: Body::Unfinished(Box::new(Unfinished {
                    function: record.function,
                    rank: record.rank,
                    thread: record.thread,
                    sequence: record.sequence + 1,
                    entry: call.exit,
                    record: Some(record),
                })),
            };
            events.push(event);
        }
    };
    // The ranks of the second program wait for each other; the first one ends.
    let programs = [Launch::new(0, "heat", 4, 10), Launch::new(1, "heat", 4, 11)];
    let without_end = |events: &mut Vec<Event>| {
        events.retain(|event| !matches!(&event.body, Body::Mpi(call) if call.record.function == Function::Finalize && call.record.thread.pid >= programs[1].pid));
    };
    let mut together = job(&programs);
    without_end(&mut together);
    stuck(&programs[1], &mut together);
    let mut alone = job(&programs[1..]);
    without_end(&mut alone);
    stuck(&programs[1], &mut alone);
    let (together, alone) = (PendingCalls::of(&together), PendingCalls::of(&alone));
    assert_eq!(alone.deadlocks.len(), 1, "{alone:?}");
    assert_eq!(together.deadlocks.len(), 1, "{together:?}");
    assert_eq!(together.deadlocks[0].job, 1);
    assert_eq!(together.deadlocks[0].ranks, alone.deadlocks[0].ranks);
    assert_eq!(together.deadlocks[0].cycle, alone.deadlocks[0].cycle);
    assert_eq!(together.calls.len(), alone.calls.len());
}

#[test]
fn the_list_of_programs_names_them() {
    let programs: Vec<MpiProgram> = (found(&job(&pairs()[0].1)).into_iter())
        .map(|(program, _)| program)
        .collect();
    assert_eq!(
        ProgramList::new(programs).to_string(),
        "0: heat, 4 ranks, 44 MPI calls from 0.000010 s to 0.000512 s; 1: heat, 4 ranks, 56 MPI calls from 0.005000 s to 0.005636 s"
    );
    let many = vec![MpiProgram::default(); 25];
    let list = ProgramList::new(many).to_string();
    assert!(
        list.starts_with("0: unknown, 0 ranks, 0 MPI calls; 1: "),
        "{list}"
    );
    assert!(list.ends_with("; and 5 more"), "{list}");
}
