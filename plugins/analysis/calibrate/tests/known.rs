//! Tests with measurements that are made from known costs. The fit must return these costs as far as the measurements determine them, and
//! predictions of the measured programs must return the measured times.

use std::path::Path;

use nodescope_calibrate::fit::{Limit, fit, one_way};
use nodescope_calibrate::trace::Collector;
use nodescope_calibrate::{ClusterFile, Fit, FitOptions, FittedPath, Measurements, netpipe};
use nodescope_hypercall::{Completion, Function, MpiRecord, Peer, Tag, ThreadId};
use nodescope_loop_tree::{PeerRef, Program, ProgramBuilder};
use nodescope_predict::{Channel, Cluster, Code, Model, Options, Table, interpret};
use nodescope_trace::{Body, Event, MpiCall, Stamp};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

const US: u64 = 1_000_000;

/// Returns the true channel: latency 3 us, 1.25 GB/s, overheads that grow in the middle, rendezvous above 12 KiB.
fn truth() -> Channel {
    Channel {
        send_overhead: Table {
            points: vec![
                (0, 500_000),
                (1024, 700_000),
                (12_288, 2 * US),
                (12_289, 500_000),
            ],
        },
        receive_overhead: Table {
            points: vec![
                (0, 400_000),
                (1024, 400_000),
                (12_288, 3 * US),
                (12_289, US),
            ],
        },
        eager_limit: 12_288,
        ..Channel::new(Model::LogGp, 3 * US, 1_250_000_000)
    }
}

/// Returns message sizes up to 3 MiB, as NetPIPE measures them.
fn sizes() -> Vec<u64> {
    let mut sizes = vec![1, 2, 3, 4, 6, 8, 12, 13, 16, 19, 21, 24, 27, 29, 32, 35];
    for octave in 6..22 {
        for size in [1 << octave, 3 << (octave - 1)] {
            sizes.extend([size - 3, size, size + 3]);
        }
    }
    sizes.sort_unstable();
    sizes
}

struct Noise {
    random: ChaCha8Rng,
    amplitude: f64,
}

impl Noise {
    fn new(amplitude: f64) -> Noise {
        Noise {
            random: ChaCha8Rng::seed_from_u64(7),
            amplitude,
        }
    }

    fn factor(&mut self) -> f64 {
        let unit = f64::from(self.random.next_u32()) / f64::from(u32::MAX);
        1.0 + self.amplitude * (2.0 * unit - 1.0)
    }
}

/// Returns the output that NetPIPE would print, with every `spike`th time three times as long, or none if `spike` is 0.
fn np_out(amplitude: f64, spike: usize) -> String {
    let mut noise = Noise::new(amplitude);
    let mut out = String::new();
    for (number, bytes) in sizes().into_iter().enumerate() {
        let mut time = one_way(&truth(), bytes) * 1e-9 * noise.factor();
        if spike > 0 && number % spike == spike / 2 {
            time *= 3.0;
        }
        let rate = bytes as f64 * 8.0 / (time * 1_048_576.0);
        out += &format!("{bytes:8} {rate:.6} {time:12.8}\n");
    }
    out
}

fn from_netpipe(text: &str) -> Measurements {
    netpipe::parse(Path::new("np.out"), text).expect("NetPIPE's output")
}

/// Returns the cluster that is read back from the cluster file of a fit.
fn cluster(fit: &Fit) -> Cluster {
    let file = ClusterFile {
        name: "a \"quoted\" name".into(),
        cores: 1,
        network: Some(FittedPath {
            source: "np.out".into(),
            fit: fit.clone(),
        }),
        memory: None,
        library: nodescope_predict::Library::OpenMpi,
        connection_buffer: None,
        accesses_in_calls: false,
        checked: None,
    };
    let cluster = Cluster::parse(Path::new("cluster.toml"), &file.text())
        .unwrap_or_else(|problems| panic!("{problems}\n{}", file.text()));
    assert_eq!(cluster.name, file.name);
    assert_eq!(cluster.network, fit.channel, "{}", file.text());
    cluster
}

fn ping_pong(bytes: u64, times: u32) -> Program {
    let (zero, one) = (PeerRef::Absolute(0), PeerRef::Absolute(1));
    let mut builder = ProgramBuilder::new();
    builder.begin().send(one, 0, bytes).receive(one, 0, bytes);
    builder.end(times).ranks(1);
    builder.begin().receive(zero, 0, bytes).send(zero, 0, bytes);
    builder.end(times).ranks(1);
    builder.finish()
}

/// Returns the interpreter's one-way time of a ping-pong, nanoseconds.
fn predicted(cluster: &Cluster, bytes: u64) -> f64 {
    let times = 10;
    let program = ping_pong(bytes, times);
    let outcome = interpret(&Code::new(&program), cluster, &Options::default()).expect("it fits");
    assert!(outcome.complete());
    outcome.time as f64 / 1e3 / f64::from(2 * times)
}

#[test]
fn netpipe_gives_back_times_at_every_size() {
    for (amplitude, spike, bound) in [(0.0, 0, 0.003), (0.02, 0, 0.025), (0.03, 17, 0.05)] {
        let measured = from_netpipe(&np_out(amplitude, spike));
        let fit = fit(&measured, None, FitOptions::default()).expect("a fit");
        let what = format!("noise {amplitude}, spikes {spike}: {fit:#?}");
        assert!(
            (11_000..=12_291).contains(&fit.channel.eager_limit),
            "{what}"
        );
        assert!(matches!(fit.limit, Limit::Step(_)), "{what}");
        let latency = fit.channel.latency as f64 / 1e3;
        // From one-way times alone, the latency contains those parts of both overheads that also appear in the step.
        assert!(
            (3000.0 * 0.97..3900.0 * 1.03).contains(&latency),
            "{latency} in {what}"
        );
        let bandwidth = fit.bandwidth as f64;
        assert!((bandwidth / 1.25e9 - 1.0).abs() < bound + 0.01, "{what}");
        let cluster = cluster(&fit);
        for bytes in sizes() {
            let (here, there) = (predicted(&cluster, bytes), one_way(&truth(), bytes));
            let error = (here / there - 1.0).abs();
            assert!(error <= bound, "{bytes} B: {here} ns, not {there}, {what}");
        }
    }
}

#[test]
fn the_interpreter_and_the_fit_mean_the_same_by_one_way() {
    let cluster = Cluster::simple("truth", truth());
    for bytes in sizes() {
        let (here, there) = (predicted(&cluster, bytes), one_way(&truth(), bytes));
        assert!(
            (here / there - 1.0).abs() < 1e-3,
            "{bytes} B: {here}, {there}"
        );
    }
}

/// A trace of two ranks whose clocks differ by `skew`, picoseconds.
struct Traced {
    clocks: [u64; 2],
    skew: u64,
    /// Time that the tracer takes before a call, and again after a call.
    own: u64,
    events: Vec<Event>,
}

impl Traced {
    fn call(&mut self, rank: usize, function: Function, bytes: u64, from: u64, to: u64) {
        let other = Peer::Rank(1 - rank as u32);
        let peer = Peer::Rank(rank as u32);
        let thread = ThreadId {
            pid: rank as u32,
            tid: rank as u32,
        };
        let mut record = MpiRecord::new(function, thread, peer, 0);
        record.communicator = 1;
        if function == Function::Send {
            (record.destination, record.send_tag, record.send_bytes) =
                (other, Tag::Value(0), bytes);
        } else {
            (record.source, record.receive_tag) = (other, Tag::Value(0));
            record.completions = vec![Completion {
                bytes,
                source: other,
                tag: Tag::Value(0),
                ..Completion::default()
            }];
        }
        let shift = if rank == 1 { self.skew } else { 0 };
        let stamp = |time: u64| Stamp {
            time: time + shift,
            ..Stamp::default()
        };
        let call = MpiCall {
            record,
            entry: stamp(from - self.own),
            exit: stamp(to + self.own),
            time_inside: to - from,
            instructions_inside: 0,
            entry_seen: true,
        };
        self.clocks[rank] = to + self.own;
        self.events.push(Event {
            node: rank as u32,
            sequence: self.events.len() as u64,
            stamp: call.exit,
            body: Body::Mpi(Box::new(call)),
        });
    }

    /// Adds a message by the true costs. Its receive begins `late` picoseconds after its send.
    fn message(&mut self, from: usize, bytes: u64, late: u64, noise: &mut Noise) {
        let channel = truth();
        let mut costs = |time: u64| (time as f64 * noise.factor()) as u64;
        let (send, receive) = (
            costs(channel.send_overhead.at(bytes)),
            costs(channel.receive_overhead.at(bytes)),
        );
        let (latency, wire) = (costs(channel.latency), costs(channel.wire(bytes)));
        let start = self.clocks[from] + self.own;
        let ready = start + send;
        let posted = (self.clocks[1 - from] + self.own).max(start + late);
        if bytes > channel.eager_limit {
            let asked = ready + latency;
            let granted = asked.max(posted) + latency;
            self.call(from, Function::Send, bytes, start, granted + wire);
            self.call(
                1 - from,
                Function::Recv,
                bytes,
                posted,
                granted + wire + latency + receive,
            );
        } else {
            self.call(from, Function::Send, bytes, start, ready);
            let arrived = posted.max(ready + wire + latency);
            self.call(1 - from, Function::Recv, bytes, posted, arrived + receive);
        }
    }
}

fn traced(amplitude: f64, late: bool) -> Measurements {
    let mut noise = Noise::new(amplitude);
    let mut traced = Traced {
        clocks: [US, US],
        skew: 77 * US,
        own: 200_000,
        events: Vec::new(),
    };
    for bytes in sizes() {
        for _ in 0..9 {
            traced.message(0, bytes, 0, &mut noise);
            traced.message(1, bytes, 0, &mut noise);
        }
        for _ in 0..if late { 8 } else { 0 } {
            let time = (12.0 * one_way(&truth(), bytes) * 1e3) as u64;
            traced.message(0, bytes, time, &mut noise);
            traced.message(1, 0, 0, &mut noise);
        }
    }
    let mut collector = Collector::default();
    traced.events.iter().for_each(|event| collector.add(event));
    collector.finish("a trace").expect("round trips")
}

#[test]
fn a_trace_gives_back_each_cost() {
    for (amplitude, bound) in [(0.0, 0.004), (0.03, 0.03)] {
        let measured = traced(amplitude, true);
        assert_eq!(measured.one_way.len(), sizes().len());
        let fit = fit(&measured, None, FitOptions::default()).expect("a fit");
        let what = format!("noise {amplitude}: {fit:#?}");
        assert_eq!(fit.channel.eager_limit, 12_288, "{what}");
        assert!(matches!(fit.limit, Limit::Waiting(12_291)), "{what}");
        let near = |here: u64, there: u64, room: f64| {
            assert!(
                (here as f64 / there as f64 - 1.0).abs() <= room,
                "{here}, {there}: {what}"
            );
        };
        near(fit.channel.latency, 3 * US, bound + 0.02);
        near(fit.bandwidth, 1_250_000_000, bound + 0.01);
        for bytes in [1, 100, 1024, 4096, 10_000] {
            near(
                fit.channel.send_overhead.at(bytes),
                truth().send_overhead.at(bytes),
                bound + 0.01,
            );
        }
        let cluster = cluster(&fit);
        for bytes in sizes() {
            let (here, there) = (predicted(&cluster, bytes), one_way(&truth(), bytes));
            assert!(
                (here / there - 1.0).abs() <= bound,
                "{bytes} B: {here}, {there}, {what}"
            );
        }
        // A late receive costs its overhead, but no latency and no wire time.
        for bytes in [1, 1024, 12_288] {
            let late = fit.channel.receive(bytes).buffered;
            near(late, truth().receive_overhead.at(bytes), bound + 0.01);
        }
    }
}

#[test]
fn a_trace_without_late_receives_gives_back_times() {
    let measured = traced(0.02, false);
    assert_eq!((measured.sent_at_once, measured.receive.len()), (None, 0));
    let fit = fit(&measured, None, FitOptions::default()).expect("a fit");
    assert!(matches!(fit.limit, Limit::Step(12_291)), "{fit:#?}");
    assert!(
        fit.notes
            .iter()
            .any(|note| note.contains("no receive was late"))
    );
    let cluster = cluster(&fit);
    for bytes in sizes() {
        let (here, there) = (predicted(&cluster, bytes), one_way(&truth(), bytes));
        assert!(
            (here / there - 1.0).abs() <= 0.03,
            "{bytes} B: {here}, {there}"
        );
    }
}

#[test]
fn the_user_may_give_the_eager_limit() {
    let options = FitOptions {
        wire: None,
        eager_limit: Some(1 << 20),
    };
    let fit = fit(&from_netpipe(&np_out(0.0, 0)), None, options).expect("a fit");
    assert_eq!(
        (fit.channel.eager_limit, fit.limit),
        (1 << 20, Limit::Given)
    );
    let cluster = cluster(&fit);
    for bytes in [1, 4096, 1 << 16, 1 << 21] {
        let (here, there) = (predicted(&cluster, bytes), one_way(&truth(), bytes));
        assert!(
            (here / there - 1.0).abs() <= 0.01,
            "{bytes} B: {here}, {there}"
        );
    }
}

#[test]
fn bad_files_get_one_clear_message() {
    let refused = |text: &str| {
        let parsed = netpipe::parse(Path::new("np.out"), text);
        parsed
            .map(|measured| format!("{measured:?}"))
            .unwrap_or_else(|error| error.to_string())
    };
    for (text, message) in [
        (
            "",
            "np.out: is empty; give NetPIPE's output file (np.out, or what -o named)",
        ),
        (
            "# only this\n\n",
            "np.out: is empty; give NetPIPE's output file (np.out, or what -o named)",
        ),
        (
            "1 7.6 0.000001\n",
            "np.out: has one size only, from which latency and bandwidth do not both follow",
        ),
        (
            "1 7.6\n",
            "np.out:1: 2 columns, but NetPIPE writes three: bytes, Mbit/s, seconds",
        ),
        (
            "1 7.6 x\n",
            "np.out:1: \"x\" in the column of seconds is not a number",
        ),
        (
            "1 NaN 0.000001\n",
            "np.out:1: NaN in the column of Mbit/s is not a positive number",
        ),
        (
            "1 7.6 inf\n",
            "np.out:1: inf in the column of seconds is not a positive number",
        ),
        (
            "1 7.6 -0.000001\n",
            "np.out:1: -0.000001 in the column of seconds is not a positive number",
        ),
        (
            "-1 7.6 0.000001\n",
            "np.out:1: -1 in the column of bytes is not a positive number",
        ),
        ("1.5 7.6 0.000001\n", "np.out:1: 1.5 is no number of bytes"),
        (
            "8 61.0 0.000001\n4 30.5 0.000001\n",
            "np.out:2: 4 bytes come after 8; NetPIPE's sizes ascend, so is this the output of several runs?",
        ),
        (
            "1000 0.0001 7629\n2000 0.0002 7629\n",
            "np.out:1: the rate and the seconds do not agree; NetPIPE's columns are bytes, Mbit/s, seconds",
        ),
    ] {
        assert_eq!(refused(text), message);
    }
    // NetPIPE 5 counts megabits of 10^6.
    let five = from_netpipe("1000 800 0.00001\n2000 800 0.00002\n");
    assert!((five.one_way[0].time - 10_000.0).abs() < 1.0, "{five:?}");
}

#[test]
fn traces_without_round_trips_are_refused() {
    let none = Collector::default()
        .finish("t/trace.nst")
        .expect_err("nothing");
    assert!(
        none.to_string()
            .starts_with("t/trace.nst: has no round trips"),
        "{none}"
    );
    let mut noise = Noise::new(0.0);
    let mut traced = Traced {
        clocks: [US, US],
        skew: 0,
        own: 0,
        events: Vec::new(),
    };
    for _ in 0..5 {
        traced.message(0, 64, 0, &mut noise);
        traced.message(1, 64, 0, &mut noise);
    }
    let mut collector = Collector::default();
    traced.events.iter().for_each(|event| collector.add(event));
    let one = collector.finish("t").expect_err("one size");
    assert!(
        one.to_string().contains("round trips of one size only"),
        "{one}"
    );
}
