//! MPI as the way of messages between processes, found at run time: the program has no MPI library of its own, and starts without one.

mod launcher;
mod library;
mod messages;
mod shim;

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::mpi::library::{MpiLibrary, SHIM_PREFIX, STANDARD};
pub use launcher::{Launch, Launcher};
pub(crate) use messages::MpiMessages;

/// Time between two looks of a process that waits for the first one.
const NAP: Duration = Duration::from_millis(1);

/// Reason why processes cannot communicate by MPI.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum MpiError {
    #[error("cannot load the MPI library {}: {why}", .path.display())]
    Load { path: PathBuf, why: String },
    #[error(
        "{} is no MPI library of the standard ABI: it lacks {name}; give --mpi a libmpi_abi.so.1, or the site's mpicc",
        .path.display()
    )]
    Function { path: PathBuf, name: &'static str },
    #[error("{} cannot build the shim for its MPI library: {why}", .compiler.display())]
    Shim { compiler: PathBuf, why: String },
    #[error(
        "{launcher} has started {processes} processes, but no MPI library is found: neither {STANDARD} nor a compiler mpicc for a shim; load the site's MPI module, or name one of them by --mpi"
    )]
    None {
        launcher: Launcher,
        processes: usize,
    },
    #[error(
        "srun has started {processes} processes without an interface for MPI; start them by srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), or give --mpi off for {processes} runs of one process"
    )]
    PlainSrun { processes: usize },
    #[error(
        "{launcher} has started {processes} processes, but {version} sees {seen}: start them by this library's mpirun or by srun --mpi=pmix, or name the library of {launcher} by --mpi"
    )]
    Size {
        launcher: Launcher,
        processes: usize,
        seen: usize,
        version: String,
    },
    #[error(
        "{launcher} has started {processes} processes, but {} is {version}: start them by its own mpirun, or name the library of {launcher} by --mpi",
        .path.display()
    )]
    Other {
        launcher: Launcher,
        processes: usize,
        path: PathBuf,
        version: String,
    },
    #[error(
        "srun has started {processes} processes by PMIx, which {version} was built without: start them by srun --mpi=pmi2"
    )]
    NoPmix { processes: usize, version: String },
    #[error("{0} does not allow calls from several threads (MPI_THREAD_SERIALIZED)")]
    Threads(String),
    #[error("MPI: {0}")]
    Call(String),
}

/// The processes that a launcher has started, after the start of MPI.
pub struct World {
    messages: MpiMessages,
}

impl World {
    /// Starts MPI. `named` is a library of the standard ABI, or a compiler for a shim; without it both are searched. Shims lie in `cache`.
    ///
    /// # Errors
    ///
    /// No library that fits the launcher, or processes that do not see each other.
    pub fn begin(launch: &Launch, named: Option<&Path>, cache: &Path) -> Result<Self, MpiError> {
        let &Launch {
            launcher,
            processes,
            ..
        } = launch;
        if launcher == Launcher::PlainSrun {
            return Err(MpiError::PlainSrun { processes });
        }
        let pmix = std::env::var_os("PMIX_RANK").is_some();
        let mut library = find(launch, named, cache)?;
        let is_open_mpi = library.version().starts_with("Open MPI");
        // Open MPI ends the process where srun gives it no PMIx, and its message names neither the cause nor the remedy.
        let by_srun = launcher == Launcher::Srun;
        if by_srun && is_open_mpi && !pmix {
            return Err(MpiError::PlainSrun { processes });
        }
        // The libraries themselves end the process, with messages of their own.
        if !fits(launcher, &library) {
            return Err(MpiError::Other {
                launcher,
                processes,
                path: library.path().into(),
                version: library.version(),
            });
        }
        if by_srun && !is_open_mpi && pmix && !library.has("PMIx_Init") {
            let version = library.version();
            return Err(MpiError::NoPmix { processes, version });
        }
        let (rank, size) = library.init()?;
        if size != processes {
            return Err(MpiError::Size {
                launcher,
                processes,
                seen: size,
                version: library.version(),
            });
        }
        tracing::info!(
            "MPI: {}, {}, process {rank} of {size}",
            library.version(),
            library.path().display()
        );
        let mut messages = MpiMessages::new(library, rank, size)?;
        // A library connects two processes at their first messages, for which it opens files that the sandbox will not allow.
        messages.connect()?;
        Ok(Self { messages })
    }

    /// Returns the number of this process.
    pub fn rank(&self) -> usize {
        self.messages.rank()
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.messages.size()
    }

    /// Sends a message to all other processes.
    ///
    /// # Errors
    ///
    /// An error of MPI.
    pub fn tell_all(&mut self, message: &[u8]) -> Result<(), MpiError> {
        self.messages.tell_all(message)
    }

    /// Waits for a message of the first process, without keeping the processor busy.
    ///
    /// # Errors
    ///
    /// An error of MPI.
    pub fn told(&mut self) -> Result<Vec<u8>, MpiError> {
        loop {
            if let Some(message) = self.messages.receive(0)? {
                return Ok(message);
            }
            std::thread::sleep(NAP);
        }
    }

    /// Ends MPI. All processes call this function.
    pub fn end(self) {
        if let Err(error) = self.messages.end() {
            tracing::warn!("MPI does not end: {error}");
        }
    }

    pub(crate) fn into_messages(self) -> MpiMessages {
        self.messages
    }
}

/// Returns whether a library may be that of a launcher. `srun` starts processes of all libraries.
fn fits(launcher: Launcher, library: &MpiLibrary) -> bool {
    let is_open_mpi = library.version().starts_with("Open MPI");
    match launcher {
        Launcher::OpenMpi => is_open_mpi,
        Launcher::Hydra => !is_open_mpi,
        Launcher::Srun | Launcher::PlainSrun => true,
    }
}

/// Returns the library that is named or, without a name, the first one that fits the launcher.
fn find(launch: &Launch, named: Option<&Path>, cache: &Path) -> Result<MpiLibrary, MpiError> {
    let &Launch {
        launcher,
        processes,
        ..
    } = launch;
    let by_compiler =
        |compiler: &Path| MpiLibrary::load(&shim::build(compiler, cache)?, SHIM_PREFIX);
    if let Some(path) = named {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        return match name.starts_with("mpi") && !name.contains(".so") {
            true => by_compiler(path),
            false => MpiLibrary::load(path, ""),
        };
    }
    if let Ok(library) = MpiLibrary::load(STANDARD.as_ref(), "")
        && fits(launcher, &library)
    {
        return Ok(library);
    }
    match shim::compiler(launcher) {
        Some(compiler) => by_compiler(&compiler),
        None => Err(MpiError::None {
            launcher,
            processes,
        }),
    }
}
