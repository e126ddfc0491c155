//! An MPI library by the functions of the standard ABI (MPI 5.0, chapter 20), found at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::MpiError;

/// A handle of MPI. Predefined handles have small fixed values (MPI 5.0, section 20.3).
pub type Handle = *mut c_void;

/// File name of a library with the standard ABI.
pub const STANDARD: &str = "libmpi_abi.so.1";
/// Prefix of the functions of the shim (`shim.c`).
pub const SHIM_PREFIX: &str = "nodescope_";

const COMM_WORLD: usize = 0x101;
const ERRORS_RETURN: usize = 0x143;
const BYTE: usize = 0x247;
const REQUEST_NULL: usize = 0x180;
const THREAD_SERIALIZED: c_int = 2048;
const SUCCESS: c_int = 0;
/// `MPI_MAX_LIBRARY_VERSION_STRING`, which is longer than `MPI_MAX_ERROR_STRING`.
const LONGEST_TEXT: usize = 8192;
/// Tag of all messages.
const TAG: c_int = 7;

fn predefined(value: usize) -> Handle {
    ptr::without_provenance_mut(value)
}

type Transfer =
    unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type Query = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;

/// A loaded library. MPI allows one thread at a time to call its functions (`MPI_THREAD_SERIALIZED`), so all methods that communicate take
/// `&mut self`.
pub struct MpiLibrary {
    init_thread:
        unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    comm_rank: Query,
    comm_size: Query,
    comm_set_errhandler: unsafe extern "C" fn(Handle, Handle) -> c_int,
    isend: Transfer,
    irecv: Transfer,
    test: unsafe extern "C" fn(*mut Handle, *mut c_int, *mut c_void) -> c_int,
    error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
    get_library_version: Text,
    path: PathBuf,
    /// The library stays loaded until the process ends, since libraries of MPI have threads.
    library: ManuallyDrop<Library>,
}

/// A transfer that MPI has begun.
pub struct Request(Handle);

// SAFETY: MPI's handles are valid in all threads of the process.
unsafe impl Send for Request {}

impl MpiLibrary {
    /// Loads a library. Its functions have the names of MPI with this prefix.
    ///
    /// # Errors
    ///
    /// A file that cannot be loaded, or that lacks a function.
    pub fn load(path: &Path, prefix: &str) -> Result<Self, MpiError> {
        let failed = |why: libloading::Error| MpiError::Load {
            path: path.into(),
            why: why.to_string(),
        };
        // Components of Open MPI find the library's functions only if they are global.
        // SAFETY: the user or the system's loader names the library; its initialisers run as those of any linked library.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(failed)?;
        macro_rules! function {
            ($name:literal) => {{
                let name = format!(concat!("{}MPI_", $name, "\0"), prefix);
                // SAFETY: the function has this type by the standard ABI, and in `shim.c`.
                let symbol = unsafe { library.get(name.as_bytes()) };
                *symbol.map_err(|_| MpiError::Function {
                    path: path.into(),
                    name: concat!("MPI_", $name),
                })?
            }};
        }
        Ok(Self {
            init_thread: function!("Init_thread"),
            finalize: function!("Finalize"),
            comm_rank: function!("Comm_rank"),
            comm_size: function!("Comm_size"),
            comm_set_errhandler: function!("Comm_set_errhandler"),
            isend: function!("Isend"),
            irecv: function!("Irecv"),
            test: function!("Test"),
            error_string: function!("Error_string"),
            get_library_version: function!("Get_library_version"),
            path: path.into(),
            library: ManuallyDrop::new(library),
        })
    }

    /// Returns whether the library, or one that it needs, has this function.
    pub fn has(&self, function: &str) -> bool {
        // SAFETY: the symbol is only looked up, and not used.
        unsafe {
            self.library
                .get::<unsafe extern "C" fn()>(function.as_bytes())
        }
        .is_ok()
    }

    /// Returns the file that the library was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the library's name and version, such as "Open MPI v4.1.4" and "MPICH 5.0.2".
    pub fn version(&self) -> String {
        let get = |text: *mut c_char, length: *mut c_int| {
            // SAFETY: the buffer is as long as MPI may write; MPI allows the call before MPI_Init (MPI 4.0, section 11.4.1).
            unsafe { (self.get_library_version)(text, length) }
        };
        let text = text_of(get).replace("Version:", "");
        let name = text.split(['\n', ',']).next().unwrap_or_default();
        name.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn check(&self, code: c_int) -> Result<(), MpiError> {
        if code == SUCCESS {
            return Ok(());
        }
        let get = |text: *mut c_char, length: *mut c_int| {
            // SAFETY: the buffer is as long as MPI may write.
            unsafe { (self.error_string)(code, text, length) }
        };
        Err(MpiError::Call(text_of(get)))
    }

    /// Starts MPI in this process, and returns its rank and the number of processes.
    pub fn init(&mut self) -> Result<(usize, usize), MpiError> {
        let mut provided = 0;
        // SAFETY: MPI allows null pointers in place of the program's arguments.
        let code = unsafe {
            (self.init_thread)(
                ptr::null_mut(),
                ptr::null_mut(),
                THREAD_SERIALIZED,
                &mut provided,
            )
        };
        self.check(code)?;
        if provided < THREAD_SERIALIZED {
            return Err(MpiError::Threads(self.version()));
        }
        let world = predefined(COMM_WORLD);
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI is initialised, and the pointers are valid.
        let codes = unsafe {
            [
                (self.comm_set_errhandler)(world, predefined(ERRORS_RETURN)),
                (self.comm_rank)(world, &mut rank),
                (self.comm_size)(world, &mut size),
            ]
        };
        for code in codes {
            self.check(code)?;
        }
        Ok((rank as usize, size as usize))
    }

    /// Ends MPI in this process.
    pub fn finalize(&mut self) {
        // SAFETY: all transfers of this process are complete. An error at the end has no consequence.
        unsafe { (self.finalize)() };
    }

    /// Begins to send the first `count` bytes of a buffer to a process.
    ///
    /// # Safety
    ///
    /// The buffer has as many bytes, and nobody changes or frees it until [`MpiLibrary::is_done`] returns true.
    pub unsafe fn send(
        &mut self,
        buffer: *const u8,
        count: usize,
        to: usize,
    ) -> Result<Request, MpiError> {
        // SAFETY: the caller's promise.
        unsafe { self.transfer(self.isend, buffer.cast_mut(), count, to) }
    }

    /// Begins to receive at most `count` bytes from a process.
    ///
    /// # Safety
    ///
    /// The buffer has as many bytes, and nobody accesses or frees it until [`MpiLibrary::is_done`] returns true.
    pub unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        count: usize,
        from: usize,
    ) -> Result<Request, MpiError> {
        // SAFETY: the caller's promise.
        unsafe { self.transfer(self.irecv, buffer, count, from) }
    }

    /// # Safety
    ///
    /// As for [`MpiLibrary::receive`].
    unsafe fn transfer(
        &mut self,
        call: Transfer,
        buffer: *mut u8,
        count: usize,
        peer: usize,
    ) -> Result<Request, MpiError> {
        let mut request = predefined(REQUEST_NULL);
        let (byte, world) = (predefined(BYTE), predefined(COMM_WORLD));
        let (count, peer) = (count as c_int, peer as c_int);
        // SAFETY: the caller's promise.
        let code = unsafe { call(buffer.cast(), count, byte, peer, TAG, world, &mut request) };
        self.check(code)?;
        Ok(Request(request))
    }

    /// Returns whether a transfer is complete. MPI moves all transfers of the process on meanwhile.
    pub fn is_done(&mut self, request: &mut Request) -> Result<bool, MpiError> {
        let mut done = 0;
        // SAFETY: the request is one of this library. A null pointer is MPI_STATUS_IGNORE in the standard ABI.
        let code = unsafe { (self.test)(&mut request.0, &mut done, ptr::null_mut()) };
        self.check(code)?;
        Ok(done != 0)
    }
}

/// Returns the text that a function of MPI writes.
fn text_of(get: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut text: [c_char; LONGEST_TEXT + 1] = [0; LONGEST_TEXT + 1];
    let mut length = 0;
    if get(text.as_mut_ptr(), &mut length) != SUCCESS {
        return "an error without a text".into();
    }
    // SAFETY: the last byte is zero, since MPI writes at most `LONGEST_TEXT` bytes.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    text.to_string_lossy().into_owned()
}
