//! Targets for files that users write, and for files of other tools.

use std::path::Path;

use nodescope_calibrate::fit::fit;
use nodescope_calibrate::{ClusterFile as Fitted, FitOptions, FittedPath, netpipe};
use nodescope_config::document::Setting;
use nodescope_export::{Format, Options, export, import};
use nodescope_hypercall::Hello;
use nodescope_image::{Recipe, cpio, unpack_bzimage, unpack_legacy_lz4};
use nodescope_loop_tree::{CollectiveKind, PeerRef, Program, ProgramBuilder};
use nodescope_predict::{Cluster, ClusterFile, Request, Sweep, predict};
use nodescope_study::Study;

use super::{Once, Target, mutated, put, trace};
use crate::choices::Choices;
use crate::traces::Trace;

/// Target that reads study files.
pub const STUDY: Target = Target {
    name: "study",
    what: "study files",
    seeds: || {
        let seeds = [
            include_bytes!("../../../../vmm/study/tests/every-field.toml").to_vec(),
            include_bytes!("../../../../vmm/study/tests/own-image.toml").to_vec(),
            include_bytes!("../../../../guest-images/jobs/hpcc/study.toml").to_vec(),
        ];
        seeds.to_vec()
    },
    mutate: |choices| mutated(&(STUDY.seeds)(), &TOML, choices),
    run: |input, folder| {
        let path = put(folder, "study.toml", input);
        match Study::load(&path) {
            Ok(study) => {
                let _ = study.description();
                let _ = serde_json::to_string(&study);
            }
            Err(problems) => bounded(&problems.to_string(), input),
        }
    },
    foreign: false,
};

/// Words of TOML and of nodescope's TOML files, which mutations insert.
const TOML: [&str; 16] = [
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    "\"\"\"",
    "'''",
    "\n[node]\n",
    "\n[[window]]\n",
    "\"512 MiB\"",
    "\"1 us\"",
    "1979-05-27",
    ".",
    "#",
];

/// Checks that the messages on a file's problems have at most 100 KiB, and 200 bytes more for each byte of the file.
fn bounded(told: &str, input: &[u8]) {
    let allowed = (100 << 10) + 200 * input.len();
    assert!(told.len() <= allowed, "{} bytes of problems", told.len());
}

/// Target that reads cluster files, and predicts a small program's time on each cluster.
pub const CLUSTER: Target = Target {
    name: "cluster",
    what: "cluster files: reading, and a prediction on what they describe",
    seeds: || {
        let everything = "name = \"c\"\n[nodes]\ncount = 8\ncores = 4\nranks_per_node = 2\nplacement = [0, 0, 1, 1]\nspeed = 1.5\n\
            [network]\nmodel = \"loggp\"\nlatency = \"1.3 us\"\nservice_latency = \"1 us\"\nbandwidth = \"1.25 GB/s\"\nenvelope = \"64 B\"\ngap = \"100 ns\"\n\
            overhead = [{ bytes = \"0 B\", time = \"1 us\" }, { bytes = \"1 MiB\", time = \"2 us\" }]\nbuffered_overhead = \"1 us\"\nqueued_overhead = \"2 us\"\n\
            pack_overhead = \"1 us\"\nunpack_overhead = \"1 us\"\nframe_payload = \"1448 B\"\nframe_header = \"90 B\"\nframe_acknowledge = 2\n\
            eager_limit = \"64 KiB\"\ncopy_bandwidth = \"5 GB/s\"\ncontention = true\nsharing = \"queue\"\nhop_latency = \"50 ns\"\nlink_bandwidth = \"1 GB/s\"\ntake_in = true\n\
            [topology]\nkind = \"fat-tree\"\ndown = [4, 4]\nup = [2]\n[memory]\nlatency = \"100 ns\"\nbandwidth = \"8 GB/s\"\n\
            [collectives]\nlibrary = \"mpich\"\nreduce_bandwidth = \"1 GB/s\"\ndatatype_overhead = \"1 us\"\nsegment = \"64 KiB\"\nbcast = \"binomial\"\n";
        let torus = "[nodes]\ncpi = 0.9\nfrequency = \"2.9 GHz\"\n[network]\npreset = \"myrinet\"\nprogress_thread = true\nbeta = 0.1\n\
            [topology]\nkind = \"torus\"\nsize = [4, 4]\n";
        let dragonfly = "[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\nsharing = \"fair\"\n[topology]\nkind = \"dragonfly\"\ngroups = 3\nrouters = 2\nnodes = 2\n";
        [everything, torus, dragonfly]
            .map(|text| text.as_bytes().to_vec())
            .to_vec()
    },
    mutate: |choices| mutated(&(CLUSTER.seeds)(), &TOML, choices),
    run: |input, folder| {
        let path = put(folder, "cluster.toml", input);
        match Cluster::load(&path) {
            Ok(cluster) => predicted(&cluster),
            Err(problems) => bounded(&problems.to_string(), input),
        }
    },
    foreign: false,
};

static PROGRAM: Once<Program> = Once::new();

/// Returns a program of four ranks with messages, RMA and all collectives.
fn program() -> &'static Program {
    PROGRAM.get(|| {
        let mut builder = ProgramBuilder::new();
        let (next, before) = (PeerRef::Relative(1), PeerRef::Relative(3));
        builder.begin();
        builder
            .compute(1_000_000)
            .isend(next, 1, 100_000, 0)
            .receive(before, 1, 100_000);
        builder.wait(&[0]).put(next, 5000, 1).wait(&[1]);
        builder.end(3);
        for kind in CollectiveKind::ALL {
            builder.collective(kind, 1, 10_000);
        }
        builder.ranks(4).finish()
    })
}

fn predicted(cluster: &Cluster) {
    let request = Request {
        replicas: 1,
        stagger: 10,
        timeline: true,
        ..Request::default()
    };
    match predict(program(), cluster, &request) {
        Ok(prediction) => {
            let _ = (prediction.text(), prediction.json());
            let _ = prediction.html();
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Target that reads a sweep of a parameter as on the command line, and predicts with the first 20 values of the sweep.
pub const SWEEP: Target = Target {
    name: "sweep",
    what: "sweeps of a parameter as predict takes them (FIELD=FROM:TO:STEPS)",
    seeds: || {
        let texts = [
            "network.latency=1us:100us:log9",
            "network.bandwidth=1 GB/s,2 GB/s",
            "nodes.speed=0.5:2:lin4",
            "network.overhead=[{ bytes = \"0 B\", time = \"1 us\" }],2 us",
            "topology.kind=crossbar,torus",
        ];
        texts.map(|text| text.as_bytes().to_vec()).to_vec()
    },
    mutate: |choices| {
        mutated(
            &(SWEEP.seeds)(),
            &[":", ",", "=", "log", "lin", "[", "\"", " us"],
            choices,
        )
    },
    run: |input, _| {
        let Ok(text) = std::str::from_utf8(input) else {
            return;
        };
        let text = text.lines().next().unwrap_or_default();
        let sweep: Sweep = match text.parse() {
            Ok(sweep) => sweep,
            Err(error) => {
                let _ = format!("{error}");
                return;
            }
        };
        let file = ClusterFile::new(
            Path::new("cluster.toml"),
            "[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n",
        );
        for value in sweep.values.iter().take(20) {
            let setting: Setting = sweep.setting(value);
            match file.with(&[setting]) {
                Ok(cluster) => predicted(&cluster),
                Err(problems) => drop(problems.to_string()),
            }
        }
    },
    foreign: false,
};

/// Target that reads recipes of images.
pub const RECIPE: Target = Target {
    name: "recipe",
    what: "recipes of guest images (image.toml)",
    seeds: || vec![include_bytes!("../../../../guest-images/debian/image.toml").to_vec()],
    mutate: |choices| mutated(&(RECIPE.seeds)(), &TOML, choices),
    run: |input, folder| {
        put(folder, "image.toml", input);
        if let Err(error) = Recipe::read(folder) {
            let _ = error.to_string();
        }
    },
    foreign: false,
};

/// Target that unpacks kernels and archives which a study names.
pub const KERNEL: Target = Target {
    name: "kernel",
    what: "kernels (bzImage with LZ4), initramfs archives (cpio)",
    seeds: || {
        // A set-up header (Linux, Documentation/arch/x86/boot.rst) in front of a payload in the legacy LZ4 format.
        let mut image = vec![0; 0x400];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&20u32.to_le_bytes());
        image.extend([
            0x02, 0x21, 0x4c, 0x18, 6, 0, 0, 0, 0x50, b'h', b'e', b'l', b'l', b'o',
        ]);
        image.extend([0; 16]);
        let mut archive = b"070701".to_vec();
        archive.extend("00000001000081A400000000000000000000000100000000000000020000000000000000000000000000000000000002000000006\0".bytes());
        vec![image, archive]
    },
    mutate: |choices| {
        mutated(
            &(KERNEL.seeds)(),
            &["HdrS", "070701", "TRAILER!!!", "\u{2}!L\u{18}"],
            choices,
        )
    },
    run: |input, _| {
        let _ = unpack_bzimage(Path::new("bzImage"), input).map_err(|error| error.to_string());
        let _ = unpack_legacy_lz4(input);
        let _ = cpio::read(input).map_err(|error| error.to_string());
    },
    foreign: false,
};

/// Target that reads NetPIPE's output.
pub const NETPIPE: Target = Target {
    name: "netpipe",
    what: "NetPIPE's output: the fit, and the cluster file of it",
    seeds: || {
        let rows = (0..24u32).map(|power| {
            let bytes = f64::from(1u32 << power);
            let seconds = 3e-6 + bytes / 1e9;
            format!(
                "{:8.0} {:12.6} {:.8}\n",
                bytes,
                bytes * 8.0 / seconds / 1e6,
                seconds
            )
        });
        vec![rows.collect::<String>().into_bytes()]
    },
    mutate: |choices| {
        mutated(
            &(NETPIPE.seeds)(),
            &["\n", " ", "#", "1e300", "inf", "-", "0.0"],
            choices,
        )
    },
    run: |input, _| {
        let text = String::from_utf8_lossy(input);
        let measured = match netpipe::parse(Path::new("np.out"), &text) {
            Ok(measured) => measured,
            Err(error) => return drop(error.to_string()),
        };
        let options = FitOptions {
            eager_limit: input.first().map(|&byte| u64::from(byte) * 1000),
            wire: None,
        };
        for options in [FitOptions::default(), options] {
            let Ok(fit) = fit(&measured, None, options) else {
                continue;
            };
            let path = FittedPath {
                source: "np.out".into(),
                fit,
            };
            let file = Fitted {
                name: "fitted".into(),
                cores: 1,
                network: Some(path),
                memory: None,
                library: nodescope_predict::Library::OpenMpi,
                connection_buffer: None,
                accesses_in_calls: false,
                checked: None,
            };
            let _ = file.summary();
            match Cluster::parse(Path::new("fitted.toml"), &file.text()) {
                Ok(cluster) => predicted(&cluster),
                Err(problems) => bounded(&problems.to_string(), file.text().as_bytes()),
            }
        }
    },
    foreign: false,
};

/// Target that imports SimGrid's traces.
pub const SIMGRID: Target = Target {
    name: "simgrid",
    what: "SimGrid's time-independent traces: the import, and everything that reads what it makes",
    seeds: || {
        let actions = "0 init\n1 init\n0 compute 1e6\n0 send 1 5 1000 6\n1 recv 0 5 1000 6\n0 isend 1 1 10\n1 irecv 0 1 10\n0 wait 0 1 1\n1 waitall\n\
            0 barrier\n1 barrier\n0 bcast 100 0 0\n1 bcast 100 0 0\n0 reduce 10 10 0 0\n1 reduce 10 10 0 0\n0 allreduce 8 5\n1 allreduce 8 5\n\
            0 alltoallv 4 2 2 4 2 2 0 0\n1 alltoallv 4 2 2 4 2 2 0 0\n0 gatherv 3 3 3 0 0 0\n1 gatherv 3 3 3 0 0 0\n0 reducescatter 2 2 4 0\n1 reducescatter 2 2 4 0\n\
            0 allgather 5 5\n1 allgather 5 5\n0 scatter 4 4 0\n1 scatter 4 4 0\n0 finalize\n1 finalize\n";
        vec![actions.as_bytes().to_vec(), b"0.ti\n1.ti\n".to_vec()]
    },
    mutate: |choices| {
        mutated(
            &(SIMGRID.seeds)(),
            &[
                "0 ",
                "1 ",
                "2 ",
                "\n",
                " 9e15",
                "init",
                "send",
                "irecv",
                "waitall",
                "#",
                "/dev/zero\n",
            ],
            choices,
        )
    },
    run: |input, folder| {
        let (list, out) = (put(folder, "trace.ti", input), folder.join("out.nst"));
        put(folder, "0.ti", b"0 init\n0 send 1 0 10\n0 finalize\n");
        put(folder, "1.ti", b"1 init\n1 recv 0 0 10\n1 finalize\n");
        imported(&list, &out, folder);
    },
    foreign: false,
};

fn imported(input: &Path, out: &Path, folder: &Path) {
    match import(input, out) {
        Ok(_) => {
            let bytes = std::fs::read(out).unwrap_or_default();
            trace::read(&bytes, folder);
            trace::predicted(&bytes, folder);
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Target that merges logs of programs on real machines.
pub const LOG: Target = Target {
    name: "log",
    what: "logs of traced programs on real machines: the merge, and everything that reads what it makes",
    seeds: || vec![log()],
    mutate: |choices| mutated(&(LOG.seeds)(), &["NSCALLS\n", "\0\0\0\0\0\0\0\0"], choices),
    run: |input, folder| {
        let logs = folder.join("logs");
        let _ = std::fs::create_dir(&logs);
        put(&logs, "a-1.calls", input);
        put(&logs, "b-2.calls", &log());
        let out = folder.join("out.nst");
        match nodescope_host_trace::merge(&logs, &out, Some(0)) {
            Ok(_) => {
                let bytes = std::fs::read(&out).unwrap_or_default();
                trace::read(&bytes, folder);
                trace::predicted(&bytes, folder);
            }
            Err(error) => drop(error.to_string()),
        }
    },
    foreign: false,
};

/// Returns a log with the hello message and the calls of one rank.
fn log() -> Vec<u8> {
    let mut bytes = nodescope_host_trace::log::MAGIC.to_vec();
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(4u32.to_le_bytes());
    bytes.extend(2_000_000_000u64.to_le_bytes());
    for moment in [[1000u64, 10, 60], [26_000, 10_010, 10_060]] {
        moment
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    let mut frame = |operation: u32, times: [u64; 2], arguments: [u64; 3], payload: &[u8]| {
        let size = (48 + payload.len()).next_multiple_of(8);
        bytes.extend((size as u32).to_le_bytes());
        bytes.extend(operation.to_le_bytes());
        for word in times.into_iter().chain(arguments) {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(payload);
        bytes.resize(bytes.len() + size - 48 - payload.len(), 0);
    };
    let Trace { events, .. } = Trace::seeds().swap_remove(0);
    let mut at = 2000;
    for event in events {
        at += 100;
        match event.body {
            nodescope_trace::Body::Process(hello) if hello.pid == 100 => {
                let payload = encoded(&hello);
                frame(1, [at, at + 5], [0, payload.len() as u64, 0], &payload);
            }
            nodescope_trace::Body::Mpi(call) if call.record.thread.pid == 100 => {
                let record = &call.record;
                let thread = u64::from(record.thread.pid) << 32 | u64::from(record.thread.tid);
                let enters = [record.function as u64, thread, record.sequence];
                frame(2, [at, at - 5], enters, &[]);
                let mut payload = Vec::new();
                record.encode(&mut payload);
                frame(
                    3,
                    [at + 50, at + 55],
                    [0, payload.len() as u64, 0],
                    &payload,
                );
            }
            _ => {}
        }
    }
    bytes
}

/// Encodes a hello message as the guest's tools write it (`vmm/hypercall`).
fn encoded(hello: &Hello) -> Vec<u8> {
    let mut bytes = Vec::new();
    let rank = hello.rank.rank().unwrap_or(0);
    for word in [
        1,
        rank,
        hello.world_size,
        hello.pid,
        1,
        nodescope_hypercall::ABI_VERSION,
    ] {
        bytes.extend(word.to_le_bytes());
    }
    for text in [&hello.host, &hello.program] {
        let start = bytes.len();
        bytes.extend(text.bytes());
        bytes.resize(start + 64, 0);
    }
    bytes
}

/// Target that reads OTF2 archives.
pub const OTF2: Target = Target {
    name: "otf2",
    what: "OTF2 archives, where the library is there: the import, and everything that reads what it makes",
    seeds: || archive().iter().cloned().collect(),
    mutate: |choices| damaged(choices),
    run: |input, folder| {
        let mut rest = input;
        while let Some((name, content, after)) = entry(rest) {
            let path = folder.join(name);
            if let Some(parent) = path.parent() {
                let _ = std::fs::create_dir_all(parent);
            }
            let _ = std::fs::write(path, content);
            rest = after;
        }
        imported(&folder.join("trace.otf2"), &folder.join("out.nst"), folder);
    },
    foreign: true,
};

static ARCHIVE: Once<Option<Vec<u8>>> = Once::new();

/// Returns the files of a valid archive in one sequence. Each file is stored as the length of its name (1 byte), the length of its content
/// (4 bytes), name and content. None: no archive can be written here.
fn archive() -> &'static Option<Vec<u8>> {
    ARCHIVE.get(|| {
        let folder = tempfile::tempdir().ok()?;
        let bytes = Trace::seeds().first()?.encode()?;
        let trace = put(folder.path(), "seed.nst", &bytes);
        let out = folder.path().join("archive");
        export(&trace, Format::Otf2, &out, &Options::default()).ok()?;
        let mut all = Vec::new();
        pack(&out, &out, &mut all)?;
        Some(all)
    })
}

fn pack(root: &Path, folder: &Path, all: &mut Vec<u8>) -> Option<()> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            pack(root, &path, all)?;
            continue;
        }
        let name = path.strip_prefix(root).ok()?.to_str()?;
        let content = std::fs::read(&path).ok()?;
        all.push(name.len() as u8);
        all.extend((content.len() as u32).to_le_bytes());
        all.extend(name.bytes());
        all.extend(content);
    }
    Some(())
}

/// Returns the first file of a packed archive: name, content, and the rest of the archive. None if the bytes do not begin with a whole
/// file, or if its name could leave the folder.
fn entry(bytes: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(length.into())?;
    let (content, rest) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
    let name = std::str::from_utf8(name).ok()?;
    let plain = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    plain.then_some((name, content, rest))
}

/// Returns a packed archive in which the content of one file is changed; nothing if no archive can be written here.
fn damaged(choices: &mut Choices<'_>) -> Vec<u8> {
    let Some(all) = archive() else {
        return Vec::new();
    };
    let mut files = Vec::new();
    let mut rest = all.as_slice();
    while let Some((name, content, after)) = entry(rest) {
        files.push((name, content.to_vec()));
        rest = after;
    }
    let at = choices.below(files.len());
    if let Some((_, content)) = files.get_mut(at) {
        crate::text::mutate(content, &["OTF2", "\u{1}\u{a}"], choices);
    }
    let mut bytes = Vec::new();
    for (name, content) in files {
        bytes.push(name.len() as u8);
        bytes.extend((content.len() as u32).to_le_bytes());
        bytes.extend(name.bytes());
        bytes.extend(content);
    }
    bytes
}
