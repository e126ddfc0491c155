//! Exit codes, and failures as a user sees them.

use std::error::Error;
use std::io;

use nodescope_hypercall::printable_lines;
use nodescope_trace::TraceError;

use crate::args::LogFormat;
use crate::interrupt::{file_limit, memory_limit};
use crate::terminal::{print_error_json, print_error_line};

/// Exit code of a command, for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command did what was asked; of a run: the job ended with status 0, or the run ended after its snapshot as asked.
    Ok = 0,
    /// The job, or a command that nodescope ran on this machine, ended with another status than 0; or the job left out a file that the
    /// study collects; or a prediction is incomplete.
    JobFailed = 1,
    /// Wrong usage, or a study or other input that cannot be used as it is.
    Study = 2,
    /// A guest panicked, reset itself, powered off without a status of the job, or executed something that the engine does not support.
    Guest = 3,
    /// The study's time limit was reached, the MPI program deadlocked, no node will ever wake again, or nodes stayed on after node 0 had
    /// powered off.
    TimeLimit = 4,
    /// A problem of the host: files, a full disk, memory, missing tools, or a process of the run that died.
    Host = 5,
    /// The job ended well, but a window of the study measured nothing, or a snapshot that was asked for was not taken.
    Window = 6,
    /// Ctrl-C, SIGTERM or SIGHUP interrupted the command.
    Interrupted = 130,
}

impl Exit {
    /// Every exit code.
    pub const ALL: [Exit; 8] = [
        Exit::Ok,
        Exit::JobFailed,
        Exit::Study,
        Exit::Guest,
        Exit::TimeLimit,
        Exit::Host,
        Exit::Window,
        Exit::Interrupted,
    ];

    /// Returns the exit code with this number; `None` if there is none.
    pub fn of(code: u8) -> Option<Exit> {
        Exit::ALL.into_iter().find(|exit| *exit as u8 == code)
    }
}

impl Exit {
    /// Returns the exit code for an input, named by the user, that cannot be read: the user's mistake, unless the host fails.
    pub fn of_read(error: &io::Error) -> Exit {
        use io::ErrorKind::{
            InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound,
            NotSeekable, PermissionDenied, UnexpectedEof,
        };
        match error.kind() {
            NotFound | PermissionDenied | IsADirectory | NotADirectory | InvalidData
            | InvalidFilename | InvalidInput | NotSeekable | UnexpectedEof => Exit::Study,
            _ => Exit::Host,
        }
    }

    /// Returns the exit code for a trace that cannot be read.
    pub fn of_trace(error: &TraceError) -> Exit {
        match error {
            TraceError::Io { cause, .. } => Exit::of_read(cause),
            _ => Exit::Study,
        }
    }
}

/// The table of exit codes, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
    0  done; with `run`: the job ended with status 0
    1  the job failed: it ended with another status, or left no file for an entry of job.collect; or a prediction
       is incomplete
    2  wrong usage, or problems in the study; a trace, results, a snapshot or another input that is missing, damaged
       or does not fit
    3  a guest failed: panic, reset, triple fault, power-off without the job's status, an instruction that the engine
       does not know
    4  the study's time limit was reached, the MPI program is deadlocked, every node hangs, or nodes stay on after
       node 0 is off
    5  a problem of the host: files, a full disk (also where standard output is written), too little memory, missing
       tools, a worker that died
    6  the job ended well, but a window of the study measured nothing, or no snapshot was taken
  130  interrupted; what was measured until then is among the results";

/// Text that says where the guide is, for `--help`. Help texts name pages of the guide.
pub const GUIDE: &str = "\
Texts such as (guide: Exports) name a page of the guide. An installation has the guide in
share/doc/nodescope beside the folder of the program, such as /usr/share/doc/nodescope.";

/// Reason for which a command did not do what was asked.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of the command.
    pub exit: Exit,
    /// Message and its causes, outermost first; empty if the user has been told already.
    pub chain: Vec<String>,
    /// Further failures, or the circumstances of this one, as one text; `None` without any.
    pub also: Option<String>,
}

/// The system's message for a full disk, the same in every locale.
const FULL: &str = "No space left on device";
/// Advice for a full disk.
const FULL_HELP: &str = "free space where that file lies, or use another disk: --results for results, XDG_CACHE_HOME for guest images, TMPDIR for what their build unpacks";

/// The system's message about a file that would exceed a limit.
const TOO_LARGE: &str = "File too large";
const TOO_LARGE_HELP: &str = "the file system has no room for a file of this size; use another one, with --results for results";
/// Messages for a lack of memory or address space: the system's, and that of Rust's standard library.
const NO_MEMORY: [&str; 2] = ["Cannot allocate memory", "out of memory"];
const NO_MEMORY_HELP: &str =
    "the host has no memory left; lower node.memory or cluster.nodes, or use a larger host";

/// The system's message for a process that has reached its limit of open files.
const NO_FILES: &str = "Too many open files";
const NO_FILES_HELP: &str = "raise the limit of open files: ulimit -n 65536";

impl Failure {
    /// Returns a failure with a message and no causes.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure {
            exit,
            chain: vec![message.into()],
            also: None,
        }
    }

    /// Returns a failure with the messages of an error and its causes. Leaves out a cause that the text before it already quotes. The exit
    /// code is [`Exit::Host`] for a lack of memory, disk space or files, whatever `exit` is.
    pub fn of(exit: Exit, error: &dyn Error) -> Failure {
        let mut chain = vec![error.to_string()];
        let mut next = error.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if chain.last().is_none_or(|last| !last.contains(&text)) {
                chain.push(text);
            }
            next = cause.source();
        }
        let lacking = [FULL, TOO_LARGE, NO_FILES].iter().chain(&NO_MEMORY);
        let of_host = lacking
            .into_iter()
            .any(|what| chain.iter().any(|text| text.contains(what)));
        Failure {
            exit: if of_host { Exit::Host } else { exit },
            chain,
            also: None,
        }
    }

    /// Returns a closure, for `map_err`, that turns an I/O error into a failure. Its message names the action and the file.
    pub fn io(action: &str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Failure {
        let message = format!("cannot {action} {}", path.display());
        move |error| Failure::new(Exit::Host, format!("{message}: {error}"))
    }

    /// Returns a closure, for `map_err`, that turns an error of reading a user's input into a failure, see [`Exit::of_read`].
    pub fn input(action: &str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Failure {
        let message = format!("cannot {action} {}", path.display());
        move |error| Failure {
            exit: Exit::of_read(&error),
            ..Failure::new(Exit::Host, format!("{message}: {error}"))
        }
    }

    /// Returns advice to the user; `None` for most failures. The failure is recognized by the system's own words, since errors come through
    /// many crates and programs.
    fn help(&self) -> Option<String> {
        let says = |what: &str| self.chain.iter().any(|text| text.contains(what));
        if says(FULL) {
            return Some(FULL_HELP.into());
        }
        if says(TOO_LARGE) {
            return Some(match file_limit() {
                Some(bytes) => format!(
                    "no file may have more than {bytes} bytes here (RLIMIT_FSIZE); raise that limit: ulimit -f unlimited"
                ),
                None => TOO_LARGE_HELP.into(),
            });
        }
        if says(NO_FILES) {
            return Some(NO_FILES_HELP.into());
        }
        let no_memory = NO_MEMORY.iter().any(|what| says(what));
        no_memory.then(|| match memory_limit() {
            Some(bytes) => format!(
                "this process may have no more than {bytes} bytes of address space (RLIMIT_AS); raise that limit: ulimit -v unlimited"
            ),
            None => NO_MEMORY_HELP.into(),
        })
    }

    /// Prints the failure on standard error in this format; nothing if there is no message.
    pub fn print(&self, format: LogFormat) {
        if self.chain.is_empty() {
            return;
        }
        if format == LogFormat::Json {
            let line = serde_json::json!({
                "event": "error",
                "exit_code": self.exit as u8,
                "message": self.chain[0],
                "causes": self.chain[1..],
                "also": self.also,
                "help": self.help(),
            });
            print_error_json(&line);
            return;
        }
        print_error_line(&format!("error: {}", printable_lines(&self.chain[0])));
        for cause in &self.chain[1..] {
            print_error_line(&format!("  caused by: {}", printable_lines(cause)));
        }
        if let Some(also) = &self.also {
            print_error_line(&format!("  also: {}", printable_lines(also)));
        }
        if let Some(help) = self.help() {
            print_error_line(&format!("  help: {help}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot write x: {source}")]
    struct Quoting {
        source: std::io::Error,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the run stopped")]
    struct Plain {
        source: Quoting,
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = Plain {
            source: Quoting {
                source: std::io::Error::from_raw_os_error(28),
            },
        };
        let failure = Failure::of(Exit::Host, &error);
        assert_eq!(failure.chain.len(), 2, "{:?}", failure.chain);
        assert!(failure.chain[1].starts_with("cannot write x: No space left on device"));
    }

    #[test]
    fn a_full_disk_comes_with_a_way_out() {
        let full = std::io::Error::from_raw_os_error(28);
        let failure = Failure::io("write", std::path::Path::new("/r/run.json"))(full);
        assert!(
            failure
                .help()
                .is_some_and(|help| help.contains("--results"))
        );
        let failure = Failure::new(Exit::Host, "cannot write /r/run.json: Permission denied");
        assert_eq!(failure.help(), None);
    }

    #[test]
    fn what_the_host_lacks_is_the_hosts_fault() {
        for (code, help) in [(12, "memory"), (24, "ulimit -n"), (27, "file")] {
            let error = Quoting {
                source: std::io::Error::from_raw_os_error(code),
            };
            let failure = Failure::of(Exit::Study, &error);
            assert_eq!(failure.exit, Exit::Host, "{code}");
            let told = failure.help().unwrap_or_default();
            assert!(told.contains(help), "{told}");
        }
        let other = Quoting {
            source: std::io::Error::from_raw_os_error(2),
        };
        assert_eq!(Failure::of(Exit::Study, &other).exit, Exit::Study);
    }

    #[test]
    fn the_help_lists_every_code() {
        for exit in Exit::ALL {
            assert_eq!(Exit::of(exit as u8), Some(exit));
            let code = format!("\n{:>5}  ", exit as u8);
            assert!(EXIT_CODES.contains(&code), "{exit:?}");
        }
    }
}
