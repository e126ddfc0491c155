//! Tests of shared libraries in C: what they declare, what they answer, and what becomes of one that misbehaves.

use std::fmt::Write;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_model_libraries::load;
use nodescope_plugin_api::abi::{
    CAccess, CBatch, CEventKind, CHost, CLibrary, CModel, CParameter, CReference, CRequest, CSet,
    CShape, CVcpu, VERSION,
};
use nodescope_plugin_api::{
    Batch, Event, Failure, Kind, Model, NodeShape, STREAM_VERSION, VcpuPlace, conformance,
};
use nodescope_test_needs::{Need, have};
use tempfile::TempDir;

const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/api/include");

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

/// Compiles a C file.
fn compile(source: &Path, output: &Path, options: &[&str]) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-I", HEADERS, "-o"]).arg(output);
    let status = gcc.args(options).arg(source).status();
    assert!(status.expect("gcc").success());
}

/// Returns the library whose model does this wrong. The folder has the file.
fn library(bad: u32) -> Option<(TempDir, PathBuf)> {
    if !have(Need::Compiler, &["gcc"]) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("libbad{bad}.so"));
    let options = ["-shared", "-fPIC", &format!("-DBAD={bad}")];
    compile(&source("misbehaving.c"), &file, &options);
    Some((folder, file))
}

fn node() -> NodeShape {
    NodeShape {
        vcpus: VcpuPlace::grid(1, 2, 1),
        hertz: 1_000_000_000,
        line_bytes: 64,
    }
}

/// Shows four batches to an instance of a model. Returns the counts, and why the model failed.
fn show(model: &Model) -> (Vec<u64>, Option<String>) {
    let failure = Failure::default();
    let mut counts = vec![0; 2];
    let made = model.make_observer(&node(), &model.declaration().defaults(), &failure);
    let mut observer = match made {
        Ok(observer) => observer,
        Err(why) => return (counts, Some(why)),
    };
    let mut write = [0; 16];
    write[13] = 1;
    let events = [Event::default(), Event::from_bytes(&write)];
    for stored in conformance::made_up().iter().take(4) {
        let batch = Batch {
            events: &events,
            ..stored.batch()
        };
        observer.observe(&batch, &mut counts);
    }
    drop(observer);
    (counts, failure.get().map(str::to_owned))
}

#[test]
fn structures_are_those_of_the_header() {
    if !have(Need::Compiler, &["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("layout");
    compile(&source("layout.c"), &program, &[]);
    let output = Command::new(program).output().unwrap();
    let mut expected = String::new();
    for (name, size, last) in [
        (
            "parameter",
            size_of::<CParameter>(),
            offset_of!(CParameter, unit),
        ),
        (
            "event_kind",
            size_of::<CEventKind>(),
            offset_of!(CEventKind, line),
        ),
        ("event", size_of::<Event>(), offset_of!(Event, filled)),
        ("batch", size_of::<CBatch>(), offset_of!(CBatch, kernel)),
        (
            "reference",
            size_of::<CReference>(),
            offset_of!(CReference, large_page),
        ),
        (
            "request",
            size_of::<CRequest>(),
            offset_of!(CRequest, write_back),
        ),
        ("set", size_of::<CSet>(), offset_of!(CSet, ways)),
        ("access", size_of::<CAccess>(), offset_of!(CAccess, answer)),
        ("vcpu", size_of::<CVcpu>(), offset_of!(CVcpu, socket)),
        ("shape", size_of::<CShape>(), offset_of!(CShape, line_bytes)),
        ("model", size_of::<CModel>(), offset_of!(CModel, prefetch)),
        (
            "library",
            size_of::<CLibrary>(),
            offset_of!(CLibrary, model_count),
        ),
        ("host", size_of::<CHost>(), offset_of!(CHost, capability)),
    ] {
        writeln!(expected, "{name} {size} {last}").unwrap();
    }
    writeln!(expected, "versions {VERSION} {STREAM_VERSION}").unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn a_library_declares_and_counts() {
    let Some((_folder, file)) = library(0) else {
        return;
    };
    let models = load(&file).unwrap();
    let [model] = &models[..] else {
        panic!("{models:?}");
    };
    let declaration = model.declaration();
    assert_eq!(
        (declaration.name, declaration.kind),
        ("misbehaving", Kind::Observer)
    );
    assert_eq!(
        declaration.parameters[0]
            .unit
            .write(declaration.parameters[0].default),
        "4 KiB"
    );
    assert_eq!(show(model), (vec![8, 4], None));
    conformance::check(model, &declaration.defaults(), &conformance::made_up()).unwrap();
}

#[test]
fn what_a_library_does_wrong_ends_the_model_alone() {
    for (bad, why) in [
        (1, "aborts (SIGABRT)"),
        (2, "has not returned for 10 s"),
        (3, "accesses memory that is not there (SIGSEGV)"),
        (4, "calls exit"),
        (5, "wants no more events"),
        (6, "accesses memory that is not there (SIGSEGV)"),
        (7, "divides by zero (SIGFPE)"),
        (8, "executes an invalid instruction (SIGILL)"),
    ] {
        let Some((_folder, file)) = library(bad) else {
            return;
        };
        let models = load(&file).unwrap();
        // Each failure is one of a thread's own, as it is in a run.
        let shown = std::thread::spawn(move || show(&models[0])).join().unwrap();
        let sentence = format!("model \"misbehaving\" {why}");
        assert_eq!(shown, (vec![6, 3], Some(sentence)));
    }
    let Some((_folder, file)) = library(10) else {
        return;
    };
    let (_, why) = show(&load(&file).unwrap()[0]);
    assert_eq!(why.unwrap(), "model \"misbehaving\" wants another node");
}

#[test]
fn wrong_descriptions_are_refused() {
    for (bad, why) in [
        (
            9,
            "has version 2 of the interface of models; this program has version 1",
        ),
        (11, "model \"misbehaving\": it has two events \"seen\""),
        (
            12,
            "model \"misbehaving\": a timing of memory lacks the function request",
        ),
        (13, "it has 0 models; 1 to 256 are possible"),
        (14, "nodescope_models() returns NULL"),
        (15, "nodescope_models() aborts (SIGABRT)"),
    ] {
        let Some((_folder, file)) = library(bad) else {
            return;
        };
        let error = load(&file).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(error.contains(&*file.to_string_lossy()), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none.so");
    assert!(
        load(&none)
            .unwrap_err()
            .to_string()
            .starts_with("cannot load")
    );
    std::fs::write(&none, "no library").unwrap();
    assert!(
        load(&none)
            .unwrap_err()
            .to_string()
            .starts_with("cannot load")
    );
}
