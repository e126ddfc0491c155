//! The model of the core in a window: it decides how much of each answer's latency the clock counts.

use std::ptr::NonNull;

use nodescope_plugin_api::{
    AcceptedDirectMisses, Charges, CoreModel, DirectMiss, DirectMisses, MemRef, Outcome, Source,
};

/// A model of the core between the memory model and the vCPUs. Charges keep the memory model's cycles, the sum of all latencies.
pub(crate) struct ModelledCore {
    pub(crate) model: Box<dyn CoreModel>,
    /// Charges of references that the vCPU has not taken yet.
    charges: Charges,
    /// The memory model's function for direct misses.
    misses: Option<AcceptedDirectMisses>,
}

// SAFETY: `misses` is used only by the function for direct misses, on the thread that runs the vCPUs, which has the memory model as well.
unsafe impl Send for ModelledCore {}

impl ModelledCore {
    pub(crate) fn new(model: Box<dyn CoreModel>) -> Self {
        Self {
            model,
            charges: Charges::default(),
            misses: None,
        }
    }

    /// Returns the charges since the last call.
    pub(crate) fn take_charges(&mut self) -> Charges {
        std::mem::take(&mut self.charges)
    }

    /// Returns a memory model's answer to a reference with these charges, with the exposed part of its stall. Keeps the charges.
    pub(crate) fn answer(
        &mut self,
        outcome: Outcome,
        reference: &MemRef,
        charges: &Charges,
    ) -> Outcome {
        self.charges.add(charges);
        self.expose(outcome, reference, charges)
    }

    fn expose(&mut self, outcome: Outcome, reference: &MemRef, charges: &Charges) -> Outcome {
        let stall = outcome.stall();
        if stall == 0 {
            return outcome;
        }
        match Source::of(charges) {
            Some(source) => {
                outcome.with_stall(self.model.exposed(reference.site.block, source, stall))
            }
            None => outcome,
        }
    }

    /// Returns a function for direct misses that exposes the answers of the memory model's function.
    ///
    /// # Safety
    /// As for [`DirectMisses::accept`], for the memory model and for this value.
    pub(crate) unsafe fn direct_misses(&mut self, misses: DirectMisses) -> DirectMisses {
        // SAFETY: the caller's promise.
        self.misses = Some(unsafe { misses.accept() });
        // SAFETY: the function expects this value, and makes no other demands than those of its type.
        unsafe { DirectMisses::new(NonNull::from(self).cast(), direct_miss) }
    }
}

/// Serves a direct miss.
///
/// # Safety
/// As for [`nodescope_plugin_api::DirectMissFunction`], for a [`ModelledCore`].
unsafe extern "sysv64" fn direct_miss(core: NonNull<()>, miss: *const DirectMiss) -> Outcome {
    // SAFETY: the caller's promise. While the function runs, nothing else uses the core or the miss.
    let (core, miss) = unsafe { (core.cast::<ModelledCore>().as_mut(), &*miss) };
    let misses = core.misses.expect("set before this function is known");
    // SAFETY: the promises of the caller and of `ModelledCore::direct_misses`.
    let (outcome, charges) = unsafe { misses.serve(miss) };
    core.expose(outcome, &miss.reference, &charges)
}
