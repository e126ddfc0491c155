//! The functions of libotf2, loaded at run time, so that the library is needed only if archives are written or read.
//!
//! Names and types are those of OTF2 3.0's headers. Handles are opaque pointers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::Library;

use super::Otf2Error;

/// An opaque handle.
pub(super) type Handle = *mut c_void;
/// `OTF2_ErrorCode`: 0 is success, negative codes are warnings, positive codes are errors.
pub(super) type Code = c_int;
/// A callback. Its real type depends on the event.
pub(super) type Callback = *const c_void;

/// Names under which the library is installed. Version 3.0, to which these functions belong, has the interface number 10.
const NAMES: [&str; 3] = ["libopen-trace-format2.so.10", "libotf2.so.10", "libotf2.so"];

macro_rules! functions {
    ($($(#[$meta:meta])* $name:ident = $symbol:literal ( $($argument:ident: $type:ty),* ) -> $result:ty;)*) => {
        /// The library's functions.
        pub(super) struct Otf2 {
            $($(#[$meta])* pub(super) $name: unsafe extern "C" fn($($type),*) -> $result,)*
            /// Keeps the functions loaded.
            _library: Library,
        }

        impl Otf2 {
            fn of(library: Library) -> Result<Otf2, Otf2Error> {
                // SAFETY: the types are those of these functions in OTF2 3.0's headers; the pointers live no longer than the library,
                // which the structure owns.
                unsafe {
                    Ok(Otf2 {
                        $($name: *library
                            .get::<unsafe extern "C" fn($($type),*) -> $result>($symbol)
                            .map_err(|_| Otf2Error::Version(String::from_utf8_lossy($symbol).into_owned()))?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    archive_open = b"OTF2_Archive_Open" (path: *const c_char, name: *const c_char, mode: u8, events: u64, definitions: u64, substrate: u8, compression: u8) -> Handle;
    archive_close = b"OTF2_Archive_Close" (archive: Handle) -> Code;
    archive_flush_callbacks = b"OTF2_Archive_SetFlushCallbacks" (archive: Handle, callbacks: *const FlushCallbacks, data: *mut c_void) -> Code;
    archive_serial = b"OTF2_Archive_SetSerialCollectiveCallbacks" (archive: Handle) -> Code;
    archive_creator = b"OTF2_Archive_SetCreator" (archive: Handle, text: *const c_char) -> Code;
    archive_description = b"OTF2_Archive_SetDescription" (archive: Handle, text: *const c_char) -> Code;
    archive_open_events = b"OTF2_Archive_OpenEvtFiles" (archive: Handle) -> Code;
    archive_close_events = b"OTF2_Archive_CloseEvtFiles" (archive: Handle) -> Code;
    archive_open_definitions = b"OTF2_Archive_OpenDefFiles" (archive: Handle) -> Code;
    archive_close_definitions = b"OTF2_Archive_CloseDefFiles" (archive: Handle) -> Code;
    archive_events = b"OTF2_Archive_GetEvtWriter" (archive: Handle, location: u64) -> Handle;
    archive_close_writer = b"OTF2_Archive_CloseEvtWriter" (archive: Handle, writer: Handle) -> Code;
    archive_definitions = b"OTF2_Archive_GetDefWriter" (archive: Handle, location: u64) -> Handle;
    archive_close_definition_writer = b"OTF2_Archive_CloseDefWriter" (archive: Handle, writer: Handle) -> Code;
    archive_global = b"OTF2_Archive_GetGlobalDefWriter" (archive: Handle) -> Handle;
    archive_close_global = b"OTF2_Archive_CloseGlobalDefWriter" (archive: Handle, writer: Handle) -> Code;

    define_clock = b"OTF2_GlobalDefWriter_WriteClockProperties" (writer: Handle, resolution: u64, offset: u64, length: u64, realtime: u64) -> Code;
    define_string = b"OTF2_GlobalDefWriter_WriteString" (writer: Handle, id: u32, text: *const c_char) -> Code;
    define_paradigm = b"OTF2_GlobalDefWriter_WriteParadigm" (writer: Handle, paradigm: u8, name: u32, class: u8) -> Code;
    define_tree_node = b"OTF2_GlobalDefWriter_WriteSystemTreeNode" (writer: Handle, id: u32, name: u32, class: u32, parent: u32) -> Code;
    define_tree_domain = b"OTF2_GlobalDefWriter_WriteSystemTreeNodeDomain" (writer: Handle, node: u32, domain: u8) -> Code;
    define_location_group = b"OTF2_GlobalDefWriter_WriteLocationGroup" (writer: Handle, id: u32, name: u32, kind: u8, parent: u32, creator: u32) -> Code;
    define_location = b"OTF2_GlobalDefWriter_WriteLocation" (writer: Handle, id: u64, name: u32, kind: u8, events: u64, group: u32) -> Code;
    define_region = b"OTF2_GlobalDefWriter_WriteRegion" (writer: Handle, id: u32, name: u32, canonical: u32, description: u32, role: u8, paradigm: u8, flags: u32, file: u32, begin: u32, end: u32) -> Code;
    define_group = b"OTF2_GlobalDefWriter_WriteGroup" (writer: Handle, id: u32, name: u32, kind: u8, paradigm: u8, flags: u32, count: u32, members: *const u64) -> Code;
    define_comm = b"OTF2_GlobalDefWriter_WriteComm" (writer: Handle, id: u32, name: u32, group: u32, parent: u32, flags: u32) -> Code;
    define_inter_comm = b"OTF2_GlobalDefWriter_WriteInterComm" (writer: Handle, id: u32, name: u32, one: u32, other: u32, common: u32, flags: u32) -> Code;

    enter = b"OTF2_EvtWriter_Enter" (writer: Handle, attributes: Handle, time: u64, region: u32) -> Code;
    leave = b"OTF2_EvtWriter_Leave" (writer: Handle, attributes: Handle, time: u64, region: u32) -> Code;
    mpi_send = b"OTF2_EvtWriter_MpiSend" (writer: Handle, attributes: Handle, time: u64, to: u32, comm: u32, tag: u32, bytes: u64) -> Code;
    mpi_isend = b"OTF2_EvtWriter_MpiIsend" (writer: Handle, attributes: Handle, time: u64, to: u32, comm: u32, tag: u32, bytes: u64, request: u64) -> Code;
    mpi_isend_complete = b"OTF2_EvtWriter_MpiIsendComplete" (writer: Handle, attributes: Handle, time: u64, request: u64) -> Code;
    mpi_irecv_request = b"OTF2_EvtWriter_MpiIrecvRequest" (writer: Handle, attributes: Handle, time: u64, request: u64) -> Code;
    mpi_recv = b"OTF2_EvtWriter_MpiRecv" (writer: Handle, attributes: Handle, time: u64, from: u32, comm: u32, tag: u32, bytes: u64) -> Code;
    mpi_irecv = b"OTF2_EvtWriter_MpiIrecv" (writer: Handle, attributes: Handle, time: u64, from: u32, comm: u32, tag: u32, bytes: u64, request: u64) -> Code;
    mpi_cancelled = b"OTF2_EvtWriter_MpiRequestCancelled" (writer: Handle, attributes: Handle, time: u64, request: u64) -> Code;
    mpi_collective_begin = b"OTF2_EvtWriter_MpiCollectiveBegin" (writer: Handle, attributes: Handle, time: u64) -> Code;
    mpi_collective_end = b"OTF2_EvtWriter_MpiCollectiveEnd" (writer: Handle, attributes: Handle, time: u64, operation: u8, comm: u32, root: u32, sent: u64, received: u64) -> Code;
    collective_request = b"OTF2_EvtWriter_NonBlockingCollectiveRequest" (writer: Handle, attributes: Handle, time: u64, request: u64) -> Code;
    collective_complete = b"OTF2_EvtWriter_NonBlockingCollectiveComplete" (writer: Handle, attributes: Handle, time: u64, operation: u8, comm: u32, root: u32, sent: u64, received: u64, request: u64) -> Code;
    writer_events = b"OTF2_EvtWriter_GetNumberOfEvents" (writer: Handle, count: *mut u64) -> Code;

    reader_open = b"OTF2_Reader_Open" (anchor: *const c_char) -> Handle;
    reader_close = b"OTF2_Reader_Close" (reader: Handle) -> Code;
    reader_serial = b"OTF2_Reader_SetSerialCollectiveCallbacks" (reader: Handle) -> Code;
    reader_global = b"OTF2_Reader_GetGlobalDefReader" (reader: Handle) -> Handle;
    reader_register_global = b"OTF2_Reader_RegisterGlobalDefCallbacks" (reader: Handle, definitions: Handle, callbacks: Handle, data: *mut c_void) -> Code;
    reader_read_global = b"OTF2_Reader_ReadAllGlobalDefinitions" (reader: Handle, definitions: Handle, count: *mut u64) -> Code;
    reader_select = b"OTF2_Reader_SelectLocation" (reader: Handle, location: u64) -> Code;
    reader_open_definitions = b"OTF2_Reader_OpenDefFiles" (reader: Handle) -> Code;
    reader_close_definitions = b"OTF2_Reader_CloseDefFiles" (reader: Handle) -> Code;
    reader_open_events = b"OTF2_Reader_OpenEvtFiles" (reader: Handle) -> Code;
    reader_definitions = b"OTF2_Reader_GetDefReader" (reader: Handle, location: u64) -> Handle;
    reader_read_definitions = b"OTF2_Reader_ReadAllLocalDefinitions" (reader: Handle, definitions: Handle, count: *mut u64) -> Code;
    reader_close_definition_reader = b"OTF2_Reader_CloseDefReader" (reader: Handle, definitions: Handle) -> Code;
    reader_events = b"OTF2_Reader_GetEvtReader" (reader: Handle, location: u64) -> Handle;
    reader_global_events = b"OTF2_Reader_GetGlobalEvtReader" (reader: Handle) -> Handle;
    reader_register_events = b"OTF2_Reader_RegisterGlobalEvtCallbacks" (reader: Handle, events: Handle, callbacks: Handle, data: *mut c_void) -> Code;
    reader_read_events = b"OTF2_Reader_ReadAllGlobalEvents" (reader: Handle, events: Handle, count: *mut u64) -> Code;

    definition_callbacks = b"OTF2_GlobalDefReaderCallbacks_New" () -> Handle;
    definition_callbacks_delete = b"OTF2_GlobalDefReaderCallbacks_Delete" (callbacks: Handle) -> ();
    on_clock = b"OTF2_GlobalDefReaderCallbacks_SetClockPropertiesCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_string = b"OTF2_GlobalDefReaderCallbacks_SetStringCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_tree_node = b"OTF2_GlobalDefReaderCallbacks_SetSystemTreeNodeCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_location_group = b"OTF2_GlobalDefReaderCallbacks_SetLocationGroupCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_location = b"OTF2_GlobalDefReaderCallbacks_SetLocationCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_region = b"OTF2_GlobalDefReaderCallbacks_SetRegionCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_group = b"OTF2_GlobalDefReaderCallbacks_SetGroupCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_comm = b"OTF2_GlobalDefReaderCallbacks_SetCommCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_inter_comm = b"OTF2_GlobalDefReaderCallbacks_SetInterCommCallback" (callbacks: Handle, callback: Callback) -> Code;

    event_callbacks = b"OTF2_GlobalEvtReaderCallbacks_New" () -> Handle;
    event_callbacks_delete = b"OTF2_GlobalEvtReaderCallbacks_Delete" (callbacks: Handle) -> ();
    on_enter = b"OTF2_GlobalEvtReaderCallbacks_SetEnterCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_leave = b"OTF2_GlobalEvtReaderCallbacks_SetLeaveCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_send = b"OTF2_GlobalEvtReaderCallbacks_SetMpiSendCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_isend = b"OTF2_GlobalEvtReaderCallbacks_SetMpiIsendCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_isend_complete = b"OTF2_GlobalEvtReaderCallbacks_SetMpiIsendCompleteCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_irecv_request = b"OTF2_GlobalEvtReaderCallbacks_SetMpiIrecvRequestCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_recv = b"OTF2_GlobalEvtReaderCallbacks_SetMpiRecvCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_irecv = b"OTF2_GlobalEvtReaderCallbacks_SetMpiIrecvCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_cancelled = b"OTF2_GlobalEvtReaderCallbacks_SetMpiRequestCancelledCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_collective_end = b"OTF2_GlobalEvtReaderCallbacks_SetMpiCollectiveEndCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_collective_request = b"OTF2_GlobalEvtReaderCallbacks_SetNonBlockingCollectiveRequestCallback" (callbacks: Handle, callback: Callback) -> Code;
    on_collective_complete = b"OTF2_GlobalEvtReaderCallbacks_SetNonBlockingCollectiveCompleteCallback" (callbacks: Handle, callback: Callback) -> Code;

    error_description = b"OTF2_Error_GetDescription" (code: Code) -> *const c_char;
    error_callback = b"OTF2_Error_RegisterCallback" (callback: ErrorCallback, data: *mut c_void) -> Callback;
}

/// Layout of libotf2's `OTF2_FlushCallbacks`.
#[repr(C)]
pub(super) struct FlushCallbacks {
    /// Function that the library asks before it flushes a buffer: 1 for yes.
    pub(super) before: unsafe extern "C" fn(*mut c_void, u8, u64, *mut c_void, bool) -> u8,
    /// Function that returns the time after a flush; without it, the library records no flush event.
    pub(super) after: Option<unsafe extern "C" fn(*mut c_void, u8, u64) -> u64>,
}

type ErrorCallback = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    u64,
    *const c_char,
    Code,
    *const c_char,
    *mut c_void,
) -> Code;

unsafe extern "C" {
    fn vsnprintf(
        buffer: *mut c_char,
        size: usize,
        format: *const c_char,
        list: *mut c_void,
    ) -> c_int;
}

/// The library's first error message since the last reported error, which the library would otherwise print.
static LAST_MESSAGE: Mutex<String> = Mutex::new(String::new());

/// Lock for the library, whose error callback and messages are global: only one archive may be open at a time.
static IN_USE: Mutex<()> = Mutex::new(());

fn last_message() -> MutexGuard<'static, String> {
    LAST_MESSAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores the library's error message.
///
/// # Safety
///
/// Must be called by the library, with a format and its arguments.
unsafe extern "C" fn store_message(
    _data: *mut c_void,
    _file: *const c_char,
    _line: u64,
    _function: *const c_char,
    code: Code,
    format: *const c_char,
    list: *mut c_void,
) -> Code {
    let mut text = [0u8; 1024];
    if !format.is_null() {
        // SAFETY: format and arguments are those of the library's printf-like error function; on x86-64 a va_list parameter is a
        // pointer. The buffer's size is given, and the result is NUL-terminated.
        unsafe { vsnprintf(text.as_mut_ptr().cast(), text.len(), format, list) };
    }
    if let Ok(text) = CStr::from_bytes_until_nul(&text) {
        let mut message = last_message();
        // The first message is the cause; later ones are its consequences.
        if message.is_empty() {
            *message = text.to_string_lossy().into_owned();
        }
    }
    code
}

impl Otf2 {
    /// Loads the library. The guard prevents other threads from using the library meanwhile.
    pub(super) fn load() -> Result<(Otf2, MutexGuard<'static, ()>), Otf2Error> {
        let guard = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let found = NAMES.iter().find_map(|name| {
            // SAFETY: the library's initialisers are those of a C library without effects of their own.
            unsafe { Library::new(*name) }.ok()
        });
        let library = Otf2::of(found.ok_or(Otf2Error::Missing)?)?;
        last_message().clear();
        // SAFETY: the callback has the type that the library requires, and needs no data.
        unsafe { (library.error_callback)(store_message, std::ptr::null_mut()) };
        Ok((library, guard))
    }

    /// Fails if `code` is an error. `doing` describes the operation for the message.
    pub(super) fn check(&self, code: Code, doing: &str) -> Result<(), Otf2Error> {
        if code <= 0 {
            return Ok(());
        }
        Err(self.error(code, doing))
    }

    /// Returns a handle, or an error if the handle is null.
    pub(super) fn handle(&self, handle: Handle, doing: &str) -> Result<Handle, Otf2Error> {
        if handle.is_null() {
            return Err(self.error(0, doing));
        }
        Ok(handle)
    }

    fn error(&self, code: Code, doing: &str) -> Otf2Error {
        let mut what = std::mem::take(&mut *last_message());
        if code > 0 {
            // SAFETY: the library returns static text for any number.
            let description = unsafe { (self.error_description)(code) };
            if !description.is_null() {
                // SAFETY: the text is static, as above, and NUL-terminated.
                let description = unsafe { CStr::from_ptr(description) }.to_string_lossy();
                what = match what.is_empty() {
                    true => description.into_owned(),
                    false => format!("{description}: {what}"),
                };
            }
        }
        if what.is_empty() {
            what = "the library says no more".into();
        }
        Otf2Error::Library {
            doing: doing.into(),
            what,
        }
    }
}
