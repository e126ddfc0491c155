//! Checks of the host: memory, cores and tools that a study needs and the host lacks. Each problem comes with its remedy.

use std::path::{Path, PathBuf};

use nodescope_image::{Image, ImageError, ImageSpec};
use nodescope_plugin_core::{Core, CoreError, Tool};

use crate::plan::{ImageSource, Study};
use nodescope_config::problem::{HOST, Position, Problem, Problems, Severity};
use nodescope_config::quantity::Bytes;

/// Memory that nodescope needs beside the guests' own, bytes.
const OVERHEAD: u64 = 256 << 20;

/// Memory of a node that has just booted, which its clones share, bytes (`docs/benchmarks.md`, `restore`).
const BOOTED: u64 = 64 << 20;

/// Memory of a clone that a small MPI job takes, bytes: 26 MiB of guest memory that the clone writes, and the rest for its translated code
/// and devices (`docs/benchmarks.md`, `scale`).
const CLONE: u64 = 38 << 20;

/// The part of [`CLONE`] that is no guest memory, bytes.
const CLONE_OVERHEAD: u64 = 12 << 20;

/// Programs that the build of an image starts, each with the Debian package that holds the program.
const BUILD_TOOLS: &[(&str, &str)] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("gcc", "gcc"),
    ("mpicc.openmpi", "libopenmpi-dev"),
    ("mpicc.mpich", "libmpich-dev"),
];

/// Programs that the build also starts for a user who is not root, each with its Debian package. `check_subordinate_ids` looks for
/// `newuidmap`.
const USER_TOOLS: &[(&str, &str)] = &[("fakeroot", "fakeroot")];

/// The host, as far as studies depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Memory that this process may use, a control group's limit included; None if unknown.
    pub memory: Option<Bytes>,
    /// Memory that is free now; None if unknown.
    pub free_memory: Option<Bytes>,
    /// True if this is root's process.
    pub root: bool,
    /// Folders in which programs are looked for.
    pub path: Vec<PathBuf>,
    /// Folder in which images are cached; None if this user has no cache folder.
    pub image_cache: Option<PathBuf>,
    /// Number of hosts that share the cluster's nodes evenly, this host included.
    pub hosts: u32,
}

impl Host {
    /// Returns a description of this host.
    pub fn probe() -> Host {
        let total = meminfo("MemTotal:");
        let limit = [
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
        let memory = match (total, limit) {
            (Some(total), Some(limit)) => Some(total.min(limit)),
            (total, _) => total,
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        Host {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory.map(Bytes),
            free_memory: meminfo("MemAvailable:").map(Bytes),
            // SAFETY: geteuid has no preconditions and cannot fail.
            root: unsafe { libc::geteuid() } == 0,
            path: std::env::split_paths(&path)
                .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
                .collect(),
            image_cache: nodescope_image::default_cache_dir().ok(),
            hosts: 1,
        }
    }

    /// Returns the problems that keep this host from running the study, or make the study slow.
    pub fn problems(&self, study: &Study) -> Problems {
        let mut list = self.memory_problems(study);
        if let Some(threads) = study.host_threads
            && threads > self.cores
        {
            list.push(of(
                study,
                Severity::Warning,
                "study.host_threads",
                format!("is {threads}, but this host has {} cores; more threads than cores only cost time", self.cores),
            ));
        }
        if let ImageSource::Debian(spec) = &study.image {
            list.extend(self.image_problems(spec));
        }
        list.extend(self.core_problems(study));
        list.extend(window_problem(study));
        if let Err(message) = writable(&study.results) {
            list.push(of(study, Severity::Error, "results.directory", message));
        }
        Problems::new(&study.file, list)
    }

    /// Returns a problem if the study models cores and this host has no usable `llvm-mca`.
    fn core_problems(&self, study: &Study) -> Vec<Problem> {
        if study.cores.is_empty() {
            return Vec::new();
        }
        let error = Tool::within(&self.path).err();
        let error = error.map(|error| of_core(study, &error));
        error.into_iter().collect()
    }

    /// Returns a problem for each name in `node.core` that is no core with timings in this host's LLVM. These are mistakes of the study.
    /// Returns no problems if `llvm-mca` is missing.
    pub fn unknown_cores(&self, study: &Study) -> Problems {
        let tool = match study.cores.is_empty() {
            true => None,
            false => Tool::within(&self.path).ok(),
        };
        let unknown = tool.iter().flat_map(|tool| {
            let errors = study.cores.iter();
            errors.filter_map(|name| Core::of(tool, name).err())
        });
        let list = unknown.map(|error| of_core(study, &error)).collect();
        Problems::new(&study.file, list)
    }

    /// Returns the problems that keep the host from getting the image: missing tools, subordinate ids or cache folder, or an unreadable
    /// cache. Returns no problems if the cache has the image.
    pub fn image_problems(&self, spec: &ImageSpec) -> Vec<Problem> {
        let host = |message: String| Problem {
            severity: Severity::Error,
            position: None,
            field: HOST.into(),
            message,
        };
        let Some(cache) = &self.image_cache else {
            return vec![host(ImageError::NoCacheDir.to_string())];
        };
        match nodescope_image::find(spec, cache) {
            Ok(Some(Image { .. })) => return Vec::new(),
            // A damaged image is built again.
            Ok(None) | Err(ImageError::Damaged { .. }) => {}
            Err(error) => return vec![host(error.to_string())],
        }
        let user: &[(&str, &str)] = if self.root { &[] } else { USER_TOOLS };
        let mut missing: Vec<_> = BUILD_TOOLS
            .iter()
            .chain(user)
            .filter(|(tool, _)| !self.has(tool))
            .map(|(tool, package)| {
                host(format!(
                    "the guest image has to be built, and {tool} is not installed; apt-get install {package}"
                ))
            })
            .collect();
        if !self.root && !self.has("newuidmap") {
            let error = ImageError::NoUidmap;
            missing.push(host(format!("the guest image has to be built: {error}")));
        }
        if !self.root
            && missing.is_empty()
            && let Err(error) = nodescope_image::check_subordinate_ids()
        {
            return vec![host(format!("the guest image has to be built: {error}"))];
        }
        missing
    }

    fn has(&self, tool: &str) -> bool {
        self.path.iter().any(|folder| folder.join(tool).is_file())
    }

    fn memory_problems(&self, study: &Study) -> Vec<Problem> {
        let need = MemoryNeed::of(study, study.nodes.div_ceil(self.hosts.max(1)));
        let problem = |severity, message| vec![of(study, severity, "node.memory", message)];
        let (what, fix) = (&need.what, need.remedies(study));
        match (self.memory, self.free_memory) {
            (Some(memory), _) if need.least > memory.0 => problem(
                Severity::Error,
                format!("{what}, but this host has {}; {fix}", short(memory)),
            ),
            (_, Some(free)) if need.least > free.0 => problem(
                Severity::Warning,
                format!(
                    "{what}, but only {} are free now; end other programs, or {fix}",
                    short(free)
                ),
            ),
            (Some(memory), _) if need.most > memory.0 => problem(
                Severity::Warning,
                format!(
                    "{what}; if the job writes all of the nodes' memory, {} are needed, and this host has {}; for such a job, {fix}",
                    short(Bytes(need.most)),
                    short(memory)
                ),
            ),
            _ => Vec::new(),
        }
    }
}

/// Memory of a host that the nodes of a study need.
struct MemoryNeed {
    /// Memory without which the study cannot run, bytes.
    least: u64,
    /// Memory with which the study can run, whatever its job writes, bytes.
    most: u64,
    /// Sentence about `least`.
    what: String,
}

impl MemoryNeed {
    /// Returns the need of `nodes` nodes. Clones share what none of them has written, so that their job decides how much they need.
    fn of(study: &Study, nodes: u32) -> Self {
        let (node, count) = (study.node_memory(), u64::from(nodes));
        // A file server that is a clone has the files of the shared file system in memory of its own.
        let server = match (study.file_server(), &study.shared) {
            (Some(_), Some(shared)) if study.boots_once => shared.size.0,
            (Some(server), _) => server.socket_memory.iter().sum(),
            (None, _) => 0,
        };
        let of_server = match server {
            0 => String::new(),
            bytes => format!(", the file server of cluster.shared {}", Bytes(bytes)),
        };
        if !study.boots_once {
            let guests = Bytes(node.0.saturating_mul(count));
            let all = guests.0.saturating_add(server).saturating_add(OVERHEAD);
            return Self {
                least: all,
                most: all,
                what: format!(
                    "{nodes} nodes of {node} need {guests}{of_server} and {} for nodescope itself",
                    Bytes(OVERHEAD)
                ),
            };
        }
        let clone = CLONE.min(node.0.saturating_add(CLONE_OVERHEAD));
        let shared = BOOTED.min(node.0) + OVERHEAD;
        let beside = server.saturating_add(shared);
        let least = clone.saturating_mul(count).saturating_add(beside);
        let full = node.0.saturating_add(CLONE_OVERHEAD);
        Self {
            least,
            most: full.saturating_mul(count).saturating_add(beside),
            what: format!(
                "{nodes} nodes of {node}, made of one that has booted, need at least {}: {} for what they share and nodescope itself, and {} a node for a small job{of_server}",
                Bytes(least),
                Bytes(shared),
                Bytes(clone)
            ),
        }
    }

    /// Returns what the user can do where the host's memory is too small.
    fn remedies(&self, study: &Study) -> String {
        let lower = match study.shared {
            None => "node.memory or cluster.nodes",
            Some(_) => "node.memory, cluster.nodes or cluster.shared.size",
        };
        let others = format!(
            "lower {lower}, spread the nodes over several hosts (--workers, nodescope slurm run), or use a larger host"
        );
        match study.boots_once {
            true => others,
            false => format!(
                "make all nodes of one that has booted (cluster.boot = \"once\"), so that they share the memory that they do not write, {others}"
            ),
        }
    }
}

/// Number of windows above which a study's windows take so much that the user should know. Least memory and disk space of the report of a
/// window, bytes, where the guests do little in it: measured for windows of 1,000 instructions on two nodes of two vCPUs.
const MANY_WINDOWS: usize = 1000;
const WINDOW_MEMORY: u64 = 768 << 10;
const WINDOW_RESULTS: u64 = 256 << 10;

/// Returns a warning if the study has so many windows that their reports take much memory and disk space.
fn window_problem(study: &Study) -> Option<Problem> {
    let count = study.windows.len();
    let all = |each: u64| short(Bytes(each * count as u64));
    (count > MANY_WINDOWS).then(|| {
        of(
            study,
            Severity::Warning,
            &format!("window[{MANY_WINDOWS}].measure"),
            format!(
                "there are {count} windows; their report takes {} of memory and {} of disk at least, and more where a window has much code",
                all(WINDOW_MEMORY),
                all(WINDOW_RESULTS)
            ),
        )
    })
}

/// Returns a problem of `node.core`.
fn of_core(study: &Study, error: &CoreError) -> Problem {
    of(study, Severity::Error, "node.core", error.to_string())
}

/// Returns a problem at the position of a field in the study's file. If the study does not have the field, the position is the section's,
/// or else line 1.
fn of(study: &Study, severity: Severity, field: &str, message: String) -> Problem {
    let section = field.split('.').next().unwrap_or_default();
    let position = study
        .position_of(field)
        .or_else(|| study.position_of(section));
    Problem {
        severity,
        position: position.or(Some(Position { line: 1, column: 1 })),
        field: field.into(),
        message,
    }
}

/// Rounds a size down to MiB, because a host's memory is no round number.
fn short(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 >> 20 << 20)
}

fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Checks that results can be written to `folder`, which may not exist yet.
fn writable(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        return Err(format!("{shown} is not a folder; give another place"));
    }
    let parent = folder
        .ancestors()
        .map(|path| {
            if path.as_os_str().is_empty() {
                Path::new(".")
            } else {
                path
            }
        })
        .find(|path| path.exists());
    let Some(parent) = parent else {
        return Err(format!(
            "{shown}: no folder above it exists; give another place"
        ));
    };
    let Ok(text) = std::ffi::CString::new(parent.as_os_str().as_encoded_bytes()) else {
        return Err(format!("{shown}: is no path; give another place"));
    };
    // SAFETY: `text` is a NUL-terminated string that lives until the call returns.
    if unsafe { libc::access(text.as_ptr(), libc::W_OK | libc::X_OK) } != 0 {
        return Err(format!(
            "{shown}: nothing can be written to {}: {}; give another place",
            parent.display(),
            std::io::Error::last_os_error()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(text: &str) -> Study {
        let text = format!("[cluster]\nnodes = 2\n[job]\ncommand = \"true\"\n{text}");
        Study::parse(Path::new("s.toml"), &text).unwrap()
    }

    fn host() -> Host {
        Host {
            cores: 2,
            memory: Some(Bytes(8 << 30)),
            free_memory: Some(Bytes(6 << 30)),
            root: true,
            path: Vec::new(),
            image_cache: None,
            hosts: 1,
        }
    }

    #[test]
    fn more_memory_than_the_host_has_is_an_error_at_its_line() {
        let study = study("[node]\nmemory = \"4 GiB\"\n[results]\ndirectory = \"/tmp/r\"\n");
        let shared = Host { hosts: 2, ..host() };
        let text = shared.problems(&study).to_string();
        assert!(
            !text.contains("node.memory: 2 nodes"),
            "a node fits each host: {text}"
        );
        let text = host().problems(&study).to_string();
        assert!(
            text.contains("s.toml:6: node.memory: 2 nodes of 4 GiB need 8 GiB and 256 MiB for nodescope itself, but this host has 8 GiB; make all nodes of one that has booted (cluster.boot = \"once\"), so that they share the memory that they do not write, lower node.memory"),
            "{text}"
        );
    }

    #[test]
    fn clones_need_what_they_write() {
        let study = |nodes: u32, memory: &str, more: &str| {
            let text = format!(
                "cluster.nodes = {nodes}\n{more}\njob.command = \"true\"\nnode.memory = \"{memory}\"\nresults.directory = \"/tmp/r\"\n"
            );
            Study::parse(Path::new("s.toml"), &text).unwrap()
        };
        let told = |host: &Host, study: &Study| {
            let list = host.memory_problems(study);
            let list = list.into_iter();
            list.map(|problem| (problem.severity, problem.message))
                .collect::<Vec<_>>()
        };
        let host = |gib: u64| Host {
            memory: Some(Bytes(gib << 30)),
            free_memory: Some(Bytes(gib << 30)),
            ..host()
        };
        // 256 nodes of 128 MiB took 9,838 MiB with a small job.
        let many = study(256, "128 MiB", "");
        assert_eq!(told(&host(64), &many), []);
        let found = told(&host(24), &many);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, Severity::Warning);
        assert!(found[0].1.contains("need at least 10048 MiB: 320 MiB for what they share and nodescope itself, and 38 MiB a node"), "{found:?}");
        assert!(
            found[0]
                .1
                .contains("if the job writes all of the nodes' memory, 36160 MiB are needed"),
            "{found:?}"
        );
        let found = told(&host(8), &many);
        assert_eq!(found[0].0, Severity::Error);
        assert!(found[0].1.contains("but this host has 8 GiB; lower node.memory or cluster.nodes, spread the nodes over several hosts"), "{found:?}");
        // Nodes that boot by themselves share nothing, and the message names what helps.
        let each = study(256, "128 MiB", "cluster.boot = \"each\"");
        let found = told(&host(24), &each);
        assert_eq!(found[0].0, Severity::Error);
        assert!(found[0].1.contains("need 32 GiB and 256 MiB for nodescope itself, but this host has 24 GiB; make all nodes of one that has booted (cluster.boot = \"once\")"), "{found:?}");
        // A clone of a small node needs no more than the whole node.
        assert_eq!(told(&host(1), &study(8, "64 MiB", "")), []);
    }

    #[test]
    fn the_memory_of_a_file_server_counts() {
        let results = "[results]\ndirectory = \"/tmp/r\"\n";
        let of = |nodes: &str, memory: &str| {
            let text = format!(
                "[cluster]\n{nodes}\nshared = {{ path = \"/scratch\", size = \"6 GiB\" }}\n[node]\nmemory = \"{memory}\"\n[job]\ncommand = \"true\"\n{results}"
            );
            Study::parse(Path::new("s.toml"), &text).unwrap()
        };
        let text = host().problems(&of("nodes = 2", "1 GiB")).to_string();
        assert!(
            text.contains("s.toml:5: node.memory: 2 nodes of 1 GiB need 2 GiB, the file server of cluster.shared 6720 MiB and 256 MiB for nodescope itself, but this host has 8 GiB; make all nodes"),
            "{text}"
        );
        // Clones share memory, but not the files.
        let text = host().problems(&of("nodes = 2\nboot = \"once\"", "7 GiB"));
        let text = text.to_string();
        assert!(
            text.contains("a node for a small job, the file server of cluster.shared 6 GiB"),
            "{text}"
        );
    }

    #[test]
    fn less_free_memory_and_too_many_threads_are_warnings() {
        let study = study(
            "[node]\nmemory = \"3 GiB\"\n[study]\nhost_threads = 3\n[results]\ndirectory = \"/tmp/r\"\n",
        );
        let problems = host().problems(&study);
        let warnings: Vec<_> = problems
            .list()
            .iter()
            .filter(|problem| problem.severity == Severity::Warning)
            .map(|problem| problem.field.as_str())
            .collect();
        assert_eq!(warnings, ["node.memory", "study.host_threads"]);
    }

    #[test]
    fn missing_tools_name_their_packages() {
        let cache = tempfile::tempdir().unwrap();
        let host = Host {
            image_cache: Some(cache.path().into()),
            root: false,
            ..host()
        };
        let mut spec = ImageSpec::debian();
        spec.packages.push("lammps".into());
        let text = Problems::new(Path::new("s.toml"), host.image_problems(&spec)).to_string();
        let ids = ("newuidmap", "uidmap");
        for (_, package) in BUILD_TOOLS.iter().chain(USER_TOOLS).chain([&ids]) {
            assert!(
                text.contains(&format!("apt-get install {package}")),
                "{text}"
            );
        }
        assert!(
            text.starts_with("host: the guest image has to be built"),
            "{text}"
        );
        // A user whom nobody gives rights can take another user's image.
        assert!(
            text.contains("or copy the folder .cache/nodescope/images of a user who has the image"),
            "{text}"
        );
    }

    #[test]
    fn cores_need_llvm() {
        let study = study(
            "[node]\ncore = [\"skylak\", \"k8\", \"znver3\"]\n[results]\ndirectory = \"/tmp/r\"\n[[window]]\nmeasure = \"1 s\"\n",
        );
        let text = host().problems(&study).to_string();
        assert!(
            text.contains("s.toml:6: node.core: no llvm-mca is in PATH, and cycles of a core need it; install the Debian package llvm-22"),
            "{text}"
        );
        let path = Host::probe().path;
        if Tool::within(&path).is_err() {
            nodescope_test_needs::skip(
                nodescope_test_needs::Need::Mca,
                "llvm-mca is not installed",
            );
            return;
        }
        let host = Host { path, ..host() };
        let problems = host.unknown_cores(&study);
        let text = problems.to_string();
        let cores = problems.list().iter().filter(|p| p.field == "node.core");
        assert_eq!(cores.count(), 2, "{text}");
        assert!(text.contains("did you mean \"skylake\""), "{text}");
        assert!(text.contains("knows no timing of \"k8\""), "{text}");
    }

    #[test]
    fn many_windows_are_a_warning_with_an_estimate_and_too_many_an_error() {
        let windows = |count: usize| "[[window]]\nmeasure = \"1000 instructions\"\n".repeat(count);
        assert!(window_problem(&study(&windows(1000))).is_none());
        let problem = window_problem(&study(&windows(2048))).unwrap();
        assert_eq!(problem.severity, Severity::Warning);
        // Four lines come before the windows, which have two each.
        assert_eq!(problem.position.unwrap().line, 4 + 2 * 1001);
        let told = "there are 2048 windows; their report takes 1536 MiB of memory and 512 MiB of disk at least";
        assert!(problem.message.starts_with(told), "{}", problem.message);
        let text = format!(
            "[cluster]\nnodes = 2\n[job]\ncommand = \"true\"\n{}",
            windows(10_001)
        );
        let problems = Study::parse(Path::new("s.toml"), &text)
            .unwrap_err()
            .to_string();
        let told = "is one of 10001 windows, but a study has 10000 at most";
        assert!(problems.contains(told), "{problems}");
    }

    #[test]
    fn results_need_a_place() {
        writable(Path::new("results/new")).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(
            writable(file.path())
                .unwrap_err()
                .ends_with("is not a folder; give another place")
        );
    }
}
