//! Collection of the calls of imported ranks, which are then written as a trace.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, ThreadId};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceWriter};

use super::Imported;
use crate::error::ImportError;

/// Builder of a trace from imported records.
#[derive(Debug)]
pub(crate) struct Builder {
    name: String,
    pub(crate) nodes: Vec<String>,
    processes: Vec<Process>,
    calls: Vec<(usize, MpiCall)>,
}

#[derive(Debug)]
struct Process {
    rank: u32,
    node: u32,
    host: String,
    sequence: u64,
}

/// Name of the program in the trace, since imported files do not contain one.
const PROGRAM: &str = "imported";

impl Builder {
    pub(crate) fn new(name: &str) -> Builder {
        Builder {
            name: name.into(),
            nodes: Vec::new(),
            processes: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Adds a process, and returns its number, from 0.
    pub(crate) fn process(&mut self, rank: u32, node: u32, host: &str) -> usize {
        self.processes.push(Process {
            rank,
            node,
            host: host.into(),
            sequence: 0,
        });
        self.processes.len() - 1
    }

    /// Returns an empty record for a process's next call.
    pub(crate) fn record(&mut self, process: usize, function: Function) -> MpiRecord {
        let entry = &mut self.processes[process];
        let pid = process as u32 + 1;
        let thread = ThreadId { pid, tid: pid };
        let record = MpiRecord::new(function, thread, Peer::Rank(entry.rank), entry.sequence);
        entry.sequence += 1;
        record
    }

    /// Adds a call of a process. `time` has the entry and the exit in picoseconds, `instructions` the process's instructions at both.
    pub(crate) fn call(
        &mut self,
        process: usize,
        record: MpiRecord,
        time: (u64, u64),
        instructions: (u64, u64),
    ) {
        let stamp = |time, instructions| Stamp {
            time,
            instructions,
            vcpu: process as u32,
        };
        let call = MpiCall {
            record,
            entry: stamp(time.0, instructions.0),
            exit: stamp(time.1, instructions.1),
            time_inside: time.1.saturating_sub(time.0),
            instructions_inside: instructions.1.saturating_sub(instructions.0),
            entry_seen: true,
        };
        self.calls.push((process, call));
    }

    /// Converts SimGrid's bytes for one rank into the sums that records have, and checks lists and ranks against the number of ranks
    /// `size`.
    pub(crate) fn shares(&mut self, size: u32, path: &Path) -> Result<(), ImportError> {
        for (_, call) in &mut self.calls {
            let record = &mut call.record;
            let own = record.rank == record.root;
            match record.function {
                Function::Alltoall => {
                    record.send_bytes = record.send_bytes.saturating_mul(size.into());
                    record.receive_bytes = record.receive_bytes.saturating_mul(size.into());
                }
                Function::Allgather => {
                    record.receive_bytes = record.receive_bytes.saturating_mul(size.into());
                }
                Function::Gather if own => {
                    record.receive_bytes = record.receive_bytes.saturating_mul(size.into());
                }
                Function::Gather => record.receive_bytes = 0,
                Function::Scatter if own => {
                    record.send_bytes = record.send_bytes.saturating_mul(size.into());
                }
                Function::Scatter => record.send_bytes = 0,
                _ => {}
            }
            let peers = [record.destination, record.source, record.root];
            let beyond = peers
                .iter()
                .filter_map(|peer| peer.rank())
                .find(|&peer| peer >= size);
            let lists = [&record.send_bytes_to, &record.receive_bytes_from];
            let uneven = lists
                .iter()
                .any(|list| !list.is_empty() && list.len() != size as usize);
            let what = match (beyond, uneven) {
                (Some(peer), _) => format!("names rank {peer} of {size}"),
                (None, true) => format!("has a list of counts that is not of {size} ranks"),
                (None, false) => continue,
            };
            return Err(ImportError::Content {
                file: path.into(),
                what: format!("{} {what}", record.function),
            });
        }
        Ok(())
    }

    /// Returns the number of calls added so far.
    pub(crate) fn count(&self) -> usize {
        self.calls.len()
    }

    /// Returns the record of the call with this number in the order in which calls were added.
    pub(crate) fn started(&mut self, number: usize) -> Option<&mut MpiRecord> {
        Some(&mut self.calls.get_mut(number)?.1.record)
    }

    /// Returns the number of processes.
    pub(crate) fn ranks(&self) -> u32 {
        self.processes.len() as u32
    }

    /// Writes the whole trace. If writing fails, no file remains.
    pub(crate) fn write(mut self, output: &Path) -> Result<Imported, ImportError> {
        if self.nodes.is_empty() {
            self.nodes.push("node0".into());
        }
        let threads = |node: usize| {
            let here = |process: &&Process| process.node as usize == node;
            self.processes.iter().filter(here).count().max(1) as u32
        };
        let nodes = self.nodes.iter().enumerate();
        let nodes = nodes.map(|(number, name)| NodeEntry {
            name: name.clone(),
            vcpus: threads(number),
            frequency_hz: 1_000_000_000,
        });
        let header = Header::new(&self.name, "", nodes.collect());
        // Each process has its own virtual CPU, numbered within its node.
        let mut next = vec![0; self.nodes.len()];
        let mut cpus = Vec::new();
        for process in &self.processes {
            let next = &mut next[process.node as usize];
            cpus.push(*next);
            *next += 1;
        }
        // The partial file has a name that no file of the user has.
        let folder = output.parent().filter(|parent| *parent != Path::new(""));
        let partial = tempfile::Builder::new()
            .prefix(".nodescope-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .map_err(ImportError::io("write", output))?
            .into_temp_path();
        let size = self.ranks();
        let result: Result<u64, ImportError> = (|| {
            let mut writer = TraceWriter::create(&partial, &header)?;
            let mut sequences = vec![0u64; self.nodes.len()];
            let mut put = |node: u32, stamp: Stamp, body: Body| {
                let sequence = &mut sequences[node as usize];
                let event = Event {
                    node,
                    sequence: *sequence,
                    stamp,
                    body,
                };
                *sequence += 1;
                writer.write(&event)
            };
            for (number, process) in self.processes.iter().enumerate() {
                let hello = Hello {
                    kind: ProcessKind::MpiRank,
                    rank: Peer::Rank(process.rank),
                    world_size: size,
                    pid: number as u32 + 1,
                    flavour: Flavour::None,
                    host: process.host.clone(),
                    program: PROGRAM.into(),
                };
                put(process.node, Stamp::default(), Body::Process(hello))?;
            }
            // The sort is stable: calls of one process that end at the same time stay in their order.
            self.calls
                .sort_by_key(|(process, call)| (call.exit.time, self.processes[*process].node));
            let calls = self.calls.len() as u64;
            for (process, mut call) in std::mem::take(&mut self.calls) {
                call.entry.vcpu = cpus[process];
                call.exit.vcpu = cpus[process];
                if call.record.communicator == communicator::WORLD {
                    call.record.communicator_size = size;
                }
                let node = self.processes[process].node;
                put(node, call.exit, Body::Mpi(Box::new(call)))?;
            }
            writer.finish()?;
            Ok(calls)
        })();
        let calls = result?;
        let persisted = partial.persist(output).map_err(|error| error.error);
        persisted.map_err(ImportError::io("write", output))?;
        Ok(Imported {
            ranks: size,
            calls,
            notes: Vec::new(),
        })
    }
}
