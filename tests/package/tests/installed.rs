//! Tests that make packages, unpack them away from the source tree, and use them as an unprivileged user.
//!
//! The tests run `scripts/package`, which builds a release, unless the variable `NODESCOPE_PROGRAM` says that `scripts/test` has built one.
//! The variable `NODESCOPE_PACKAGES` names a folder with packages of this version to test in place of new ones.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use nodescope_guide_tests::{faults, links, pages};
use nodescope_image::{ImageSpec, InputSet};
use nodescope_package_tests::User;
use nodescope_test_needs::{Need, have};
use serde_json::Value;

/// Version of the packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const STUDY: &str = r#"
[study]
name = "installed"
time_limit = "60 s"

[cluster]
nodes = 1

[node]
memory = "128 MiB"

[job]
command = "echo an installed nodescope ran"
"#;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository's folder")
}

/// Checks that a command succeeded, and returns its standard output.
fn succeed(what: &str, output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{text}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the Debian package and the archive. Reports a skip and returns `None` where this machine cannot make packages.
fn packages() -> Option<&'static [PathBuf; 2]> {
    static PACKAGES: OnceLock<[PathBuf; 2]> = OnceLock::new();
    if !have(
        Need::Packaging,
        &["dpkg-deb", "dpkg-shlibdeps", "strip", "git", "tar"],
    ) {
        return None;
    }
    Some(PACKAGES.get_or_init(|| {
        let folder = env::var_os("NODESCOPE_PACKAGES").map_or_else(
            || {
                let mut make = Command::new("scripts/package");
                if env::var_os("NODESCOPE_PROGRAM").is_some() {
                    make.arg("--no-build");
                }
                let made = make.current_dir(root()).output().expect("scripts/package");
                let said = succeed("scripts/package", made);
                let archive = said.lines().last().expect("the path of a package");
                root().join(archive).parent().expect("a folder").to_owned()
            },
            PathBuf::from,
        );
        [
            folder.join(format!("nodescope_{VERSION}_amd64.deb")),
            folder.join(format!("nodescope-{VERSION}-x86_64-linux.tar.gz")),
        ]
    }))
}

/// Returns a folder that every user can enter.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    folder
}

/// Unpacks both packages below `folder`, and returns for each the folder that contains `bin` and `share`.
fn unpack(folder: &Path, [package, archive]: &[PathBuf; 2]) -> [PathBuf; 2] {
    let (debian, anywhere) = (folder.join("debian"), folder.join("any where"));
    let mut command = Command::new("dpkg-deb");
    let output = command.arg("-x").arg(package).arg(&debian).output();
    succeed("dpkg-deb -x", output.expect("dpkg-deb"));
    fs::create_dir(&anywhere).expect("a folder");
    let mut command = Command::new("tar");
    command.arg("-xf").arg(archive).arg("-C").arg(&anywhere);
    succeed("tar -x", command.output().expect("tar"));
    [
        debian.join("usr"),
        anywhere.join(format!("nodescope-{VERSION}-x86_64-linux")),
    ]
}

/// Returns the folder of the guest image, which the program `nodescope` builds if it is not in the cache. Reports a skip and returns `None`
/// where this machine cannot build images.
fn image(nodescope: &Path) -> Option<PathBuf> {
    if !Command::new(nodescope)
        .args(["image", "show"])
        .output()
        .expect("nodescope")
        .status
        .success()
        && !have(Need::Image, &["mmdebstrap", "mke2fs"])
    {
        return None;
    }
    let built = Command::new(nodescope).args(["image", "build"]).output();
    let folder = succeed("image build", built.expect("nodescope"));
    Some(PathBuf::from(folder.trim_end()))
}

#[test]
fn packages_hold_what_an_installation_needs() {
    let Some(packages) = packages() else { return };
    let folder = open_folder();
    let [debian, archive] = unpack(folder.path(), packages);
    for prefix in [&debian, &archive] {
        for file in [
            "bin/nodescope",
            "share/bash-completion/completions/nodescope",
            "share/fish/vendor_completions.d/nodescope.fish",
            "share/doc/nodescope/CHANGELOG.md",
            "share/doc/nodescope/LICENSE-APACHE",
            "share/doc/nodescope/LICENSE-MIT",
            "share/doc/nodescope/README.md",
            "share/doc/nodescope/THIRD-PARTY.md",
            "share/doc/nodescope/docs/SUMMARY.md",
            "share/doc/nodescope/plugins/analysis/calibrate/measure.c",
            "share/doc/nodescope/vmm/study/STUDY.md",
            "share/nodescope/guest-images/debian/image.toml",
            "share/nodescope/guest-images/jobs/hpcc/study.toml",
            "share/nodescope/guest-images/tracer/build",
            "include/nodescope_models.h",
        ] {
            assert!(prefix.join(file).is_file(), "{}/{file}", prefix.display());
        }
    }
    // Compare the image's key of each package with the source tree's: a recipe that differs by one file would build another image.
    let key = |guest_images: &Path| {
        let recipe = guest_images.join("debian");
        let spec = ImageSpec {
            recipe,
            packages: Vec::new(),
            mirror: None,
        };
        InputSet::of(&spec).expect("a recipe").key()
    };
    let expected = key(&root().join("guest-images"));
    for prefix in [&debian, &archive] {
        let found = key(&prefix.join("share/nodescope/guest-images"));
        assert_eq!(found, expected, "{}", prefix.display());
    }
    for file in [
        "share/doc/nodescope/changelog.gz",
        "share/doc/nodescope/copyright",
        "share/man/man1/nodescope-image-build.1.gz",
        "share/zsh/vendor-completions/_nodescope",
    ] {
        assert!(debian.join(file).is_file(), "{file}");
    }
    for file in [
        "share/man/man1/nodescope-image-build.1",
        "share/zsh/site-functions/_nodescope",
    ] {
        assert!(archive.join(file).is_file(), "{file}");
    }
    let field = |name: &str| {
        let mut command = Command::new("dpkg-deb");
        let output = command.arg("-f").arg(&packages[0]).arg(name).output();
        succeed("dpkg-deb -f", output.expect("dpkg-deb"))
    };
    assert_eq!(field("Version").trim_end(), VERSION);
    for library in ["libc6 (>= ", "libzmq5 (>= "] {
        assert!(field("Depends").contains(library), "{}", field("Depends"));
    }
    for tool in ["mmdebstrap, ", "e2fsprogs, ", "libmpich-dev, ", "uidmap"] {
        assert!(
            field("Recommends").contains(tool),
            "{}",
            field("Recommends")
        );
    }
}

/// Pages of a package are read as they are, and their links lead to files of the package.
#[test]
fn pages_of_a_package_are_whole() {
    let Some(packages) = packages() else { return };
    let folder = open_folder();
    for prefix in unpack(folder.path(), packages) {
        let doc = prefix.join("share/doc/nodescope");
        let mut wrong = Vec::new();
        for page in pages(&doc) {
            let text = fs::read_to_string(&page).expect("a page");
            let name = page.strip_prefix(&doc).unwrap_or(&page).display();
            wrong.extend(
                faults(&text)
                    .into_iter()
                    .map(|fault| format!("{name}:{fault}")),
            );
            for link in links(&text) {
                let file = link.target.split('#').next().unwrap_or_default();
                // Authors of libraries have addresses of mail.
                let elsewhere = file.contains("://") || file.contains('@');
                let target = page.parent().unwrap_or(&doc).join(file);
                if !elsewhere && !file.is_empty() && !target.exists() {
                    wrong.push(format!("{name}:{}: no file {file}", link.line));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn a_plain_user_runs_an_installed_program() {
    let Some(packages) = packages() else { return };
    let folder = open_folder();
    let prefixes = unpack(folder.path(), packages);
    let image = image(&prefixes[0].join("bin/nodescope"));
    for (number, prefix) in prefixes.iter().enumerate() {
        let home = folder.path().join(format!("home-{number}"));
        let Some(user) = User::new(home, &root()) else {
            return;
        };
        let run = |line: &str| {
            let output = user.command(prefix, line).output().expect("a shell");
            succeed(line, output)
        };
        assert_eq!(run("nodescope --version"), format!("nodescope {VERSION}\n"));
        run(&format!("cat >study.toml <<'END'\n{STUDY}END"));
        if have(Need::Manual, &["man"]) {
            let page = run(&format!(
                "man --manpath='{}/share/man' --where nodescope-run",
                prefix.display()
            ));
            assert!(page.starts_with(&*prefix.to_string_lossy()), "{page}");
        }
        let Some(image) = &image else { continue };
        let name = image.file_name().expect("an image's name");
        let cache = Path::new(".cache/nodescope/images").join(name);
        user.give(image, &cache).expect("the image");
        let shown = run("nodescope image show");
        assert!(shown.starts_with(&*name.to_string_lossy()), "{shown}");
        assert!(shown.contains(&*user.home.to_string_lossy()), "{shown}");
        run("nodescope check study.toml");
        run("nodescope run study.toml --results results");
        let record = fs::read_to_string(user.home.join("results/run.json")).expect("run.json");
        let record: Value = serde_json::from_str(&record).expect("JSON");
        assert_eq!(record["exit_code"], 0, "{record}");
        let console = run("cat results/*console* results/*/*console* 2>/dev/null || :");
        assert!(console.contains("an installed nodescope ran"), "{console}");
    }
}

/// Checks that an installed nodescope compiles the tracer for programs on the host from the installation's own sources.
#[test]
fn a_plain_user_traces_a_program_with_an_installed_program() {
    if !have(Need::Mpi, &["mpirun.openmpi", "mpicc.openmpi"]) {
        return;
    }
    let Some(packages) = packages() else { return };
    let folder = open_folder();
    let [prefix, _] = unpack(folder.path(), packages);
    let Some(user) = User::new(folder.path().join("home"), &root()) else {
        return;
    };
    let program = "#include <mpi.h>\n\
        int main(int c, char **v) { MPI_Init(&c, &v); MPI_Barrier(MPI_COMM_WORLD); return MPI_Finalize(); }\n";
    let line = format!(
        "cat >barrier.c <<'END'\n{program}END\nmpicc.openmpi -o barrier barrier.c\n\
         nodescope trace -o traced -- mpirun.openmpi --oversubscribe -np 2 ./barrier\n\
         nodescope export traced --format csv --output table && cat table/*"
    );
    let table = user.command(&prefix, &line).output().expect("a shell");
    let table = succeed("nodescope trace", table);
    assert_eq!(table.matches("MPI_Barrier").count(), 2, "{table}");
}
