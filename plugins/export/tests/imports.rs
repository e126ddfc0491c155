//! Imports of liballprof traces, GOAL schedules and SimGrid's own traces, archives of several jobs, and files of unknown formats.

mod common;

#[path = "../../../vmm/trace/tests/launched/mod.rs"]
mod launched;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use common::{every_kind, export_to};
use nodescope_export::{ExportError, Format, Imported, Options, Survey, export, import};
use nodescope_hypercall::{Function, MpiRecord, Peer, Tag};
use nodescope_test_needs as needs;
use nodescope_trace::{Body, MpiCall, TraceReader, TraceWriter};

/// Imports a trace and returns the calls of each rank.
fn imported(input: &Path) -> (Imported, Vec<Vec<MpiCall>>) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace.nst");
    let imported = import(input, &output).unwrap();
    let mut ranks = vec![Vec::new(); imported.ranks as usize];
    for event in TraceReader::open(&output).unwrap().events() {
        if let Body::Mpi(call) = event.unwrap().body {
            ranks[call.record.thread.pid as usize - 1].push(*call);
        }
    }
    (imported, ranks)
}

/// Returns the message of an import that fails, and checks that it leaves nothing.
fn told(input: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let error = import(input, &folder.path().join("trace.nst")).unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    error.to_string()
}

fn functions(calls: &[MpiCall]) -> Vec<Function> {
    calls.iter().map(|call| call.record.function).collect()
}

fn received(record: &MpiRecord) -> Vec<(Peer, Tag, u64)> {
    let done = record.completions.iter();
    done.map(|done| (done.source, done.tag, done.bytes))
        .collect()
}

/// Writes the file of a rank of a liballprof trace, with a clock that begins at any time. `R` is the rank, `W` is the world.
fn liballprof(folder: &Path, rank: u32, ranks: u32, lines: &str) {
    let world = format!("70000000,{rank},{ranks}");
    let mut text = format!(
        "# htor's PMPI Tracer 1 Output File\n# hostname: host{}.(none)\n\nMPI_Init:-:1:2:100000{rank}00\n",
        rank / 2
    );
    for line in lines.lines() {
        // A line begins and ends at microseconds after MPI_Init.
        let (begin, rest) = line.trim().split_once(' ').unwrap();
        let (end, call) = rest.split_once(' ').unwrap();
        let time =
            |since: &str| 100_000_000 + 100 * u64::from(rank) + since.parse::<u64>().unwrap();
        let (name, arguments) = call.split_once(':').unwrap_or((call, ""));
        let arguments = arguments
            .replace('W', &world)
            .replace('R', &rank.to_string());
        let colon = if arguments.is_empty() { "" } else { ":" };
        text += &format!("{name}:{}:{arguments}{colon}{}\n", time(begin), time(end));
    }
    text += &format!(
        "# Finalize clockdiff: 0.000000\nMPI_Finalize:{}:-\n",
        100_900_000
    );
    fs::write(folder.join(format!("pmpi-trace-rank-{rank}.txt")), text).unwrap();
}

#[test]
fn a_liballprof_trace_has_the_messages_of_its_receives() {
    let dir = tempfile::tempdir().unwrap();
    // Rank 0 receives from any rank into a larger buffer; the rank that sends first comes first. Requests are 8 bytes apart.
    liballprof(
        dir.path(),
        0,
        3,
        "10 11 MPI_Comm_rank:W:7\n\
         20 30 MPI_Irecv:1:100:11,8,8:-1:5:W:5000\n\
         30 31 MPI_Isend:1:2:11,8,8:1:6:W:5008\n\
         50 90 MPI_Waitall:2:5000:0\n\
         100 120 MPI_Recv:1:100:11,8,8:-1:-1:W:0\n\
         200 210 MPI_Allreduce:1:2:4:11,8,8:3:W\n\
         210 220 MPI_Gather:11:2:11,8,8:9:2:11,8,8:0:W\n\
         230 240 MPI_Send:1:1:1,4,4:-2:9:W",
    );
    liballprof(
        dir.path(),
        1,
        3,
        "10 11 MPI_Comm_rank:W:7\n\
         60 61 MPI_Send:1:7:11,8,8:0:5:W\n\
         62 63 MPI_Recv:1:2:11,8,8:0:6:W:0\n\
         200 210 MPI_Allreduce:1:2:4:11,8,8:3:W\n\
         210 220 MPI_Gather:11:2:11,8,8:9:2:11,8,8:0:W",
    );
    liballprof(
        dir.path(),
        2,
        3,
        "10 11 MPI_Comm_rank:W:7\n\
         40 41 MPI_Ssend:1:3:11,8,8:0:5:W\n\
         200 210 MPI_Allreduce:1:2:4:11,8,8:3:W\n\
         210 220 MPI_Gather:11:2:11,8,8:9:2:11,8,8:0:W",
    );
    for input in [
        dir.path().to_owned(),
        dir.path().join("pmpi-trace-rank-1.txt"),
    ] {
        let (summary, ranks) = imported(&input);
        assert_eq!((summary.ranks, summary.jobs, summary.calls), (3, 1, 20));
        let calls = &ranks[0];
        use Function::*;
        assert_eq!(
            functions(calls),
            [
                Init, Irecv, Isend, Waitall, Recv, Allreduce, Gather, Send, Finalize
            ]
        );
        // Times are picoseconds since the rank's MPI_Init.
        assert_eq!(
            (calls[1].entry.time, calls[1].exit.time),
            (20_000_000, 30_000_000)
        );
        assert_eq!(calls[1].record.source, Peer::Any);
        let message = |rank, bytes| (Peer::Rank(rank), Tag::Value(5), bytes);
        assert_eq!(
            received(&calls[3].record),
            [message(2, 24), (Peer::None, Tag::None, 0)]
        );
        assert_eq!(received(&calls[4].record), [message(1, 56)]);
        let gather = &calls[6].record;
        assert_eq!((gather.send_bytes, gather.receive_bytes), (16, 48));
        assert_eq!(ranks[1][5 - 1].record.receive_bytes, 0);
        // MPI_PROC_NULL.
        assert_eq!(calls[7].record.destination, Peer::Null);
        assert!(
            summary
                .notes
                .iter()
                .any(|note| note.starts_with("2 receives from any"))
        );
    }
}

#[test]
fn communicators_tests_and_persistent_requests_of_liballprof_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    for rank in 0..4 {
        let (row, place) = (7000 + rank, 1 - rank % 2);
        let other = 1 - place;
        liballprof(
            dir.path(),
            rank,
            4,
            &format!(
                "1 2 MPI_Comm_rank:W:7\n\
                 3 4 MPI_Comm_split:W:{}:{}:99\n\
                 5 6 MPI_Bcast:1:5:1,4,4:1:{row},{place},2\n\
                 7 8 MPI_Send_init:1:3:1,4,4:{other}:1:{row},{place},2:600\n\
                 8 9 MPI_Recv_init:1:3:1,4,4:{other}:1:{row},{place},2:608\n\
                 10 11 MPI_Startall:2:600\n\
                 12 13 MPI_Testall:2:600:1:0\n\
                 14 15 MPI_Testall:2:600:1:0\n\
                 16 17 MPI_Startall:2:600\n\
                 18 19 MPI_Waitany:2:600:1:0\n\
                 20 21 MPI_Waitany:2:600:1:0\n\
                 22 23 MPI_Alltoallv:11:2:1,2,3,4:3:0,1,2,3:1,4,4:1:2:R,R,R,R:3:0,1,2,3:1,4,4:W\n\
                 24 25 MPI_Type_commit:5\n\
                 26 27 MPI_Win_fence:0:1",
                rank / 2,
                9 - rank
            ),
        );
    }
    let (summary, ranks) = imported(dir.path());
    let calls = &ranks[3];
    use Function::*;
    let expected = [
        Init, CommSplit, Bcast, Isend, Irecv, Testall, Testall, Isend, Irecv, Waitany, Waitany,
        Alltoallv, Finalize,
    ];
    assert_eq!(functions(calls), expected);
    // Keys reverse the order of ranks: rank 3 is the row's first and reports its members.
    let split = &calls[1].record;
    assert_eq!(split.members, [Peer::Rank(3), Peer::Rank(2)]);
    assert_eq!(calls[2].record.communicator, split.new_communicator);
    assert_eq!(calls[2].record.root, Peer::Rank(2));
    assert_ne!(ranks[0][1].record.new_communicator, split.new_communicator);
    assert_eq!(calls[3].record.destination, Peer::Rank(2));
    // What only tests can have ended ends in the last of them.
    assert_eq!(calls[5].record.completions.len(), 0);
    let mut done = received(&calls[6].record);
    done.sort();
    assert_eq!(
        done,
        [
            (Peer::None, Tag::None, 0),
            (Peer::Rank(2), Tag::Value(1), 12)
        ]
    );
    for call in &calls[9..11] {
        assert_eq!(call.record.completions.len(), 1);
    }
    assert_eq!(calls[11].record.send_bytes_to, [4, 8, 12, 16]);
    let noted = |what: &str| summary.notes.iter().any(|note| note.contains(what));
    assert!(
        noted("4 calls of MPI_Win_fence are left out"),
        "{:?}",
        summary.notes
    );
    assert!(noted("waits for any or some requests end the oldest one"));
}

#[test]
fn damaged_liballprof_traces_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace-0.txt");
    let write = |text: &str| fs::write(&file, text).unwrap();
    let init = "MPI_Init:-:1:2:100\n";
    for (text, says) in [
        (
            "MPI_Barrier:200:0,0,1:201\n".to_owned(),
            "without MPI_Finalize",
        ),
        (
            "MPI_Barrier:200:0,0,2:201\n".to_owned(),
            "files of ranks are missing",
        ),
        (
            "MPI_Barrier:200:0,0,4294967295:201\n".to_owned(),
            "files of ranks are missing",
        ),
        (
            "MPI_Send:200:1:1:1,4,4:0:0:0,0\n".to_owned(),
            "trace-0.txt:2: \"0,0\" is no time",
        ),
        (
            "MPI_Send:200:1:1\n".to_owned(),
            "trace-0.txt:2: MPI_Send has 1 arguments",
        ),
        (
            "MPI_Send:200:1:1:1,4,4:7:0:0,0,1:201\n".to_owned(),
            "destination 7 is no rank",
        ),
        (
            "MPI_Recv:200:1:1:1,4,4:0:0:0,0,1:0:201\nMPI_Finalize:300:-\n".to_owned(),
            "that no rank sends",
        ),
        (
            "MPI_Bcast:200:1:1:1,4,4:9:0,0,1:201\n".to_owned(),
            "root 9 is no rank",
        ),
        (
            "MPI_Send:200:1:1:1,4,4:0:-7:0,0,1:201\n".to_owned(),
            "-7 is no tag",
        ),
        (
            "MPI_Barrier:8999999999999999:0,0,1:8999999999999999\n".to_owned(),
            "too long after MPI_Init",
        ),
        ("hello\n".to_owned(), "trace-0.txt:2: is no call of MPI"),
        (
            "MPI_Scatterv:1:2:3:1,2,3:4:1,1,1:1,4,4:5:2:1,4,4:0:0,0,1:2\n".to_owned(),
            "has 3 counts for 1 ranks",
        ),
    ] {
        write(&format!("{init}{text}"));
        let told = told(dir.path());
        assert!(told.contains(says), "{text:?}: {told}");
    }
    fs::write(&file, b"MPI_Init:-:1:2:100\nMPI_\xff\xfe:1:2\n").unwrap();
    assert!(told(&file).contains("trace-0.txt:2: is no text"));
    write(init);
    fs::copy(&file, dir.path().join("trace-00.txt")).unwrap();
    assert!(told(&file).contains("both of rank 0"));
    fs::rename(
        dir.path().join("trace-00.txt"),
        dir.path().join("trace-2.txt"),
    )
    .unwrap();
    assert!(told(&file).contains("none of rank 1"));
    let unnumbered = dir.path().join("trace.txt");
    fs::copy(&file, &unnumbered).unwrap();
    assert!(told(&unnumbered).contains("does not end in its rank"));
    // An array of requests of any length takes no memory.
    fs::remove_file(dir.path().join("trace-2.txt")).unwrap();
    write(&format!(
        "{init}MPI_Waitall:200:9223372036854775807:18446744073709551615:0:300\nMPI_Finalize:400:-\n"
    ));
    assert_eq!(imported(&file).0.calls, 3);
}

/// Writes a GOAL schedule and returns its path.
fn goal(folder: &Path, text: &str) -> std::path::PathBuf {
    let path = folder.join("schedule.goal");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_goal_schedule_becomes_calls_that_keep_its_dependencies() {
    let dir = tempfile::tempdir().unwrap();
    let path = goal(
        dir.path(),
        "num_ranks 3\nrank 0 {\nl1: calc 100\nl2: send 10b to 1 tag 7 cpu 0 nic 0\nl2 requires l1\n\
         l3: calc 50\nl3 requires l2\nl4: recv 20b from -1 tag 3\nl4 irequires l2\nl5: calc 5\n\
         l5 requires l4\nl5 requires l3\nl6: recv 20b from 2 tag 3\n}\n\
         rank 1 {\nl1: recv 10b from 0 tag 7\nl2: send 20b to 0 tag 3\nl2 requires l1\n}\n\
         rank 2 {\nsend 20b to 0 tag 3\n}\n",
    );
    let (summary, ranks) = imported(&path);
    use Function::*;
    let calls = &ranks[0];
    // Nothing requires the last receive, so that it is under way from the beginning.
    assert_eq!(
        functions(calls),
        [Init, Irecv, Isend, Irecv, Wait, Wait, Waitall, Finalize]
    );
    let work: Vec<u64> = calls.iter().map(|call| call.entry.time / 1000).collect();
    assert_eq!(work, [0, 0, 100, 100, 100, 150, 155, 155]);
    // The receive from any rank takes what no other receive names.
    assert_eq!(
        received(&calls[5].record),
        [(Peer::Rank(1), Tag::Value(3), 20)]
    );
    assert_eq!(functions(&ranks[1]), [Init, Recv, Isend, Waitall, Finalize]);
    assert!(
        summary
            .notes
            .iter()
            .any(|note| note.contains("no times of calls"))
    );
    assert!(
        summary
            .notes
            .iter()
            .any(|note| note.starts_with("3 sends or receives that no"))
    );
}

#[test]
fn damaged_goal_schedules_are_told() {
    let dir = tempfile::tempdir().unwrap();
    for (text, says) in [
        (
            "num_ranks 1\nrank 0 {\nl1: calc 5\n",
            "ends inside the schedule of rank 0",
        ),
        ("num_ranks 2\nrank 0 {\n}\n", "nothing of rank 1"),
        (
            "num_ranks 4294967296\n",
            "schedule.goal:1: has an impossible number",
        ),
        ("num_ranks 16000000\nrank 5 {\n}\n", "nothing of rank 0"),
        (
            "num_ranks 1\nrank 0 {\n}\nrank 0 {\n}\n",
            "schedule.goal:4: rank 0 has a schedule before",
        ),
        (
            "num_ranks 1\nrank 0 {\nl1: calc 5\nl2: calc 5\nl1 requires l2\nl2 irequires l1\n}\n",
            "the dependencies have a cycle",
        ),
        (
            "num_ranks 1\nrank 0 {\nl1: recv 5b from -1\n}\n",
            "from any rank with tag 0 that no rank sends",
        ),
        (
            "num_ranks 1\nrank 0 {\ncalc 18446744073709551615\n}\n",
            "213 days",
        ),
    ] {
        let told = told(&goal(dir.path(), text));
        assert!(told.contains(says), "{text:?}: {told}");
    }
    let path = dir.path().join("schedule.goal");
    fs::write(&path, b"num_ranks 1\nrank 0 {\n\xff: calc 5\n}\n").unwrap();
    assert!(told(&path).contains("schedule.goal:3: is no text"));
}

/// Sizes of messages from a rank to a rank with a tag, in order.
type Messages = HashMap<(u32, u32, u32), Vec<u64>>;

#[test]
fn an_exported_goal_schedule_has_every_message_at_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    export_to(dir.path(), &every_kind(), Format::Goal);
    let path = dir.path().join("out/trace.goal");
    let text = fs::read_to_string(&path).unwrap();
    let (mut sent, mut taken): (Messages, Messages) = Default::default();
    let mut rank = 0;
    let mut defined = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].trim_end_matches('b').parse::<u64>().unwrap();
        match words[..] {
            ["rank", _, "{"] => (rank, defined) = (number(1) as u32, 0),
            [_, "send", _, "to", _, "tag", _] => {
                let key = (rank, number(4) as u32, number(6) as u32);
                sent.entry(key).or_default().push(number(2));
            }
            [_, "recv", _, "from", _, "tag", _] => {
                let key = (number(4) as u32, rank, number(6) as u32);
                taken.entry(key).or_default().push(number(2));
            }
            // LogGOPSim reads only labels that were defined before.
            [after, "requires" | "irequires", before] => {
                assert_eq!(after, format!("l{defined}"));
                let before: u64 = before[1..].parse().unwrap();
                assert!(before < defined, "{line}");
            }
            ["num_ranks", "4"] | [_, "calc", _] | [""] | ["}"] => {}
            _ => panic!("{line}"),
        }
        if words[0].ends_with(':') {
            defined += 1;
            assert_eq!(words[0], format!("l{defined}:"));
        }
    }
    assert_eq!(sent, taken);
    let all: usize = sent.values().map(Vec::len).sum();
    assert!(
        all > common::MESSAGES as usize,
        "collectives are messages, too: {all}"
    );
    // The schedule can be imported, and its messages are the same.
    let (_, ranks) = imported(&path);
    let records = ranks.iter().flatten().map(|call| &call.record);
    let sends = records.filter(|record| record.destination != Peer::None);
    assert_eq!(sends.count(), all);
    // Each rank computes as long as in the trace, but for work below a nanosecond.
    let traced = every_kind()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::Mpi(call) => Some(*call),
            _ => None,
        });
    let mut expected = [0u64; 4];
    let mut last = [0u64; 4];
    for call in traced {
        let rank = call.record.rank.rank().unwrap() as usize;
        if call.record.function != Function::Init {
            expected[rank] += call.entry.time - last[rank];
        }
        last[rank] = call.exit.time;
    }
    for (calls, expected) in ranks.iter().zip(expected) {
        assert_eq!(calls.last().unwrap().exit.time / 1000, expected / 1000);
    }
}

#[test]
fn work_before_a_wait_does_not_wait_in_goal() {
    let dir = tempfile::tempdir().unwrap();
    let (mut c, work) = (common::trace(2), 50_000_000);
    for rank in 0..2 {
        c.simple(rank, Function::Init);
        let peer = Peer::Rank(1 - rank);
        let request = 1;
        match rank {
            0 => c.call(rank, Function::Isend, 1000, |record| {
                (record.destination, record.send_tag) = (peer, Tag::Value(1));
                (record.request, record.send_bytes) = (request, 8);
            }),
            _ => c.call(rank, Function::Irecv, 1000, |record| {
                (record.source, record.receive_tag) = (peer, Tag::Value(1));
                (record.request, record.receive_bytes) = (request, 8);
            }),
        }
        c.work(rank, work);
        c.call(rank, Function::Wait, 1000, |record| {
            record.requests = vec![request];
            record.completions = vec![nodescope_hypercall::Completion {
                request,
                bytes: 8,
                source: peer,
                tag: Tag::Value(1),
                ..Default::default()
            }];
        });
        c.simple(rank, Function::Finalize);
    }
    export_to(dir.path(), &c.finish(), Format::Goal);
    let text = fs::read_to_string(dir.path().join("out/trace.goal")).unwrap();
    let expected = "l1: recv 8b from 0 tag 0\nl2: calc 50000\nl2 irequires l1\n\
                    l3: calc 0\nl3 requires l2\nl3 requires l1\n}\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn a_goal_schedule_holds_one_program() {
    let dir = tempfile::tempdir().unwrap();
    let trace = two_programs(dir.path());
    let out = dir.path().join("out");
    let error = export(&trace, Format::Goal, &out, &Options::default()).unwrap_err();
    assert!(
        matches!(error, ExportError::SeveralPrograms { count: 2, .. }),
        "{error}"
    );
}

fn two_programs(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("together.nst");
    let mut writer = TraceWriter::create(&path, &launched::header()).unwrap();
    for event in launched::job(&launched::pairs()[0].1) {
        writer.write(&event).unwrap();
    }
    writer.finish().unwrap();
    path
}

#[test]
fn jobs_of_an_archive_stay_apart() {
    let dir = tempfile::tempdir().unwrap();
    let trace = two_programs(dir.path());
    let out = dir.path().join("out");
    match export(&trace, Format::Otf2, &out, &Options::default()) {
        Err(ExportError::Otf2(error)) if error.missing() => {
            needs::skip(needs::Need::Otf2, error);
            return;
        }
        other => other.unwrap(),
    };
    let back = dir.path().join("back.nst");
    let imported = import(&out, &back).unwrap();
    let (before, after) = (Survey::of(&trace).unwrap(), Survey::of(&back).unwrap());
    assert_eq!(imported.jobs, 2);
    assert!(
        imported
            .notes
            .iter()
            .any(|note| note.contains("2 MPI jobs")),
        "{:?}",
        imported.notes
    );
    let sizes = |survey: &Survey| -> Vec<(u32, usize)> {
        let worlds = survey.worlds.iter();
        worlds
            .map(|world| (world.size, world.processes.len()))
            .collect()
    };
    assert_eq!(sizes(&before), sizes(&after));
}

#[test]
fn ranks_that_simgrid_does_not_name_are_any_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ti");
    // As SimGrid 3.32 writes (-333), and with the constants of smpi.h.
    fs::write(
        &path,
        "0 init\n1 init\n2 init\n0 send -333 3 10 0\n0 isend -666 3 10 0\n0 wait 0 -666 3\n\
         0 recv -333 -444 100 6\n0 recv -555 9 100 6\n0 irecv -333 9 100 6\n0 wait -333 0 9\n\
         1 compute 5\n1 send 0 8 20 6\n2 compute 9\n2 Ssend 0 9 30 6\n2 recv -666 1 1 6\n\
         1 sendRecv 5 2 5 -666 6 6\n2 sendRecv 5 -666 5 1 6 6\n2 irecv 1 4 -1 6\n1 isend 2 4 77 12\n\
         2 waitAny 1\n1 waitall 1\n0 finalize\n1 finalize\n2 finalize\n",
    )
    .unwrap();
    let (summary, ranks) = imported(&path);
    let at = |rank: usize, number: usize| &ranks[rank][number].record;
    assert_eq!(at(0, 1).destination, Peer::Null);
    assert_eq!(at(0, 2).destination, Peer::Null);
    assert_eq!(received(at(0, 4)), [(Peer::Rank(1), Tag::Value(8), 20)]);
    assert_eq!(received(at(0, 5)), [(Peer::Rank(2), Tag::Value(9), 30)]);
    // No message is left for this one.
    assert_eq!(at(0, 6).source, Peer::Null);
    assert_eq!(received(at(0, 7))[0].0, Peer::Null);
    assert_eq!(
        (at(2, 1).function, at(2, 1).send_bytes),
        (Function::Ssend, 30)
    );
    assert_eq!(at(2, 2).source, Peer::Null);
    assert_eq!(
        (at(1, 2).destination, at(1, 2).source),
        (Peer::Rank(2), Peer::Null)
    );
    assert_eq!(received(at(2, 3)), [(Peer::Rank(1), Tag::Value(0), 5)]);
    // The size that the receiver does not state is that of the message.
    assert_eq!(at(2, 4).receive_bytes, 77 * 8);
    assert_eq!(received(at(2, 5)), [(Peer::Rank(1), Tag::Value(4), 77 * 8)]);
    assert!(
        summary
            .notes
            .iter()
            .any(|note| note.starts_with("2 receives from any")),
        "{:?}",
        summary.notes
    );
}

#[test]
fn files_of_unknown_formats_are_named_by_what_they_look_like() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace");
    for (bytes, says) in [
        (
            &b"\x1f\x8b\x08\0"[..],
            "is compressed by gzip; unpack it first",
        ),
        (b"{\"traceEvents\": []}", "begins like JSON"),
        (
            b"#Paraver (01/01/26:3)",
            "is a Paraver trace, which cannot be imported",
        ),
        (
            b"The quick brown fox\n",
            "is text that begins with \"The quick brown fox\"",
        ),
        (
            b"\x01\x02\x03\x04\x05\x06",
            "holds no text, and begins with the bytes 01 02 03 04",
        ),
        (&nodescope_trace::MAGIC, "is a nodescope trace already"),
    ] {
        fs::write(&file, bytes).unwrap();
        let told = told(&file);
        assert!(told.contains(says), "{told}");
        assert!(
            told.contains("what can be imported is an OTF2 archive"),
            "{told}"
        );
    }
    assert!(told(dir.path()).contains("is a folder without a trace of these formats"));
    goal(dir.path(), "num_ranks 1\nrank 0 {\n}\n");
    assert_eq!(imported(dir.path()).0.ranks, 1);
    fs::write(dir.path().join("x.ti"), "0 init\n").unwrap();
    assert!(told(dir.path()).contains("several traces; name one, such as schedule.goal or x.ti"));
}
