//! What this process gives up before it handles what a guest made.
//!
//! - [`Sandbox`]: the process that runs guests. It keeps the files and system calls that the rest of its work needs.
//! - [`Cell`]: a child process that reads data of guests and answers on its open descriptors. It can open nothing.
//!
//! Both use Linux's own means: no_new_privs, Landlock (files, TCP, signals) and seccomp (system calls), see landlock(7) and seccomp(2). A
//! host may lack one of them, or forbid it. [`Status`] then says what is not held; nothing is left out in silence.

mod calls;
mod cell;
mod paths;
mod process;
mod status;

pub use cell::Cell;
pub use process::Sandbox;
pub use status::{Measure, State, Status};

/// Error of a restriction that this host supports and that could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A path of the sandbox cannot be opened.
    #[error("cannot open {path} for the sandbox: {source}")]
    Path {
        /// Path that the process is to keep.
        path: std::path::PathBuf,
        /// Reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The host lacks a measure that the user requires.
    #[error("this host cannot hold all that --sandbox require asks for: {0}")]
    Required(String),
}
