//! Observers in a shared library, beside windows without them, cachegrind, and callbacks of a QEMU plug-in.

use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_model_libraries::load;
use nodescope_plugin_api::{MemoryModel, Registry, VcpuPlace};
use nodescope_window::{
    CacheConfig, HomeRange, MemorySpec, ModelSpec, NodeDescription, RegisteredSpec, build_model,
};
use serde_json::Value;

use crate::comparison::{Column, Comparison};
use crate::guest::Marks;
use crate::workload::{Length, Workload};
use crate::{Failure, Options, engine, host};

/// Folder of `nodescope_models.h`.
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/api/include");

/// Measures the kernels in windows without an observer, with one that sees misses of the first level, and with one that sees every
/// reference, compared with cachegrind. All run a quarter of the usual repeats.
pub fn observers(options: &Options) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let workload = Workload::kernels(folder.path(), &options.kernels, Length::OneIn(4))?;
    let guest = workload.guest(&options.image()?, "", Marks::Hypercall)?;
    let own = compile(
        folder.path(),
        "nodescope",
        include_str!("observers/nodescope.c"),
    )?;
    let of_qemu = compile(folder.path(), "qemu", include_str!("observers/qemu.c"))?;
    let qemu = host::find("qemu-x86_64", "qemu-user");
    if let Err(reason) = &qemu {
        eprintln!("QEMU's plug-in is left out: {reason}");
    }
    let mut registry = Registry::default();
    for model in load(&own).map_err(|e| Failure::Host(e.to_string()))? {
        registry.add(model).map_err(Failure::Host)?;
    }
    let mut peer = Column::new("cachegrind");
    let mut callbacks = Column::new("qemu plug-in");
    let windows: [(&str, Option<&str>); 3] = [
        ("window", None),
        ("misses", Some("misses")),
        ("every", Some("every")),
    ];
    let mut columns = windows.map(|(name, _)| Column::new(name));
    for round in 1..=options.rounds.max(1) {
        options.say(&format!("round {round} of {}", options.rounds.max(1)));
        peer.add(host::run(&workload, &host::CACHEGRIND)?);
        if qemu.is_ok() {
            let plugin = of_qemu.to_string_lossy();
            callbacks.add(host::run(&workload, &["qemu-x86_64", "-plugin", &plugin])?);
        }
        for ((_, observer), column) in windows.iter().zip(&mut columns) {
            let memory = || memory(*observer, &registry);
            column.add(engine::run_warm(&guest, &memory, None)?);
        }
    }
    let comparison = Comparison {
        name: "observers",
        rows: workload.rows.clone(),
        native: None,
        peer: Some(peer),
        engines: qemu
            .is_ok()
            .then_some(callbacks)
            .into_iter()
            .chain(columns)
            .collect(),
    };
    options.say(&comparison.table());
    let mut line = comparison.json();
    line.insert("rounds".into(), options.rounds.max(1).into());
    Ok(line.into())
}

/// Makes the memory model of the windows, with an observer.
fn memory(observer: Option<&str>, registry: &Registry) -> Result<Box<dyn MemoryModel>, String> {
    let registered = observer.map(|name| RegisteredSpec {
        name: name.to_owned(),
        ..RegisteredSpec::default()
    });
    let spec = ModelSpec {
        caches: Some(CacheConfig::xeon_e5_2690()),
        memory: Some(MemorySpec::numa()),
        core: None,
        registered: registered.into_iter().collect(),
    };
    let ranges = [HomeRange {
        start: 0,
        length: 1 << 52,
        socket: 0,
    }];
    let node = NodeDescription {
        places: &VcpuPlace::grid(1, 1, 1),
        ranges: &ranges,
        hertz: 2_900_000_000,
    };
    build_model(&spec, &node, registry).map_err(|e| e.to_string())
}

/// Compiles a shared library from its C source.
fn compile(folder: &Path, name: &str, source: &str) -> Result<PathBuf, Failure> {
    let (file, library) = (
        folder.join(format!("{name}.c")),
        folder.join(format!("{name}.so")),
    );
    std::fs::write(&file, source).map_err(Failure::Files)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-shared", "-fPIC", "-I", HEADERS, "-o"])
        .arg(&library)
        .arg(&file);
    match gcc.status().map_err(Failure::Files)?.success() {
        true => Ok(library),
        false => Err(Failure::Host(format!(
            "gcc cannot compile {}",
            file.display()
        ))),
    }
}
