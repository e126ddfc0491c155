//! Export as an OTF2 archive.
//!
//! Each MPI function is a region. A region of the call site encloses each call, and a region of the program encloses all calls of a
//! thread, so that call-path profiles show from where calls are made.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::null_mut;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Class, Function, MpiRecord, Peer};
use nodescope_trace::{Body, Event};

use super::library::{Code, FlushCallbacks, Handle, Otf2};
use super::{CALL_SITE, Otf2Error, operation, role, value};
use crate::error::ExportError;
use crate::labels::communicator_name;
use crate::steps::{Ending, Operation, Step, SteppedCall};
use crate::stream::{Sink, stream};
use crate::survey::{CallSite, Survey};
use crate::{Job, Summary};

/// Bytes of a chunk of events in an archive of at most 256 threads; `SMALL_CHUNK` is for archives of more threads.
const LARGE_CHUNK: u64 = 1 << 20;
const SMALL_CHUNK: u64 = 1 << 18;
const DEFINITION_CHUNK: u64 = 4 << 20;

/// Writes `trace.otf2` with `trace.def` and the folder `trace`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let survey = job.survey;
    let (otf2, _alone) = Otf2::load()?;
    clear(job.folder)?;
    let mut archive = Archive::create(&otf2, job, survey)?;
    let mut notes = stream(job, &mut archive)?;
    archive.finish()?;
    for (count, what) in [
        (
            archive.unknown,
            "messages or collective calls on communicators that the trace does not know are left out",
        ),
        (
            archive.unfinished,
            "calls had not ended with the trace: they end with it here",
        ),
        (
            archive.freed,
            "requests were given away: their completion is nowhere",
        ),
    ] {
        if count > 0 {
            notes.push(format!("{count} {what}"));
        }
    }
    Ok(Summary {
        files: vec![job.file("trace.otf2")],
        notes,
        ..Summary::default()
    })
}

/// Removes the files of an earlier archive `trace` from the folder, since the library does not replace an existing archive.
fn clear(folder: &Path) -> Result<(), ExportError> {
    let mut old = vec![folder.join("trace.otf2"), folder.join("trace.def")];
    if let Ok(entries) = std::fs::read_dir(folder.join("trace")) {
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        old.extend(paths.filter(|path| {
            let kind = path.extension().and_then(|kind| kind.to_str());
            matches!(kind, Some("evt" | "def"))
        }));
    }
    for path in old.into_iter().filter(|path| path.exists()) {
        std::fs::remove_file(&path).map_err(ExportError::io("replace", &path))?;
    }
    Ok(())
}

/// Permits the library to write its buffers.
///
/// # Safety
///
/// Must be called by the library; uses none of the pointers.
unsafe extern "C" fn flush(
    _data: *mut c_void,
    _kind: u8,
    _location: u64,
    _caller: *mut c_void,
    _last: bool,
) -> u8 {
    1
}

static FLUSH: FlushCallbacks = FlushCallbacks {
    before: flush,
    after: None,
};

fn c_string(text: &str) -> Result<CString, Otf2Error> {
    CString::new(text).map_err(|_| Otf2Error::Name(text.into()))
}

/// Strings of the archive, and their numbers.
#[derive(Default)]
struct Strings {
    numbers: HashMap<String, u32>,
    list: Vec<String>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.list.len() as u32;
        self.numbers.insert(text.into(), number);
        self.list.push(text.into());
        number
    }
}

struct Archive<'a> {
    otf2: &'a Otf2,
    survey: &'a Survey,
    archive: Handle,
    path: String,
    writers: Vec<Writer>,
    functions: HashMap<Function, u32>,
    sites: HashMap<CallSite, u32>,
    /// Number of the first communicator of each job; the last element is the number of `MPI_COMM_SELF`.
    comms: Vec<u32>,
    unknown: u64,
    unfinished: u64,
    freed: u64,
}

#[derive(Clone, Copy)]
struct Writer {
    handle: Handle,
    begun: bool,
    /// Time of the last event, picoseconds; the times of a thread must not decrease.
    last: u64,
    program: u32,
}

impl Drop for Archive<'_> {
    fn drop(&mut self) {
        if !self.archive.is_null() {
            // SAFETY: the archive is open; closing it closes its writers, which are not used afterwards.
            unsafe { (self.otf2.archive_close)(self.archive) };
        }
    }
}

impl<'a> Archive<'a> {
    fn create(
        otf2: &'a Otf2,
        job: &Job<'_>,
        survey: &'a Survey,
    ) -> Result<Archive<'a>, ExportError> {
        let path = job.folder.to_string_lossy().into_owned();
        let doing = format!("create an archive in {path}");
        let folder = c_string(&path)?;
        let chunk = match survey.locations.len() {
            0..=256 => LARGE_CHUNK,
            _ => SMALL_CHUNK,
        };
        const WRITE: u8 = 0;
        const POSIX: u8 = 1;
        const PLAIN: u8 = 1;
        // SAFETY: both texts are NUL-terminated and outlive the call.
        let archive = unsafe {
            (otf2.archive_open)(
                folder.as_ptr(),
                c"trace".as_ptr(),
                WRITE,
                chunk,
                DEFINITION_CHUNK,
                POSIX,
                PLAIN,
            )
        };
        let archive = otf2.handle(archive, &doing)?;
        let mut comms = Vec::new();
        let mut next = 0;
        for world in &survey.worlds {
            comms.push(next);
            next += world.communicators.len() as u32;
        }
        comms.push(next);
        // Numbers of regions: first the programs of the jobs, then the functions, then the call sites.
        let first = survey.worlds.len() as u32;
        let functions = survey.functions.iter().copied().zip(first..);
        let first_site = first + survey.functions.len() as u32;
        let sites = survey.call_sites.iter().copied().zip(first_site..);
        let mut archive = Archive {
            otf2,
            survey,
            archive,
            path,
            writers: Vec::new(),
            functions: functions.collect(),
            sites: sites.collect(),
            comms,
            unknown: 0,
            unfinished: 0,
            freed: 0,
        };
        let creator = c_string(concat!("nodescope ", env!("CARGO_PKG_VERSION")))?;
        let study = survey.header.study.replace('\0', " ");
        let description = c_string(&study)?;
        // SAFETY: the archive is open, the callbacks are static, the texts NUL-terminated; they outlive the calls.
        let codes = unsafe {
            [
                (otf2.archive_flush_callbacks)(archive.archive, &FLUSH, null_mut()),
                (otf2.archive_serial)(archive.archive),
                (otf2.archive_creator)(archive.archive, creator.as_ptr()),
                (otf2.archive_description)(archive.archive, description.as_ptr()),
                (otf2.archive_open_events)(archive.archive),
            ]
        };
        for code in codes {
            otf2.check(code, &doing)?;
        }
        for (number, location) in survey.locations.iter().enumerate() {
            // SAFETY: the archive is open.
            let handle = unsafe { (otf2.archive_events)(archive.archive, number as u64) };
            archive.writers.push(Writer {
                handle: otf2.handle(handle, &doing)?,
                begun: false,
                last: 0,
                program: survey.processes[location.process].world as u32,
            });
        }
        Ok(archive)
    }

    fn check(&self, code: Code) -> Result<(), ExportError> {
        if code <= 0 {
            return Ok(());
        }
        let doing = format!("write to the archive in {}", self.path);
        Ok(self.otf2.check(code, &doing)?)
    }

    /// Returns the time for a thread's next event, at least that of its last event.
    fn time(&mut self, location: usize, time: u64) -> u64 {
        let last = &mut self.writers[location].last;
        *last = (*last).max(time);
        *last
    }

    fn enter(&mut self, location: usize, time: u64, region: u32) -> Result<(), ExportError> {
        if !self.writers[location].begun {
            self.writers[location].begun = true;
            let program = self.writers[location].program;
            self.enter(location, time, program)?;
        }
        let time = self.time(location, time);
        let writer = self.writers[location].handle;
        // SAFETY: the writer is open; no attributes.
        self.check(unsafe { (self.otf2.enter)(writer, null_mut(), time, region) })
    }

    fn leave(&mut self, location: usize, time: u64, region: u32) -> Result<(), ExportError> {
        let time = self.time(location, time);
        let writer = self.writers[location].handle;
        // SAFETY: the writer is open; no attributes.
        self.check(unsafe { (self.otf2.leave)(writer, null_mut(), time, region) })
    }

    /// Returns the archive's number of a communicator; `None` if the trace lacks the communicator.
    fn comm(&self, world: usize, id: u64) -> Option<u32> {
        if id == communicator::SELF {
            return self.comms.last().copied();
        }
        let number = self.survey.worlds[world].communicator(id)?;
        Some(self.comms[world] + number as u32)
    }

    fn peer(&self, world: usize, id: u64, rank: u32) -> Option<(u32, u32)> {
        let comm = self.comm(world, id)?;
        if id == communicator::SELF {
            return Some((comm, 0));
        }
        let world = &self.survey.worlds[world];
        let entry = &world.communicators[world.communicator(id)?];
        Some((comm, entry.position(rank)?))
    }

    /// Returns the operation, communicator and root of a collective call; `None` if the call is no collective or its communicator
    /// unknown.
    fn collective(&self, world: usize, record: &MpiRecord) -> Option<(u8, u32, u32)> {
        let operation = operation(record.function)?;
        let comm = self.comm(world, record.communicator)?;
        let root = match record.root {
            Peer::Rank(_) if record.communicator == communicator::SELF => value::ROOT_SELF,
            Peer::Rank(rank) => self
                .peer(world, record.communicator, rank)
                .map_or(value::ROOT_NONE, |(_, position)| position),
            _ => value::ROOT_NONE,
        };
        Some((operation, comm, root))
    }

    /// Writes the events of a step that belong to the beginning of its call.
    fn beginning(
        &mut self,
        location: usize,
        world: usize,
        time: u64,
        step: &Step,
    ) -> Result<(), ExportError> {
        let (otf2, writer) = (self.otf2, self.writers[location].handle);
        let time = self.time(location, time);
        let code = match step {
            Step::Send(send) => {
                let Some((comm, to)) = self.peer(world, send.communicator, send.to) else {
                    self.unknown += 1;
                    return Ok(());
                };
                let (tag, bytes, request) = (send.tag, send.bytes, send.request);
                match request {
                    // SAFETY: the writer is open; no attributes.
                    0 => unsafe { (otf2.mpi_send)(writer, null_mut(), time, to, comm, tag, bytes) },
                    // SAFETY: as above.
                    _ => unsafe {
                        (otf2.mpi_isend)(writer, null_mut(), time, to, comm, tag, bytes, request)
                    },
                }
            }
            // SAFETY: as above.
            Step::Receive(posted) if posted.request != 0 => unsafe {
                (otf2.mpi_irecv_request)(writer, null_mut(), time, posted.request)
            },
            // SAFETY: as above.
            Step::Collective(collective) => unsafe {
                (otf2.collective_request)(writer, null_mut(), time, collective.request)
            },
            _ => return Ok(()),
        };
        self.check(code)
    }

    /// Writes the events of a step that belong to the end of its call.
    fn end(
        &mut self,
        location: usize,
        world: usize,
        time: u64,
        step: &Step,
    ) -> Result<(), ExportError> {
        let (otf2, writer) = (self.otf2, self.writers[location].handle);
        let time = self.time(location, time);
        let code = match step {
            Step::Receive(posted) if posted.request == 0 => {
                let Some(message) = &posted.message else {
                    return Ok(());
                };
                let Some((comm, from)) = self.peer(world, posted.communicator, message.from) else {
                    self.unknown += 1;
                    return Ok(());
                };
                let (tag, bytes) = (message.tag, message.bytes);
                // SAFETY: the writer is open; no attributes.
                unsafe { (otf2.mpi_recv)(writer, null_mut(), time, from, comm, tag, bytes) }
            }
            Step::Complete {
                ending: Ending::Freed,
                ..
            } => {
                self.freed += 1;
                return Ok(());
            }
            Step::Complete {
                request,
                ending: Ending::Cancelled,
                ..
            } => {
                // SAFETY: as above.
                unsafe { (otf2.mpi_cancelled)(writer, null_mut(), time, *request) }
            }
            Step::Complete {
                request, operation, ..
            } => match operation {
                // SAFETY: as above.
                Operation::Send(_) => unsafe {
                    (otf2.mpi_isend_complete)(writer, null_mut(), time, *request)
                },
                Operation::Receive(posted) => {
                    let message = posted.message.as_ref().and_then(|message| {
                        let peer = self.peer(world, posted.communicator, message.from);
                        peer.map(|peer| (peer, message.tag, message.bytes))
                    });
                    let Some(((comm, from), tag, bytes)) = message else {
                        self.unknown += 1;
                        return Ok(());
                    };
                    let request = *request;
                    // SAFETY: as above.
                    unsafe {
                        (otf2.mpi_irecv)(writer, null_mut(), time, from, comm, tag, bytes, request)
                    }
                }
                Operation::Collective(collective) => {
                    let record = &collective.record;
                    let Some((operation, comm, root)) = self.collective(world, record) else {
                        self.unknown += 1;
                        return Ok(());
                    };
                    // SAFETY: as above.
                    unsafe {
                        (otf2.collective_complete)(
                            writer,
                            null_mut(),
                            time,
                            operation,
                            comm,
                            root,
                            record.send_bytes,
                            record.receive_bytes,
                            *request,
                        )
                    }
                }
            },
            _ => return Ok(()),
        };
        self.check(code)
    }

    /// Writes the events by which threads leave their program's region, and the definitions; then closes the archive.
    fn finish(&mut self) -> Result<(), ExportError> {
        let mut counts = Vec::new();
        for location in 0..self.writers.len() {
            let writer = self.writers[location];
            if writer.begun {
                self.leave(location, writer.last, writer.program)?;
            }
            let mut count = 0;
            // SAFETY: the writer is open and `count` outlives the call; the writer is closed afterwards, and not used again.
            let codes = unsafe {
                [
                    (self.otf2.writer_events)(writer.handle, &mut count),
                    (self.otf2.archive_close_writer)(self.archive, writer.handle),
                ]
            };
            codes.into_iter().try_for_each(|code| self.check(code))?;
            counts.push(count);
        }
        // SAFETY: the archive is open, and its event writers are closed.
        let codes = unsafe {
            [
                (self.otf2.archive_close_events)(self.archive),
                (self.otf2.archive_open_definitions)(self.archive),
            ]
        };
        codes.into_iter().try_for_each(|code| self.check(code))?;
        for location in 0..self.writers.len() {
            // SAFETY: the archive is open for local definitions.
            let writer = unsafe { (self.otf2.archive_definitions)(self.archive, location as u64) };
            let writer = self.otf2.handle(writer, "write local definitions")?;
            // SAFETY: the writer was just opened, and is not used afterwards.
            let code = unsafe { (self.otf2.archive_close_definition_writer)(self.archive, writer) };
            self.check(code)?;
        }
        // SAFETY: the archive is open.
        self.check(unsafe { (self.otf2.archive_close_definitions)(self.archive) })?;
        self.define(&counts)?;
        let archive = std::mem::replace(&mut self.archive, null_mut());
        // SAFETY: the archive was open, and is not used afterwards.
        self.check(unsafe { (self.otf2.archive_close)(archive) })
    }

    /// Writes the global definitions.
    fn define(&mut self, counts: &[u64]) -> Result<(), ExportError> {
        let (otf2, survey) = (self.otf2, self.survey);
        // SAFETY: the archive is open.
        let writer = unsafe { (otf2.archive_global)(self.archive) };
        let writer = otf2.handle(writer, "write global definitions")?;
        let mut codes = Vec::new();
        let mut strings = Strings::default();
        let nothing = strings.number("");
        // SAFETY, for all of this function: the writer is open; lists have the stated lengths and outlive the calls.
        // Definitions may use numbers of strings that are written later in the file, but readers expect the strings first, so all strings
        // are collected first.
        let mut definitions: Vec<Box<dyn FnOnce() -> Code + 'a>> = Vec::new();
        let mut define = |definition: Box<dyn FnOnce() -> Code + 'a>| definitions.push(definition);
        let length = survey.end.saturating_add(1);
        define(Box::new(move || {
            // SAFETY: as above.
            unsafe {
                (otf2.define_clock)(writer, 1_000_000_000_000, 0, length, value::UNDEFINED_TIME)
            }
        }));
        let mpi = strings.number("MPI");
        define(Box::new(move || {
            // SAFETY: as above.
            unsafe { (otf2.define_paradigm)(writer, value::PARADIGM_MPI, mpi, 0) }
        }));

        let (machine, node_class) = (strings.number("machine"), strings.number("node"));
        let cluster = strings.number(match survey.header.study.as_str() {
            "" => "cluster",
            study => study,
        });
        define(Box::new(move || {
            // SAFETY: as above.
            unsafe { (otf2.define_tree_node)(writer, 0, cluster, machine, value::UNDEFINED) }
        }));
        define(Box::new(move || {
            // SAFETY: as above.
            unsafe { (otf2.define_tree_domain)(writer, 0, 0) }
        }));
        let used = survey.processes.iter().map(|process| process.node + 1);
        let nodes = used
            .max()
            .unwrap_or(0)
            .max(survey.header.nodes.len() as u32);
        for node in 0..nodes {
            let name = strings.number(&survey.node_name(node));
            define(Box::new(move || {
                // SAFETY: as above.
                unsafe { (otf2.define_tree_node)(writer, node + 1, name, node_class, 0) }
            }));
            define(Box::new(move || {
                const SHARED_MEMORY: u8 = 1;
                // SAFETY: as above.
                unsafe { (otf2.define_tree_domain)(writer, node + 1, SHARED_MEMORY) }
            }));
        }
        for (number, process) in survey.processes.iter().enumerate() {
            let name = strings.number(&format!("MPI {}", survey.process_name(number)));
            let parent = process.node + 1;
            define(Box::new(move || {
                // SAFETY: as above.
                unsafe {
                    (otf2.define_location_group)(
                        writer,
                        number as u32,
                        name,
                        value::LOCATION_GROUP_PROCESS,
                        parent,
                        value::UNDEFINED,
                    )
                }
            }));
        }
        for (number, location) in survey.locations.iter().enumerate() {
            let name = strings.number(&survey.location_name(number));
            let (events, group) = (
                counts.get(number).copied().unwrap_or(0),
                location.process as u32,
            );
            define(Box::new(move || {
                // SAFETY: as above.
                unsafe {
                    (otf2.define_location)(
                        writer,
                        number as u64,
                        name,
                        value::LOCATION_THREAD,
                        events,
                        group,
                    )
                }
            }));
        }

        let mut region = |number: u32, name: u32, role: u8, paradigm: u8| {
            define(Box::new(move || {
                // SAFETY: as above.
                unsafe {
                    (otf2.define_region)(
                        writer, number, name, name, nothing, role, paradigm, 0, nothing, 0, 0,
                    )
                }
            }));
        };
        const FUNCTION: u8 = 1;
        const CODE: u8 = 4;
        for (number, world) in survey.worlds.iter().enumerate() {
            let name = strings.number(match world.program.as_str() {
                "" => "program",
                program => program,
            });
            region(number as u32, name, FUNCTION, value::PARADIGM_USER);
        }
        for function in &survey.functions {
            let name = strings.number(function.name());
            let number = self.functions[function];
            region(number, name, role(*function), value::PARADIGM_MPI);
        }
        for site in &survey.call_sites {
            let name = strings.number(&format!("{CALL_SITE}{}", survey.site_name(site)));
            region(self.sites[site], name, CODE, value::PARADIGM_USER);
        }

        // Groups of communicators contain indices into the first group, which lists the main thread of each process.
        let mut groups = 0;
        let mut group = |name: u32, kind: u8, members: Vec<u64>| {
            let number = groups;
            groups += 1;
            define(Box::new(move || {
                // SAFETY: as above.
                unsafe {
                    (otf2.define_group)(
                        writer,
                        number,
                        name,
                        kind,
                        value::PARADIGM_MPI,
                        0,
                        members.len() as u32,
                        members.as_ptr(),
                    )
                }
            }));
            number
        };
        let main: Vec<u64> = (0..survey.processes.len())
            .map(|process| {
                survey
                    .locations
                    .partition_point(|location| location.process < process) as u64
            })
            .collect();
        group(nothing, value::GROUP_COMM_LOCATIONS, main);
        let own = group(nothing, value::GROUP_COMM_SELF, Vec::new());
        let mut comms: Vec<(u32, u32, u32, Option<u32>, u32)> = Vec::new();
        for (job, world) in survey.worlds.iter().enumerate() {
            let processes = &survey.processes[world.processes.clone()];
            let positions = |ranks: &[u32]| -> Vec<u64> {
                ranks
                    .iter()
                    .filter_map(|&rank| {
                        let at = processes.binary_search_by_key(&rank, |process| process.rank);
                        Some((world.processes.start + at.ok()?) as u64)
                    })
                    .collect()
            };
            for (at, entry) in world.communicators.iter().enumerate() {
                let name = match (at, survey.worlds.len()) {
                    (0, 1) => "MPI_COMM_WORLD".into(),
                    (0, _) => format!("MPI_COMM_WORLD of program {job}"),
                    (_, 1) => communicator_name(world, entry.id),
                    _ => format!("{} of program {job}", communicator_name(world, entry.id)),
                };
                let name = strings.number(&name);
                let one = group(nothing, value::GROUP_COMM, positions(&entry.members));
                let other = (entry.inter && !entry.remote.is_empty())
                    .then(|| group(nothing, value::GROUP_COMM, positions(&entry.remote)));
                let parent = match world.communicator(entry.parent) {
                    Some(parent) if parent < at => self.comms[job] + parent as u32,
                    _ => value::UNDEFINED,
                };
                comms.push((self.comms[job] + at as u32, name, one, other, parent));
            }
        }
        for (number, name, one, other, parent) in comms {
            define(Box::new(move || match other {
                // SAFETY: as above.
                None => unsafe { (otf2.define_comm)(writer, number, name, one, parent, 0) },
                // SAFETY: as above.
                Some(other) => unsafe {
                    (otf2.define_inter_comm)(writer, number, name, one, other, parent, 0)
                },
            }));
        }
        let name = strings.number("MPI_COMM_SELF");
        let number = self.comms.last().copied().unwrap_or(0);
        define(Box::new(move || {
            // SAFETY: as above.
            unsafe { (otf2.define_comm)(writer, number, name, own, value::UNDEFINED, 0) }
        }));

        for (number, text) in strings.list.iter().enumerate() {
            let text = c_string(&text.replace('\0', " "))?;
            // SAFETY: the writer is open, the text NUL-terminated.
            codes.push(unsafe { (otf2.define_string)(writer, number as u32, text.as_ptr()) });
        }
        codes.extend(definitions.into_iter().map(|definition| definition()));
        // SAFETY: the writer is open, and not used afterwards.
        codes.push(unsafe { (otf2.archive_close_global)(self.archive, writer) });
        codes.into_iter().try_for_each(|code| self.check(code))
    }
}

impl Sink for Archive<'_> {
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError> {
        let (call, location) = (&stepped.call, stepped.location);
        let record = &call.record;
        let world = self.survey.process_of(location).world;
        let (entry, exit) = (call.entry.time, call.exit.time);
        let site = self.sites.get(&CallSite::of(record)).copied();
        if let Some(site) = site {
            self.enter(location, entry, site)?;
        }
        let region = self.functions.get(&record.function).copied();
        let region = region.unwrap_or(value::UNDEFINED);
        self.enter(location, entry, region)?;
        let collective = match record.function.class() {
            Class::Collective | Class::Neighbor | Class::Communicator => {
                self.collective(world, record)
            }
            _ => None,
        };
        let writer = self.writers[location].handle;
        if collective.is_some() {
            let time = self.time(location, entry);
            // SAFETY: the writer is open; no attributes.
            let code = unsafe { (self.otf2.mpi_collective_begin)(writer, null_mut(), time) };
            self.check(code)?;
        }
        for step in &stepped.steps {
            self.beginning(location, world, entry, step)?;
        }
        for step in &stepped.steps {
            self.end(location, world, exit, step)?;
        }
        if let Some((operation, comm, root)) = collective {
            let time = self.time(location, exit);
            // SAFETY: the writer is open; no attributes.
            let code = unsafe {
                (self.otf2.mpi_collective_end)(
                    writer,
                    null_mut(),
                    time,
                    operation,
                    comm,
                    root,
                    record.send_bytes,
                    record.receive_bytes,
                )
            };
            self.check(code)?;
        }
        self.leave(location, exit, region)?;
        match site {
            Some(site) => self.leave(location, exit, site),
            None => Ok(()),
        }
    }

    fn other(&mut self, event: &Event, location: Option<usize>) -> Result<(), ExportError> {
        if let (Body::Unfinished(call), Some(location)) = (&event.body, location) {
            self.unfinished += 1;
            if let Some(&region) = self.functions.get(&call.function) {
                self.enter(location, call.entry.time, region)?;
                self.leave(location, self.survey.end, region)?;
            }
        }
        Ok(())
    }
}
