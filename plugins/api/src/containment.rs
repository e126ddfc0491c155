//! What a model of somebody else may do wrong without harm: it may panic, or give an answer that means nothing. The first failure is kept,
//! the model is not called again, and the run ends in order.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once, OnceLock};

use crate::{
    Answered, Batch, Declaration, Extra, Latency, MOST_FILE_BYTES, MemRef, MemoryLatency,
    MemoryRequest, Observed, Observer, Prefetcher, ReferenceTiming, Replacement, SetState,
};

/// Most lines that a prefetcher asks for upon one access.
pub const MOST_WANTED: usize = 512;

/// The first failure of a node's models. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Failure(Arc<OnceLock<Misbehaving>>);

#[derive(Debug)]
struct Misbehaving {
    sentence: String,
    /// Number of bytes of the model's part of the sentence.
    model: usize,
}

impl Failure {
    /// Returns the failure as a sentence that begins with the model's name.
    pub fn get(&self) -> Option<&str> {
        self.0.get().map(|failure| failure.sentence.as_str())
    }

    /// Returns the failure without the model's name.
    pub(crate) fn why(&self) -> Option<&str> {
        self.0
            .get()
            .map(|failure| &failure.sentence[failure.model..])
    }

    /// Keeps a failure of a model, unless there is one.
    pub fn set(&self, model: &str, why: impl fmt::Display) {
        let model = format!("model {model:?} ");
        let _ = self.0.set(Misbehaving {
            sentence: format!("{model}{why}"),
            model: model.len(),
        });
    }
}

/// Payload of a panic by which a model's binding ends a call that went wrong. The text follows the model's name.
pub struct Misbehaviour(pub String);

thread_local! {
    /// True while a model runs on this thread.
    static IN_MODEL: Cell<bool> = const { Cell::new(false) };
    /// Place of the last panic of a model.
    static PANICKED_AT: Cell<&'static str> = const { Cell::new("") };
}

/// Lets panics of models print nothing by themselves: the run's error names them.
fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| match IN_MODEL.get() {
            true => {
                let place = info.location().map(ToString::to_string);
                PANICKED_AT.set(place.unwrap_or_default().leak());
            }
            false => others(info),
        }));
    });
}

/// Runs a model's code. An error is a sentence that follows the model's name.
fn run<T>(code: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    IN_MODEL.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(code));
    IN_MODEL.set(false);
    done.unwrap_or_else(|payload| Err(reason(payload)))
}

/// Returns what a panic says, as a sentence that follows the model's name.
fn reason(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<Misbehaviour>() {
        Ok(misbehaviour) => return misbehaviour.0,
        Err(payload) => payload,
    };
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("without a text");
    let place = PANICKED_AT.get();
    let reason = format!("panicked at {place}: {text}");
    // The payload's destructor could panic once more.
    std::mem::forget(payload);
    reason
}

/// A model whose failures are kept.
pub(crate) struct Contained<T: ?Sized> {
    model: ManuallyDrop<Box<T>>,
    name: &'static str,
    events: usize,
    failure: Failure,
}

impl<T: ?Sized> Contained<T> {
    /// Makes the model. An error is a sentence with the model's name.
    pub(crate) fn new(
        declaration: &Declaration,
        failure: &Failure,
        make: impl FnOnce() -> Result<Box<T>, String>,
    ) -> Result<Self, String> {
        keep_panics_quiet();
        let name = declaration.name;
        let model = run(make).map_err(|why| format!("model {name:?} {why}"))?;
        Ok(Self {
            model: ManuallyDrop::new(model),
            name,
            events: declaration.events.len(),
            failure: failure.clone(),
        })
    }

    /// Calls the model, and returns its answer; `otherwise` once a model of the node has failed.
    #[inline]
    fn call<A>(&mut self, otherwise: A, call: impl FnOnce(&mut T) -> Result<A, String>) -> A {
        if self.failure.get().is_some() {
            return otherwise;
        }
        let model = &mut **self.model;
        let answer = run(|| call(model));
        self.kept(otherwise, answer)
    }

    /// Asks the model as [`Contained::call`] does, without changing it.
    #[inline]
    fn ask<A>(&self, otherwise: A, ask: impl FnOnce(&T) -> Result<A, String>) -> A {
        if self.failure.get().is_some() {
            return otherwise;
        }
        self.kept(otherwise, run(|| ask(&self.model)))
    }

    #[inline]
    fn kept<A>(&self, otherwise: A, answer: Result<A, String>) -> A {
        answer.unwrap_or_else(|why| {
            self.failure.set(self.name, why);
            otherwise
        })
    }
}

impl<T: ?Sized> Drop for Contained<T> {
    fn drop(&mut self) {
        // Once a model has failed, its memory may be damaged: nothing of it runs again.
        if self.failure.get().is_none() {
            let dropped = run(|| {
                // SAFETY: the model is not used after this.
                unsafe { ManuallyDrop::drop(&mut self.model) };
                Ok(())
            });
            self.kept((), dropped);
        }
    }
}

impl<T: ?Sized> fmt::Debug for Contained<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn known_event(event: u16, events: usize) -> Result<(), String> {
    match usize::from(event) < events {
        true => Ok(()),
        false => Err(format!(
            "counts event {event}, but it declares {events} events"
        )),
    }
}

fn possible(cycles: u32) -> Result<(), String> {
    match cycles <= Extra::MOST_CYCLES {
        true => Ok(()),
        false => Err(format!(
            "answers with {cycles} cycles; at most {} are modelled for one event",
            Extra::MOST_CYCLES
        )),
    }
}

impl Observer for Contained<dyn Observer> {
    fn observe(&mut self, batch: &Batch<'_>, counts: &mut [u64]) {
        self.call((), |model| {
            model.observe(batch, counts);
            Ok(())
        });
    }

    fn file(&mut self) -> Vec<u8> {
        self.call(Vec::new(), |model| match model.file() {
            bytes if bytes.len() <= MOST_FILE_BYTES => Ok(bytes),
            bytes => Err(format!(
                "has a file of {} bytes; {MOST_FILE_BYTES} at most",
                bytes.len()
            )),
        })
    }
}

impl ReferenceTiming for Contained<dyn ReferenceTiming> {
    fn reference(&mut self, reference: &MemRef, answered: Answered) -> Option<Extra> {
        let events = self.events;
        self.call(None, |model| {
            let extra = model.reference(reference, answered);
            if let Some(Extra { event, cycles }) = extra {
                known_event(event, events)?;
                possible(cycles)?;
            }
            Ok(extra)
        })
    }
}

impl MemoryLatency for Contained<dyn MemoryLatency> {
    fn request(&mut self, request: &MemoryRequest) -> Latency {
        let events = self.events;
        let otherwise = Latency {
            cycles: 0,
            event: None,
        };
        self.call(otherwise, |model| {
            let latency = model.request(request);
            possible(latency.cycles)?;
            latency
                .event
                .map_or(Ok(()), |event| known_event(event, events))?;
            Ok(latency)
        })
    }
}

impl Replacement for Contained<dyn Replacement> {
    fn hit(&mut self, set: SetState<'_>, way: u32) {
        self.call((), |model| {
            model.hit(set, way);
            Ok(())
        });
    }

    fn insert(&mut self, set: SetState<'_>, way: u32) {
        self.call((), |model| {
            model.insert(set, way);
            Ok(())
        });
    }

    fn victim(&mut self, set: SetState<'_>) -> u32 {
        let ways = set.ways;
        self.call(0, |model| match model.victim(set) {
            way if way < ways => Ok(way),
            way => Err(format!(
                "replaces the line of way {way} in a set of {ways} ways"
            )),
        })
    }

    fn remove(&mut self, set: SetState<'_>, way: u32) {
        self.call((), |model| {
            model.remove(set, way);
            Ok(())
        });
    }

    fn empty_way(&self, empty: u64) -> u32 {
        let first = empty.trailing_zeros();
        self.ask(first, |model| match model.empty_way(empty) {
            way if way < u64::BITS && empty >> way & 1 == 1 => Ok(way),
            way => Err(format!("fills way {way}, which is not empty")),
        })
    }

    fn settled(&self, set: SetState<'_>, way: u32) -> bool {
        self.ask(true, |model| Ok(model.settled(set, way)))
    }
}

impl Prefetcher for Contained<dyn Prefetcher> {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        let before = wanted.len();
        self.call((), |model| {
            model.observe(access, wanted);
            let added = wanted.get(before..).unwrap_or_default();
            if added.len() > MOST_WANTED {
                let count = added.len();
                wanted.truncate(before);
                return Err(format!(
                    "asks for {count} lines upon one access; {MOST_WANTED} at most"
                ));
            }
            Ok(())
        });
    }

    fn sees_hits(&self) -> bool {
        self.ask(false, |model| Ok(model.sees_hits()))
    }
}
