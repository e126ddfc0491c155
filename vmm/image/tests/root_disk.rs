//! Tests of the recipe's `assemble`: equal packages give an equal root disk, byte for byte, at any time and in any folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread, time::Duration};

use nodescope_test_needs::{Need, have};

const EPOCH: &str = "1704067200";

fn assemble_script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/debian/assemble")
}

/// Returns PATH with `/usr/sbin` and `/sbin`, where Debian has mke2fs and debugfs; a user's PATH may lack them.
fn path() -> String {
    format!("{}:/usr/sbin:/sbin", env::var("PATH").unwrap_or_default())
}

fn run(command: &mut Command) {
    let output = command
        .env("PATH", path())
        .output()
        .expect("the program starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn shell(script: &str, dir: &Path) {
    run(Command::new("sh").args(["-euc", script]).current_dir(dir));
}

/// Returns what debugfs prints for a request about an image.
fn debugfs(image: &Path, request: &str) -> String {
    let output = Command::new("debugfs")
        .env("PATH", path())
        .args(["-R", request])
        .arg(image)
        .output()
        .expect("debugfs starts");
    String::from_utf8(output.stdout).expect("debugfs prints text")
}

/// Assembles a root disk from a tar archive and a folder of staged files, in the folder `work`, and returns the disk's bytes.
fn assemble(tar: &Path, stage: &Path, work: &Path) -> Vec<u8> {
    let image = work.join("root.img");
    run(Command::new(assemble_script())
        .args([tar, stage, &work.join("tree"), &image])
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("LC_ALL", "C.UTF-8"));
    fs::read(&image).expect("the disk was made")
}

#[test]
fn the_same_packages_give_the_same_bytes() {
    if !have(Need::Filesystem, &["mke2fs", "debugfs"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    // The tree has no device nodes and no other owners, so that the test does not need root.
    shell(
        "mkdir -p packages/etc packages/opt 'packages/usr/share/two words' packages/dev packages/var/log packages/var/cache packages/tmp
         echo installed >packages/etc/package.conf
         touch -d @1600000000 packages/etc/package.conf
         echo quoted >'packages/usr/share/two words/a \"name\"'
         echo log >packages/var/log/today
         ln -s ../etc/package.conf packages/opt/link
         tar -cf packages.tar -C packages .
         mkdir -p stage/opt
         echo staged >stage/opt/staged",
        dir.path(),
    );
    let disks: Vec<Vec<u8>> = ["first", "second"]
        .iter()
        .map(|name| {
            let work = dir.path().join(name);
            fs::create_dir(&work).expect("a folder");
            let disk = assemble(
                &dir.path().join("packages.tar"),
                &dir.path().join("stage"),
                &work,
            );
            // Time stamps have a resolution of seconds, so the second disk is made in another second.
            thread::sleep(Duration::from_millis(1100));
            shell("touch stage/opt/staged", dir.path());
            disk
        })
        .collect();
    let differ = disks[0]
        .iter()
        .zip(&disks[1])
        .filter(|(a, b)| a != b)
        .count();
    assert_eq!(
        (disks[0].len(), differ),
        (disks[1].len(), 0),
        "bytes that differ"
    );
    let image = dir.path().join("first/root.img");
    let times = |path: &str, field: &str| {
        let text = debugfs(&image, &format!("stat \"{path}\""));
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("{field}: ")))
            .unwrap_or_else(|| panic!("{path} has no {field}: {text}"));
        let seconds = line.split_whitespace().nth(1).expect("a time");
        let seconds = seconds.trim_start_matches("0x").split(':').next();
        u64::from_str_radix(seconds.expect("seconds"), 16).expect("hexadecimal")
    };
    let epoch: u64 = EPOCH.parse().expect("a number");
    for path in ["/", "/opt/staged", "/usr/share/two words/a \"\"name\"\""] {
        for field in ["atime", "ctime", "mtime"] {
            assert_eq!(times(path, field), epoch, "{field} of {path}");
        }
    }
    assert_eq!(times("/etc/package.conf", "mtime"), 1_600_000_000);
    assert!(debugfs(&image, "stat /var/log/today").is_empty());
}
