//! Checks of every format, by a tool that reads the format or by a parser that shares no code with the writer.

mod common;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use common::{every_kind, export_to, trace};
use nodescope_export::{Bursts, ExportError, Format, Network, Options, export, import};
use nodescope_hypercall::{Function, Peer};
use nodescope_test_needs::{Need, have, skip};
use nodescope_trace::{Body, TraceReader};

/// Exports a trace to an OTF2 archive in a folder. Returns false, and reports the test as skipped, if OTF2's library is not installed.
fn archive(file: &Path, folder: &Path) -> bool {
    match export(file, Format::Otf2, folder, &Options::default()) {
        Err(ExportError::Otf2(error)) if error.missing() => {
            skip(Need::Otf2, error);
            false
        }
        result => {
            result.unwrap();
            true
        }
    }
}

#[test]
fn every_line_of_the_table_has_every_column() {
    let dir = tempfile::tempdir().unwrap();
    let events = every_kind();
    export_to(dir.path(), &events, Format::Csv);
    let text = std::fs::read_to_string(dir.path().join("out/trace.csv")).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!(header, nodescope_export::csv::COLUMNS);
    assert_eq!(lines.clone().count(), events.len());
    for line in lines {
        assert_eq!(line.split(',').count(), header.len(), "{line}");
    }
    assert!(text.contains(",call,MPI_Isend,"), "{text}");
}

/// Perfetto's schema, as far as the writer uses it.
mod perfetto {
    use prost::Message;

    #[derive(Message)]
    pub struct Trace {
        #[prost(message, repeated, tag = "1")]
        pub packet: Vec<Packet>,
    }
    #[derive(Message)]
    pub struct Packet {
        #[prost(uint64, optional, tag = "8")]
        pub timestamp: Option<u64>,
        #[prost(uint32, tag = "10")]
        pub sequence: u32,
        #[prost(message, optional, tag = "11")]
        pub event: Option<TrackEvent>,
        #[prost(message, optional, tag = "12")]
        pub interned: Option<Interned>,
        #[prost(uint32, tag = "13")]
        pub flags: u32,
        #[prost(message, optional, tag = "60")]
        pub track: Option<Track>,
    }
    #[derive(Message)]
    pub struct TrackEvent {
        #[prost(uint64, repeated, packed = "false", tag = "3")]
        pub categories: Vec<u64>,
        #[prost(int32, tag = "9")]
        pub kind: i32,
        #[prost(uint64, optional, tag = "10")]
        pub name: Option<u64>,
        #[prost(uint64, tag = "11")]
        pub track: u64,
        #[prost(fixed64, repeated, packed = "false", tag = "47")]
        pub flows: Vec<u64>,
        #[prost(fixed64, repeated, packed = "false", tag = "48")]
        pub last_flows: Vec<u64>,
    }
    #[derive(Message)]
    pub struct Interned {
        #[prost(message, repeated, tag = "2")]
        pub names: Vec<Name>,
    }
    #[derive(Message)]
    pub struct Name {
        #[prost(uint64, tag = "1")]
        pub iid: u64,
        #[prost(string, tag = "2")]
        pub name: String,
    }
    #[derive(Message)]
    pub struct Track {
        #[prost(uint64, tag = "1")]
        pub uuid: u64,
        #[prost(message, optional, tag = "4")]
        pub thread: Option<Thread>,
    }
    #[derive(Message)]
    pub struct Thread {
        #[prost(int32, tag = "1")]
        pub pid: i32,
        #[prost(int32, tag = "2")]
        pub tid: i32,
        #[prost(string, tag = "5")]
        pub name: String,
    }
}

#[test]
fn perfetto_decodes_with_its_schema_and_slices_nest() {
    use prost::Message;
    let dir = tempfile::tempdir().unwrap();
    let events = every_kind();
    export_to(dir.path(), &events, Format::Perfetto);
    let bytes = std::fs::read(dir.path().join("out/trace.perfetto-trace")).unwrap();
    let decoded = perfetto::Trace::decode(&bytes[..]).unwrap();
    let mut names = HashMap::new();
    let mut tracks = HashMap::new();
    let mut open: HashMap<u64, i32> = HashMap::new();
    let (mut sent, mut received, mut slices) = (Vec::<u64>::new(), Vec::<u64>::new(), 0);
    for packet in &decoded.packet {
        for name in packet.interned.iter().flat_map(|data| &data.names) {
            names.insert(name.iid, name.name.clone());
        }
        if let Some(track) = &packet.track {
            tracks.insert(track.uuid, track.thread.is_some());
        }
        let Some(event) = &packet.event else { continue };
        assert!(
            tracks.contains_key(&event.track),
            "no track {}",
            event.track
        );
        assert!(packet.timestamp.is_some());
        match event.kind {
            1 => {
                *open.entry(event.track).or_default() += 1;
                let name = &names[&event.name.expect("a name")];
                assert!(name.starts_with("MPI_"), "{name}");
                slices += 1;
            }
            2 => *open.entry(event.track).or_default() -= 1,
            3 => {}
            other => panic!("type {other}"),
        }
        sent.extend(&event.flows);
        received.extend(&event.last_flows);
    }
    assert!(open.values().all(|&depth| depth == 0), "{open:?}");
    let calls = events
        .iter()
        .filter(|event| matches!(event.body, Body::Mpi(_)));
    assert_eq!(slices, calls.count());
    assert!(!received.is_empty());
    sent.sort_unstable();
    received.sort_unstable();
    assert_eq!(sent, received, "every arrow has two ends");
    sent.dedup();
    assert_eq!(sent.len(), received.len(), "no two messages share an arrow");
}

#[test]
fn chrome_is_json_whose_arrows_have_two_ends() {
    let dir = tempfile::tempdir().unwrap();
    let events = every_kind();
    export_to(dir.path(), &events, Format::Chrome);
    let text = std::fs::read_to_string(dir.path().join("out/trace.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let list = json["traceEvents"].as_array().unwrap();
    let of = |phase: &str| list.iter().filter(|event| event["ph"] == phase).count();
    let calls = events
        .iter()
        .filter(|event| matches!(event.body, Body::Mpi(_)));
    assert_eq!(of("X"), calls.count());
    assert!(of("s") > 0);
    assert_eq!(of("s"), of("f"));
    assert!(list.iter().all(|event| event["name"].is_string()));
}

#[test]
fn paraver_is_ordered_and_its_ids_are_declared() {
    let dir = tempfile::tempdir().unwrap();
    export_to(dir.path(), &every_kind(), Format::Paraver);
    let text = std::fs::read_to_string(dir.path().join("out/trace.prv")).unwrap();
    let mut lines = text.lines();
    // #Paraver (date):end_ns:nodes(cpus):applications:tasks(threads:node,...),communicators
    let header = lines.next().unwrap();
    let rest = header.strip_prefix("#Paraver (").unwrap();
    let (_, rest) = rest.split_once("):").unwrap();
    let mut fields = rest.split(':');
    let end: u64 = fields
        .next()
        .unwrap()
        .strip_suffix("_ns")
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(fields.next(), Some("2(2,2)"));
    assert_eq!(fields.next(), Some("1"));
    let tasks = 4;
    assert!(rest.contains(":4(1:1,1:1,1:2,1:2),"), "{rest}");
    let communicators: usize = rest.rsplit(',').next().unwrap().parse().unwrap();
    assert_eq!(
        text.lines().filter(|line| line.starts_with("c:")).count(),
        communicators
    );
    let (mut last, mut messages, mut busy) = (0, 0, HashMap::new());
    for line in lines.filter(|line| !line.starts_with("c:")) {
        let numbers: Vec<u64> = line
            .split(':')
            .map(|word| word.parse().unwrap_or_else(|_| panic!("{line}")))
            .collect();
        let object = |at: usize| {
            assert!((1..=4).contains(&numbers[at]), "cpu in {line}");
            assert_eq!(numbers[at + 1], 1, "application in {line}");
            assert!((1..=tasks).contains(&numbers[at + 2]), "task in {line}");
            assert_eq!(numbers[at + 3], 1, "thread in {line}");
        };
        object(1);
        assert!(numbers[5] >= last, "time goes back: {line}");
        last = numbers[5];
        match numbers[0] {
            1 => {
                assert_eq!(numbers.len(), 8);
                assert!(
                    numbers[5] < numbers[6] && numbers[6] <= end && numbers[7] <= 16,
                    "{line}"
                );
                // States of a thread must not overlap.
                let before = busy.insert(numbers[3], numbers[6]);
                assert!(before.unwrap_or(0) <= numbers[5], "{line}");
            }
            2 => assert!(
                numbers.len() >= 8 && numbers.len().is_multiple_of(2),
                "{line}"
            ),
            3 => {
                assert_eq!(numbers.len(), 15);
                object(7);
                assert!(numbers[12] >= numbers[5], "received before sent: {line}");
                messages += 1;
            }
            other => panic!("record {other}"),
        }
    }
    assert_eq!(messages, common::MESSAGES);
    let row = std::fs::read_to_string(dir.path().join("out/trace.row")).unwrap();
    assert!(
        row.contains("LEVEL THREAD SIZE 4") && row.contains("LEVEL CPU SIZE 4"),
        "{row}"
    );
    let pcf = std::fs::read_to_string(dir.path().join("out/trace.pcf")).unwrap();
    assert!(pcf.contains("50000001    MPI Point-to-point"), "{pcf}");
}

#[test]
fn dimemas_offsets_point_to_tasks_and_every_send_has_a_receive() {
    let dir = tempfile::tempdir().unwrap();
    export_to(dir.path(), &every_kind(), Format::Dimemas);
    let text = std::fs::read_to_string(dir.path().join("out/trace.dim")).unwrap();
    let header = text.lines().next().unwrap();
    let rest = header.strip_prefix("#DIMEMAS:\"trace\":1,").unwrap();
    let (offsets, rest) = rest.split_once(':').unwrap();
    let offsets: usize = offsets.parse().unwrap();
    assert!(rest.starts_with("4(1,1,1,1),"), "{rest}");
    let mut tasks = 0;
    for line in text[offsets..].lines() {
        let words: Vec<&str> = line.split(':').collect();
        let at: usize = words[2].parse().unwrap();
        let first = text[at..].lines().next().unwrap();
        assert_eq!(words[0], "s");
        assert_eq!(first.split(':').nth(1), Some(words[1]), "{line}: {first}");
        tasks += 1;
    }
    assert_eq!(tasks, 4);
    let mut balance: HashMap<(String, String, String, String), i64> = HashMap::new();
    for line in text.lines() {
        let words: Vec<String> = line.split(':').map(String::from).collect();
        // from, to, tag, communicator
        let (key, change) = match words[0].as_str() {
            "2" => (
                (
                    words[1].clone(),
                    words[3].clone(),
                    words[6].clone(),
                    words[7].clone(),
                ),
                1,
            ),
            "3" if words[8] != "2" => (
                (
                    words[3].clone(),
                    words[1].clone(),
                    words[6].clone(),
                    words[7].clone(),
                ),
                -1,
            ),
            _ => continue,
        };
        *balance.entry(key).or_default() += change;
    }
    assert!(!balance.is_empty());
    assert!(balance.values().all(|&sum| sum == 0), "{balance:?}");
}

/// Replays a trace with smpirun. Returns true for success, and all output.
fn replay(folder: &Path, options: &[&str]) -> (bool, String) {
    let out = Command::new("sh")
        .arg(folder.join("replay"))
        .args(options)
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.success(), text)
}

#[test]
fn simgrid_replays_every_kind_of_call() {
    if !have(Need::Simgrid, &["smpirun"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    export_to(dir.path(), &every_kind(), Format::Simgrid);
    let (done, text) = replay(&dir.path().join("out"), &[]);
    assert!(done, "{text}");
    assert!(text.contains("Simulation time"), "{text}");
}

/// Returns the simulated time in seconds from smpirun's output.
fn simulated(text: &str) -> f64 {
    let line = text.lines().find(|line| line.contains("Simulation time"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    line.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn simgrid_takes_the_time_of_work_and_of_a_message() {
    if !have(Need::Simgrid, &["smpirun"]) {
        return;
    }
    // Rank 0 works a millisecond and sends a megabyte; rank 1 receives it.
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = trace(2);
    let all = 1_000_000;
    cluster.simple(0, Function::Init);
    cluster.simple(1, Function::Init);
    cluster.work(0, 1_000_000_000);
    cluster.call(0, Function::Send, 1000, |record| {
        (record.destination, record.send_bytes) = (Peer::Rank(1), all);
        record.send_tag = nodescope_hypercall::Tag::Value(7);
    });
    cluster.call(1, Function::Recv, 1000, |record| {
        (record.source, record.receive_bytes) = (Peer::Rank(0), all);
        record.receive_tag = nodescope_hypercall::Tag::Value(7);
    });
    cluster.simple(0, Function::Finalize);
    cluster.simple(1, Function::Finalize);
    let file = cluster.write(dir.path());
    let network = Network {
        latency_ps: 10_000_000,
        bandwidth: 8_000_000_000,
    };
    for bursts in [Bursts::Time, Bursts::Instructions] {
        let options = Options {
            network,
            bursts,
            ..Options::default()
        };
        let folder = dir.path().join("out");
        export(&file, Format::Simgrid, &folder, &options).unwrap();
        // The network has no correction factors, and no windows of protocols.
        let plain = [
            "--cfg=network/model:CM02",
            "--cfg=network/TCP-gamma:0",
            "--cfg=smpi/async-small-thresh:0",
        ];
        let (done, text) = replay(&folder, &plain);
        assert!(done, "{text}");
        // 1 ms of work, 10 us of latency, 1 MB at 1 GB/s. SMPI adds its own small overheads.
        let expected = 1e-3 + 10e-6 + 1e-3;
        let time = simulated(&text);
        println!("{bursts:?}: {time} s, expected {expected} s");
        assert!(
            (time - expected).abs() < expected * 0.02,
            "{bursts:?}: {time}: {text}"
        );
    }
}

#[test]
fn otf2_print_reads_the_archive() {
    if !have(Need::Otf2, &["otf2-print"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let events = every_kind();
    export_to(dir.path(), &events, Format::Otf2);
    let archive = dir.path().join("out/trace.otf2");
    let run = |option: &[&str]| {
        let out = Command::new("otf2-print")
            .args(option)
            .arg(&archive)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            out.status.success() && !errors.contains("error"),
            "{errors}"
        );
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let definitions = run(&["-G"]);
    for part in [
        "MPI_COMM_WORLD",
        "MPI_Isend",
        "call site",
        "node1",
        "MPI rank 3",
        "COMM_LOCATIONS",
    ] {
        assert!(definitions.contains(part), "no {part} in {definitions}");
    }
    let text = run(&[]);
    let count = |what: &str| text.lines().filter(|line| line.starts_with(what)).count();
    let calls = events
        .iter()
        .filter(|event| matches!(event.body, Body::Mpi(_)))
        .count();
    // A function region is inside a call-site region for each call, and each thread has a program region.
    assert_eq!(count("ENTER"), 2 * calls + 4);
    assert_eq!(count("ENTER"), count("LEAVE"));
    let sends = count("MPI_SEND ") + count("MPI_ISEND ");
    assert_eq!(sends, common::MESSAGES as usize);
    assert_eq!(count("MPI_RECV ") + count("MPI_IRECV "), sends);
    assert_eq!(count("MPI_COLLECTIVE_BEGIN"), count("MPI_COLLECTIVE_END"));
    assert_eq!(
        count("NON_BLOCKING_COLLECTIVE_REQUEST"),
        count("NON_BLOCKING_COLLECTIVE_COMPLETE")
    );
}

/// Returns the calls of a trace as text, for comparisons of imports and exports; calls that make or free communicators are left out.
fn tell(path: &Path) -> Vec<String> {
    let mut list: Vec<(u32, u64, String)> = Vec::new();
    for event in TraceReader::open(path).unwrap().events() {
        let Body::Mpi(call) = event.unwrap().body else {
            continue;
        };
        let record = &call.record;
        // Import adds the creation of communicators at the beginning; archives lack other data of such calls.
        if record.function.class() == nodescope_hypercall::Class::Communicator {
            continue;
        }
        let received = record
            .completions
            .iter()
            .map(|done| (done.source, done.tag, done.bytes));
        let text = format!(
            "{} {} {}-{} to {:?} {:?} {} got {:?} site {:#x} requests {} collective {:?} {}",
            record.rank.rank().unwrap(),
            record.function,
            call.entry.time,
            call.exit.time,
            record.destination,
            record.send_tag,
            record.send_bytes,
            received.collect::<Vec<_>>(),
            record.call_site,
            record.completions.len(),
            record.root,
            // In archives, the buffer size of a receive is the size of the received message.
            match record.source {
                Peer::None => record.receive_bytes,
                _ => 0,
            },
        );
        list.push((record.rank.rank().unwrap(), record.sequence, text));
    }
    list.sort();
    list.into_iter().map(|(_, _, text)| text).collect()
}

#[test]
fn an_otf2_archive_comes_back_with_the_same_calls() {
    let dir = tempfile::tempdir().unwrap();
    let events = every_kind();
    let file = common::write(dir.path(), &events);
    let folder = dir.path().join("out");
    if !archive(&file, &folder) {
        return;
    }
    let back = dir.path().join("back.nst");
    import(&folder.join("trace.otf2"), &back).unwrap();
    let (one, other) = (tell(&file), tell(&back));
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(one, other);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]

    #[test]
    fn calls_of_any_order_come_back_from_archives(list in proptest::collection::vec((0u8..5, 0u32..50, 0u64..1 << 33), 0..30)) {
        let dir = tempfile::tempdir().unwrap();
        let file = common::write(dir.path(), &common::phases(&list));
        let folder = dir.path().join("out");
        if !archive(&file, &folder) {
            return Ok(());
        }
        let back = dir.path().join("back.nst");
        import(&folder, &back).unwrap();
        proptest::prop_assert_eq!(tell(&file), tell(&back));
        // A second round: the import of an export of an import.
        let again = dir.path().join("again");
        export(&back, Format::Otf2, &again, &Options::default()).unwrap();
        let twice = dir.path().join("twice.nst");
        import(&again, &twice).unwrap();
        proptest::prop_assert_eq!(tell(&back), tell(&twice));
    }
}

#[test]
fn damaged_archives_are_told_and_never_imported() {
    let dir = tempfile::tempdir().unwrap();
    let file = common::write(dir.path(), &every_kind());
    let folder = dir.path().join("out");
    if !archive(&file, &folder) {
        return;
    }
    let whole = dir.path().join("whole.nst");
    let all = import(&folder.join("trace.otf2"), &whole).unwrap().calls;
    let mut refused = 0;
    for name in ["trace.otf2", "trace.def", "trace/1.evt"] {
        let path = folder.join(name);
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 1, whole.len() / 2, whole.len().saturating_sub(1)] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let back = dir.path().join("back.nst");
            match import(&folder.join("trace.otf2"), &back) {
                // The anchor file ends with properties that the import does not need.
                Ok(imported) => {
                    assert_eq!(
                        imported.calls, all,
                        "{name} of {length} bytes is imported in part"
                    );
                    std::fs::remove_file(&back).unwrap();
                }
                Err(error) => {
                    refused += 1;
                    println!("{name}, {length} bytes: {error}");
                    assert!(error.to_string().contains("trace.otf2"), "{error}");
                }
            }
            assert!(!back.exists());
        }
        std::fs::write(&path, &whole).unwrap();
    }
    assert!(refused >= 9, "{refused} of 12 refused");
}

#[test]
fn a_simgrid_trace_comes_back_and_exports_to_the_same_actions() {
    let dir = tempfile::tempdir().unwrap();
    export_to(dir.path(), &every_kind(), Format::Simgrid);
    let first = dir.path().join("out");
    let back = dir.path().join("back.nst");
    import(&first.join("trace.ti"), &back).unwrap();
    let second = dir.path().join("again");
    export(&back, Format::Simgrid, &second, &Options::default()).unwrap();
    // The second export numbers tags anew, in the order of each channel. All other actions must be equal, except amounts of work.
    let actions = |folder: &Path, rank: usize| -> Vec<String> {
        let text = std::fs::read_to_string(folder.join(format!("trace.ti.ranks/{rank}"))).unwrap();
        text.lines()
            .filter(|line| !line.contains("compute"))
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                match words[1] {
                    "send" | "isend" | "recv" | "irecv" => {
                        [words[1], words[2], words[4], words[5]].join(" ")
                    }
                    "wait" => words[1..4].join(" "),
                    _ => words[1..].join(" "),
                }
            })
            .collect()
    };
    for rank in 0..4 {
        let (one, other) = (actions(&first, rank), actions(&second, rank));
        assert!(one.len() > 10);
        assert_eq!(one, other, "rank {rank}");
    }
}

#[test]
fn damaged_simgrid_traces_are_told_by_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ti");
    let back = dir.path().join("back.nst");
    for (text, says) in [
        ("", "x.ti is empty; what can be imported is an OTF2 archive"),
        ("0 init\n0 send\n", "x.ti:2: send: lacks its receiver"),
        (
            "0 init\n0 send x 1 2 6\n",
            "x.ti:2: send: \"x\" is no receiver",
        ),
        (
            "0 init\n0 jump 1\n",
            "x.ti:2: jump: is an action that is not known",
        ),
        (
            "0 init\n0 wait 0 1 5\n",
            "x.ti:2: wait: no message from 0 to 1 with tag 5 is under way",
        ),
        (
            "0 init\n0 compute -5\n",
            "x.ti:2: compute: -5 is an impossible amount of work",
        ),
        ("0 init\n0 compute NaN\n", "impossible amount of work"),
        ("0 init\n2 init\n", "has rank 2 and nothing of rank 1"),
        ("0 init\n0 send 4 1 2 6\n0 finalize\n", "names rank 4 of 1"),
        ("0 init\n0 irecv 0 1 8 6\n", "the trace is cut"),
        (
            "0 finalize\n0 init\n",
            "x.ti:2: init: comes after the rank's finalize",
        ),
        ("0 alltoallv 1 2 3 4 5\n", "lacks counts"),
        ("nowhere.txt\n", "x.ti:1: names"),
        ("0 init\nhello\n", "x.ti:2"),
        ("99999999999 init\n", "is no rank"),
        ("0 send 0 1 1e300 6\n", "impossible count"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = import(&path, &back).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
        assert!(!back.exists());
    }
    std::fs::write(&path, b"0 init\n0 \xff\xfe\n").unwrap();
    assert!(
        import(&path, &back)
            .unwrap_err()
            .to_string()
            .contains("x.ti:2")
    );
}

#[test]
fn a_cut_trace_is_exported_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let file = common::write(dir.path(), &every_kind());
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 10]).unwrap();
    let summary = export(
        &file,
        Format::Csv,
        &dir.path().join("out"),
        &Options::default(),
    )
    .unwrap();
    assert!(
        summary
            .notes
            .iter()
            .any(|note| note.contains("is cut at byte")),
        "{:?}",
        summary.notes
    );
}

#[test]
fn nothing_to_export_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = common::write(dir.path(), &[]);
    let result = export(
        &file,
        Format::Paraver,
        &dir.path().join("out"),
        &Options::default(),
    );
    assert!(matches!(result, Err(ExportError::NoCalls(_))), "{result:?}");
    let file = common::write(dir.path(), &every_kind());
    let options = Options {
        world: Some(3),
        ..Options::default()
    };
    let result = export(&file, Format::Simgrid, &dir.path().join("out"), &options);
    assert!(
        matches!(result, Err(ExportError::NoSuchProgram { asked: 3, .. })),
        "{result:?}"
    );
}
