//! Models in shared libraries with the C interface of `plugins/api/include/nodescope_models.h`.
//!
//! A library is code of this process: [`load`] runs it, and so does each call of its models. A call that goes wrong ends the study with the
//! model's name, and with all results so far (`guard.rs`). A library that writes over memory of the process is not held back.

mod bound;
mod guard;

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use libloading::Library;
use nodescope_plugin_api::abi::{
    self, CEventKind, CHost, CLibrary, CModel, CParameter, EVERY_REFERENCE, Entry, PAGE_SIZES,
};
use nodescope_plugin_api::{
    Declaration, EventKind, Kind, MOST_EVENTS, MOST_PARAMETERS, Model, Needs, Parameter,
    STREAM_VERSION, Unit,
};

use bound::Functions;

/// Reason why a library of models cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The system cannot load the file.
    #[error("cannot load {}: {cause}", .library.display())]
    Load {
        /// Path of the library.
        library: PathBuf,
        /// Error of the system.
        cause: libloading::Error,
    },
    /// The library has another version of the interface.
    #[error(
        "{} has version {version} of the interface of models; this program has version {}: build it with this program's nodescope_models.h",
        .library.display(), abi::VERSION
    )]
    Version {
        /// Path of the library.
        library: PathBuf,
        /// Version that the library has.
        version: u32,
    },
    /// What the library says of itself means nothing.
    #[error("{} describes its models wrongly: {what}", .library.display())]
    Description {
        /// Path of the library.
        library: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// Most models of a library.
const MOST_MODELS: usize = 256;

static HOST: CHost = CHost {
    size: size_of::<CHost>(),
    version: abi::VERSION,
    reserved: 0,
    fail: Some(guard::fail),
    capability: Some(capability),
};

/// # Safety
/// `name` is null or a text that ends with zero.
unsafe extern "C" fn capability(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"stream" => STREAM_VERSION.into(),
        b"kinds" => Kind::ALL.len() as u64,
        _ => 0,
    }
}

/// Loads a library, which stays loaded, and returns its models.
pub fn load(path: &Path) -> Result<Vec<Model>, LibraryError> {
    let failed = |cause| LibraryError::Load {
        library: path.into(),
        cause,
    };
    let wrong = |what: String| LibraryError::Description {
        library: path.into(),
        what,
    };
    // A name without a slash would be searched for in the system's folders.
    let file = path.canonicalize().unwrap_or_else(|_| path.into());
    // SAFETY: the user names a library whose code this process is to run.
    let library = unsafe { Library::new(&file) }.map_err(failed)?;
    // SAFETY: the header gives the function its type.
    let entry: Entry = *unsafe { library.get(abi::ENTRY.as_bytes()) }.map_err(failed)?;
    std::mem::forget(library);
    // SAFETY: the host's description is static.
    let described = guard::run(|| unsafe { entry(&raw const HOST) })
        .map_err(|why| wrong(format!("nodescope_models() {why}")))?;
    // SAFETY: the library's promise: null, or a description that stays valid.
    let described: CLibrary = unsafe { read(described) }
        .ok_or_else(|| wrong("nodescope_models() returns NULL".into()))?;
    if described.version != abi::VERSION {
        return Err(LibraryError::Version {
            library: path.into(),
            version: described.version,
        });
    }
    let count = described.model_count;
    if described.models.is_null() || !(1..=MOST_MODELS).contains(&count) {
        return Err(wrong(format!(
            "it has {count} models; 1 to {MOST_MODELS} are possible"
        )));
    }
    // SAFETY: the library's promise.
    let models = unsafe { std::slice::from_raw_parts(described.models, count) };
    models
        .iter()
        .enumerate()
        .map(|(index, &model)| {
            // SAFETY: the library's promise.
            let model = unsafe { model_of(model) };
            let model = model.map_err(|what| wrong(format!("models[{index}]: {what}")))?;
            Ok(model.from(path.display().to_string()))
        })
        .collect()
}

/// Structure that begins with its size, which is at most that of this program's header. Its other bytes may be zero.
///
/// # Safety
/// A value of zeros is valid, and the first field is the size as a `usize`.
unsafe trait Structure: Copy {}
// SAFETY: pointers, numbers and optional functions, after the size.
unsafe impl Structure for CLibrary {}
// SAFETY: as above.
unsafe impl Structure for CModel {}
// SAFETY: as above.
unsafe impl Structure for CParameter {}
// SAFETY: as above.
unsafe impl Structure for CEventKind {}

/// Reads a structure of a library, whose header may have fewer or more fields. `None` for a null pointer.
///
/// # Safety
/// The pointer is null, or that of a structure with as many bytes as its first field says.
unsafe fn read<T: Structure>(from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let size = unsafe { from.cast::<usize>().read_unaligned() }.min(size_of::<T>());
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both have so many bytes, and zeros are valid for the rest.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast(), size);
        Some(value.assume_init())
    }
}

/// Returns the elements of a list whose elements begin with their size, by which they follow each other.
///
/// # Safety
/// As for [`read`], for each element.
unsafe fn list<T: Structure>(first: *const T, count: usize) -> Result<Vec<T>, String> {
    let mut at = first.cast::<u8>();
    let mut elements = Vec::new();
    for index in 0..count {
        // SAFETY: the caller's promise.
        let element = unsafe { read(at.cast::<T>()) };
        elements.push(element.ok_or_else(|| format!("element {index} of a list is NULL"))?);
        // SAFETY: the element is there.
        let size = unsafe { at.cast::<usize>().read_unaligned() };
        // SAFETY: one past an element.
        at = unsafe { at.add(size) };
    }
    Ok(elements)
}

/// Returns a text for as long as the process.
///
/// # Safety
/// The pointer is null or that of a text that ends with zero.
unsafe fn text(from: *const c_char, what: &str) -> Result<&'static str, String> {
    if from.is_null() {
        return Err(format!("{what} is NULL"));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(from) }.to_str();
    let text = text.map_err(|_| format!("{what} is not UTF-8"))?;
    Ok(Box::leak(text.into()))
}

/// # Safety
/// The pointer is null or that of a model that stays valid.
unsafe fn model_of(from: *const CModel) -> Result<Model, String> {
    // SAFETY: the caller's promise, for all that the model points to as well.
    let model = unsafe { read(from) }.ok_or("is NULL")?;
    // SAFETY: as above.
    let name = unsafe { text(model.name, "name") }?;
    let in_model = |what: String| format!("model {name:?}: {what}");
    // SAFETY: as above.
    let line = unsafe { text(model.line, "line") }.map_err(in_model)?;
    let kind = Kind::ALL.get(model.kind as usize).copied();
    let kind = kind.ok_or_else(|| in_model(format!("kind is {}", model.kind)))?;
    for (what, count, most) in [
        ("parameters", model.parameter_count, MOST_PARAMETERS),
        ("events", model.event_count, MOST_EVENTS),
    ] {
        if count > most {
            return Err(in_model(format!("has {count} {what}; {most} at most")));
        }
    }
    // SAFETY: as above.
    let parameters = unsafe { list(model.parameters, model.parameter_count) }.map_err(in_model)?;
    // SAFETY: as above.
    let events = unsafe { list(model.events, model.event_count) }.map_err(in_model)?;
    let parameters = parameters.iter().map(|parameter| {
        let unit = Unit::ALL.get(parameter.unit as usize).copied();
        Ok(Parameter {
            // SAFETY: as above.
            name: unsafe { text(parameter.name, "a parameter's name") }?,
            // SAFETY: as above.
            line: unsafe { text(parameter.line, "a parameter's line") }?,
            unit: unit.ok_or_else(|| format!("a parameter's unit is {}", parameter.unit))?,
            default: parameter.default,
            least: parameter.least,
            most: parameter.most,
        })
    });
    let parameters: Result<Vec<_>, String> = parameters.collect();
    let events = events.iter().map(|event| {
        Ok(EventKind {
            // SAFETY: as above.
            name: unsafe { text(event.name, "an event's name") }?,
            // SAFETY: as above.
            line: unsafe { text(event.line, "an event's line") }?,
        })
    });
    let events: Result<Vec<_>, String> = events.collect();
    let declaration = Declaration {
        name,
        line,
        kind,
        needs: Needs {
            every_reference: model.needs & EVERY_REFERENCE != 0,
            page_sizes: model.needs & PAGE_SIZES != 0,
        },
        parameters: parameters.map_err(in_model)?.leak(),
        events: events.map_err(in_model)?.leak(),
    };
    if let Some(missing) = missing(&model, kind) {
        return Err(in_model(format!(
            "a {} lacks the function {missing}",
            kind.name()
        )));
    }
    if let Some(fault) = declaration.fault() {
        return Err(in_model(fault));
    }
    let functions = Functions(model);
    Ok(match kind {
        Kind::Observer => Model::observer(declaration, move |node, values| {
            functions
                .of_node(node, values)
                .map(|made| Box::new(made) as _)
        }),
        Kind::References => Model::references(declaration, move |node, values| {
            functions
                .of_node(node, values)
                .map(|made| Box::new(made) as _)
        }),
        Kind::Memory => Model::memory(declaration, move |node, values| {
            functions
                .of_node(node, values)
                .map(|made| Box::new(made) as _)
        }),
        Kind::Replacement => Model::replacement(declaration, move |cache, values| {
            functions
                .of_cache(cache, values)
                .map(|made| Box::new(made) as _)
        }),
        Kind::Prefetcher => Model::prefetcher(declaration, move |cache, values| {
            functions
                .of_cache(cache, values)
                .map(|made| Box::new(made) as _)
        }),
        Kind::Core => return Err(in_model("is of a kind that no library has".into())),
    })
}

/// Returns a function that a model of a kind must have, and that this model lacks.
fn missing(model: &CModel, kind: Kind) -> Option<&'static str> {
    let needed: &[(&str, bool)] = match kind {
        Kind::Observer => &[("observe", model.observe.is_some())],
        Kind::References => &[("reference", model.reference.is_some())],
        Kind::Memory => &[("request", model.request.is_some())],
        Kind::Replacement => &[
            ("hit", model.hit.is_some()),
            ("insert", model.insert.is_some()),
            ("victim", model.victim.is_some()),
        ],
        Kind::Prefetcher => &[("prefetch", model.prefetch.is_some())],
        Kind::Core => &[],
    };
    let make = ("make", model.make.is_some());
    let mut all = std::iter::once(&make).chain(needed);
    all.find(|(_, there)| !there).map(|(name, _)| *name)
}
