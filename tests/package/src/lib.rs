//! Runs programs as an unprivileged user, who has an installed nodescope and no source tree.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_test_needs::{Need, have, skip};

/// Ids of the user and the group that Debian reserves for programs without rights.
const NOBODY: u32 = 65534;

/// A plain user: an unprivileged user where the tests run as root, else the user who runs the tests.
#[derive(Debug)]
pub struct User {
    /// Folder of the user's files.
    pub home: PathBuf,
    /// True if the tests run as root; the user's programs then run as `NOBODY`.
    other: bool,
    /// Folder that the user's programs see empty where the tests run as root.
    hidden: PathBuf,
}

impl User {
    /// Creates the folder `home` and returns a user who lives there and who sees the folder `hidden` empty. Reports a skip and returns
    /// `None` where this machine does not let root act as another user or hide a folder. Without root, folders cannot be hidden: the user
    /// sees `hidden` as it is.
    ///
    /// # Panics
    ///
    /// If the folder cannot be created, and where [`skip`] panics.
    pub fn new(home: PathBuf, hidden: &Path) -> Option<User> {
        fs::create_dir(&home).expect("a home");
        let other = fs::metadata("/proc/self").expect("/proc").uid() == 0;
        let user = User {
            home,
            other,
            hidden: hidden.to_owned(),
        };
        if other {
            if !have(Need::Mount, &["unshare", "mount", "setpriv"]) {
                return None;
            }
            std::os::unix::fs::chown(&user.home, Some(NOBODY), Some(NOBODY)).expect("a home");
            let output = user
                .command(Path::new("/"), "true")
                .output()
                .expect("unshare");
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                skip(
                    Need::Mount,
                    format_args!("no program runs as another user: {said}"),
                );
                return None;
            }
        }
        Some(user)
    }

    /// Returns a command that runs a shell line as this user, in the user's home. `PATH` finds the program of the installation below
    /// `prefix` first. The only other variables of the command are `HOME` and `LC_ALL`.
    pub fn command(&self, prefix: &Path, line: &str) -> Command {
        let mut command = if self.other {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-euc"]);
            command.arg(
                "mount -t tmpfs none \"$1\"; shift; cd \"$HOME\"; \
                 exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs -- \"$@\"",
            );
            command.arg("sh").arg(&self.hidden).arg("sh");
            command
        } else {
            Command::new("sh")
        };
        command.args(["-euc", line]);
        let path = format!("{}/bin:/usr/bin:/bin:/usr/sbin:/sbin", prefix.display());
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", &self.home)
            .env("LC_ALL", "C.UTF-8")
            .current_dir("/");
        if !self.other {
            command.current_dir(&self.home);
        }
        command
    }

    /// Gives the user copies of the files of `folder`, which must not change, at `path` in the user's home. Each folder of `path` belongs
    /// to the user. Files become hard links to the same data where that is possible.
    ///
    /// # Errors
    ///
    /// A file or folder that cannot be read, linked or copied.
    pub fn give(&self, folder: &Path, path: &Path) -> io::Result<()> {
        let mut at = self.home.clone();
        for part in path {
            at.push(part);
            match fs::create_dir(&at) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            if self.other {
                std::os::unix::fs::chown(&at, Some(NOBODY), Some(NOBODY))?;
            }
        }
        for entry in fs::read_dir(folder)? {
            let (from, to) = {
                let entry = entry?;
                (entry.path(), at.join(entry.file_name()))
            };
            // A link shares the file's mode with the original, so that only files that everybody can read are linked.
            let readable = from.metadata()?.permissions().mode() & 0o004 != 0;
            if !readable || fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to)?;
                fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
            }
        }
        Ok(())
    }
}
