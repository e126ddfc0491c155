//! Readers of a study file's sections. Each reader reports wrong values and continues with a default, so that one mistake does not hide the
//! next. The plan is used only if no problem was reported.

mod core;
mod counters;
mod effects;
mod general;
mod job;
mod models;
mod node;
mod registered;
mod shared;
mod window;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nodescope_window::{ModelSpec, Sampling, Trigger};

pub(crate) use self::core::{EXCLUDES, NodeModel};
pub(crate) use self::effects::remarks;
pub(crate) use self::job::guest_path;
pub(crate) use self::window::named_function;
use crate::plan::{Engine, ImageSource, Study};
use nodescope_config::quantity::Frequency;
use nodescope_config::reader::Section;

/// Maximum number of nodes of a cluster. The guests' IP addresses and the numbering of MAC addresses do not allow more.
pub(crate) const MAX_NODES: u32 = 1022;

/// Number of nodes from which on one node boots for all, unless the study says otherwise. Eight nodes with an empty job then take 13.6 s of
/// processor time in place of 24.0 s. From this number on, nodes also share translated code, for which programs must lie at equal addresses
/// in all nodes (`vmm/engine-soft/src/pool.rs`).
pub(crate) const BOOTS_ONCE_FROM: u32 = 8;

pub(crate) fn study(file: &Path, root: &Section<'_>) -> Study {
    let folder = file.parent().unwrap_or(Path::new(""));
    let sections = [
        "study", "image", "cluster", "node", "network", "caches", "memory", "disk", "job",
        "results",
    ]
    .map(|name| root.section(name));
    let [
        study,
        image,
        cluster,
        node,
        network,
        caches,
        memory,
        disk,
        job,
        results,
    ] = &sections;
    let general = general::read(file, study);
    let (image, kernel_parameters) = general::image(folder, image);
    let (nodes, boot) = node::cluster(cluster);
    let (mut topology, cpuid) = node::node(node);
    let shared = shared::read(cluster, nodes);
    if let Some(shared) = &shared
        && boot == Some(true)
    {
        shared::check_clone(cluster, shared, &topology);
    }
    let required_features = node::required(node, &cpuid);
    let (cores, memory_parallelism) = node::core(node);
    let network = node::network(network);
    let known = registered::known(folder, study);
    let registry = &known.registry;
    let (cache_model, cache_levels) = models::caches(caches, &topology, registry);
    let memory = models::memory(memory, &mut topology);
    let core = core::read(folder, root, node, &topology);
    topology.caches = models::descriptions(&cache_model, !cache_levels.is_empty());
    node::check(root, &topology);
    let job = job::read(folder, job, nodes, &topology, shared.as_ref());
    if let Some(measured) = &general.counters {
        counters::check_ranks(study, measured, &job);
    }
    let fast_forward = general::fast_forward(study, general.engine, &job);
    let vcpus = u64::from(nodes) * u64::from(topology.vcpus());
    let sampling = Sampling::of(vcpus, topology.tsc_hz);
    let model_sections = root.section("models");
    let frequency = Frequency(topology.tsc_hz);
    let set_models = registered::models(&model_sections, &known, frequency);
    let models = ModelSpec {
        caches: Some(cache_model.clone()),
        memory: Some(memory.clone()),
        core: core.clone(),
        registered: registered::with_models_of_caches(set_models, &cache_model),
    };
    let mut windows = window::read(root.sections("window"), &job, sampling, &models, registry);
    let can_sample = windows.is_empty()
        && models.can_model_core()
        && general.engine == Engine::Soft
        && fast_forward.is_none();
    if !can_sample && general.sampled.is_some() {
        study.add_problem(
            "timing",
            "is for studies with a core ([core] or node.model), on the portable engine, without [[window]]; leave it out, or give a window timing = \"sampled\"",
        );
    }
    if can_sample && general.sampled != Some(false) {
        windows.push(window::whole_job(sampling, &models, registry));
    }
    let (results, file_limits) = general::results(results, &general.name);
    let disk = node::disk(disk);
    sections.into_iter().for_each(Section::finish);
    let boots_once = boot.unwrap_or_else(|| {
        // Images of the user's may not report the end of their boot. A window from power-on covers the boot of each node.
        nodes >= BOOTS_ONCE_FROM
            && general.engine == Engine::Soft
            && fast_forward.is_none()
            && matches!(image, ImageSource::Debian(_))
            && shared
                .as_ref()
                .is_none_or(|shared| shared::fits_clone(shared, &topology))
            && windows
                .iter()
                .all(|window| window.open != Trigger::Immediately)
    });
    let study = Study {
        registry: known.registry,
        plugins: known.libraries,
        file: file.to_path_buf(),
        text: String::new(),
        name: general.name,
        seed: general.seed,
        engine: general.engine,
        fast_forward,
        kvm_quantum: general.kvm_quantum,
        host_threads: general.host_threads,
        time_limit: general.time_limit,
        host_time_limit: general.host_time_limit,
        deadlock: general.deadlock,
        core_cpi: general.core_cpi,
        cpi_source: general.cpi_source,
        counts_guests: general.counts_guests,
        rank_cpi: general.counters.map(|measured| measured.ranks),
        image,
        kernel_parameters,
        nodes,
        boots_once,
        shared,
        topology,
        cores,
        memory_parallelism,
        cpuid,
        required_features,
        disk,
        network,
        job,
        caches: cache_model,
        memory,
        windows,
        results,
        file_limits,
        positions: BTreeMap::new(),
    };
    registered::check(&model_sections, &study.registry, &study.windows);
    effects::check(root, &study, &cache_levels);
    study
}

/// Returns a path that the study file names. A relative path is relative to `folder`, the study file's own folder.
fn resolve(folder: &Path, path: &str) -> PathBuf {
    folder.join(path)
}

/// Returns whether a name is safe as the name of a file or folder on any system: 1 to 100 letters, digits, `-`, `_` and `.`,
/// without `-` or `.` at the beginning.
fn plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 100
        && !name.starts_with(['.', '-'])
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}
