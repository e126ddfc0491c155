//! What has started this process: `srun`, an `mpirun`, or neither.

use std::ffi::OsString;
use std::fmt;

/// A program that starts the processes of an MPI program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun` of MPICH or one of its relatives (Hydra).
    Hydra,
    /// `srun` of Slurm with one of its plug-ins for MPI.
    Srun,
    /// `srun` without such a plug-in.
    PlainSrun,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Hydra => "MPICH's mpirun",
            Launcher::Srun | Launcher::PlainSrun => "srun",
        })
    }
}

/// How this process was started as one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Program that has started this process.
    pub launcher: Launcher,
    /// Number of processes that the launcher has started.
    pub processes: usize,
    /// Number of this process among them.
    pub rank: usize,
}

impl Launch {
    /// Returns how this process was started; `None` if it was started alone.
    pub fn find() -> Option<Self> {
        Self::by(&|name| std::env::var_os(name))
    }

    fn by(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<Self> {
        let number = |name: &str| variable(name)?.to_str()?.parse::<usize>().ok();
        // A batch script has SLURM_NTASKS, too; only a process that srun has started is in a step of several tasks.
        let step = variable("SLURM_STEP_ID").and_then(|_| number("SLURM_STEP_NUM_TASKS"));
        let (launcher, processes, rank) = if let Some(size) = number("OMPI_COMM_WORLD_SIZE") {
            let rank = number("OMPI_COMM_WORLD_RANK");
            (Launcher::OpenMpi, size, rank)
        } else if let Some(size) = step {
            let helped = ["PMIX_RANK", "PMI_RANK"]
                .iter()
                .any(|name| variable(name).is_some());
            let launcher = match helped {
                true => Launcher::Srun,
                false => Launcher::PlainSrun,
            };
            (launcher, size, number("SLURM_PROCID"))
        } else {
            (Launcher::Hydra, number("PMI_SIZE")?, number("PMI_RANK"))
        };
        let rank = rank.unwrap_or(0);
        (processes > 1).then_some(Self {
            launcher,
            processes,
            rank,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(variables: &[(&str, &str)]) -> Option<Launch> {
        Launch::by(&|name| {
            let found = variables.iter().find(|(of, _)| *of == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn launchers_are_told_apart_by_their_variables() {
        let launch = |launcher, processes, rank| {
            Some(Launch {
                launcher,
                processes,
                rank,
            })
        };
        let step = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_PROCID", "3"),
        ];
        let with = |more: &[(&'static str, &'static str)]| by(&[&step[..], more].concat());
        assert_eq!(by(&[]), None);
        assert_eq!(
            by(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]),
            None,
            "a batch script"
        );
        assert_eq!(with(&[]), launch(Launcher::PlainSrun, 4, 3));
        assert_eq!(with(&[("PMIX_RANK", "3")]), launch(Launcher::Srun, 4, 3));
        assert_eq!(
            with(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")]),
            launch(Launcher::Srun, 4, 3)
        );
        let open = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1")];
        assert_eq!(by(&open), launch(Launcher::OpenMpi, 2, 1));
        assert_eq!(
            by(&[("PMI_SIZE", "2"), ("PMI_RANK", "1")]),
            launch(Launcher::Hydra, 2, 1)
        );
        assert_eq!(
            by(&[("PMI_SIZE", "1"), ("PMI_RANK", "0")]),
            None,
            "one process"
        );
    }
}
