//! Models of a shared library behind the traits of models.

use std::ffi::c_void;
use std::fmt;
use std::panic::panic_any;
use std::ptr::null_mut;

use nodescope_plugin_api::abi::{
    CAccess, CBatch, CModel, CReference, CRequest, CSet, CShape, CVcpu, NO_EVENT,
};
use nodescope_plugin_api::{
    Answered, Batch, CacheShape, Extra, Latency, MOST_FILE_BYTES, MOST_WANTED, MemRef,
    MemoryLatency, MemoryRequest, Misbehaviour, NodeShape, Observed, Observer, Prefetcher,
    ReferenceTiming, Replacement, SetState, Values,
};

use crate::guard;

/// Functions of a model of a library, which stays loaded for as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Functions(pub(crate) CModel);

// SAFETY: the header demands that instances of several threads do not disturb each other.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl Functions {
    pub(crate) fn of_node(self, node: &NodeShape, values: Values<'_>) -> Result<Instance, String> {
        let vcpus: Vec<CVcpu> = node.vcpus.iter().map(|place| (*place).into()).collect();
        self.make(&CShape::of_node(node, &vcpus), values)
    }

    pub(crate) fn of_cache(
        self,
        cache: &CacheShape,
        values: Values<'_>,
    ) -> Result<Instance, String> {
        self.make(&CShape::of_cache(cache), values)
    }

    fn make(self, shape: &CShape, values: Values<'_>) -> Result<Instance, String> {
        guard::watch_calls();
        let model = self.0;
        let make = model.make.ok_or("has no function make")?;
        let values = values.all().as_ptr();
        // SAFETY: the library's promise: the function takes what the header says.
        let userdata = guard::run(|| unsafe { make(model.model_data, shape, values) })?;
        Ok(Instance { model, userdata })
    }
}

/// An instance of a model.
pub(crate) struct Instance {
    model: CModel,
    userdata: *mut c_void,
}

// SAFETY: the header demands that an instance may be called by any thread, one at a time.
unsafe impl Send for Instance {}

/// Runs a function of a library. Where the function does not return, ends the call of the model by a panic that its container catches.
fn call<T>(code: impl FnOnce() -> T) -> T {
    guard::run(code).unwrap_or_else(|why| panic_any(Misbehaviour(why)))
}

/// Returns a function of a model. The library was checked for the functions of its models' kinds.
fn known<T>(function: Option<T>) -> T {
    function.unwrap_or_else(|| panic_any(Misbehaviour("lacks a function of its kind".into())))
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(drop) = self.model.drop {
            let userdata = std::mem::replace(&mut self.userdata, null_mut());
            // SAFETY: the library's promise; the instance is not used after this.
            call(|| unsafe { drop(userdata) });
        }
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("instance of a library")
    }
}

impl Observer for Instance {
    fn observe(&mut self, batch: &Batch<'_>, counts: &mut [u64]) {
        let (observe, userdata) = (known(self.model.observe), self.userdata);
        let batch = CBatch::new(batch);
        // SAFETY: the library's promise; there is a count for each event that the model declares.
        call(|| unsafe { observe(userdata, &raw const batch, counts.as_mut_ptr()) });
    }

    fn file(&mut self) -> Vec<u8> {
        let Some(file) = self.model.file else {
            return Vec::new();
        };
        let mut bytes: *const u8 = std::ptr::null();
        // SAFETY: the library's promise.
        let size = call(|| unsafe { file(self.userdata, &raw mut bytes) });
        if size == 0 || bytes.is_null() {
            return Vec::new();
        }
        if size > MOST_FILE_BYTES {
            panic_any(Misbehaviour(format!(
                "has a file of {size} bytes; {MOST_FILE_BYTES} at most"
            )));
        }
        // SAFETY: the library's promise: there are so many bytes. A copy that strikes memory that is not there ends as a call does.
        call(|| unsafe { std::slice::from_raw_parts(bytes, size) }.to_vec())
    }
}

impl ReferenceTiming for Instance {
    fn reference(&mut self, reference: &MemRef, answered: Answered) -> Option<Extra> {
        let (function, userdata) = (known(self.model.reference), self.userdata);
        let reference = CReference::new(reference, answered);
        let mut event = NO_EVENT;
        // SAFETY: the library's promise.
        let cycles = call(|| unsafe { function(userdata, &raw const reference, &raw mut event) });
        match event {
            NO_EVENT if cycles == 0 => None,
            NO_EVENT => panic_any(Misbehaviour(format!("adds {cycles} cycles to no event"))),
            event => Some(Extra {
                event: u16::try_from(event).unwrap_or(u16::MAX),
                cycles,
            }),
        }
    }
}

impl MemoryLatency for Instance {
    fn request(&mut self, request: &MemoryRequest) -> Latency {
        let (function, userdata) = (known(self.model.request), self.userdata);
        let request = CRequest::new(request);
        let mut event = NO_EVENT;
        // SAFETY: the library's promise.
        let cycles = call(|| unsafe { function(userdata, &raw const request, &raw mut event) });
        let counted = (event != NO_EVENT).then(|| u16::try_from(event).unwrap_or(u16::MAX));
        Latency {
            cycles,
            event: counted,
        }
    }
}

fn c_set(set: SetState<'_>) -> CSet {
    CSet {
        size: size_of::<CSet>(),
        bits: set.bits,
        number: set.number,
        ways: set.ways,
    }
}

impl Replacement for Instance {
    fn hit(&mut self, set: SetState<'_>, way: u32) {
        let (hit, userdata, set) = (known(self.model.hit), self.userdata, c_set(set));
        // SAFETY: the library's promise.
        call(|| unsafe { hit(userdata, &raw const set, way) });
    }

    fn insert(&mut self, set: SetState<'_>, way: u32) {
        let (insert, userdata, set) = (known(self.model.insert), self.userdata, c_set(set));
        // SAFETY: the library's promise.
        call(|| unsafe { insert(userdata, &raw const set, way) });
    }

    fn victim(&mut self, set: SetState<'_>) -> u32 {
        let (victim, userdata, set) = (known(self.model.victim), self.userdata, c_set(set));
        // SAFETY: the library's promise.
        call(|| unsafe { victim(userdata, &raw const set) })
    }

    fn remove(&mut self, set: SetState<'_>, way: u32) {
        if let Some(remove) = self.model.remove {
            let (userdata, set) = (self.userdata, c_set(set));
            // SAFETY: the library's promise.
            call(|| unsafe { remove(userdata, &raw const set, way) });
        }
    }

    fn empty_way(&self, empty: u64) -> u32 {
        match self.model.empty_way {
            // SAFETY: the library's promise.
            Some(choose) => call(|| unsafe { choose(self.userdata, empty) }),
            None => empty.trailing_zeros(),
        }
    }

    fn settled(&self, set: SetState<'_>, way: u32) -> bool {
        let Some(settled) = self.model.settled else {
            return false;
        };
        let set = c_set(set);
        // SAFETY: the library's promise.
        call(|| unsafe { settled(self.userdata, &raw const set, way) }) != 0
    }
}

impl Prefetcher for Instance {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        let (prefetch, userdata) = (known(self.model.prefetch), self.userdata);
        let access = CAccess::new(access);
        let before = wanted.len();
        wanted.resize(before + MOST_WANTED, 0);
        let room = wanted[before..].as_mut_ptr();
        // SAFETY: the library's promise; there is room for so many lines.
        let count = call(|| unsafe { prefetch(userdata, &raw const access, room, MOST_WANTED) });
        if count > MOST_WANTED {
            wanted.truncate(before);
            panic_any(Misbehaviour(format!(
                "asks for {count} lines upon one access; {MOST_WANTED} at most"
            )));
        }
        wanted.truncate(before + count);
    }
}
