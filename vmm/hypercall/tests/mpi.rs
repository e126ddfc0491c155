//! Tests of the MPI tracer on real hardware. Programs in C, Fortran 77 and mpi_f08, under Open MPI and MPICH, make a given number of calls
//! with given arguments. The records that the preloaded library writes must state each call exactly once.

mod support;

use std::collections::BTreeMap;

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Reduction, Tag};

use support::{ABI, Job, counts, of, only, rank_of};

fn fortran(flavour: &'static str, compiler: &str, program: &str) {
    let Some(job) = Job::new(flavour, compiler, program) else {
        return;
    };
    let ranks = 3;
    for (rank, records) in job.run(ranks).iter().enumerate() {
        let mut expected = BTreeMap::from([
            ("MPI_Init", 1),
            ("MPI_Barrier", 5),
            ("MPI_Bcast", 1),
            ("MPI_Allreduce", 1),
            ("MPI_Gather", 1),
            ("MPI_Sendrecv", 1),
            ("MPI_Irecv", 1),
            ("MPI_Isend", 1),
            ("MPI_Waitall", 1),
            ("MPI_Finalize", 1),
        ]);
        match rank {
            0 => drop(expected.insert("MPI_Send", 1)),
            1 => drop(expected.insert("MPI_Recv", 1)),
            _ => {}
        }
        let expected: BTreeMap<String, u64> = expected
            .into_iter()
            .map(|(name, calls)| (name.to_string(), calls))
            .collect();
        assert_eq!(counts(records), expected, "rank {rank}");
        let (left, right) = (
            rank_of((rank + ranks - 1) % ranks),
            rank_of((rank + 1) % ranks),
        );
        let bcast = only(records, Function::Bcast);
        assert_eq!(
            (bcast.root, bcast.send_bytes + bcast.receive_bytes),
            (Peer::Rank(1), 32)
        );
        let allreduce = only(records, Function::Allreduce);
        assert_eq!(
            (allreduce.send_bytes, allreduce.reduction),
            (24, Reduction::Sum)
        );
        assert!(allreduce.flags.contains(Flags::IN_PLACE), "{allreduce:?}");
        let gather = only(records, Function::Gather);
        assert_eq!(
            (gather.send_bytes, gather.receive_bytes),
            (16, if rank == 0 { 48 } else { 0 })
        );
        let sendrecv = only(records, Function::Sendrecv);
        assert_eq!(
            (sendrecv.destination, sendrecv.source, sendrecv.send_bytes),
            (right, left, 48)
        );
        assert_eq!(
            (
                sendrecv.completions[0].source,
                sendrecv.completions[0].bytes
            ),
            (left, 48)
        );
        let irecv = only(records, Function::Irecv);
        assert_eq!((irecv.source, irecv.receive_bytes), (Peer::Any, 240));
        let waitall = only(records, Function::Waitall);
        assert_eq!(
            waitall.requests,
            [irecv.request, only(records, Function::Isend).request]
        );
        assert_eq!(waitall.completions.len(), 2);
        assert_eq!(
            (waitall.completions[0].source, waitall.completions[0].bytes),
            (left, 56)
        );
        if rank == 1 {
            let recv = only(records, Function::Recv);
            assert_eq!(
                (recv.source, recv.receive_tag, recv.receive_bytes),
                (Peer::Rank(0), Tag::Any, 72)
            );
            assert_eq!(
                (recv.completions[0].tag, recv.completions[0].bytes),
                (Tag::Value(4), 64)
            );
        }
    }
}

#[test]
fn fortran_77_under_open_mpi() {
    fortran("openmpi", "mpif77", "calls.f");
}

#[test]
fn fortran_77_under_mpich() {
    fortran("mpich", "mpif77", "calls.f");
}

#[test]
fn fortran_2008_under_open_mpi() {
    fortran("openmpi", "mpif90", "calls.f90");
}

#[test]
fn fortran_2008_under_mpich() {
    fortran("mpich", "mpif90", "calls.f90");
}

#[test]
fn c_under_open_mpi() {
    c("openmpi");
}

/// Returns records without what differs between two runs of a program: the thread ids, the sequence numbers, and the calls of MPI_Waitsome
/// and MPI_Waitany, which depend on timing.
fn comparable(ranks: Vec<Vec<MpiRecord>>) -> Vec<Vec<MpiRecord>> {
    let plain = |mut record: MpiRecord| {
        record.thread = Default::default();
        record.sequence = 0;
        // The launcher's id of the run.
        if record.function == Function::Init {
            record.object = 0;
        }
        record
    };
    let timely =
        |record: &MpiRecord| !matches!(record.function, Function::Waitsome | Function::Waitany);
    ranks
        .into_iter()
        .map(|records| records.into_iter().filter(timely).map(plain).collect())
        .collect()
}

/// One program, compiled against MPICH's own ABI and against the standard one, makes the same calls: functions, peers, tags, bytes, requests,
/// communicators and completions. Handles and statuses of the two differ in size.
#[test]
fn c_under_mpich_and_under_the_standard_abi() {
    let Some(own) = c("mpich") else { return };
    let Some(standard) = c(ABI) else { return };
    // The two compilations have their calls at different addresses, and MPI_BSEND_OVERHEAD is a constant of the ABI.
    let (mut standard, mut own) = (comparable(standard), comparable(own));
    for record in standard.iter_mut().chain(&mut own).flatten() {
        record.call_site = 0;
        if record.function == Function::BufferAttach {
            record.send_bytes = 0;
        }
    }
    for (standard, own) in standard.iter().zip(&own) {
        assert_eq!(standard.len(), own.len());
        standard
            .iter()
            .zip(own)
            .for_each(|(standard, own)| assert_eq!(standard, own));
    }
}

fn c(flavour: &'static str) -> Option<Vec<Vec<MpiRecord>>> {
    let job = Job::new(flavour, "mpicc", "calls.c")?;
    let all = job.run(4);
    for (rank, records) in all.iter().enumerate() {
        check_counts(rank, records);
        check_sends(rank, records);
        check_requests(rank, records);
        check_polls(rank, records);
        check_collectives(rank, records);
    }
    check_communicators(&all);
    // Another run of the same program makes the same records.
    assert_eq!(comparable(job.run(4)), comparable(all.clone()));
    Some(all)
}

fn check_counts(rank: usize, records: &[MpiRecord]) {
    let mut expected = BTreeMap::from([
        ("MPI_Init", 1),
        ("MPI_Finalize", 1),
        ("MPI_Sendrecv", 1),
        ("MPI_Sendrecv_replace", 1),
        ("MPI_Irecv", 7),
        ("MPI_Isend", 3),
        ("MPI_Issend", 2),
        ("MPI_Send", 3),
        ("MPI_Waitall", 5),
        ("MPI_Waitany", 3),
        ("MPI_Recv_init", 1),
        ("MPI_Send_init", 1),
        ("MPI_Startall", 3),
        ("MPI_Request_free", 2),
        ("MPI_Barrier", 4),
        ("MPI_Allreduce", 2),
        ("MPI_Comm_split", 1),
        ("MPI_Comm_dup", 2),
        ("MPI_Comm_create", 1),
        ("MPI_Comm_free", 3),
        ("MPI_Ibarrier", 1),
        ("MPI_Iallreduce", 1),
    ]);
    for once in [
        "Bcast",
        "Reduce",
        "Gather",
        "Gatherv",
        "Scatter",
        "Scatterv",
        "Allgather",
        "Allgatherv",
        "Alltoall",
        "Alltoallv",
        "Alltoallw",
        "Reduce_scatter",
        "Reduce_scatter_block",
        "Scan",
        "Exscan",
    ] {
        let name = Function::ALL
            .iter()
            .map(|function| function.name())
            .find(|name| name[4..] == *once);
        expected.insert(name.expect("an MPI function"), 1);
    }
    let mut more = |name, calls| *expected.entry(name).or_insert(0) += calls;
    if rank.is_multiple_of(2) {
        more("MPI_Send", 1);
        more("MPI_Bsend", 1);
        more("MPI_Ssend", 1);
        more("MPI_Rsend", 1);
        more("MPI_Buffer_attach", 1);
        more("MPI_Buffer_detach", 1);
        more("MPI_Comm_free", 1);
    } else {
        more("MPI_Recv", 3);
        more("MPI_Irecv", 1);
        more("MPI_Wait", 1);
    }
    match rank {
        0 => {
            more("MPI_Irecv", 2);
            more("MPI_Test", 1000);
            more("MPI_Testall", 300);
            more("MPI_Iprobe", 301);
            more("MPI_Probe", 1);
            more("MPI_Wait", 2);
            more("MPI_Recv", 1);
        }
        1 => more("MPI_Send", 3),
        _ => {}
    }
    more(if rank >= 2 { "MPI_Send" } else { "MPI_Recv" }, 1);
    let mut found = counts(records);
    let waitsome = found
        .remove("MPI_Waitsome")
        .expect("MPI_Waitsome is called");
    assert!((1..=4).contains(&waitsome));
    let expected: BTreeMap<String, u64> = expected
        .into_iter()
        .map(|(name, calls)| (name.to_string(), calls))
        .collect();
    assert_eq!(found, expected, "rank {rank}");
}

fn check_sends(rank: usize, records: &[MpiRecord]) {
    let (left, right) = (rank_of((rank + 3) % 4), rank_of((rank + 1) % 4));
    let sendrecv = only(records, Function::Sendrecv);
    assert_eq!(
        (sendrecv.destination, sendrecv.send_tag, sendrecv.send_bytes),
        (right, Tag::Value(5), 12)
    );
    assert_eq!(
        (
            sendrecv.source,
            sendrecv.receive_tag,
            sendrecv.receive_bytes
        ),
        (left, Tag::Value(5), 12)
    );
    assert_eq!(
        (
            sendrecv.communicator,
            sendrecv.communicator_size,
            sendrecv.element_size
        ),
        (communicator::WORLD, 4, 4)
    );
    let done = sendrecv.completions[0];
    assert_eq!(
        (done.source, done.tag, done.bytes, done.cancelled),
        (left, Tag::Value(5), 12, false)
    );
    if rank.is_multiple_of(2) {
        let modes = [Function::Bsend, Function::Ssend, Function::Rsend];
        for (function, ints) in modes.into_iter().zip(2..) {
            let record = only(records, function);
            assert_eq!(
                (record.destination, record.send_tag, record.send_bytes),
                (right, Tag::Value(9 + ints), u64::from(ints) * 4)
            );
        }
    } else {
        for (record, ints) in of(records, Function::Recv).into_iter().zip(1..=3) {
            assert_eq!(
                (record.source, record.receive_tag, record.receive_bytes),
                (Peer::Any, Tag::Any, 16)
            );
            let done = record.completions[0];
            assert_eq!(
                (done.source, done.tag, done.bytes),
                (left, Tag::Value(9 + ints), u64::from(ints) * 4)
            );
        }
        let wait = of(records, Function::Wait)[0];
        assert_eq!(
            (wait.completions[0].source, wait.completions[0].bytes),
            (left, 16)
        );
    }
    assert!(
        of(records, Function::Send)
            .iter()
            .any(|record| record.destination == Peer::Null)
    );
    // A send to MPI_PROC_NULL sends no bytes, although the program passes a count.
    for record in of(records, Function::Send) {
        assert_eq!(
            record.send_bytes == 0,
            record.destination == Peer::Null,
            "{record:?}"
        );
    }
    let init = only(records, Function::Init);
    assert_eq!((init.sequence, init.communicator_size), (0, 4));
    assert!(
        init.flags.contains(Flags::CALL_SITE_IN_PROGRAM),
        "a C program calls directly: {init:?}"
    );
}

fn check_requests(rank: usize, records: &[MpiRecord]) {
    let left = rank_of((rank + 3) % 4);
    // Every operation that is started or prepared has a serial of its own, and every operation that is started completes once.
    let started: Vec<u64> = of(records, Function::Startall)
        .iter()
        .flat_map(|record| record.requests.clone())
        .collect();
    let (inits, ordinary): (Vec<&MpiRecord>, Vec<&MpiRecord>) = records
        .iter()
        .filter(|record| record.request != 0)
        .partition(|record| record.function.class() == Class::Persistent);
    let inits: Vec<u64> = inits.iter().map(|record| record.request).collect();
    let mut made: Vec<u64> = ordinary
        .iter()
        .map(|record| record.request)
        .chain(started)
        .collect();
    made.sort_unstable();
    let mut all = [&made[..], &inits[..]].concat();
    all.sort_unstable();
    assert_eq!(all, (1..=all.len() as u64).collect::<Vec<_>>());
    let mut completed: Vec<u64> = records
        .iter()
        .flat_map(|record| &record.completions)
        .map(|done| done.request)
        .filter(|&serial| serial != 0)
        .collect();
    completed.sort_unstable();
    assert_eq!(completed, made);
    assert!(
        of(records, Function::Startall)
            .iter()
            .all(|record| record.prepared == inits)
    );

    let waitall = of(records, Function::Waitall)[0];
    let isends: Vec<u64> = of(records, Function::Isend)
        .iter()
        .map(|record| record.request)
        .collect();
    let irecvs = of(records, Function::Irecv);
    let first = irecvs
        .iter()
        .position(|record| record.receive_tag == Tag::Value(20))
        .expect("the receive of tag 20");
    let given: Vec<u64> = irecvs[first..first + 3]
        .iter()
        .map(|record| record.request)
        .chain(isends)
        .collect();
    assert_eq!(waitall.requests, given);
    for (index, done) in waitall.completions.iter().enumerate() {
        assert_eq!((done.index as usize, done.request), (index, given[index]));
        let expected = if index < 3 {
            (left, Tag::Value(20 + index as u32), 4)
        } else {
            (Peer::None, Tag::None, 0)
        };
        assert_eq!((done.source, done.tag, done.bytes), expected);
    }
    let [first, second, nothing] = of(records, Function::Waitany)[..] else {
        panic!("three MPI_Waitany")
    };
    for record in [first, second] {
        let done = record.completions[0];
        assert_eq!(record.requests[done.index as usize], done.request);
        assert_eq!((done.source, done.tag), (left, Tag::Value(30 + done.index)));
    }
    assert_eq!(
        (&nothing.requests[..], nothing.completions.len()),
        (&[0, 0][..], 0)
    );
    let some: usize = of(records, Function::Waitsome)
        .iter()
        .map(|record| record.completions.len())
        .sum();
    assert_eq!(some, 4);
    let starts = of(records, Function::Startall);
    for (start, wait) in starts.iter().zip(&of(records, Function::Waitall)[1..4]) {
        assert_eq!(start.requests, wait.requests);
        assert_eq!(wait.completions[0].source, left);
    }
}

fn check_polls(rank: usize, records: &[MpiRecord]) {
    if rank != 0 {
        return;
    }
    let test = only(records, Function::Test);
    assert_eq!(
        (
            test.calls,
            test.flags.contains(Flags::POLL_RUN),
            test.completions.len()
        ),
        (1000, true, 0)
    );
    let awaited = of(records, Function::Irecv)
        .into_iter()
        .find(|record| record.receive_tag == Tag::Value(60));
    assert_eq!(
        test.requests,
        [awaited.expect("the receive of tag 60").request]
    );
    // Polls of two kinds in turn make two runs, not six hundred records.
    let testall = only(records, Function::Testall);
    assert_eq!(
        (testall.calls, testall.flags.contains(Flags::POLL_RUN)),
        (300, true)
    );
    let [missed, found] = of(records, Function::Iprobe)[..] else {
        panic!("a run of MPI_Iprobe and one success")
    };
    assert_eq!(
        (missed.calls, missed.flags.contains(Flags::POLL_RUN)),
        (300, true)
    );
    assert_eq!(
        (missed.source, missed.receive_tag),
        (Peer::Any, Tag::Value(62))
    );
    assert_eq!(
        (found.calls, found.flags.contains(Flags::POLL_RUN)),
        (1, false)
    );
    assert_eq!(
        (found.completions[0].source, found.completions[0].bytes),
        (Peer::Rank(1), 28)
    );
}

fn check_collectives(rank: usize, records: &[MpiRecord]) {
    let own = 8 * (rank as u64 + 1);
    let by_rank = [8, 16, 24, 32];
    let volumes = |function| {
        let record = only(records, function);
        (record.send_bytes, record.receive_bytes)
    };
    let at = |root: usize, there, elsewhere| if rank == root { there } else { elsewhere };
    assert_eq!(volumes(Function::Bcast), at(1, (40, 0), (0, 40)));
    assert_eq!(volumes(Function::Reduce), at(2, (48, 48), (48, 0)));
    assert_eq!(volumes(Function::Gather), at(0, (16, 64), (16, 0)));
    assert_eq!(volumes(Function::Gatherv), at(3, (own, 80), (own, 0)));
    assert_eq!(volumes(Function::Scatter), at(0, (64, 16), (0, 16)));
    assert_eq!(volumes(Function::Scatterv), at(3, (80, own), (0, own)));
    assert_eq!(volumes(Function::Allgather), (24, 96));
    assert_eq!(volumes(Function::Allgatherv), (own, 80));
    assert_eq!(volumes(Function::Alltoall), (64, 64));
    assert_eq!(volumes(Function::Alltoallv), (80, 4 * own));
    assert_eq!(volumes(Function::Alltoallw), (80, 4 * own));
    assert_eq!(volumes(Function::ReduceScatter), (80, own));
    assert_eq!(volumes(Function::ReduceScatterBlock), (96, 24));
    assert_eq!(volumes(Function::Scan), (16, 16));
    assert_eq!(volumes(Function::Exscan), (16, 16));
    assert_eq!(volumes(Function::Iallreduce), (32, 32));
    assert_eq!(only(records, Function::Reduce).reduction, Reduction::Max);
    assert_eq!(
        only(records, Function::ReduceScatter).reduction,
        Reduction::Min
    );
    assert_eq!(
        only(records, Function::ReduceScatterBlock).reduction,
        Reduction::Prod
    );
    assert_eq!(only(records, Function::Gatherv).root, Peer::Rank(3));
    let in_place = of(records, Function::Allreduce)[0];
    assert!(in_place.flags.contains(Flags::IN_PLACE));
    assert_eq!(
        (in_place.send_bytes, in_place.reduction),
        (56, Reduction::Sum)
    );
    let gathered: &[u64] = if rank == 3 { &by_rank } else { &[] };
    assert_eq!(
        only(records, Function::Gatherv).receive_bytes_from,
        gathered
    );
    assert_eq!(only(records, Function::Scatterv).send_bytes_to, gathered);
    assert_eq!(
        only(records, Function::Allgatherv).receive_bytes_from,
        by_rank
    );
    for function in [Function::Alltoallv, Function::Alltoallw] {
        let record = only(records, function);
        assert_eq!(
            (&record.send_bytes_to[..], &record.receive_bytes_from[..]),
            (&by_rank[..], &[own; 4][..])
        );
    }
    assert_eq!(
        only(records, Function::ReduceScatter).send_bytes_to,
        by_rank
    );
}

fn check_communicators(all: &[Vec<MpiRecord>]) {
    let split: Vec<&MpiRecord> = all
        .iter()
        .map(|records| only(records, Function::CommSplit))
        .collect();
    let id = |rank: usize| split[rank].new_communicator;
    assert_eq!((id(0), id(1)), (id(2), id(3)));
    assert_ne!(id(0), id(1));
    assert!(
        split
            .iter()
            .all(|record| record.new_communicator >> 63 == 1)
    );
    // Rank 0 of each half states the members.
    assert_eq!(split[2].members, [Peer::Rank(2), Peer::Rank(0)]);
    assert_eq!(split[3].members, [Peer::Rank(3), Peer::Rank(1)]);
    assert!(split[0].members.is_empty() && split[1].members.is_empty());
    for (rank, records) in all.iter().enumerate() {
        let reduced = of(records, Function::Allreduce)[1];
        assert_eq!(
            (reduced.communicator, reduced.communicator_size),
            (id(rank), 2)
        );
        let on_half = |record: &&&MpiRecord| record.communicator == id(rank);
        if rank >= 2 {
            let sends = of(records, Function::Send);
            assert_eq!(
                sends
                    .iter()
                    .find(on_half)
                    .expect("a send in the half")
                    .destination,
                rank_of(rank - 2)
            );
        } else {
            let receives = of(records, Function::Recv);
            let receive = receives
                .iter()
                .find(on_half)
                .expect("a receive in the half");
            assert_eq!(
                (receive.source, receive.completions[0].source),
                (Peer::Any, rank_of(rank + 2))
            );
        }
        // Two duplicates of a communicator have different ids, and each has the same id on all ranks.
        let twins: Vec<u64> = of(records, Function::CommDup)
            .iter()
            .map(|record| record.new_communicator)
            .collect();
        let of_rank_0: Vec<u64> = of(&all[0], Function::CommDup)
            .iter()
            .map(|record| record.new_communicator)
            .collect();
        assert_eq!(twins, of_rank_0);
        assert_ne!(twins[0], twins[1]);
        let barrier = of(records, Function::Barrier)[3];
        assert_eq!(barrier.communicator, twins[0]);
        let created = only(records, Function::CommCreate).new_communicator;
        assert_eq!(created != 0, rank % 2 == 0);
        // The members and the parent are those of the split, but the communicator is a later one.
        assert_ne!(created, id(0));
    }
}
