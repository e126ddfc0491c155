//! Host programs of a build: finds them, runs them with a log, and reports failures.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::ImageError;
use crate::options::BuildOptions;

/// Time to wait for output between two checks of the build's stop flag.
const PATIENCE: Duration = Duration::from_millis(100);
/// Number of waits of [`PATIENCE`] after which the build no longer waits for the output of programs that it has killed.
const MAX_WAITS: u32 = 50;

/// Finds a program on PATH, or else in `/usr/sbin` or `/sbin`.
///
/// # Errors
///
/// [`ImageError::MissingTool`], which names the Debian package to install.
pub(crate) fn find_tool(tool: &'static str, package: &'static str) -> Result<PathBuf, ImageError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(tool))
        .find(|candidate| candidate.is_file())
        .ok_or(ImageError::MissingTool { tool, package })
}

/// Variables of the user's environment that a build's programs get: paths of programs, libraries and folders, and settings of the network.
const PASSED_ON: [&str; 16] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "TERM",
    "LANG",
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "APT_CONFIG",
];

/// Removes the user's environment variables from a command, except those of [`PASSED_ON`] and those that the command sets itself. Programs
/// in the image's tree run with a build's variables, so that the user's own variables would change the image. For instance,
/// `PYTHONDONTWRITEBYTECODE` decides which files Python compiles.
pub(crate) fn tidy_environment(command: &mut Command) {
    let set: Vec<_> = command
        .get_envs()
        .map(|(name, _)| name.to_owned())
        .collect();
    for (name, _) in std::env::vars_os() {
        if !set.contains(&name) && !PASSED_ON.iter().any(|passed| name == *passed) {
            command.env_remove(name);
        }
    }
}

/// Runs `command` for the task `what`. Appends standard output and standard error to the file `log`, and passes each line to `line` when it
/// arrives. As far as the host and the user's rights allow ([`contained`]), the command does not outlive this process, even if this process
/// is killed, and no other process sees the command's mounts.
///
/// # Errors
///
/// [`ImageError::Command`] with the end of the log if the command cannot be started or fails; [`ImageError::Interrupted`];
/// [`ImageError::Io`] for the log.
pub(crate) fn run(
    command: &Command,
    what: &str,
    log: &Path,
    options: &BuildOptions<'_>,
    line: &mut dyn FnMut(&str),
) -> Result<(), ImageError> {
    let fail = |status: String| ImageError::Command {
        what: what.to_owned(),
        status,
        log: log.to_path_buf(),
        tail: tail(log),
    };
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(ImageError::io("open", log))?;
    writeln!(file, "$ {command:?}").map_err(ImageError::io("write", log))?;
    let (reader, writer) = std::io::pipe().map_err(ImageError::io("make a pipe for", log))?;
    let stderr = writer
        .try_clone()
        .map_err(ImageError::io("make a pipe for", log))?;
    let mut command = contained(command);
    // The command gets a process group of its own: mmdebstrap sends SIGHUP to its whole group when it cannot write the archive (a full
    // disk). This process, and the shell or script that runs it, must survive to inform the user.
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(stderr)
        .spawn();
    // `command` holds the write end of the pipe: while that is open, the reader of the lines doesn't see the end of the output.
    drop(command);
    let mut child = child.map_err(|error| fail(error.to_string()))?;
    let (send, lines) = channel();
    thread::spawn(move || read_lines(reader, &send));
    let mut written = Ok(());
    let mut stopped = Ok(());
    let mut looks = 0;
    loop {
        if stopped.is_ok() {
            stopped = options.check();
            if stopped.is_err() {
                kill(&mut child);
            }
        }
        match lines.recv_timeout(PATIENCE) {
            Ok(bytes) => {
                // A failed write to the log must not keep the command from running to its end.
                written = written.and_then(|()| file.write_all(&bytes));
                line(String::from_utf8_lossy(&bytes).trim_end());
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if stopped.is_err() => {
                looks += 1;
                if looks == MAX_WAITS {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    let status: ExitStatus = child.wait().map_err(|error| fail(error.to_string()))?;
    stopped?;
    written.map_err(ImageError::io("write", log))?;
    if status.success() {
        Ok(())
    } else {
        Err(fail(status.to_string()))
    }
}

fn read_lines(reader: impl Read, lines: &Sender<Vec<u8>>) {
    let mut reader = BufReader::new(reader);
    loop {
        let mut bytes = Vec::new();
        match reader.read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                if lines.send(bytes).is_err() {
                    return;
                }
            }
        }
    }
}

/// Kills a command and all processes in its process group.
fn kill(child: &mut Child) {
    use rustix::process::{Pid, Signal, kill_process_group};
    // If the group no longer exists or may not be killed, only its leader is killed.
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
}

/// Returns `command` in a form that is killed when the thread that started it dies (prctl(2), `PR_SET_PDEATHSIG`). Root may mount, so
/// root's command also gets namespaces of its own. The kernel kills all processes of a PID namespace when its first process dies, and
/// removes the mounts of a mount namespace with its last process. A plain user's mmdebstrap makes such namespaces itself.
fn contained(command: &Command) -> Command {
    let words = wrapper().iter().map(AsRef::as_ref);
    let mut words = words
        .chain([command.get_program()])
        .chain(command.get_args());
    let mut wrapped = Command::new(words.next().unwrap_or(command.get_program()));
    wrapped.args(words);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

/// Returns the words to put before a command's own to confine the command, as far as this host and user allow. Empty without setpriv(1).
fn wrapper() -> &'static [PathBuf] {
    static WRAPPER: OnceLock<Vec<PathBuf>> = OnceLock::new();
    WRAPPER.get_or_init(|| {
        let Ok(setpriv) = find_tool("setpriv", "util-linux") else {
            return Vec::new();
        };
        let alone = vec![setpriv, "--pdeathsig".into(), "KILL".into()];
        let Ok(unshare) = find_tool("unshare", "util-linux") else {
            return alone;
        };
        let namespaces = [
            "--mount",
            "--propagation=private",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
            // The first process of a PID namespace must reap orphans, and ignores most signals; a shell takes this role, not the command.
            "sh",
            "-c",
            "\"$@\"; exit $?",
            "sh",
        ];
        let namespaces = namespaces.map(PathBuf::from);
        let both = [&alone[..], &[unshare], &namespaces].concat();
        // A container's root may lack the right to create namespaces. That root cannot mount either.
        let possible = Command::new(&both[0])
            .args(&both[1..])
            .arg("true")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if possible { both } else { alone }
    })
}

/// Returns the last 15 lines of a log, for an error message.
fn tail(log: &Path) -> String {
    let text = fs::read(log)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package() {
        assert_eq!(
            find_tool("mmdebstrap-that-is-not-there", "mmdebstrap")
                .unwrap_err()
                .to_string(),
            "`mmdebstrap-that-is-not-there` not found on PATH: install the Debian package `mmdebstrap` (apt-get install mmdebstrap)"
        );
    }

    #[test]
    fn variables_of_the_user_stay_outside() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("env");
        command.env("SOURCE_DATE_EPOCH", "1");
        // Cargo sets `CARGO_MANIFEST_DIR` for tests.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        tidy_environment(&mut command);
        let mut names = Vec::new();
        run(
            &command,
            "listing",
            &dir.path().join("log"),
            &BuildOptions::default(),
            &mut |line| names.extend(line.split_once('=').map(|(name, _)| name.to_owned())),
        )
        .unwrap();
        assert!(
            names.iter().any(|name| name == "SOURCE_DATE_EPOCH"),
            "{names:?}"
        );
        assert!(names.iter().any(|name| name == "PATH"), "{names:?}");
        let carried: Vec<_> = names
            .iter()
            .filter(|name| name.starts_with("CARGO"))
            .collect();
        assert_eq!(carried, Vec::<&String>::new());
    }

    #[test]
    fn lines_are_passed_on_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut seen = Vec::new();
        run(
            Command::new("sh").args(["-c", "echo one; echo two >&2"]),
            "talking",
            &log,
            &BuildOptions::default(),
            &mut |line| seen.push(line.to_owned()),
        )
        .unwrap();
        assert_eq!(seen, ["one", "two"]);
        assert!(fs::read_to_string(&log).unwrap().ends_with("one\ntwo\n"));
    }

    #[test]
    fn a_command_that_ends_its_group_leaves_this_process_alone() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let error = run(
            Command::new("sh").args(["-c", "echo disk full; kill -TERM 0; sleep 60"]),
            "installing",
            &log,
            &BuildOptions::default(),
            &mut |_| {},
        )
        .unwrap_err()
        .to_string();
        // In a PID namespace, the shell that is the first process reports the signal as an exit status.
        let ended = ["signal: 15", "exit status: 143"].map(|s| format!("installing failed ({s}"));
        assert!(ended.iter().any(|s| error.starts_with(s)), "{error}");
        assert!(error.contains("\ndisk full"), "{error}");
    }

    #[test]
    fn a_failure_shows_status_log_and_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let error = run(
            Command::new("sh").args(["-c", "echo no such mirror; exit 7"]),
            "installing",
            &log,
            &BuildOptions::default(),
            &mut |_| {},
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.starts_with(&format!(
                "installing failed (exit status: 7); the end of {}:\n",
                log.display()
            )),
            "{error}"
        );
        assert!(error.ends_with("\nno such mirror"), "{error}");
    }

    /// Returns whether a process runs whose command line has this word.
    fn runs(word: &str) -> bool {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
            .any(|line| line.split(|byte| *byte == 0).any(|w| w == word.as_bytes()))
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..600 {
            if holds() {
                return;
            }
            thread::sleep(PATIENCE);
        }
        panic!("not within a minute: {what}");
    }

    /// Returns a command that starts two processes, one of them in a session of its own, and prints a line when they run.
    fn restless(seconds: &str) -> Command {
        let script = format!("setsid sleep {seconds} & echo started; sleep {seconds}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    }

    #[test]
    fn a_build_that_is_interrupted_leaves_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let seconds = format!("70{}", std::process::id());
        let stop = std::sync::atomic::AtomicBool::new(false);
        let options = BuildOptions {
            stop: Some(&stop),
            ..BuildOptions::default()
        };
        let result = run(
            &restless(&seconds),
            "waiting",
            &dir.path().join("log"),
            &options,
            &mut |line| {
                assert_eq!(line, "started");
                until("both sleep", || runs(&seconds));
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            },
        );
        assert!(matches!(result, Err(ImageError::Interrupted)), "{result:?}");
        if wrapper().len() > 3 {
            until("both are gone", || !runs(&seconds));
        }
    }

    /// The test runs its own program again, as the build process to be killed.
    #[test]
    fn a_build_that_is_killed_leaves_no_process_and_no_mount() {
        const MARK: &str = "NODESCOPE_TEST_BUILD_TO_KILL";
        if let Ok(dir) = std::env::var(MARK) {
            let dir = Path::new(&dir);
            let script = format!(
                "mkdir {0}/mounted; mount -t tmpfs none {0}/mounted && echo mounted >{0}/said; sleep 80{1}",
                dir.display(),
                std::process::id()
            );
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            let options = BuildOptions::default();
            let _ = run(&command, "waiting", &dir.join("log"), &options, &mut |_| {});
            return;
        }
        if wrapper().len() <= 3 {
            nodescope_test_needs::skip(
                nodescope_test_needs::Need::Mount,
                "namespaces are root's to make",
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "tools::tests::a_build_that_is_killed_leaves_no_process_and_no_mount",
            ])
            .env(MARK, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let seconds = format!("80{}", victim.id());
        until("the mount", || dir.path().join("said").exists());
        until("the sleep", || runs(&seconds));
        let mounted = dir.path().join("mounted").display().to_string();
        let seen = |mounts: &str| mounts.contains(&mounted);
        assert!(!seen(&fs::read_to_string("/proc/self/mountinfo").unwrap()));
        victim.kill().unwrap();
        victim.wait().unwrap();
        until("the end of what it started", || !runs(&seconds));
        fs::remove_dir(dir.path().join("mounted")).unwrap();
    }
}
