//! The programs of the host that a build runs: finding them, running them with a log, and telling what went wrong.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::ImageError;

/// Finds a program on PATH, then where Debian keeps an administrator's programs.
///
/// # Errors
///
/// [`ImageError::MissingTool`], which names the package.
pub(crate) fn find_tool(tool: &'static str, package: &'static str) -> Result<PathBuf, ImageError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(tool))
        .find(|candidate| candidate.is_file())
        .ok_or(ImageError::MissingTool { tool, package })
}

/// Runs `command` for `what`; both its outputs go to the file `log`, and each line to `line` as it comes.
///
/// # Errors
///
/// [`ImageError::Command`] with the end of the log if it cannot be started or does not succeed.
pub(crate) fn run(
    command: &mut Command,
    what: &str,
    log: &Path,
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
    // A group of its own: mmdebstrap hangs up its whole group when it cannot write the archive (a full disk), and this
    // process, and the shell or script that runs it, must outlive that to tell the user. If this process is interrupted,
    // the command ends when it next writes to the pipe that nobody reads.
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(stderr)
        .spawn();
    // The command holds the pipe's writing end, which would keep the loop below from ending.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.map_err(|error| fail(error.to_string()))?;
    let copied = copy_lines(reader, &mut file, line);
    let status: ExitStatus = child.wait().map_err(|error| fail(error.to_string()))?;
    copied.map_err(ImageError::io("write", log))?;
    if status.success() {
        Ok(())
    } else {
        Err(fail(status.to_string()))
    }
}

fn copy_lines(
    reader: impl Read,
    file: &mut File,
    line: &mut dyn FnMut(&str),
) -> std::io::Result<()> {
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? != 0 {
        file.write_all(&bytes)?;
        line(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
    Ok(())
}

/// The last lines of a log, for an error message.
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
    fn lines_are_passed_on_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut seen = Vec::new();
        run(
            Command::new("sh").args(["-c", "echo one; echo two >&2"]),
            "talking",
            &log,
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
            &mut |_| {},
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.starts_with("installing failed (signal: 15"),
            "{error}"
        );
        assert!(error.ends_with("\ndisk full"), "{error}");
    }

    #[test]
    fn a_failure_shows_status_log_and_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let error = run(
            Command::new("sh").args(["-c", "echo no such mirror; exit 7"]),
            "installing",
            &log,
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
}
