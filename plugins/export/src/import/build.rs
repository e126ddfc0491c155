//! Collection of the calls of imported processes, which are then written as a trace.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{
    Completion, Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Tag, ThreadId,
};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceWriter};

use super::Imported;
use super::spool::{Reader, Spool, Stored};
use crate::error::ImportError;

/// Builder of a trace from imported records.
#[derive(Debug)]
pub(crate) struct Builder {
    name: String,
    pub(crate) nodes: Vec<String>,
    processes: Vec<Process>,
    spool: Spool,
    patches: Vec<(CallId, Patch)>,
    /// File of a trace whose collectives state bytes for one rank, see [`Builder::shares`].
    shares: Option<PathBuf>,
}

#[derive(Debug)]
struct Process {
    job: u32,
    rank: u32,
    node: u32,
    host: String,
    sequence: u64,
}

/// A call of the new trace: its process, and its number in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallId {
    process: u32,
    number: u64,
}

/// What a later event of the imported trace says about a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patch {
    /// The call posted a receive: its source, tag, bytes and communicator.
    Posted {
        source: Peer,
        tag: Tag,
        bytes: u64,
        communicator: u64,
    },
    /// The source of the receive that the call posted.
    Source(Peer),
    /// The size in bytes of the receive that the call posted.
    Room(u64),
    /// The call started this collective operation.
    Collective {
        function: Function,
        root: Peer,
        communicator: u64,
        bytes: (u64, u64),
    },
    /// The call completed a further request.
    Completes(Completion),
    /// The message of the completion with this index in the call's list.
    Completed {
        at: u32,
        source: Peer,
        tag: Tag,
        bytes: u64,
    },
}

impl Patch {
    /// Writes the patch into the call's record.
    pub(crate) fn apply(self, record: &mut MpiRecord) {
        match self {
            Patch::Posted {
                source,
                tag,
                bytes,
                communicator,
            } => {
                (record.source, record.receive_tag) = (source, tag);
                (record.receive_bytes, record.communicator) = (bytes, communicator);
            }
            Patch::Source(source) => record.source = source,
            Patch::Room(bytes) => record.receive_bytes = bytes,
            Patch::Collective {
                function,
                root,
                communicator,
                bytes,
            } => {
                (record.function, record.root) = (function, root);
                record.communicator = communicator;
                (record.send_bytes, record.receive_bytes) = bytes;
            }
            Patch::Completes(completion) => record.completions.push(completion),
            Patch::Completed {
                at,
                source,
                tag,
                bytes,
            } => {
                if let Some(done) = record.completions.get_mut(at as usize) {
                    (done.source, done.tag, done.bytes) = (source, tag, bytes);
                }
            }
        }
    }
}

/// Name of the program in the trace, since imported files do not contain one.
const PROGRAM: &str = "imported";

/// Returns the folder of a file that is written.
fn folder(file: &Path) -> &Path {
    let folder = file.parent().filter(|parent| *parent != Path::new(""));
    folder.unwrap_or(Path::new("."))
}

impl Builder {
    /// Returns a builder of a trace with this name, which will be written to `output`.
    pub(crate) fn new(name: &str, output: &Path) -> Builder {
        Builder {
            name: name.into(),
            nodes: Vec::new(),
            processes: Vec::new(),
            spool: Spool::new(folder(output)),
            patches: Vec::new(),
            shares: None,
        }
    }

    /// Adds a process with its rank in its job, and returns its number, from 0.
    pub(crate) fn process(&mut self, job: u32, rank: u32, node: u32, host: &str) -> usize {
        self.processes.push(Process {
            job,
            rank,
            node,
            host: host.into(),
            sequence: 0,
        });
        self.spool.process();
        self.processes.len() - 1
    }

    /// Returns an empty record for a process's next call.
    pub(crate) fn record(&mut self, process: usize, function: Function) -> MpiRecord {
        let entry = &mut self.processes[process];
        let pid = process as u32 + 1;
        let thread = ThreadId { pid, tid: pid };
        let mut record = MpiRecord::new(function, thread, Peer::Rank(entry.rank), entry.sequence);
        if matches!(function, Function::Init | Function::InitThread) {
            record.object = u64::from(entry.job) + 1;
        }
        entry.sequence += 1;
        record
    }

    /// Adds a call of a process. `time` has the entry and the exit in picoseconds, `instructions` the process's instructions at both.
    /// Calls of a process must come in the order of their ends.
    pub(crate) fn call(
        &mut self,
        process: usize,
        record: MpiRecord,
        time: (u64, u64),
        instructions: (u64, u64),
    ) -> Result<CallId, ImportError> {
        let stored = Stored {
            record,
            time,
            instructions,
        };
        Ok(CallId {
            process: process as u32,
            number: self.spool.push(process, &stored)?,
        })
    }

    /// Completes the record of a call.
    pub(crate) fn patch(&mut self, call: CallId, patch: Patch) {
        self.patches.push((call, patch));
    }

    /// States that collectives have SimGrid's bytes for one rank, which become the sums that records have. `path` is the imported file.
    pub(crate) fn shares(&mut self, path: &Path) {
        self.shares = Some(path.into());
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
        // The sort is stable: patches of one call stay in their order.
        self.patches.sort_by_key(|(call, _)| *call);
        // The partial file has a name that no file of the user has.
        let partial = tempfile::Builder::new()
            .prefix(".nodescope-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder(output))
            .map_err(ImportError::io("write", output))?
            .into_temp_path();
        let imported = self.write_to(&partial)?;
        let persisted = partial.persist(output).map_err(|error| error.error);
        persisted.map_err(ImportError::io("write", output))?;
        Ok(imported)
    }

    fn write_to(&self, partial: &Path) -> Result<Imported, ImportError> {
        let sizes = self.job_sizes();
        let mut writer = Writer {
            out: TraceWriter::create(partial, &self.header())?,
            sequences: vec![0; self.nodes.len()],
        };
        for (number, process) in self.processes.iter().enumerate() {
            let hello = Hello {
                kind: ProcessKind::MpiRank,
                rank: Peer::Rank(process.rank),
                world_size: sizes[process.job as usize],
                pid: number as u32 + 1,
                flavour: Flavour::None,
                host: process.host.clone(),
                program: match sizes.len() {
                    1 => PROGRAM.into(),
                    _ => format!("{PROGRAM}-{}", process.job),
                },
            };
            writer.put(process.node, Stamp::default(), Body::Process(hello))?;
        }
        let mut streams = self.streams();
        let mut calls = 0;
        // Calls come in the order of their ends; those of one process stay in their order.
        let mut queue = BinaryHeap::new();
        for (number, stream) in streams.iter_mut().enumerate() {
            stream.advance(self)?;
            queue.extend(stream.end().map(|end| Reverse((end, number))));
        }
        while let Some(Reverse((_, number))) = queue.pop() {
            let process = &self.processes[number];
            let size = sizes[process.job as usize];
            let stream = &mut streams[number];
            let Some(call) = stream.take(sizes.len() > 1, process.job) else {
                continue;
            };
            let call = finished(call, stream.cpu, size);
            writer.put(process.node, call.exit, Body::Mpi(Box::new(call)))?;
            calls += 1;
            stream.advance(self)?;
            queue.extend(stream.end().map(|end| Reverse((end, number))));
        }
        writer.out.finish()?;
        Ok(Imported {
            ranks: self.ranks(),
            jobs: sizes.len() as u32,
            calls,
            ..Imported::default()
        })
    }

    /// Returns the number of ranks of each job.
    fn job_sizes(&self) -> Vec<u32> {
        let jobs = self
            .processes
            .iter()
            .map(|process| process.job as usize + 1);
        let mut sizes = vec![0; jobs.max().unwrap_or(1)];
        for process in &self.processes {
            sizes[process.job as usize] += 1;
        }
        sizes
    }

    fn header(&self) -> Header {
        let mut vcpus = vec![0u32; self.nodes.len()];
        for process in &self.processes {
            vcpus[process.node as usize] += 1;
        }
        let nodes = self.nodes.iter().zip(vcpus);
        let nodes = nodes.map(|(name, vcpus)| NodeEntry {
            name: name.clone(),
            vcpus: vcpus.max(1),
            frequency_hz: 1_000_000_000,
        });
        Header::new(&self.name, "", nodes.collect())
    }

    /// Returns the calls of each process, each with a virtual CPU of its own, which is numbered within its node.
    fn streams(&self) -> Vec<Stream<'_>> {
        let mut next = vec![0; self.nodes.len()];
        let mut rest = &self.patches[..];
        let readers = self.spool.read().into_iter().zip(&self.processes);
        let streams = readers.zip(0u32..).map(|((reader, process), number)| {
            let cpu = next[process.node as usize];
            next[process.node as usize] += 1;
            let own = rest.partition_point(|(call, _)| call.process <= number);
            let (patches, others) = rest.split_at(own);
            rest = others;
            Stream {
                reader,
                patches,
                next: None,
                number: 0,
                cpu,
                introduced: false,
            }
        });
        streams.collect()
    }
}

/// Returns a call as the trace has it. `size` is the number of ranks of the caller's job.
fn finished(call: Stored, vcpu: u32, size: u32) -> MpiCall {
    let stamp = |time, instructions| Stamp {
        time,
        instructions,
        vcpu,
    };
    let (time, instructions) = (call.time, call.instructions);
    let mut record = call.record;
    if record.communicator == communicator::WORLD {
        record.communicator_size = size;
    }
    MpiCall {
        record,
        entry: stamp(time.0, instructions.0),
        exit: stamp(time.1, instructions.1),
        time_inside: time.1.saturating_sub(time.0),
        instructions_inside: instructions.1.saturating_sub(instructions.0),
        entry_seen: true,
    }
}

struct Writer {
    out: TraceWriter,
    sequences: Vec<u64>,
}

impl Writer {
    fn put(&mut self, node: u32, stamp: Stamp, body: Body) -> Result<(), ImportError> {
        let sequence = &mut self.sequences[node as usize];
        let event = Event {
            node,
            sequence: *sequence,
            stamp,
            body,
        };
        *sequence += 1;
        Ok(self.out.write(&event)?)
    }
}

/// The calls of a process, with their patches.
struct Stream<'a> {
    reader: Reader<'a>,
    patches: &'a [(CallId, Patch)],
    next: Option<Stored>,
    /// Number of calls that were read.
    number: u64,
    cpu: u32,
    introduced: bool,
}

impl Stream<'_> {
    /// Reads the next call.
    fn advance(&mut self, builder: &Builder) -> Result<(), ImportError> {
        if self.next.is_some() {
            return Ok(());
        }
        self.next = self.reader.next()?;
        let Some(call) = &mut self.next else {
            return Ok(());
        };
        while let Some(((id, patch), rest)) = self.patches.split_first()
            && id.number == self.number
        {
            patch.apply(&mut call.record);
            self.patches = rest;
        }
        self.number += 1;
        if let Some(path) = &builder.shares {
            shares(&mut call.record, builder.ranks(), path)?;
        }
        Ok(())
    }

    fn end(&self) -> Option<u64> {
        self.next.as_ref().map(|call| call.time.1)
    }

    /// Returns the next call. Of several jobs, a process that begins without `MPI_Init` gets one, since only this call names the job.
    fn take(&mut self, several: bool, job: u32) -> Option<Stored> {
        let first = !std::mem::replace(&mut self.introduced, true);
        let call = self.next.as_ref()?;
        if several && first && call.record.object == 0 {
            let own = &call.record;
            let mut record = MpiRecord::new(Function::Init, own.thread, own.rank, own.sequence);
            record.object = u64::from(job) + 1;
            return Some(Stored {
                record,
                time: (call.time.0, call.time.0),
                instructions: (call.instructions.0, call.instructions.0),
            });
        }
        self.next.take()
    }
}

/// Converts bytes for one rank, as arguments of collective calls state them, into the sums that records have. `size` is the number of ranks
/// of the communicator.
pub(super) fn sums(record: &mut MpiRecord, size: u32) {
    let own = record.rank == record.root;
    match record.function.blocking() {
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
}

/// Makes sums of bytes for one rank, and checks lists and ranks against the number of ranks `size`.
fn shares(record: &mut MpiRecord, size: u32, path: &Path) -> Result<(), ImportError> {
    sums(record, size);
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
        (None, false) => return Ok(()),
    };
    Err(ImportError::Content {
        file: path.into(),
        what: format!("{} {what}", record.function),
    })
}
