//! `nodescope worker`: a process that runs some of the nodes of another process's run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use std::{env, io};

use nodescope_cluster::{
    Ending, Observer, Options, Origin, PeerError, Peers, Progress, ResultsFolder, RunError, Save,
    When,
};
use nodescope_distributed::{Group, Key, join, join_world};
use nodescope_study::SnapshotAt;

use crate::args::{self, EngineChoice};
use crate::distributed::{SaveTask, StartPoint, Task, group_failure, start_point, version};
use crate::exit::{Exit, Failure};
use crate::interrupt::on_interrupt;
use crate::mpi::{Launched, shared_memory, silent};
use crate::results::folder_failure;
use crate::run::exit_of;
use crate::stats::Stats;
use crate::terminal::print;
use crate::{check, config, sandbox};

/// Joins the master's run and executes this process's share of the nodes. Without an address, prints a new key.
pub fn worker(args: &args::Worker) -> Result<Exit, Failure> {
    let of_user = |error| Failure::of(Exit::Study, &error);
    let Some(address) = &args.connect else {
        let key = Key::new().map_err(of_user)?;
        print(&format!("{}\n", key.text()))?;
        return Ok(Exit::Ok);
    };
    let key = Key::find(args.key_file.as_deref()).map_err(of_user)?;
    let address = match address.as_str() {
        "-" => {
            let told = io::read_to_string(io::stdin());
            told.map_err(Failure::io(
                "read an address from",
                "standard input".as_ref(),
            ))?
        }
        _ => address.clone(),
    };
    let joined = join(address.trim(), &key, &version()?, *args.wait);
    let (group, task) = joined.map_err(group_failure)?;
    run_task(group, task, args.host_threads)
}

/// Executes this process's share of a run whose processes a launcher of MPI has started.
pub fn launched(launched: Launched, args: &args::Run) -> Result<Exit, Failure> {
    let Some((addresses, key, world)) = launched.accept()? else {
        // The master has told the user why.
        return Ok(Exit::Ok);
    };
    let joined = join_world(&addresses, &key, &version()?, *args.worker_wait, world);
    let (group, task) = joined.map_err(group_failure)?;
    run_task(group, task, args.host_threads).map_err(|failure| silent(failure.exit))
}

fn run_task(
    group: Group,
    task: serde_json::Value,
    host_threads: Option<u64>,
) -> Result<Exit, Failure> {
    let group = Arc::new(group);
    let task = serde_json::from_value(task)
        .map_err(|error| Failure::new(Exit::Host, format!("the master's task: {error}")));
    let done = task.and_then(|task| work(&group, &task, host_threads));
    if let Err(failure) = &done
        && !failure.chain.is_empty()
    {
        // The master reports the failure to the user.
        group.leave(&failure.chain.join(": "));
    }
    done
}

fn work(group: &Arc<Group>, task: &Task, host_threads: Option<u64>) -> Result<Exit, Failure> {
    let mut signals = on_interrupt()?;
    let engine = task.soft.then_some(EngineChoice::Soft);
    let study = check::load(&task.study, engine, task.hosts)?;
    let threads = host_threads.or(task.host_threads);
    let threads = threads.map(|threads| threads as usize);
    let prepared = config::cluster(&study, threads, signals.flag(), &mut |_| {})?;
    let mut config = prepared.cluster;
    config.translate = !task.interpret;
    if config.study_id != task.study_id {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "it reads another study or image: the study ID is {} there, and {} at the master; let all hosts see the same files",
                config.study_id, task.study_id
            ),
        ));
    }
    // The threads of libzmq have begun already, and only new kernels hold these, too.
    let kept = sandbox::Kept {
        read: task.snapshots.clone(),
        write: shared_memory(group.way(0) == "MPI").into_iter().collect(),
        tcp: true,
        ..sandbox::Kept::default()
    };
    let _confined = sandbox::enter(task.sandbox, &study, &config, kept, &mut signals)?;
    let StartPoint { snapshot, adopt } = match start_point(group) {
        Ok(start_point) => start_point,
        Err(error) => return ended(group, &error),
    };
    let failed = |error: RunError| Failure::of(exit_of(&error), &error);
    let origin = snapshot.map(|path| Origin::open(&path)).transpose();
    let origin = origin.map_err(|fault| failed(fault.into()))?;
    if let Some(origin) = origin.as_ref().filter(|_| adopt) {
        origin.adopt(&mut config);
    }
    // The master writes the results. This process's results would be the same, and go to a temporary folder.
    let scratch = tempfile::tempdir().map_err(Failure::io("create", &env::temp_dir()))?;
    let results = ResultsFolder::create(scratch.path()).map_err(folder_failure)?;
    let options = Options {
        image: &prepared.identity,
        save: (task.save.as_ref()).map(save).transpose()?,
        from: origin.as_ref(),
        peers: Some(Arc::clone(group) as Arc<dyn Peers>),
    };
    let begin = Instant::now();
    let ran = nodescope_cluster::run_with(&config, &results, signals.flag(), &mut Silent, options);
    if task.stats && ran.is_ok() {
        // The master writes the times.
        Stats::gather(group, &config, begin.elapsed());
    }
    match ran {
        Ok(outcome) => match outcome.ending {
            Ending::PeerLost { why } => ended(group, &why),
            _ => Ok(Exit::Ok),
        },
        // Every process sees an error of a node; the master reports it.
        Err(RunError::Node(_) | RunError::Elsewhere { .. }) => Ok(Exit::Ok),
        Err(error) => Err(failed(error)),
    }
}

/// Returns the snapshot for which this process hands its nodes over to the master.
fn save(task: &SaveTask) -> Result<Save, Failure> {
    let when = match &task.at {
        None => When::Requested(Arc::default()),
        Some(at) => {
            let at = at.parse::<SnapshotAt>();
            When::At(
                at.map_err(|why| Failure::new(Exit::Host, format!("the master's task: {why}")))?
                    .0,
            )
        }
    };
    Ok(Save {
        when,
        name: String::new(),
        path: PathBuf::new(),
        stop: task.stop,
    })
}

/// Returns the failure of a worker whose run ended. The worker reports the reason only if the master is gone.
fn ended(group: &Group, why: &PeerError) -> Result<Exit, Failure> {
    let chain = match why {
        PeerError::Died { peer } if *peer == group.names()[0] => vec![why.to_string()],
        _ => Vec::new(),
    };
    Err(Failure {
        exit: Exit::Host,
        chain,
        also: None,
    })
}

/// Observer that shows nothing: the master reports the run to the user.
struct Silent;

impl Observer for Silent {
    fn progress(&mut self, _: &dyn Fn() -> Progress) {}
    fn message(&mut self, _: u32, _: &str) {}
    fn console(&mut self, _: u32, _: &[u8]) {}
}
