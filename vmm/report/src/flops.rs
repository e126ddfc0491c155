//! Floating-point operations: counts, equation (6) as published, and the direct figure.

use nodescope_plugin_api::{FLOP_CLASSES, FlopClass};
use serde::Serialize;

use crate::breakdown::CYCLE;

/// Floating-point operations of a scope.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flops {
    /// Counted operations by class; a fused multiply-add counts as two.
    pub by_class: Vec<ClassCount>,
    /// Number of counted operations, inside and outside MPI calls.
    pub total: u128,
    /// Number of the counted operations that ran inside MPI calls.
    pub in_mpi: u128,
    /// alpha: floating-point operations per instruction, both outside MPI; `None` without instructions.
    pub alpha: Option<f64>,
    /// Cycles of equation (6) as published: CPI_core / alpha + CPI_caches + CPI_memory + CPI_MPI; `None` unless alpha is positive.
    pub published_cycles: Option<f64>,
    /// Result of equation (6) as published: frequency / `published_cycles`, FLOP/s of one core; `None` without such cycles or busy time.
    pub published_per_second: Option<f64>,
    /// Direct rate: counted operations per second of modelled busy time, FLOP/s of one core; `None` without busy time.
    pub direct_per_second: Option<f64>,
    /// Direct rate: counted operations per second of the window's virtual time, FLOP/s of the whole scope; `None` if this time is 0.
    pub window_per_second: Option<f64>,
    /// Modelled busy time: modelled cycles over frequency, seconds, summed over vCPUs.
    pub busy_seconds: f64,
}

/// Operations of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassCount {
    /// Width and type, such as `packed256_double`.
    pub class: &'static str,
    /// Number of operations.
    pub count: u128,
}

impl Flops {
    /// Returns the FLOPS of a scope. `core` and `cycles` (all terms) are in 1/65536 cycles; `instructions` are those outside MPI.
    pub(crate) fn new(
        counts: &[u128; FLOP_CLASSES],
        in_mpi: u128,
        instructions: u128,
        core: i128,
        cycles: i128,
        busy_seconds: f64,
        window_seconds: f64,
    ) -> Flops {
        let total: u128 = counts.iter().sum();
        let outside = total - in_mpi;
        let alpha = (instructions != 0).then(|| outside as f64 / instructions as f64);
        let cycles_total = cycles as f64 / CYCLE as f64;
        let published_cycles = alpha.filter(|alpha| *alpha > 0.0).map(|alpha| {
            let per_instruction = |cycles: i128| cycles as f64 / CYCLE as f64 / instructions as f64;
            per_instruction(core) / alpha + per_instruction(cycles - core)
        });
        // The frequency is the mean over busy time, because nodes may differ in frequency.
        let frequency = (busy_seconds > 0.0).then(|| cycles_total / busy_seconds);
        Flops {
            by_class: FlopClass::ALL
                .iter()
                .zip(counts)
                .map(|(class, &count)| ClassCount {
                    class: class.name(),
                    count,
                })
                .collect(),
            total,
            in_mpi,
            alpha,
            published_cycles,
            published_per_second: published_cycles
                .filter(|cycles| *cycles > 0.0)
                .zip(frequency)
                .map(|(cycles, frequency)| frequency / cycles),
            direct_per_second: (busy_seconds > 0.0).then(|| total as f64 / busy_seconds),
            window_per_second: (window_seconds > 0.0).then(|| total as f64 / window_seconds),
            busy_seconds,
        }
    }
}
