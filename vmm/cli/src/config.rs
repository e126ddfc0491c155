//! Conversion of a study into the cluster's configuration.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nodescope_cluster::config::SharedFiles;
use nodescope_cluster::{ClusterConfig, Engine};
use nodescope_counters::guest::{GuestCounting, HostProcessor};
use nodescope_image::{BlockHashes, Lease};
use nodescope_study::{Host, ImageSource, Study};
use sha2::{Digest, Sha256};

use crate::exit::{Exit, Failure};
use crate::image;

/// Time of the nodes' clocks at power-on in seconds of Unix time (2024-01-01 00:00:00 UTC), equal in every run.
const EPOCH: i64 = 1_704_067_200;

/// Paths of kernel, initramfs and root disk, and a hash of their contents.
struct Files {
    kernel: PathBuf,
    initramfs: PathBuf,
    root: PathBuf,
    root_blocks: Option<BlockHashes>,
    lease: Option<Lease>,
    /// Name of the image in messages.
    name: String,
    identity: String,
}

/// Configuration of the cluster to run, and a short description of the guest image for people.
pub struct Prepared {
    pub cluster: ClusterConfig,
    pub image: String,
    /// Hash of the contents of kernel, initramfs and root disk, in hexadecimal.
    pub identity: String,
    /// Right to use the image, which is not removed as long as this value lives.
    pub _lease: Option<Lease>,
}

fn engine(study: &Study) -> Engine {
    match (&study.fast_forward, study.engine) {
        (Some(forward), _) => Engine::FastForward(forward.until.clone()),
        (None, nodescope_study::Engine::Kvm) => Engine::Kvm,
        (None, _) => Engine::Portable,
    }
}

/// Opens the host's counters if the study counts guests with them; returns `None` if it does not. Fails if a study that counts guests uses
/// KVM for no part of the run, or if the host's counters cannot be opened.
pub fn counting(study: &Study) -> Result<Option<Arc<GuestCounting>>, Failure> {
    if !study.counts_guests {
        return Ok(None);
    }
    if !study.uses_kvm() {
        return Err(Failure::new(
            Exit::Study,
            "study.core.count counts guests while KVM runs them, but no part of this run is KVM's; use --engine kvm, or leave study.core.count out",
        ));
    }
    let processor = HostProcessor::new().map_err(|error| Failure::of(Exit::Host, &error))?;
    Ok(Some(Arc::new(GuestCounting::new(Arc::new(processor)))))
}

/// This program, which makes the names of guests' code in a process of its own.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// Returns the configuration for a study. Builds the image if it is not in the cache, and reports the build's steps to `progress`. Setting
/// `interrupted` ends a build.
pub fn cluster(
    study: &Study,
    host_threads: Option<usize>,
    interrupted: &AtomicBool,
    progress: &mut dyn FnMut(&str),
) -> Result<Prepared, Failure> {
    let files = {
        let _span = tracing::info_span!("image").entered();
        files(study, interrupted, progress)?
    };
    tracing::debug!(
        "kernel {}, initramfs {}, root disk {}, contents {}",
        files.kernel.display(),
        files.initramfs.display(),
        files.root.display(),
        files.identity
    );
    let job_disk = study
        .job_disk()
        .map_err(|error| Failure::of(Exit::Host, &error))?;
    let threads = host_threads
        .or(study.host_threads)
        .unwrap_or_else(|| Host::probe().cores);
    let image = format!("{}, contents {}", files.name, &files.identity[..16]);
    let cluster = ClusterConfig {
        name: study.name.clone(),
        study_id: study_id(study, &files.identity, &job_disk)?,
        seed: study.seed,
        nodes: study.nodes,
        shared: shared(study),
        topology: study.topology.clone(),
        cpuid: study.cpuid.clone(),
        required_features: study.required_features.clone(),
        engine: engine(study),
        kvm_quantum_ps: study.kvm_quantum.0,
        counting: counting(study)?,
        doorbell: false,
        offered_features: None,
        nominal_cpi: study.core_cpi.per_65536(),
        translate: true,
        kernel: files.kernel,
        initramfs: files.initramfs,
        root: files.root,
        root_blocks: files.root_blocks,
        job_disk,
        link: study.network.link,
        mtu: study.network.mtu,
        offload: study.network.offload,
        capture: study.network.capture,
        trace: study.job.trace,
        openmp: study.job.openmp,
        slots: vec![study.job.slots],
        console: false,
        kernel_parameters: study.kernel_parameters.clone(),
        warm: false,
        epoch: EPOCH,
        disk_latency_ns: study.disk.latency.0 / 1000,
        disk_bandwidth: study.disk.bandwidth.0,
        file_limits: study.file_limits,
        names_program: Some(THIS_PROGRAM.into()),
        code_costs: Arc::default(),
        core_without_window: false,
        windows: study.windows.clone(),
        registry: study.registry.clone(),
        time_limit_ps: study.time_limit.0,
        deadlock_ps: (study.deadlock.0 > 0).then_some(study.deadlock.0),
        host_threads: threads.min(study.guest_names().len()).max(1),
    };
    Ok(Prepared {
        cluster,
        image,
        identity: files.identity,
        _lease: files.lease,
    })
}

fn shared(study: &Study) -> Option<SharedFiles> {
    let (shared, server) = study.shared.as_ref().zip(study.file_server())?;
    Some(SharedFiles {
        path: shared.path.clone(),
        bytes: shared.size.0,
        server,
    })
}

fn files(
    study: &Study,
    interrupted: &AtomicBool,
    progress: &mut dyn FnMut(&str),
) -> Result<Files, Failure> {
    match &study.image {
        ImageSource::Debian(spec) => {
            let image = image::build(spec, false, interrupted, progress)?;
            let manifest = &image.manifest;
            let digests = manifest.files.values().map(|file| file.sha256.as_str());
            Ok(Files {
                name: format!("Debian {}, Linux {}", manifest.suite, manifest.kernel),
                identity: identity(digests),
                lease: Some(image.lease().map_err(image::fail)?),
                kernel: image.vmlinux,
                initramfs: image.initramfs,
                root: image.root,
                root_blocks: Some(image.root_blocks),
            })
        }
        ImageSource::Files {
            kernel,
            initramfs,
            root,
        } => {
            let digests = [digest(initramfs)?, digest(root)?, digest(kernel)?];
            Ok(Files {
                kernel: kernel.clone(),
                initramfs: initramfs.clone(),
                root: root.clone(),
                root_blocks: None,
                lease: None,
                name: "files of the study".into(),
                identity: identity(digests.iter().map(String::as_str)),
            })
        }
    }
}

/// Returns a hash of the digests of initramfs, root disk and kernel. It follows their contents, not the recipe: Debian's packages change
/// under the same recipe.
fn identity<'a>(digests: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for digest in digests {
        hash.update(format!("{digest}\n"));
    }
    hex(&hash.finalize())
}

/// Returns a hash of all that decides the results: the study, the image, the job disk, the libraries of models. What decides only the run's speed or where files go
/// is not hashed.
fn study_id(study: &Study, image: &str, job_disk: &[u8]) -> Result<String, Failure> {
    let plan = serde_json::to_vec(study).map_err(|error| Failure::of(Exit::Host, &error))?;
    let mut hash = Sha256::new();
    let plugins = study.plugins.iter().map(|library| digest(library));
    let plugins = plugins.collect::<Result<Vec<_>, _>>()?;
    let parts = [&plan[..], image.as_bytes(), job_disk];
    for part in parts
        .into_iter()
        .chain(plugins.iter().map(String::as_bytes))
    {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    Ok(hex(&hash.finalize())[..32].to_owned())
}

fn digest(path: &Path) -> Result<String, Failure> {
    let mut file = File::open(path).map_err(Failure::io("open", path))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(Failure::io("read", path))? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
