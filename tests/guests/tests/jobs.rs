//! Tests that a study's settings of its job reach every traced rank: environment, shell commands, the user's own launchers and host files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{Finished, cluster, compile, image, run_well};
use nodescope_hypercall::Function;
use nodescope_study::Study;
use nodescope_trace::{Profile, TraceReader};

/// Runs a study's job on two nodes of one vCPU. None: there is no guest image.
fn run(dir: &Path, job: &str, files: &[(&str, &[u8])]) -> Option<Finished> {
    let image = image()?;
    for (name, data) in files {
        let path = dir.join(name);
        fs::write(&path, data).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, executable).unwrap();
    }
    let names: Vec<String> = files.iter().map(|(name, _)| format!("{name:?}")).collect();
    let text = format!(
        "[study]\nname = \"jobs\"\n[cluster]\nnodes = 2\n[node]\nmemory = \"256 MiB\"\n[job]\nfiles = [{}]\n{job}",
        names.join(", ")
    );
    let file = dir.join("study.toml");
    fs::write(&file, text).unwrap();
    let study = Study::load(&file).unwrap_or_else(|problems| panic!("{problems}"));
    let mut config = cluster(image, study.nodes, study.topology.clone(), &[]);
    config.job_disk = study.job_disk().unwrap();
    config.trace = study.job.trace;
    config.host_threads = 2;
    Some(run_well(&config, &dir.join("results")))
}

/// Returns the sorted lines of node 0's console that ranks printed.
fn lines(finished: &Finished) -> Vec<&str> {
    let mut lines: Vec<_> = finished.consoles[0]
        .lines()
        .filter(|line| line.starts_with("rank "))
        .collect();
    lines.sort_unstable();
    lines
}

/// Returns the number of traced calls of a function, by rank.
fn calls(finished: &Finished, function: Function) -> BTreeMap<u32, u64> {
    let trace = TraceReader::open(finished.dir.join(TRACE_FILE)).unwrap();
    let mut profile = Profile::default();
    for event in trace.events() {
        profile.add(&event.unwrap());
    }
    let entries = profile
        .entries()
        .filter(|(_, called, _)| *called == function);
    entries.map(|(rank, _, sum)| (rank, sum.calls)).collect()
}

/// A shell command reaches every rank. Its second program does not use MPI, since a rank may run only one MPI program in a job.
#[test]
fn open_mpi_ranks_execute_a_shell_command_with_the_environment() {
    let Some(program) = compile("mpicc.openmpi", "words.c", &["-O2"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let job = "command = \"OWN=1 ./words OWN GIVEN && echo rank done on $(hostname)\"\n\
               environment.GIVEN = \"a b;c\"\n";
    let Some(finished) = run(dir.path(), job, &[("words", &program)]) else {
        return;
    };
    assert_eq!(
        lines(&finished),
        [
            "rank 0: OWN=1 GIVEN=a b;c",
            "rank 1: OWN=1 GIVEN=a b;c",
            "rank done on node0",
            "rank done on node1",
        ],
        "{}",
        finished.consoles[0]
    );
    let once = BTreeMap::from([(0, 1), (1, 1)]);
    assert_eq!(calls(&finished, Function::Barrier), once);
}

/// A job with a script that passes its own options to the launcher, and with Python, which opens the MPI library at run time.
#[test]
fn open_mpi_scripts_may_pass_variables_on() {
    let Some(program) = compile("mpicc.openmpi", "words.c", &["-O2"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\nset -e\nexport GIVEN=here\n\
                  mpirun -np 2 -x GIVEN --hostfile \"$NODESCOPE_HOSTFILE\" ./words GIVEN\n\
                  /usr/bin/mpirun -np 2 -x OTHER=there python3 module.py\n";
    let module = "from mpi4py import MPI\nimport os\nworld = MPI.COMM_WORLD\n\
                  print(f'rank {world.rank} in Python: {world.allreduce(world.rank)} {os.environ[\"OTHER\"]}', flush=True)\n\
                  world.Barrier()\n";
    let files: [(&str, &[u8]); 2] = [("words", &program), ("module.py", module.as_bytes())];
    fs::write(dir.path().join("start.sh"), script).unwrap();
    let Some(finished) = run(dir.path(), "script = \"start.sh\"\n", &files) else {
        return;
    };
    assert_eq!(
        lines(&finished),
        [
            "rank 0 in Python: 1 there",
            "rank 0: GIVEN=here",
            "rank 1 in Python: 1 there",
            "rank 1: GIVEN=here",
        ],
        "{}",
        finished.consoles[0]
    );
    let twice = BTreeMap::from([(0, 2), (1, 2)]);
    assert_eq!(calls(&finished, Function::Barrier), twice);
}

#[test]
fn mpich_scripts_get_a_host_file_of_hydras() {
    let Some(program) = compile("mpicc.mpich", "words.c", &["-O2"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\nset -e\n\
                  mpiexec.hydra -f \"$NODESCOPE_HOSTFILE\" -n 2 ./words GIVEN\n\
                  mpirun.mpich -f \"$NODESCOPE_HOSTFILE\" -n 2 sh -c 'GIVEN=own ./words GIVEN'\n";
    fs::write(dir.path().join("start.sh"), script).unwrap();
    let job = "mpi = \"mpich\"\nscript = \"start.sh\"\nenvironment.GIVEN = \"it's\"\n";
    let Some(finished) = run(dir.path(), job, &[("words", &program)]) else {
        return;
    };
    assert_eq!(
        lines(&finished),
        [
            "rank 0: GIVEN=it's",
            "rank 0: GIVEN=own",
            "rank 1: GIVEN=it's",
            "rank 1: GIVEN=own",
        ],
        "{}",
        finished.consoles[0]
    );
    let twice = BTreeMap::from([(0, 2), (1, 2)]);
    assert_eq!(calls(&finished, Function::Barrier), twice);
}
