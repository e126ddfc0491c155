//! Prefetchers at work: what they see, and how the lines that they want come in.

use nodescope_plugin_api::{Access, L0Update, Prefetched, Site};

use crate::events::LevelEvent;
use crate::hierarchy::Hierarchy;
use crate::miss::{Arrived, Wanted};
use crate::node::NONE;
use crate::prefetch::{Answer, Observed};
use crate::tree::Tree;
use crate::word::{Baseline, Word};

impl<W: Word> Hierarchy<W> {
    /// Shows a miss of the first level to the prefetchers of all levels that the reference reached, the innermost first.
    #[cold]
    #[inline(never)]
    pub(crate) fn observe_miss(
        &mut self,
        tree: &Tree,
        first: u32,
        observed: Observed,
        arrived: &Arrived,
        updates: &mut Vec<L0Update>,
    ) {
        self.prefetched.clear();
        let mut node = first;
        for _ in 0..=arrived.missed {
            if node == NONE {
                return;
            }
            self.observe(tree, node, observed, updates);
            node = tree.nodes.get(node).outer;
        }
        if let Some(answer) = arrived.answer {
            self.observe(tree, node, Observed { answer, ..observed }, updates);
        }
    }

    /// Shows an access to the prefetchers of a cache, and brings the lines that they want.
    #[cold]
    #[inline(never)]
    pub(crate) fn observe(
        &mut self,
        tree: &Tree,
        node: u32,
        observed: Observed,
        updates: &mut Vec<L0Update>,
    ) {
        if !tree.nodes.get(node).traits.prefetches {
            return;
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        for prefetcher in &mut self.prefetchers[node as usize] {
            prefetcher.observe(&observed, &mut wanted);
        }
        // Words of this width have no place for lines from the limit on. The first reference to such a line widens them.
        let limit = self.line_limit;
        for line in wanted.drain(..).filter(|line| *line < limit) {
            self.bring(tree, node, line, updates);
        }
        self.wanted = wanted;
    }

    /// Brings a line into a cache for a prefetcher, unless the cache or a cache inside it has the line.
    fn bring(&mut self, tree: &Tree, node: u32, line: u64, updates: &mut Vec<L0Update>) {
        if self.holds(tree, node, line) {
            return;
        }
        let this = tree.nodes.get(node);
        let lookup = this.geometry.lookup(line);
        self.request.prefetch = true;
        self.request.prefetch_inside = this.level.into();
        self.charge_level(tree, this.level.into(), LevelEvent::prefetch(this.kind));
        let wanted = Wanted {
            first: node,
            lookup,
            line,
            access: Access::Read,
            counted: Access::Read,
            oldest: None,
        };
        self.request.prefetch_source = None;
        self.miss(tree, Baseline, wanted, updates);
        self.request.prefetch = false;
        self.prefetched
            .extend(self.request.prefetch_source.map(|source| Prefetched {
                line: line << tree.line_shift,
                level: this.level + 1,
                source,
            }));
    }
}

/// Makes the view of a reference that missed.
pub(crate) fn observed_miss(line: u64, site: Site, access: Access) -> Observed {
    Observed {
        line,
        site,
        access,
        answer: Answer::Miss,
    }
}
