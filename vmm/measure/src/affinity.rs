//! Binds threads to CPUs.

use std::io;
use std::mem;

use crate::MeasureError;

/// Keeps the calling thread on one CPU until it is dropped. Then the thread may run where it could before.
#[derive(Debug)]
pub struct Bound {
    before: Set,
}

#[derive(Clone, Copy)]
struct Set(libc::cpu_set_t);

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.cpus()).finish()
    }
}

impl Set {
    /// Returns the CPUs on which the calling thread may run.
    fn current() -> io::Result<Self> {
        // SAFETY: a set is bits, and all of them may be zero.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the pointer and the size are those of the set.
        let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        if result == 0 {
            Ok(Self(set))
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Lets the calling thread run on these CPUs alone.
    fn apply(&self) -> io::Result<()> {
        // SAFETY: the pointer and the size are those of the set.
        let result = unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn one(cpu: usize) -> Self {
        // SAFETY: a set is bits, and all of them may be zero.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: CPU_SET writes into the set, and checks that it has the bit.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        Self(set)
    }

    fn cpus(&self) -> impl Iterator<Item = usize> + '_ {
        // SAFETY: CPU_ISSET reads a bit that the set has.
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &self.0) })
    }
}

impl Bound {
    /// Binds the calling thread to a CPU.
    pub fn to(cpu: usize) -> Result<Self, MeasureError> {
        let before = Set::current().map_err(MeasureError::Affinity)?;
        Set::one(cpu)
            .apply()
            .map_err(|source| MeasureError::Cpu { cpu, source })?;
        Ok(Self { before })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // The set was the thread's own, so that this fails only where the CPUs were taken from the process meanwhile. Then Linux has
        // chosen others.
        let _ = self.before.apply();
    }
}

/// Returns the CPUs on which the calling thread may run, in ascending order.
pub fn allowed() -> Result<Vec<usize>, MeasureError> {
    let set = Set::current().map_err(MeasureError::Affinity)?;
    Ok(set.cpus().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_bound_and_released() {
        let before = allowed().unwrap();
        let last = *before.last().unwrap();
        let bound = Bound::to(last).unwrap();
        assert_eq!(allowed().unwrap(), [last]);
        drop(bound);
        assert_eq!(allowed().unwrap(), before);
        assert!(
            matches!(Bound::to(1023), Err(MeasureError::Cpu { cpu: 1023, .. }))
                || before.contains(&1023)
        );
    }
}
