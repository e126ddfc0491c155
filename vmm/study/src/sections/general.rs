//! Readers of `[study]`, `[image]` and `[results]`.

use std::path::{Path, PathBuf};

use nodescope_image::{ImageSpec, check_package_name};
use nodescope_machine::files::FileLimits;
use nodescope_window::Trigger;

use super::counters::{self, Measured};
use super::{plain_name, resolve, window};
use crate::files;
use crate::plan::{Engine, FastForward, ImageSource, Job, KVM_QUANTUM};
use nodescope_config::quantity::{Bytes, Cpi, Time};
use nodescope_config::reader::Section;

/// Values of the section `[study]`.
pub(super) struct General {
    pub name: String,
    pub seed: u64,
    pub engine: Engine,
    pub kvm_quantum: Time,
    pub host_threads: Option<usize>,
    pub time_limit: Time,
    pub host_time_limit: Option<Time>,
    pub deadlock: Time,
    /// Whether the study asks for a sampled window over the whole job; `None` without such a key.
    pub sampled: Option<bool>,
    pub core_cpi: Cpi,
    pub cpi_source: String,
    pub counters: Option<Measured>,
    pub counts_guests: bool,
}

pub(super) fn read(file: &Path, section: &Section<'_>) -> General {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let default_name = if plain_name(&stem) { &stem } else { "study" };
    let name = section.item("name").and_then(|item| {
        let name = item.line("hpcc-2x2")?;
        if !plain_name(&name) {
            item.add_problem(format!(
                "{name:?} cannot name a folder; use at most 100 letters, digits, \"-\", \"_\" and \".\", no \"-\" or \".\" first"
            ));
            return None;
        }
        Some(name)
    });
    let seed = section
        .item("seed")
        .and_then(|item| item.integer(0..=i64::MAX as u64));
    let engine = section.item("engine").and_then(|item| {
        let engines = [
            ("soft", Engine::Soft),
            ("auto", Engine::Soft),
            ("kvm", Engine::Kvm),
        ];
        item.choice("an engine", &engines)
    });
    let kvm_quantum = section.item("kvm_quantum").and_then(|item| {
        // 10 us to 100 ms, in picoseconds.
        const RANGE: std::ops::RangeInclusive<u64> = 10_000_000..=100_000_000_000;
        let quantum = item.quantity::<Time>()?;
        if !RANGE.contains(&quantum.0) {
            item.add_problem("is not within 10 us and 100 ms; write e.g. \"100 us\"");
        }
        Some(quantum)
    });
    let host_threads = section
        .item("host_threads")
        .and_then(|item| item.integer(1..=1024))
        .map(|threads| threads as usize);
    let timings = [("sampled", true), ("none", false)];
    let sampled = section
        .item("timing")
        .and_then(|item| item.choice("a timing of the job", &timings));
    let time_limit = section.item("time_limit").and_then(|item| {
        let limit = item.quantity::<Time>()?;
        if limit.0 == 0 {
            item.add_problem("is 0, so nothing would run; write e.g. \"120 s\"");
        }
        Some(limit)
    });
    let host_time_limit = section.item("host_time_limit").and_then(|item| {
        let limit = item.quantity::<Time>()?;
        if limit.0 == 0 {
            item.add_problem("is 0, so nothing would run; write e.g. \"1 h\", or leave it out");
        }
        Some(limit)
    });
    let deadlock = section
        .item("deadlock")
        .and_then(|item| item.quantity::<Time>());
    let core_cpi = section
        .item("core_cpi")
        .and_then(|item| item.millionths(10_000..=1_000_000_000));
    let cpi_source = section
        .item("cpi_source")
        .and_then(|item| item.line("perf stat of hpcc on a Xeon E5-2690"));
    let core = section.section("core");
    let counts_guests = core.item("count").and_then(|item| item.boolean());
    let counters = counters::read(file.parent().unwrap_or(Path::new("")), &core);
    if core.sets("counters") {
        if counts_guests == Some(true) {
            core.add_problem(
                "count",
                "gives CPI_core, which study.core.counters gives, too; leave out one of them",
            );
        }
        for key in ["core_cpi", "cpi_source"] {
            if section.sets(key) {
                section.add_problem(
                    key,
                    "says what study.core.counters says, too; leave out one of them",
                );
            }
        }
    } else if core_cpi.is_none() && cpi_source.is_some() {
        section.add_problem(
            "cpi_source",
            "tells the origin of a core_cpi that is not given; add core_cpi",
        );
    }
    let given = if core_cpi.is_some() {
        "given in the study without a source"
    } else {
        "1 cycle, not measured"
    };
    core.finish();
    let (core_cpi, cpi_source) = match &counters {
        Some(measured) => (measured.whole, measured.source.clone()),
        None => (
            core_cpi.map_or(Cpi::ONE, Cpi),
            cpi_source.unwrap_or_else(|| given.to_owned()),
        ),
    };
    General {
        name: name.unwrap_or_else(|| default_name.to_owned()),
        seed: seed.unwrap_or(1),
        engine: engine.unwrap_or(Engine::Soft),
        kvm_quantum: kvm_quantum.unwrap_or(KVM_QUANTUM),
        host_threads,
        time_limit: time_limit.unwrap_or(Time(120_000_000_000_000)),
        host_time_limit,
        deadlock: deadlock.unwrap_or(Time(1_000_000_000_000)),
        sampled,
        core_cpi,
        cpi_source,
        counters,
        counts_guests: counts_guests.unwrap_or(false),
    }
}

/// Reads `study.fast_forward` and `study.fast_forward_until`. The job determines which MPI calls can be triggers.
pub(super) fn fast_forward(
    section: &Section<'_>,
    engine: Engine,
    job: &Job,
) -> Option<FastForward> {
    let chosen = section.item("fast_forward");
    let until = section.item("fast_forward_until");
    let engines = [("kvm", true), ("none", false)];
    let forwards = chosen
        .as_ref()
        .and_then(|item| item.choice("an engine for the time before", &engines));
    let trigger = until.as_ref().and_then(|item| {
        let trigger = window::trigger(item, job)?;
        if matches!(
            trigger,
            Trigger::Guest | Trigger::Immediately | Trigger::Job
        ) {
            item.add_problem("cannot end a fast-forward; write a table with time, mpi or marker, or leave it out for the first window");
        }
        Some(trigger)
    });
    if forwards != Some(true) {
        if let Some(item) = until {
            item.add_problem("is for fast_forward = \"kvm\", which is not given");
        }
        return None;
    }
    if let (Engine::Kvm, Some(item)) = (engine, &chosen) {
        item.add_problem("runs KVM up to a trigger, and engine = \"kvm\" runs it all along; leave out one of them");
    }
    Some(FastForward { until: trigger })
}

/// Reads `[image]`: the image to boot, and further kernel parameters.
pub(super) fn image(folder: &Path, section: &Section<'_>) -> (ImageSource, Vec<String>) {
    let mut spec = ImageSpec::debian();
    let packages = section.item("packages");
    if let Some(item) = &packages {
        for (item, name) in item.lines("lammps") {
            match check_package_name(&name) {
                Ok(()) => spec.packages.push(name),
                Err(error) => item.add_problem(error.to_string()),
            }
        }
    }
    let mirror = section.item("mirror");
    if let Some(item) = &mirror {
        let example = "http://archive.example/debian/20260101";
        let url = item.line(example);
        if let Some(url) = url {
            if !["http://", "https://", "file:/", "copy:/"]
                .iter()
                .any(|scheme| url.starts_with(scheme))
                || url.contains(char::is_whitespace)
            {
                item.add_problem(format!(
                    "{url:?} is no address of a package archive; write e.g. {example:?}"
                ));
            }
            spec.mirror = Some(url);
        }
    }
    let path = |key, check: fn(&Path) -> Result<(), String>| {
        let item = section.item(key)?;
        let path = resolve(folder, &item.line(&format!("my-{key}"))?);
        if let Err(problem) = check(&path) {
            item.add_problem(format!("{}: {problem}", path.display()));
        }
        Some(path)
    };
    let kernel = path("kernel", files::check_kernel);
    let initramfs = path("initramfs", files::check_initramfs);
    let root = path("root", files::check_root);
    let parameters = section.item("kernel_parameters").map(|item| {
        let words = item.lines("loglevel=7").into_iter().filter_map(|(item, word)| {
            if word.contains(char::is_whitespace) {
                item.add_problem(format!("{word:?} holds a blank; give each kernel parameter as a text of its own"));
                return None;
            }
            if word.len() > 200 || !word.is_ascii() {
                item.add_problem("is longer than 200 bytes or not ASCII, which a kernel parameter cannot be");
                return None;
            }
            Some(word)
        });
        let words: Vec<String> = words.collect();
        let total: usize = words.iter().map(|word| word.len() + 1).sum();
        if total > 1000 {
            item.add_problem(format!("has {total} bytes in all; a kernel command line has room for 1000 beyond nodescope's own"));
        }
        words
    });

    let own = ["kernel", "initramfs", "root"]
        .iter()
        .any(|key| section.sets(key));
    let source = if own {
        for (key, item) in [("packages", &packages), ("mirror", &mirror)] {
            if let Some(item) = item {
                item.add_problem(format!("is for images built from Debian packages, but kernel, initramfs or root name files of your own; leave out {key} or those"));
            }
        }
        for key in ["kernel", "initramfs", "root"] {
            if !section.sets(key) {
                section.add_problem(
                    key,
                    "is missing; with files of your own give kernel, initramfs and root",
                );
            }
        }
        ImageSource::Files {
            kernel: kernel.unwrap_or_default(),
            initramfs: initramfs.unwrap_or_default(),
            root: root.unwrap_or_default(),
        }
    } else {
        ImageSource::Debian(spec)
    };
    (source, parameters.unwrap_or_default())
}

/// Reads `[results]`: the folder of the results, and the limits of the files that guests may put there.
pub(super) fn results(section: &Section<'_>, name: &str) -> (PathBuf, FileLimits) {
    let directory = section
        .item("directory")
        .and_then(|item| item.line("results/hpcc"));
    let directory = match directory {
        Some(directory) => PathBuf::from(directory),
        None => Path::new("results").join(name),
    };
    // No file can be longer than the largest file offset.
    const MOST: u64 = i64::MAX as u64;
    let limit = |key| {
        let item = section.item(key)?;
        let bytes = item.quantity::<Bytes>()?.0;
        if bytes > MOST {
            item.add_problem("is more than a file system can hold; write e.g. \"4 GiB\"");
            return None;
        }
        Some((item, bytes))
    };
    let [file, node, study] = ["file_limit", "node_limit", "limit"].map(limit);
    for (within, of) in [(&file, &node), (&node, &study), (&file, &study)] {
        if let (Some((item, inner)), Some((_, outer))) = (within, of)
            && inner > outer
        {
            item.add_problem(format!(
                "is {}, more than all files together may have, {}; lower it, or raise the other limit",
                Bytes(*inner),
                Bytes(*outer)
            ));
        }
    }
    let default = FileLimits::default();
    // The defaults of limits that the file omits are raised or lowered to fit the given limits.
    let given = |limit: Option<(_, u64)>| limit.map(|(_, bytes)| bytes);
    let [file, node, study] = [given(file), given(node), given(study)];
    let study = study.unwrap_or_else(|| {
        let inner = node.unwrap_or(0).max(file.unwrap_or(0));
        default.study.max(inner)
    });
    let node = node.unwrap_or_else(|| default.node.max(file.unwrap_or(0)).min(study));
    let file = file.unwrap_or_else(|| default.file.min(node));
    (directory, FileLimits { file, node, study })
}
