//! Conversion of a program into SimGrid's time-independent trace.
//!
//! The formats follow SimGrid's manual, "Replaying MPI traces", and the parsers of its replay in version 3.32. One flop stands for one
//! nanosecond of computation. Sizes are in bytes: the data type is `MPI_BYTE`, whose number is 6.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use nodescope_loop_tree::{Action, Collective, CollectiveKind, Mode, Program};

/// Reason for which a program cannot be written as a time-independent trace.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    /// An operation for which SimGrid has no action.
    #[error("SimGrid has no action for {0}")]
    Unknown(String),
    /// A file cannot be written.
    #[error("cannot write {0}: {1}")]
    File(PathBuf, io::Error),
}

/// Writes into a folder a file for each rank and the file `trace`, which lists them. Returns the number of actions.
///
/// # Errors
///
/// An operation for which SimGrid has no action; a file that cannot be written.
pub fn write(program: &Program, folder: &Path) -> Result<u64, ActionError> {
    let file = |path: &Path| {
        File::create(path)
            .map(BufWriter::new)
            .map_err(|e| ActionError::File(path.into(), e))
    };
    let list_path = folder.join("trace");
    let mut list = file(&list_path)?;
    let mut actions = 0;
    for rank in 0..program.ranks.len() as u32 {
        let name = format!("rank{rank}");
        writeln!(list, "{name}").map_err(|e| ActionError::File(list_path.clone(), e))?;
        let path = folder.join(name);
        let text = lines(program, rank)?;
        actions += text.lines().count() as u64;
        let mut out = file(&path)?;
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| ActionError::File(path.clone(), e))?;
    }
    list.flush()
        .map_err(|e| ActionError::File(list_path.clone(), e))?;
    Ok(actions)
}

/// Sender, receiver and tag, by which SimGrid finds requests.
type Key = (u32, u32, u32);

/// Returns the actions of one rank, one a line.
fn lines(program: &Program, rank: u32) -> Result<String, ActionError> {
    let world = program.ranks.len() as u32;
    let mut text = format!("{rank} init\n");
    let mut pending: BTreeMap<u32, Key> = BTreeMap::new();
    for entry in program.unfold(rank).entries {
        let unknown = || ActionError::Unknown(format!("{:?}", entry.op));
        if entry.burst.time > 0 {
            let (whole, rest) = (entry.burst.time / 1000, entry.burst.time % 1000);
            let _ = writeln!(text, "{rank} compute {whole}.{rest:03}");
        }
        match &entry.op.action {
            Action::Nothing => {}
            Action::Send {
                to,
                tag,
                bytes,
                mode: Mode::Standard,
                request,
            } => {
                let to = to.resolve(rank, world);
                let name = match request {
                    Some(request) => {
                        pending.insert(*request, (rank, to, *tag));
                        "isend"
                    }
                    None => "send",
                };
                let _ = writeln!(text, "{rank} {name} {to} {tag} {bytes} 6");
            }
            Action::Receive {
                from,
                tag: Some(tag),
                room,
                request,
            } => {
                let from = from.peer().ok_or_else(unknown)?.resolve(rank, world);
                let name = match request {
                    Some(request) => {
                        pending.insert(*request, (from, rank, *tag));
                        "irecv"
                    }
                    None => "recv",
                };
                let _ = writeln!(text, "{rank} {name} {from} {tag} {room} 6");
            }
            Action::SendReceive {
                send: Some((to, send_tag, sent)),
                receive: Some((from, Some(tag), room)),
            } => {
                let to = to.resolve(rank, world);
                let from = from.peer().ok_or_else(unknown)?.resolve(rank, world);
                let _ = writeln!(text, "{rank} isend {to} {send_tag} {sent} 6");
                let _ = writeln!(text, "{rank} recv {from} {tag} {room} 6");
                let _ = writeln!(text, "{rank} wait {rank} {to} {send_tag}");
            }
            Action::Wait { requests, .. } => {
                let keys: Vec<Key> = requests.iter().filter_map(|r| pending.remove(r)).collect();
                if pending.is_empty() && keys.len() > 1 {
                    let _ = writeln!(text, "{rank} waitall {}", keys.len());
                } else {
                    for (from, to, tag) in keys {
                        let _ = writeln!(text, "{rank} wait {from} {to} {tag}");
                    }
                }
            }
            Action::Collective(collective) => {
                let line = together(collective, world).ok_or_else(unknown)?;
                let _ = writeln!(text, "{rank} {line}");
            }
            _ => return Err(unknown()),
        }
    }
    let _ = writeln!(text, "{rank} finalize");
    Ok(text)
}

/// Returns the action for a blocking collective on all ranks, without the rank; `None` for a non-blocking one, or where SimGrid has no
/// action.
fn together(collective: &Collective, world: u32) -> Option<String> {
    use CollectiveKind::*;
    if collective.request.is_some() {
        return None;
    }
    let (bytes, root) = (collective.bytes, collective.root);
    Some(match collective.kind {
        Barrier => "barrier".into(),
        Bcast => format!("bcast {bytes} {root} 6"),
        Reduce => format!("reduce {bytes} 0 {root} 6"),
        Allreduce => format!("allreduce {bytes} 0 6"),
        Gather => format!("gather {bytes} {bytes} {root} 6 6"),
        Scatter => format!("scatter {bytes} {bytes} {root} 6 6"),
        Allgather => format!("allgather {bytes} {bytes} 6 6"),
        Alltoall => format!("alltoall {bytes} {bytes} 6 6"),
        Scan => format!("scan {bytes} 0 6"),
        Exscan => format!("exscan {bytes} 0 6"),
        ReduceScatter | ReduceScatterBlock => {
            let share = |rank: u64| {
                let world = u64::from(world);
                bytes * (rank + 1) / world - bytes * rank / world
            };
            let counts: Vec<String> = (0..u64::from(world))
                .map(|r| share(r).to_string())
                .collect();
            format!("reducescatter {} 0 6", counts.join(" "))
        }
        Allgatherv => {
            let counts: Vec<String> = collective.receive_from.iter().map(u64::to_string).collect();
            (counts.len() == world as usize)
                .then(|| format!("allgatherv {bytes} {} 6 6", counts.join(" ")))?
        }
        Alltoallv => {
            let lists = [&collective.send_to, &collective.receive_from];
            let mut line = "alltoallv".to_owned();
            for list in lists {
                if list.len() != world as usize {
                    return None;
                }
                let _ = write!(line, " {}", list.iter().sum::<u64>().max(1));
                for bytes in list {
                    let _ = write!(line, " {bytes}");
                }
            }
            line + " 6 6"
        }
        Gatherv | Scatterv | Create => return None,
    })
}
