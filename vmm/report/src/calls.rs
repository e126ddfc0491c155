//! Calls of each rank that the trace has in a window, by program, because two programs in one window may both have a rank 0.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nodescope_hypercall::{Function, Hello};

/// Sums over a rank's calls of one function in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallSum {
    /// Number of calls that ended.
    pub(crate) ended: u64,
    /// Time that the calls waited for other ranks, picoseconds.
    pub(crate) waited_ps: u64,
}

impl CallSum {
    fn add(&mut self, other: CallSum) {
        self.ended = self.ended.saturating_add(other.ended);
        self.waited_ps = self.waited_ps.saturating_add(other.waited_ps);
    }
}

/// Short name of a program; `None` if its process did not introduce itself.
pub(crate) type Program = Option<Arc<str>>;

/// Short name of the program of each process, by node and process id.
#[derive(Debug, Default)]
pub(crate) struct Programs(HashMap<(u32, u32), Arc<str>>);

impl Programs {
    /// Records the program of a process of `node` that has introduced itself by a hello.
    pub(crate) fn hello(&mut self, node: u32, hello: &Hello) {
        let program = hello.program.as_str().into();
        self.0.insert((node, hello.pid), program);
    }

    /// Returns the program of a process; `None` if the process did not introduce itself.
    pub(crate) fn of(&self, node: u32, pid: u32) -> Program {
        self.0.get(&(node, pid)).cloned()
    }
}

/// Sums of calls in a window, by node, rank and program, then by function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls(HashMap<(u32, u32, Program), BTreeMap<Function, CallSum>>);

impl Calls {
    /// Adds the sums of further calls of a function by a rank.
    pub(crate) fn add(
        &mut self,
        node: u32,
        rank: u32,
        program: Program,
        function: Function,
        more: CallSum,
    ) {
        let functions = self.0.entry((node, rank, program)).or_default();
        functions.entry(function).or_default().add(more);
    }

    /// Returns the sums of the calls of a program's rank, by function. If `only` is true, no other program on the node has this rank; then
    /// calls of processes that did not introduce themselves are added.
    pub(crate) fn of(
        &self,
        node: u32,
        rank: u32,
        program: &str,
        only: bool,
    ) -> BTreeMap<Function, CallSum> {
        let mut sums: BTreeMap<Function, CallSum> = BTreeMap::new();
        let unknown = only.then_some(None);
        for program in unknown.into_iter().chain([Some(Arc::from(program))]) {
            let functions = self.0.get(&(node, rank, program));
            for (function, inside) in functions.into_iter().flatten() {
                sums.entry(*function).or_default().add(*inside);
            }
        }
        sums
    }
}
