//! The models of a Rust crate as a shared library with the C interface ([`export_models!`](crate::export_models)).

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::abi::{
    self, CAccess, CBatch, CEventKind, CHost, CLibrary, CModel, CParameter, CReference, CRequest,
    CSet, CShape,
};
use crate::{
    Access, Answered, Batch, CacheAnswer, CacheShape, Context, Failure, Kind, MemRef,
    MemoryLatency, MemoryRequest, Model, NodeShape, Observed, Observer, Prefetcher, Privilege,
    ReferenceTiming, Replacement, SetState, Site, Source, VcpuPlace,
};

/// Makes the crate a shared library of these models. The crate needs `crate-type = ["cdylib"]`.
///
/// ```
/// use nodescope_plugin_api::{Declaration, MemoryLatency, MemoryRequest, Latency, Model};
///
/// struct Flat;
///
/// impl MemoryLatency for Flat {
///     fn request(&mut self, _: &MemoryRequest) -> Latency {
///         Latency { cycles: 80, event: None }
///     }
/// }
///
/// fn flat() -> Model {
///     let declaration = Declaration { name: "flat", line: "Memory of 80 cycles.", ..Declaration::DEFAULT };
///     Model::memory(declaration, |_node, _values| Ok(Box::new(Flat)))
/// }
///
/// nodescope_plugin_api::export_models![flat()];
/// ```
#[macro_export]
macro_rules! export_models {
    ($($model:expr),+ $(,)?) => {
        /// Gives the models of this library to nodescope.
        ///
        /// # Safety
        /// `host` points to a `nodescope_host` that stays valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn nodescope_models(
            host: *const $crate::abi::CHost,
        ) -> *const $crate::abi::CLibrary {
            // SAFETY: the caller's promise.
            unsafe { $crate::export::library(host, || vec![$($model),+]) }
        }
    };
}

/// `nodescope_host.fail`.
static FAIL: OnceLock<unsafe extern "C" fn(*const c_char)> = OnceLock::new();

/// Tells the host why a model cannot go on.
fn fail(why: &str) {
    let text = CString::new(why.replace('\0', " ")).unwrap_or_default();
    if let Some(fail) = FAIL.get() {
        // SAFETY: the host's function takes a text that ends with zero.
        unsafe { fail(text.as_ptr()) };
    }
}

/// Returns the C form of models. Null if a model cannot be described.
///
/// # Safety
/// `host` points to a `nodescope_host` that stays valid.
pub unsafe fn library(host: *const CHost, models: impl FnOnce() -> Vec<Model>) -> *const CLibrary {
    // SAFETY: the caller's promise.
    if let Some(given) = unsafe { host.as_ref() }.and_then(|host| host.fail) {
        FAIL.get_or_init(|| given);
    }
    let described = std::panic::catch_unwind(std::panic::AssertUnwindSafe(models));
    let Ok(models) = described else {
        return std::ptr::null();
    };
    let models: Vec<*const CModel> = models.into_iter().map(describe).collect();
    let models = models.leak();
    Box::leak(Box::new(CLibrary {
        size: size_of::<CLibrary>(),
        version: abi::VERSION,
        reserved: 0,
        models: models.as_ptr(),
        model_count: models.len(),
    }))
}

/// Returns a text that ends with zero, for as long as the process.
fn text(text: &str) -> *const c_char {
    CString::new(text).unwrap_or_default().into_raw()
}

fn describe(model: Model) -> *const CModel {
    let declaration = *model.declaration();
    let parameters: Vec<CParameter> = (declaration.parameters.iter())
        .map(|parameter| CParameter {
            size: size_of::<CParameter>(),
            name: text(parameter.name),
            line: text(parameter.line),
            default: parameter.default,
            least: parameter.least,
            most: parameter.most,
            unit: parameter.unit as u32,
            reserved: 0,
        })
        .collect();
    let events: Vec<CEventKind> = (declaration.events.iter())
        .map(|event| CEventKind {
            size: size_of::<CEventKind>(),
            name: text(event.name),
            line: text(event.line),
        })
        .collect();
    let (parameters, events) = (parameters.leak(), events.leak());
    let kind = declaration.kind;
    let is = |wanted| kind == wanted;
    let needs = declaration.needs;
    let bit = |set, bit| if set { bit } else { 0 };
    Box::leak(Box::new(CModel {
        size: size_of::<CModel>(),
        name: text(declaration.name),
        line: text(declaration.line),
        parameters: parameters.as_ptr(),
        parameter_count: parameters.len(),
        events: events.as_ptr(),
        event_count: events.len(),
        kind: kind as u32,
        needs: bit(needs.every_reference, abi::EVERY_REFERENCE)
            | bit(needs.page_sizes, abi::PAGE_SIZES),
        model_data: Box::into_raw(Box::new(model)).cast(),
        make: Some(make),
        drop: Some(match kind {
            Kind::References => drop_instance::<dyn ReferenceTiming>,
            Kind::Memory => drop_instance::<dyn MemoryLatency>,
            Kind::Replacement => drop_instance::<dyn Replacement>,
            Kind::Prefetcher => drop_instance::<dyn Prefetcher>,
            Kind::Observer | Kind::Core => drop_instance::<dyn Observer>,
        }),
        observe: is(Kind::Observer).then_some(observe),
        file: is(Kind::Observer).then_some(file),
        reference: is(Kind::References).then_some(reference),
        request: is(Kind::Memory).then_some(request),
        hit: is(Kind::Replacement).then_some(hit),
        insert: is(Kind::Replacement).then_some(insert),
        victim: is(Kind::Replacement).then_some(victim),
        remove: is(Kind::Replacement).then_some(remove),
        empty_way: is(Kind::Replacement).then_some(empty_way),
        settled: is(Kind::Replacement).then_some(settled),
        prefetch: is(Kind::Prefetcher).then_some(prefetch),
    }))
}

/// What an instance's userdata points to.
struct Instance<T: ?Sized> {
    model: Box<T>,
    failure: Failure,
    events: usize,
    wanted: Vec<u64>,
    file: Vec<u8>,
}

impl<T: ?Sized> Instance<T> {
    /// Calls the instance, and tells the host if the instance cannot go on.
    fn call<A>(&mut self, call: impl FnOnce(&mut T) -> A) -> A {
        let answer = call(&mut self.model);
        if let Some(why) = self.failure.why() {
            fail(why);
        }
        answer
    }
}

/// # Safety
/// `userdata` is that of an instance of this kind, and nothing else uses the instance.
unsafe fn instance<'a, T: ?Sized>(userdata: *mut c_void) -> &'a mut Instance<T> {
    // SAFETY: the caller's promise.
    unsafe { &mut *userdata.cast::<Instance<T>>() }
}

/// # Safety
/// As for `nodescope_model.make`, for a model of [`describe`].
unsafe extern "C" fn make(
    data: *mut c_void,
    shape: *const CShape,
    values: *const u64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let (model, shape) = unsafe { (&*data.cast::<Model>(), &*shape) };
    let declaration = model.declaration();
    let values = match declaration.parameters.len() {
        0 => &[],
        // SAFETY: the caller gives a value for each parameter.
        count => unsafe { std::slice::from_raw_parts(values, count) },
    };
    let vcpus = match shape.vcpu_count {
        0 => &[],
        // SAFETY: the caller's promise.
        count => unsafe { std::slice::from_raw_parts(shape.vcpus, count) },
    };
    let vcpus = vcpus.iter().map(|vcpu| VcpuPlace {
        core: vcpu.core,
        socket: vcpu.socket,
    });
    let node = NodeShape {
        vcpus: vcpus.collect(),
        hertz: shape.hertz,
        line_bytes: shape.line_bytes,
    };
    let cache = CacheShape {
        level: shape.level as u8,
        sets: shape.sets,
        ways: shape.ways,
        line_bytes: shape.line_bytes,
    };
    let failure = Failure::default();
    let events = declaration.events.len();
    let made = match declaration.kind {
        Kind::Observer => boxed(
            model.make_observer(&node, values, &failure),
            &failure,
            events,
        ),
        Kind::References => boxed(
            model.make_references(&node, values, &failure),
            &failure,
            events,
        ),
        Kind::Memory => boxed(model.make_memory(&node, values, &failure), &failure, events),
        Kind::Replacement => boxed(
            model.make_replacement(&cache, values, &failure),
            &failure,
            events,
        ),
        Kind::Prefetcher => boxed(
            model.make_prefetcher(&cache, values, &failure),
            &failure,
            events,
        ),
        Kind::Core => Err("is of a kind that no library has".to_owned()),
    };
    made.unwrap_or_else(|why| {
        let prefix = format!("model {:?} ", declaration.name);
        fail(why.strip_prefix(&prefix).unwrap_or(&why));
        std::ptr::null_mut()
    })
}

fn boxed<T: ?Sized>(
    model: Result<Box<T>, String>,
    failure: &Failure,
    events: usize,
) -> Result<*mut c_void, String> {
    let instance = Instance {
        model: model?,
        failure: failure.clone(),
        events,
        wanted: Vec::new(),
        file: Vec::new(),
    };
    Ok(Box::into_raw(Box::new(instance)).cast())
}

/// # Safety
/// As for `nodescope_model.drop`.
unsafe extern "C" fn drop_instance<T: ?Sized>(userdata: *mut c_void) {
    // SAFETY: the caller's promise; `make` has made the box.
    drop(unsafe { Box::from_raw(userdata.cast::<Instance<T>>()) });
}

/// # Safety
/// As for `nodescope_model.observe`.
unsafe extern "C" fn observe(userdata: *mut c_void, batch: *const CBatch, counts: *mut u64) {
    // SAFETY: the caller's promises.
    let (instance, batch) = unsafe { (instance::<dyn Observer>(userdata), &*batch) };
    let events = match batch.count {
        0 => &[],
        // SAFETY: the caller's promise.
        count => unsafe { std::slice::from_raw_parts(batch.events, count) },
    };
    // SAFETY: the caller gives a count for each event that the model declares, which are some.
    let counts = unsafe { std::slice::from_raw_parts_mut(counts, instance.events) };
    let batch = Batch {
        vcpu: batch.vcpu,
        context: Context(batch.context),
        privilege: privilege(batch.kernel),
        line_bytes: batch.line_bytes,
        clock: batch.clock,
        events,
    };
    instance.call(|model| model.observe(&batch, counts));
}

/// # Safety
/// As for `nodescope_model.file`.
unsafe extern "C" fn file(userdata: *mut c_void, bytes: *mut *const u8) -> usize {
    // SAFETY: the caller's promise.
    let instance = unsafe { instance::<dyn Observer>(userdata) };
    instance.file = instance.call(|model| model.file());
    // SAFETY: the caller's promise.
    unsafe { *bytes = instance.file.as_ptr() };
    instance.file.len()
}

fn privilege(kernel: u8) -> Privilege {
    match kernel {
        0 => Privilege::User,
        _ => Privilege::Kernel,
    }
}

fn access(number: u8) -> Access {
    let all = [Access::Read, Access::Write, Access::Fetch];
    all[usize::from(number).min(2)]
}

/// # Safety
/// As for `nodescope_model.reference`.
unsafe extern "C" fn reference(
    userdata: *mut c_void,
    of: *const CReference,
    event: *mut u32,
) -> u32 {
    // SAFETY: the caller's promises.
    let (instance, of) = unsafe { (instance::<dyn ReferenceTiming>(userdata), &*of) };
    let reference = MemRef {
        vcpu: of.vcpu,
        privilege: privilege(of.kernel),
        access: access(of.access),
        context: Context(of.context),
        physical: of.physical,
        linear: of.linear,
        size: of.bytes,
        now: of.now,
        site: Site {
            block: of.block,
            operation: of.operation,
        },
        non_temporal: of.non_temporal != 0,
        locked: of.locked != 0,
        large_page: of.large_page != 0,
    };
    let answered = Answered {
        source: Source::ALL
            .get(usize::from(of.answer).wrapping_sub(1))
            .copied(),
        stall: of.stall,
    };
    match instance.call(|model| model.reference(&reference, answered)) {
        Some(extra) => {
            // SAFETY: the caller's promise.
            unsafe { *event = extra.event.into() };
            extra.cycles
        }
        None => 0,
    }
}

/// # Safety
/// As for `nodescope_model.request`.
unsafe extern "C" fn request(userdata: *mut c_void, of: *const CRequest, event: *mut u32) -> u32 {
    // SAFETY: the caller's promises.
    let (instance, of) = unsafe { (instance::<dyn MemoryLatency>(userdata), &*of) };
    let latency = instance.call(|model| {
        model.request(&MemoryRequest {
            line: of.line,
            now: of.now,
            vcpu: of.vcpu,
            socket: of.socket,
            home: of.home,
            write_back: of.write_back != 0,
        })
    });
    if let Some(counted) = latency.event {
        // SAFETY: the caller's promise.
        unsafe { *event = counted.into() };
    }
    latency.cycles
}

/// # Safety
/// `set` is valid, and so are its bits, which nothing else uses.
unsafe fn set_state<'a>(set: *const CSet) -> SetState<'a> {
    // SAFETY: the caller's promises.
    let set = unsafe { &*set };
    SetState {
        number: set.number,
        ways: set.ways,
        // SAFETY: as above.
        bits: unsafe { &mut *set.bits },
    }
}

/// # Safety
/// As for `nodescope_model.hit`.
unsafe extern "C" fn hit(userdata: *mut c_void, set: *const CSet, way: u32) {
    // SAFETY: the caller's promises.
    let (instance, set) = unsafe { (instance::<dyn Replacement>(userdata), set_state(set)) };
    instance.call(|model| model.hit(set, way));
}

/// # Safety
/// As for `nodescope_model.insert`.
unsafe extern "C" fn insert(userdata: *mut c_void, set: *const CSet, way: u32) {
    // SAFETY: the caller's promises.
    let (instance, set) = unsafe { (instance::<dyn Replacement>(userdata), set_state(set)) };
    instance.call(|model| model.insert(set, way));
}

/// # Safety
/// As for `nodescope_model.victim`.
unsafe extern "C" fn victim(userdata: *mut c_void, set: *const CSet) -> u32 {
    // SAFETY: the caller's promises.
    let (instance, set) = unsafe { (instance::<dyn Replacement>(userdata), set_state(set)) };
    instance.call(|model| model.victim(set))
}

/// # Safety
/// As for `nodescope_model.remove`.
unsafe extern "C" fn remove(userdata: *mut c_void, set: *const CSet, way: u32) {
    // SAFETY: the caller's promises.
    let (instance, set) = unsafe { (instance::<dyn Replacement>(userdata), set_state(set)) };
    instance.call(|model| model.remove(set, way));
}

/// # Safety
/// As for `nodescope_model.empty_way`.
unsafe extern "C" fn empty_way(userdata: *mut c_void, empty: u64) -> u32 {
    // SAFETY: the caller's promise.
    let instance = unsafe { instance::<dyn Replacement>(userdata) };
    instance.call(|model| model.empty_way(empty))
}

/// # Safety
/// As for `nodescope_model.settled`.
unsafe extern "C" fn settled(userdata: *mut c_void, set: *const CSet, way: u32) -> c_int {
    // SAFETY: the caller's promises.
    let (instance, set) = unsafe { (instance::<dyn Replacement>(userdata), set_state(set)) };
    instance.call(|model| model.settled(set, way)).into()
}

/// # Safety
/// As for `nodescope_model.prefetch`.
unsafe extern "C" fn prefetch(
    userdata: *mut c_void,
    of: *const CAccess,
    wanted: *mut u64,
    most: usize,
) -> usize {
    // SAFETY: the caller's promises.
    let (instance, of) = unsafe { (instance::<dyn Prefetcher>(userdata), &*of) };
    let answers = [
        CacheAnswer::Hit,
        CacheAnswer::PrefetchedHit,
        CacheAnswer::Miss,
    ];
    let observed = Observed {
        line: of.line,
        site: Site {
            block: of.block,
            operation: of.operation,
        },
        access: access(of.access),
        answer: answers[usize::from(of.answer).min(2)],
    };
    let mut lines = std::mem::take(&mut instance.wanted);
    lines.clear();
    instance.call(|model| model.observe(&observed, &mut lines));
    let count = lines.len().min(most);
    // SAFETY: the caller has room for `most` lines.
    unsafe { std::ptr::copy_nonoverlapping(lines.as_ptr(), wanted, count) };
    instance.wanted = lines;
    count
}
