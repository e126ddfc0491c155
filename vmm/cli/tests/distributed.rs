//! Tests of runs over several processes: they have the results of one process, and end whichever process dies. Guests are kernels of a few
//! instructions.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use guest::{
    Kernel, WorkFolder, ends_within, holds, ok, same, signal, stderr, talking, wait_until,
};

/// Time within which all started processes must end.
const SOON: Duration = Duration::from_secs(30);

/// Makes a study of four nodes that print their names for ever, with a window that closes early.
fn endless() -> WorkFolder {
    let window = "node.frequency = \"100 MHz\"\n\
        [[window]]\nname = \"w\"\nopen = { marker = \"step\", occurrence = 2 }\nmeasure = \"1 M instructions\"\n";
    WorkFolder::new(4, window, |path| {
        Kernel::new()
            .mark("step")
            .say_name()
            .work(1_000_000)
            .for_ever(path);
    })
}

/// Returns the process ids of a run's workers. The process that makes names of guest code is a child of the run, too.
fn workers_of(run: &Child) -> Vec<i32> {
    let path = format!("/proc/{0}/task/{0}/children", run.id());
    let children = fs::read_to_string(path).unwrap();
    let is_worker = |process: &i32| {
        let arguments = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        arguments.split(|&byte| byte == 0).nth(1) == Some(b"worker")
    };
    let processes = children.split_whitespace().map(|n| n.parse().unwrap());
    processes.filter(is_worker).collect()
}

fn is_alive(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|text| !text.contains(") Z "))
}

fn kill(process: i32) {
    // SAFETY: kill takes any process and signal.
    assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
}

fn all_end(processes: &[i32]) {
    let begin = std::time::Instant::now();
    while processes.iter().any(|&process| is_alive(process)) {
        assert!(begin.elapsed() < SOON, "{processes:?} are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a run with so many workers, and waits until the console log of node 0 has at least `bytes` bytes, and at least one. Returns the
/// run and the workers' process ids.
fn start(work: &WorkFolder, workers: &str, bytes: u64) -> (Child, Vec<i32>) {
    let _ = fs::remove_dir_all(work.results());
    let args = ["run", "s.toml", "--workers", workers];
    let run = work.start(&args, "console-node0.log", bytes.max(1));
    let workers = workers_of(&run);
    (run, workers)
}

#[test]
fn a_run_over_several_processes_leaves_the_results_of_one() {
    let work = talking();
    ok(&work, &["run", "s.toml", "--results", "one"]);
    let one = work.path().join("one");
    for (workers, threads, transport) in [
        ("1", "1", "auto"),
        ("2", "1", "memory"),
        ("2", "1", "sockets"),
        ("1", "2", "sockets"),
    ] {
        let folder = format!("with{workers}-{threads}-{transport}");
        let run = ["run", "s.toml", "--results", &folder];
        let args = ["--workers", workers, "--host-threads", threads];
        ok(
            &work,
            &[&run[..], &args, &["--transport", transport]].concat(),
        );
        same(&one, &work.path().join(&folder));
    }
}

#[test]
fn a_run_over_several_processes_goes_on_from_a_snapshot() {
    let work = talking();
    ok(&work, &["run", "s.toml", "--results", "one"]);
    let save = ["--snapshot-at", "mark:step#2", "--snapshot-name", "early"];
    let early = ["run", "s.toml", "--results", "early"];
    ok(
        &work,
        &[&early[..], &save, &["--stop-after-snapshot"]].concat(),
    );
    let on = ["run", "s.toml", "--results", "two", "--from", "early"];
    ok(&work, &[&on[..], &["--workers", "2"]].concat());
    same(&work.path().join("one"), &work.path().join("two"));
}

#[test]
fn several_processes_take_the_snapshot_of_one() {
    let work = talking();
    ok(&work, &["run", "s.toml", "--results", "one"]);
    let one = work.path().join("one");
    let last = work.path().join("last.nss");
    for at in ["mark:step#11", "33ms", "0.5s"] {
        let take = |results: &str, more: &[&str]| {
            let run = ["run", "s.toml", "--force", "--snapshot-at", at];
            let names = ["--results", results, "--snapshot-name", "./last.nss"];
            ok(&work, &[&run[..], &names, more].concat());
            same(&one, &work.path().join(results));
            fs::read(&last).unwrap()
        };
        let alone = take("alone", &[]);
        for more in [["--workers", "2"], ["--workers", "1"]] {
            assert!(take("together", &more) == alone, "{at}: another snapshot");
            let from = ["run", "s.toml", "--force", "--from", "./last.nss"];
            ok(&work, &[&from[..], &["--results", "on"], &more].concat());
            same(&one, &work.path().join("on"));
        }
    }
}

#[test]
fn a_run_that_lost_a_worker_goes_on_from_its_last_snapshot() {
    let work = talking();
    ok(&work, &["run", "s.toml", "--results", "one"]);
    let often = ["--snapshot-every", "20ms", "--snapshot-name", "./last.nss"];
    let run = ["run", "s.toml", "--interpret", "--workers", "2"];
    let mut run = work.command(&[&run[..], &often].concat()).spawn().unwrap();
    let last = work.path().join("last.nss");
    wait_until(&mut run, "a snapshot", || last.exists());
    kill(workers_of(&run)[0]);
    let output = ends_within(run, SOON);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{told}");
    let advice = "go on from it with nodescope run --force --from ./last.nss";
    assert!(told.contains(advice), "{told}");
    let on = [
        "run",
        "s.toml",
        "--force",
        "--from",
        "./last.nss",
        "--workers",
        "1",
    ];
    ok(&work, &[&on[..], &often].concat());
    same(&work.path().join("one"), &work.results());
    refused(
        &work,
        &["run", "s.toml", "--snapshot-every", "0s"],
        2,
        "the time is 0",
    );
}

#[test]
fn one_boot_serves_all_processes() {
    let once = "cluster.boot = \"once\"\n";
    let work = WorkFolder::new(3, once, |path| {
        let kernel = Kernel::new().say("nodescope: booted\n").work(3_000_000);
        kernel.say_name().mark("end").off(0, path);
    });
    ok(
        &work,
        &["run", "s.toml", "--results", "two", "--workers", "2"],
    );
    ok(&work, &["run", "s.toml", "--results", "one"]);
    same(&work.path().join("one"), &work.path().join("two"));
}

#[test]
fn a_worker_that_dies_is_named_and_what_was_measured_stays() {
    let work = endless();
    // A linear congruential generator (Knuth, MMIX) with a fixed seed.
    let mut random = 7_u64;
    for _ in 0..10 {
        random = random.wrapping_mul(6_364_136_223_846_793_005);
        random = random.wrapping_add(1_442_695_040_888_963_407);
        let (run, workers) = start(&work, "2", random >> 56);
        assert_eq!(workers.len(), 2);
        let victim = workers[(random >> 40) as usize % 2];
        std::thread::sleep(Duration::from_millis(random >> 32 & 0xff));
        kill(victim);
        let output = ends_within(run, SOON);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{told}");
        let name = format!("process {victim}, node");
        assert!(told.contains("worker ") && told.contains(&name), "{told}");
        assert!(told.contains(" died after "), "{told}");
        all_end(&workers);
        let report = ok(&work, &["report", "results/s"]);
        assert!(report.contains(" died after "), "{report}");
    }
}

#[test]
fn workers_end_with_a_master_that_is_killed() {
    let work = endless();
    let (mut run, workers) = start(&work, "3", 1000);
    assert_eq!(workers.len(), 3);
    run.kill().unwrap();
    run.wait().unwrap();
    all_end(&workers);
}

#[test]
fn an_interrupted_run_ends_in_all_processes() {
    let work = endless();
    let (run, workers) = start(&work, "2", 1000);
    signal(&run, libc::SIGINT);
    let output = ends_within(run, SOON);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    all_end(&workers);
    let report = ok(&work, &["report", "results/s"]);
    assert!(report.contains("window      \"w\" "), "{report}");
}

fn refused(work: &WorkFolder, args: &[&str], code: i32, text: &str) {
    let output = work.run(args);
    let told = stderr(&output);
    assert!(told.contains(text), "{args:?}: {text:?} is not in:\n{told}");
    assert_eq!(told.matches("error: ").count(), 1, "{told}");
    assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
}

/// Writes a new key to a file.
fn new_key(work: &WorkFolder, name: &str) {
    let key = ok(work, &["worker", "--new-key"]);
    fs::write(work.path().join(name), key).unwrap();
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn what_keeps_processes_from_coming_together_is_one_message() {
    let work = talking();
    refused(
        &work,
        &["run", "s.toml", "--workers", "3"],
        2,
        "give 2 workers at most",
    );
    let name = ["run", "s.toml", "--snapshot-name", "x"];
    refused(&work, &name, 2, "--snapshot-name names no snapshot");
    new_key(&work, "key");
    new_key(&work, "other");
    let address = format!("tcp://127.0.0.1:{}", free_port());
    let listen = |key, wait| {
        [
            "run",
            "s.toml",
            "--force",
            "--workers",
            "1",
            "--listen",
            &address,
            "--key-file",
            key,
            "--worker-wait",
            wait,
        ]
    };
    let no_worker = "1 of 1 workers did not come within 1 s";
    refused(&work, &listen("key", "1s"), 5, no_worker);
    let no_key = "cannot read the key nowhere";
    refused(&work, &listen("nowhere", "1s"), 2, no_key);
    let connect = |key, wait| {
        [
            "worker",
            "--connect",
            &address,
            "--wait",
            wait,
            "--key-file",
            key,
        ]
    };
    refused(&work, &connect("key", "1s"), 5, "no master answers at");

    // The master waits for a worker, and refuses one with another key.
    let run = work.command(&listen("key", "60s")).spawn().unwrap();
    let stranger = connect("other", "20s");
    refused(&work, &stranger, 2, "it has another key");
    let worker = connect("key", "20s");
    assert_eq!(work.run(&worker).status.code(), Some(0));
    assert_eq!(ends_within(run, SOON).status.code(), Some(0));
}

#[test]
fn a_worker_that_reads_another_image_is_refused() {
    let work = talking();
    new_key(&work, "key");
    let address = format!("tcp://127.0.0.1:{}", free_port());
    let run = [
        "run",
        "s.toml",
        "--workers",
        "1",
        "--key-file",
        "key",
        "--listen",
        &address,
    ];
    let mut run = work.command(&run).spawn().unwrap();
    let results = work.results();
    wait_until(&mut run, "a record", || holds(&results.join("run.json"), 1));
    let other = Kernel::new().say("other\n");
    other.off(0, Path::new(&work.path().join("vmlinux")));
    let worker = ["worker", "--connect", &address, "--key-file", "key"];
    assert_eq!(work.run(&worker).status.code(), Some(2));
    let output = ends_within(run, SOON);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{told}");
    assert!(
        told.contains("it reads another study or image: the study ID is"),
        "{told}"
    );
}
