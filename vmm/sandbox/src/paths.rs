//! Landlock: the files that a process keeps.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, make_bitflags,
};

use crate::SandboxError;
use crate::status::State;

/// The newest version of Landlock whose rights this crate asks for: 6 has files, devices, TCP, abstract sockets and signals.
const NEWEST: ABI = ABI::V6;

/// What a process may do with the files beneath a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Read files and list folders.
    Read,
    /// Make, read, write, rename and remove files and folders.
    Write,
    /// Read and execute files.
    Execute,
    /// Read, write and control a device.
    Device,
}

impl Use {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
        match self {
            Use::Read => read,
            Use::Execute => read | AccessFs::Execute,
            Use::Device => make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev}),
            Use::Write => {
                read | make_bitflags!(AccessFs::{WriteFile | Truncate | Refer | RemoveFile | RemoveDir | MakeReg | MakeDir | MakeSym})
            }
        }
    }
}

/// Rules for the calling thread and all threads and processes that it starts later.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// Paths, and what the process may do beneath each. A path that does not exist gives no right.
    pub paths: Vec<(PathBuf, Use)>,
    /// True if the process may bind and connect TCP sockets.
    pub tcp: bool,
}

impl Rules {
    /// Restricts the calling thread. Fails if a path exists and cannot be opened.
    pub fn apply(&self) -> Result<State, SandboxError> {
        let mut rules = Vec::new();
        for (path, of) in &self.paths {
            if let Some(rule) = rule(path, *of)? {
                rules.push(rule);
            }
        }
        Ok(match self.restrict(rules) {
            Ok(status) => state(&status),
            Err(error) => State::Missing(error.to_string()),
        })
    }

    fn restrict(&self, rules: Vec<PathBeneath<PathFd>>) -> Result<RestrictionStatus, RulesetError> {
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?;
        if !self.tcp {
            ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
        }
        let created: RulesetCreated = ruleset.create()?;
        created
            .add_rules(rules.into_iter().map(Ok::<_, RulesetError>))?
            .restrict_self()
    }
}

/// Returns the rule of a path; `None` if there is no such file.
fn rule(path: &Path, of: Use) -> Result<Option<PathBeneath<PathFd>>, SandboxError> {
    let is_folder = match path.metadata() {
        Ok(metadata) => metadata.is_dir(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(SandboxError::Path {
                path: path.into(),
                source: Box::new(error),
            });
        }
    };
    let fd = PathFd::new(path).map_err(|error| SandboxError::Path {
        path: path.into(),
        source: Box::new(error),
    })?;
    let mut rights = of.rights();
    if !is_folder {
        rights &= AccessFs::from_file(NEWEST);
    }
    Ok(Some(PathBeneath::new(fd, rights)))
}

fn state(status: &RestrictionStatus) -> State {
    match (&status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => State::Held,
        (_, LandlockStatus::NotImplemented) => {
            State::Missing("this kernel has no Landlock, which came with Linux 5.13".into())
        }
        (_, LandlockStatus::NotEnabled) => {
            State::Missing("Landlock is not among the kernel's security modules (lsm=)".into())
        }
        (RulesetStatus::NotEnforced, _) => State::Missing("the kernel enforces nothing".into()),
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            State::Partly(missing(effective_abi).into())
        }
    }
}

/// Returns what a kernel with this version of Landlock does not hold (landlock(7), VERSIONS).
fn missing(abi: ABI) -> &'static str {
    match abi {
        ABI::Unsupported => "the kernel enforces nothing",
        ABI::V1 | ABI::V2 => "truncate, TCP, devices and signals are not held before Linux 6.2",
        ABI::V3 => "TCP, devices and signals are not held before Linux 6.7",
        ABI::V4 => "devices and signals are not held before Linux 6.10",
        ABI::V5 => "signals are not held before Linux 6.12",
        _ => "the kernel enforces a part",
    }
}
