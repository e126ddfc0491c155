//! Import of an OTF2 archive.

mod events;
mod jobs;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use super::Otf2Error;
use super::library::{Callback, Code, Handle, Otf2};
use crate::error::ImportError;
use crate::import::Builder;
use events::Events;

/// Reads the archive of an anchor file into `builder`, and returns notes for the user.
pub(crate) fn read(path: &Path, builder: &mut Builder) -> Result<Vec<String>, ImportError> {
    // If the file cannot be opened, the library would print an error.
    std::fs::File::open(path).map_err(ImportError::io("open", path))?;
    let (otf2, _alone) = Otf2::load()?;
    let text = path.to_string_lossy();
    let name = CString::new(text.as_ref()).map_err(|_| Otf2Error::Name(text.to_string()))?;
    let doing = format!("read {text}");
    // SAFETY: the name is NUL-terminated and outlives the call.
    let reader = unsafe { (otf2.reader_open)(name.as_ptr()) };
    let reader = otf2.handle(reader, &doing)?;
    let archive = Open {
        otf2: &otf2,
        reader,
        doing,
    };
    let definitions = archive.definitions()?;
    let content = |what: String| ImportError::Content {
        file: path.into(),
        what,
    };
    let mut events = Events::new(&definitions, builder).map_err(content)?;
    archive.events(&definitions, &mut events)?;
    events.finish()
}

/// An archive open for reading.
struct Open<'a> {
    otf2: &'a Otf2,
    reader: Handle,
    doing: String,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // SAFETY: the reader is open, and not used afterwards.
        unsafe { (self.otf2.reader_close)(self.reader) };
    }
}

impl Open<'_> {
    fn check(&self, code: Code) -> Result<(), Otf2Error> {
        self.otf2.check(code, &self.doing)
    }

    /// Returns the global definitions.
    fn definitions(&self) -> Result<Definitions, Otf2Error> {
        let otf2 = self.otf2;
        let mut found = Definitions::default();
        // SAFETY: the reader is open; the callbacks have the types of OTF2's headers and get a pointer to `found`, which outlives the
        // reading; the list of callbacks is deleted after its last use.
        unsafe {
            self.check((otf2.reader_serial)(self.reader))?;
            let global = (otf2.reader_global)(self.reader);
            let global = otf2.handle(global, &self.doing)?;
            let callbacks = (otf2.definition_callbacks)();
            let callbacks = otf2.handle(callbacks, &self.doing)?;
            let mut result = [
                (otf2.on_clock)(callbacks, on_clock as Callback),
                (otf2.on_string)(callbacks, on_string as Callback),
                (otf2.on_tree_node)(callbacks, on_tree_node as Callback),
                (otf2.on_location_group)(callbacks, on_location_group as Callback),
                (otf2.on_location)(callbacks, on_location as Callback),
                (otf2.on_region)(callbacks, on_region as Callback),
                (otf2.on_group)(callbacks, on_group as Callback),
                (otf2.on_comm)(callbacks, on_comm as Callback),
                (otf2.on_inter_comm)(callbacks, on_inter_comm as Callback),
                (otf2.reader_register_global)(
                    self.reader,
                    global,
                    callbacks,
                    (&raw mut found).cast(),
                ),
            ]
            .into_iter()
            .try_for_each(|code| self.check(code));
            (otf2.definition_callbacks_delete)(callbacks);
            if result.is_ok() {
                let mut count = 0;
                let code = (otf2.reader_read_global)(self.reader, global, &mut count);
                result = self.check(code);
            }
            result?;
        }
        Ok(found)
    }

    /// Reads the events of all locations, in the order of their times.
    fn events(
        &self,
        definitions: &Definitions,
        events: &mut Events<'_, '_>,
    ) -> Result<(), Otf2Error> {
        let otf2 = self.otf2;
        // SAFETY: the reader is open, the locations are those of the archive; callbacks as in `definitions`.
        unsafe {
            for &location in definitions.locations.keys() {
                self.check((otf2.reader_select)(self.reader, location))?;
            }
            // An archive need not have local definitions.
            let local = (otf2.reader_open_definitions)(self.reader) == 0;
            self.check((otf2.reader_open_events)(self.reader))?;
            for &location in definitions.locations.keys() {
                if local {
                    let reader = (otf2.reader_definitions)(self.reader, location);
                    if !reader.is_null() {
                        let mut count = 0;
                        self.check((otf2.reader_read_definitions)(
                            self.reader,
                            reader,
                            &mut count,
                        ))?;
                        self.check((otf2.reader_close_definition_reader)(self.reader, reader))?;
                    }
                }
                let reader = (otf2.reader_events)(self.reader, location);
                otf2.handle(reader, &format!("{}, location {location}", self.doing))?;
            }
            if local {
                self.check((otf2.reader_close_definitions)(self.reader))?;
            }
            let global = (otf2.reader_global_events)(self.reader);
            let global = otf2.handle(global, &self.doing)?;
            let callbacks = (otf2.event_callbacks)();
            let callbacks = otf2.handle(callbacks, &self.doing)?;
            let mut result = [
                (otf2.on_enter)(callbacks, events::on_enter as Callback),
                (otf2.on_leave)(callbacks, events::on_leave as Callback),
                (otf2.on_send)(callbacks, events::on_send as Callback),
                (otf2.on_isend)(callbacks, events::on_isend as Callback),
                (otf2.on_isend_complete)(callbacks, events::on_isend_complete as Callback),
                (otf2.on_irecv_request)(callbacks, events::on_irecv_request as Callback),
                (otf2.on_recv)(callbacks, events::on_recv as Callback),
                (otf2.on_irecv)(callbacks, events::on_irecv as Callback),
                (otf2.on_cancelled)(callbacks, events::on_cancelled as Callback),
                (otf2.on_collective_end)(callbacks, events::on_collective_end as Callback),
                (otf2.on_collective_request)(callbacks, events::on_collective_request as Callback),
                (otf2.on_collective_complete)(
                    callbacks,
                    events::on_collective_complete as Callback,
                ),
                (otf2.reader_register_events)(
                    self.reader,
                    global,
                    callbacks,
                    (&raw mut *events).cast(),
                ),
            ]
            .into_iter()
            .try_for_each(|code| self.check(code));
            (otf2.event_callbacks_delete)(callbacks);
            if result.is_ok() {
                let mut count = 0;
                let code = (otf2.reader_read_events)(self.reader, global, &mut count);
                result = self.check(code);
                if result.is_ok() && count != definitions.events {
                    result = Err(Otf2Error::Library {
                        doing: self.doing.clone(),
                        what: format!(
                            "its definitions announce {} events, and there are {count}",
                            definitions.events
                        ),
                    });
                }
            }
            result
        }
    }
}

#[derive(Debug, Default)]
struct Definitions {
    resolution: u64,
    offset: u64,
    strings: HashMap<u32, String>,
    /// Number of the name's string, and number of the parent, for each node of the system tree.
    tree: BTreeMap<u32, (u32, u32)>,
    /// Number of the system tree node that contains each location group.
    groups: HashMap<u32, u32>,
    /// Sum of the numbers of events that the definitions of all locations state.
    events: u64,
    /// Number of the location group of each location, by the location's number.
    locations: BTreeMap<u64, u32>,
    /// Number of the name's string of each region, by the region's number.
    regions: HashMap<u32, u32>,
    members: HashMap<u32, Members>,
    comms: BTreeMap<u32, Comm>,
}

#[derive(Debug)]
struct Members {
    kind: u8,
    paradigm: u8,
    flags: u32,
    list: Vec<u64>,
}

#[derive(Debug)]
struct Comm {
    group: u32,
    other: Option<u32>,
}

/// Return value of a callback for success.
const DONE: c_int = 0;

/// Returns the definitions to which the user data of callbacks point.
///
/// # Safety
///
/// The pointer must be the one that [`Open::definitions`] passed to the library.
unsafe fn definitions<'a>(data: *mut c_void) -> &'a mut Definitions {
    // SAFETY: by contract; no other code has a reference while the library reads.
    unsafe { &mut *data.cast() }
}

macro_rules! definition_callbacks {
    ($($name:ident ($found:ident, $($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            /// # Safety
            ///
            /// Must be called by the library, with the user data of [`Open::definitions`] and with valid texts and lists.
            unsafe extern "C" fn $name(data: *mut c_void, $($argument: $type),*) -> c_int {
                // SAFETY: by contract.
                let $found = unsafe { definitions(data) };
                $body
                DONE
            }
        )*
    };
}

definition_callbacks! {
    on_clock(found, resolution: u64, offset: u64, _length: u64, _realtime: u64) {
        (found.resolution, found.offset) = (resolution, offset);
    }
    on_string(found, number: u32, text: *const c_char) {
        if !text.is_null() {
            // SAFETY: by contract, NUL-terminated.
            let text = unsafe { CStr::from_ptr(text) };
            found.strings.insert(number, text.to_string_lossy().into_owned());
        }
    }
    on_tree_node(found, number: u32, name: u32, _class: u32, parent: u32) {
        found.tree.insert(number, (name, parent));
    }
    on_location_group(found, number: u32, _name: u32, _kind: u8, parent: u32, _creator: u32) {
        found.groups.insert(number, parent);
    }
    on_location(found, number: u64, _name: u32, _kind: u8, events: u64, group: u32) {
        found.events = found.events.saturating_add(events);
        found.locations.insert(number, group);
    }
    on_region(found, number: u32, name: u32, _canonical: u32, _description: u32, _role: u8, _paradigm: u8, _flags: u32, _file: u32, _begin: u32, _end: u32) {
        found.regions.insert(number, name);
    }
    on_group(found, number: u32, _name: u32, kind: u8, paradigm: u8, flags: u32, count: u32, list: *const u64) {
        let list = match list.is_null() {
            true => Vec::new(),
            // SAFETY: by contract, a list of that length.
            false => unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec(),
        };
        found.members.insert(number, Members { kind, paradigm, flags, list });
    }
    on_comm(found, number: u32, _name: u32, group: u32, _parent: u32, _flags: u32) {
        found.comms.insert(number, Comm { group, other: None });
    }
    on_inter_comm(found, number: u32, _name: u32, one: u32, other: u32, _common: u32, _flags: u32) {
        found.comms.insert(number, Comm { group: one, other: Some(other) });
    }
}
