//! Programs with one mistake each, made by the host's compiler, and the message that the check gives.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nodescope_program::problems;
use nodescope_study::{Problem, Severity, Study};
use nodescope_test_needs::{Need, have};
use tempfile::TempDir;

/// A study's folder with programs.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>, mode: u32) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), bytes).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Compiles a program; the options come last.
    fn compile(&self, name: &str, source: &str, options: &[&str]) {
        let file = self.path(&format!("{name}.c"));
        fs::write(&file, source).unwrap();
        let output = Command::new("gcc")
            .args(["-O2", "-o"])
            .args([&self.path(name), &file])
            .args(options)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Makes a root disk of this host's libraries and a shell.
    fn image(&self) -> Option<PathBuf> {
        if !have(Need::Filesystem, &["mke2fs"]) {
            return None;
        }
        let (tree, image) = (self.path("tree"), self.path("root.img"));
        let libraries = tree.join("lib/x86_64-linux-gnu");
        fs::create_dir_all(&libraries).unwrap();
        for folder in ["lib64", "bin", "usr/bin"] {
            fs::create_dir_all(tree.join(folder)).unwrap();
        }
        for library in ["libc.so.6", "libm.so.6"] {
            fs::copy(
                Path::new("/lib/x86_64-linux-gnu").join(library),
                libraries.join(library),
            )
            .unwrap();
        }
        fs::copy(
            "/lib64/ld-linux-x86-64.so.2",
            tree.join("lib64/ld-linux-x86-64.so.2"),
        )
        .unwrap();
        fs::copy("/bin/true", tree.join("bin/true")).unwrap();
        fs::copy("/bin/sh", tree.join("bin/sh")).unwrap();
        let output = Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .args([&tree, &image])
            .arg("16M")
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(image)
    }

    /// Checks a study with this job.
    fn check(&self, job: &str, root: Option<&Path>) -> Vec<Problem> {
        let text = format!("[cluster]\nnodes = 1\n[job]\n{job}\n");
        let study = Study::parse(&self.path("s.toml"), &text).unwrap();
        problems(&study, root)
    }

    /// Checks a study whose only problem is an error with these words, and that the position is that of `job.command`.
    fn refuses(&self, job: &str, root: Option<&Path>, words: &[&str]) {
        let found = self.check(job, root);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].severity, Severity::Error, "{found:?}");
        assert_eq!(
            (found[0].position.unwrap().line, found[0].field.as_str()),
            (4, "job.command")
        );
        for word in words {
            assert!(found[0].message.contains(word), "{}", found[0].message);
        }
    }
}

const HELLO: &str = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n";
/// Sums floats in vectors, where the compiler may.
const SUMS: &str = "float f[4096];\nint main(int n, char **v) { float s = 0; for (int i = 0; i < 4096; i++) f[i] = f[i] * n + i;\n\
    for (int i = 0; i < n; i++) s += f[i]; return s; }\n";
const AVX512: &[&str] = &["-O3", "-march=skylake-avx512", "-mprefer-vector-width=512"];

fn has_gcc() -> bool {
    have(Need::Compiler, &["gcc"])
}

#[test]
fn files_of_other_systems() {
    let place = Place::new();
    let job = "command = \"./app\"\nmpi = \"none\"\nfiles = [\"app\"]";
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xb7\0".to_vec();
    elf.resize(64, 0);
    place.write("app", &elf, 0o755);
    place.refuses(
        job,
        None,
        &["./app", "for AArch64, with 64 bits", "build it for x86-64"],
    );
    (elf[4], elf[18]) = (1, 3);
    place.write("app", &elf, 0o755);
    place.refuses(job, None, &["for x86, with 32 bits"]);
    (elf[4], elf[18]) = (2, 62);
    place.write("app", &elf, 0o755);
    place.refuses(
        job,
        None,
        &["is a damaged ELF file", "copy or build it again"],
    );
    place.write("app", b"MZ\x90\0", 0o755);
    place.refuses(job, None, &["for Windows"]);
    place.write("app", "#!/bin/sh\r\n", 0o755);
    place.refuses(job, None, &["end as on Windows", "dos2unix"]);
    place.write("app", "text without a first line", 0o755);
    assert_eq!(place.check(job, None), []);
}

#[test]
fn programs_that_are_not_there_or_not_executable() {
    let place = Place::new();
    place.write("app", "#!/bin/sh\n", 0o644);
    let job = "command = \"./app 1\"\nmpi = \"none\"\nfiles = [\"app\"]";
    place.refuses(job, None, &["app is not executable", "chmod +x"]);
    place.write("app", "#!/bin/sh\n", 0o755);
    assert_eq!(place.check(job, None), []);
    place.refuses(
        "command = \"./app\"\nmpi = \"none\"",
        None,
        &["no entry of job.files", "/job/app", "files = [\"app\"]"],
    );
    let other =
        "command = \"./app\"\nmpi = \"none\"\nfiles = [{ from = \"app\", to = \"bin/app\" }]";
    place.refuses(other, None, &["puts /job/bin/app there"]);
    // An earlier command may make the program.
    assert_eq!(
        place.check("command = \"make && ./app\"\nmpi = \"none\"", None),
        []
    );
    let Some(root) = place.image() else { return };
    place.refuses(
        "command = \"apps\"\nmpi = \"none\"",
        Some(&root),
        &["the image has no such command", "image.packages"],
    );
    place.refuses(
        &job.replace("./app", "app"),
        Some(&root),
        &["in the folders of PATH alone", "write ./app"],
    );
    assert_eq!(
        place.check("command = \"true\"\nmpi = \"none\"", Some(&root)),
        []
    );
    place.write("app", "#!/usr/bin/perl\n", 0o755);
    place.refuses(
        job,
        Some(&root),
        &["its interpreter /usr/bin/perl is not in the image"],
    );
}

#[test]
fn libraries_and_dynamic_linkers() {
    let place = Place::new();
    let Some(root) = has_gcc().then(|| place.image()).flatten() else {
        return;
    };
    let job = "command = \"./app\"\nmpi = \"none\"\nfiles = [\"app\"]";
    place.compile("app", HELLO, &[]);
    assert_eq!(place.check(job, Some(&root)), []);
    place.compile(
        "app",
        HELLO,
        &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"],
    );
    place.refuses(
        job,
        Some(&root),
        &["/lib/ld-musl-x86_64.so.1", "belongs to musl", "-static"],
    );

    place.compile(
        "libown.so.1",
        "int own(void) { return 1; }\n",
        &["-shared", "-fPIC", "-Wl,-soname,libown.so.1"],
    );
    let source = "int own(void);\nint main(void) { return own(); }\n";
    let library = place.path("libown.so.1");
    let library = library.to_str().unwrap();
    place.compile("app", source, &[library]);
    place.refuses(
        job,
        Some(&root),
        &[
            "./app needs the library libown.so.1",
            "neither the image nor job.files",
            "LD_LIBRARY_PATH",
        ],
    );
    let with = "command = \"./app\"\nmpi = \"none\"\nfiles = [\"app\", \"libown.so.1\"]";
    place.refuses(
        with,
        Some(&root),
        &[
            "job.files puts it to /job/libown.so.1",
            "LD_LIBRARY_PATH = \"/job\"",
        ],
    );
    assert_eq!(
        place.check(
            &format!("{with}\nenvironment = {{ LD_LIBRARY_PATH = \"/job\" }}"),
            Some(&root)
        ),
        []
    );
    assert_eq!(
        place.check(
            &with.replace("./app", "LD_LIBRARY_PATH=. ./app"),
            Some(&root)
        ),
        []
    );
    place.compile("app", source, &[library, "-Wl,-rpath,$ORIGIN"]);
    assert_eq!(place.check(with, Some(&root)), []);
    // A library of the job needs one, too.
    place.compile(
        "libown.so.1",
        "int own(void) { return 1; }\n",
        &[
            "-shared",
            "-fPIC",
            "-Wl,-soname,libown.so.1",
            "-Wl,--no-as-needed",
            "-lgcc_s",
        ],
    );
    place.refuses(
        with,
        Some(&root),
        &["(by way of /job/libown.so.1) needs the library libgcc_s.so.1"],
    );

    // A version that the guest's library does not have.
    place.compile("app", HELLO, &[]);
    let bytes = fs::read(place.path("app")).unwrap();
    let at = bytes
        .windows(9)
        .position(|w| w == b"GLIBC_2.3")
        .expect("the version of __libc_start_main");
    let mut newer = bytes.clone();
    newer[at + 8] = b'9';
    place.write("app", newer, 0o755);
    place.refuses(
        job,
        Some(&root),
        &["needs GLIBC_2.9", "of the guest is older"],
    );
}

#[test]
fn programs_of_another_mpi() {
    let place = Place::new();
    let Some(root) = has_gcc().then(|| place.image()).flatten() else {
        return;
    };
    place.compile(
        "libmpich.so.12",
        "int MPI_Init(void *a, void *b) { return 0; }\n",
        &["-shared", "-fPIC", "-Wl,-soname,libmpich.so.12"],
    );
    let library = place.path("libmpich.so.12");
    let options = [library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"];
    place.compile(
        "app",
        "int MPI_Init(void *, void *);\nint main(void) { return MPI_Init(0, 0); }\n",
        &options,
    );
    let job = "command = \"./app\"\nfiles = [\"app\", \"libmpich.so.12\"]";
    place.refuses(
        job,
        Some(&root),
        &[
            "linked with libmpich.so.12",
            "job.mpi = \"openmpi\"",
            "set job.mpi = \"mpich\"",
        ],
    );
    assert_eq!(
        place.check(&format!("{job}\nmpi = \"mpich\""), Some(&root)),
        []
    );
}

#[test]
fn instructions_that_the_guest_lacks() {
    let place = Place::new();
    if !has_gcc() {
        return;
    }
    let job = "command = \"./app\"\nmpi = \"none\"\nfiles = [\"app\"]";
    for options in [&[][..], &["-static"], &["-no-pie"]] {
        place.compile("app", SUMS, &[AVX512, options].concat());
        place.refuses(job, None, &["which needs AVX512", "SIGILL", "x86-64-v3"]);
        // Level 3 is the guests' own. The C library of a static program has code for AVX-512 that it chooses by CPUID.
        place.compile("app", SUMS, &[&["-O3", "-march=haswell"], options].concat());
        assert_eq!(place.check(job, None), [], "{options:?}");
        place.compile("app", HELLO, options);
        assert_eq!(place.check(job, None), [], "{options:?}");
    }
    // In a function of its own, which main calls.
    let function = SUMS.replace(
        "int main(int n, char **v)",
        "__attribute__((noinline)) int sums(int n)",
    );
    let main = format!("{function}\nint main(int n, char **v) {{ return sums(n) + 1; }}\n");
    place.compile("app", &main, AVX512);
    place.refuses(job, None, &["which needs AVX512"]);
    // The same function, chosen by the processor's features.
    let chosen = function.replace(
        "__attribute__((noinline))",
        "__attribute__((noinline, target(\"avx512f\"), optimize(\"O3\")))",
    );
    let main = format!(
        "{chosen}\nint main(int n, char **v) {{ return __builtin_cpu_supports(\"avx512f\") ? sums(n) : n; }}\n"
    );
    place.compile("app", &main, &["-mprefer-vector-width=512"]);
    let found = place.check(job, None);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(
        found[0]
            .message
            .contains("asks for the processor's features"),
        "{found:?}"
    );
    // A study may hide AVX2, too.
    place.compile("app", SUMS, &["-O3", "-march=haswell"]);
    let text = format!("[cluster]\nnodes = 1\n[node]\nhide = [\"avx2\"]\n[job]\n{job}\n");
    let study = Study::parse(&place.path("s.toml"), &text).unwrap();
    let found = problems(&study, None);
    assert!(
        found
            .iter()
            .any(|problem| problem.message.contains("needs AVX2")),
        "{found:?}"
    );
}

#[test]
fn scripts_name_their_lines() {
    let place = Place::new();
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xb7\0".to_vec();
    elf.resize(64, 0);
    place.write("app", &elf, 0o755);
    place.write(
        "start.sh",
        "#!/bin/sh\nset -e\nmpirun -n 4 --hostfile x ./app in.dat\n",
        0o755,
    );
    let found = place.check("script = \"start.sh\"\nfiles = [\"app\"]", None);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].field, "job.script");
    assert!(
        found[0]
            .message
            .starts_with("line 3: ./app is a program for AArch64"),
        "{found:?}"
    );
    // A Python script is no shell script.
    place.write("start.sh", "#!/usr/bin/python3\n./app\n", 0o755);
    assert_eq!(
        place.check("script = \"start.sh\"\nfiles = [\"app\"]", None),
        []
    );
}

/// Damaged programs give messages; none panics or takes long.
#[test]
fn damaged_programs() {
    let Ok(bytes) = fs::read("/bin/true") else {
        return;
    };
    let table = nodescope_machine::cpuid::Template::new(&Default::default()).unwrap();
    let study = Study::parse(
        Path::new("s.toml"),
        "[cluster]\nnodes = 1\n[job]\ncommand = \"x\"\n",
    )
    .unwrap();
    let features = nodescope_engine_soft::Features::new(&table.table(&study.topology, 0));
    let mut random = 1u64;
    let mut next = |most: usize| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) as usize % most
    };
    for round in 0..400 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + round % 8 {
            // Headers and the tables behind them decide most.
            let most = if round % 2 == 0 { 4096 } else { damaged.len() };
            let at = next(most);
            damaged[at] = [0, 0xff, 0x7f, 0x80][next(4)];
        }
        damaged.truncate(if round % 5 == 0 {
            next(bytes.len())
        } else {
            bytes.len()
        });
        let damaged: Arc<[u8]> = damaged.into();
        nodescope_program::fuzz(&damaged, &features);
    }
}
