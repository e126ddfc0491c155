//! Direct misses: a function of a model that generated code calls for a miss of the first level, past the platform.
//!
//! Generated code passes pointers on without a check, so only unsafe code may make or accept such a function. A model promises with
//! [`DirectMisses::new`] that the function is sound. The platform controls for how long vCPUs run with a model, and makes its promise with
//! [`DirectMisses::accept`]. An engine uses the resulting [`AcceptedDirectMisses`].

use std::ptr::NonNull;

use crate::{Charges, MemRef, Outcome};

/// A miss of a vCPU's first level, as generated code describes it to a [`DirectMissFunction`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DirectMiss {
    /// The reference, whose line the first level does not hold.
    pub reference: MemRef,
    /// The line that leaves the set if the set is still full ([`crate::Hits::oldest`]).
    pub oldest: u64,
    /// First of the lines of [`crate::Hits::modified`].
    pub modified: *const u64,
    /// Number of the lines of [`crate::Hits::modified`].
    pub modified_count: u64,
    /// Charges to which the function adds those of the reference. The added cycles are the answer's stall: cycles without a term are
    /// [`crate::StallTerm::Unattributed`]. Null where the engine does not attribute costs to code.
    pub charges: *mut Charges,
}

/// Function with the effect of [`crate::MemoryModel::reference`] for a miss. The model keeps the changes to L0 filter caches, and the
/// answer tells of them ([`Outcome::has_updates`]). The function may compute with floating-point numbers: MXCSR has the host's value.
///
/// # Safety
/// The first argument is [`AcceptedDirectMisses::model`] of this function. The pointers of the miss are valid while the function runs:
/// `modified` for reads of `modified_count` lines, and `charges`, unless it is null, for reads and writes.
pub type DirectMissFunction =
    unsafe extern "sysv64" fn(model: NonNull<()>, miss: *const DirectMiss) -> Outcome;

/// A model's function for direct misses ([`crate::MemoryModel::direct_misses`]).
#[derive(Clone, Copy, Debug)]
pub struct DirectMisses {
    function: DirectMissFunction,
    model: NonNull<()>,
}

impl DirectMisses {
    /// Makes the value.
    ///
    /// # Safety
    /// `function` may be called with `model` as [`DirectMissFunction`] describes, as long as the model exists and is not moved, whenever
    /// none of its other functions runs.
    pub unsafe fn new(model: NonNull<()>, function: DirectMissFunction) -> Self {
        Self { function, model }
    }

    /// Accepts the function on behalf of an engine.
    ///
    /// # Safety
    /// Until the vCPU is attached anew or detached, and whenever the vCPU runs: the model exists, is not moved, and is used only by the
    /// platform's functions that this vCPU calls.
    pub unsafe fn accept(self) -> AcceptedDirectMisses {
        AcceptedDirectMisses(self)
    }
}

/// Function for direct misses that generated code may call, for as long as the caller of [`DirectMisses::accept`] promised.
#[derive(Clone, Copy, Debug)]
pub struct AcceptedDirectMisses(DirectMisses);

impl AcceptedDirectMisses {
    /// Serves a direct miss for a model that lies between this one and the engine. Returns the answer, and its charges, which are added to
    /// those of the miss as well.
    ///
    /// # Safety
    /// As for [`DirectMissFunction`], and as the caller of [`DirectMisses::accept`] promised.
    pub unsafe fn serve(&self, miss: &DirectMiss) -> (Outcome, Charges) {
        let mut charges = Charges::default();
        let of_model = DirectMiss {
            charges: &raw mut charges,
            ..*miss
        };
        // SAFETY: the caller's promise; `charges` lives as long as the call.
        let outcome = unsafe { (self.0.function)(self.0.model, &raw const of_model) };
        // SAFETY: the caller's promise.
        if let Some(target) = unsafe { miss.charges.as_mut() } {
            target.add(&charges);
        }
        (outcome, charges)
    }

    /// Returns the function.
    pub fn function(&self) -> DirectMissFunction {
        self.0.function
    }

    /// Returns the function's first argument.
    pub fn model(&self) -> NonNull<()> {
        self.0.model
    }
}
