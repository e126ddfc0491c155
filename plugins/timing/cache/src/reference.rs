//! One reference: a hit of the first level, or a miss.

use nodescope_plugin_api::{Access, Hits, L0Update, MemRef, Outcome, Permission, Side, StallTerm};

use crate::config::NonTemporalStores;
use crate::geometry::LineLookup;
use crate::hierarchy::Hierarchy;
use crate::miss::Wanted;
use crate::node::NONE;
use crate::prefetch::{Observed, answer_of_hit};
use crate::prefetching::observed_miss;
use crate::tags::{State, is_prefetched, without_prefetch_mark};
use crate::tree::Tree;
use crate::word::{Baseline, Usual, V3, Variant, Word};

/// Mask of a physical address, which has at most 52 bits (SDM volume 3, section 4.1.4).
pub(crate) const PHYSICAL_MASK: u64 = (1 << 52) - 1;

impl<W: Word> Hierarchy<W> {
    /// Serves a reference as [`Hierarchy::reference`] does, compiled for instructions that every host has.
    #[inline(never)]
    pub(crate) fn reference_baseline(
        &mut self,
        tree: &Tree,
        hits: Hits<'_>,
        reference: &MemRef,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        self.reference(tree, Baseline, hits, reference, line, updates)
    }

    /// Serves a reference in caches of the usual structure, compiled for AVX2, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    pub(crate) fn reference_usual_v3(
        &mut self,
        tree: &Tree,
        v3: V3,
        hits: Hits<'_>,
        reference: &MemRef,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        self.reference(tree, Usual(v3), hits, reference, line, updates)
    }

    /// Serves a reference as [`Hierarchy::reference`] does, compiled for AVX2, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    pub(crate) fn reference_v3(
        &mut self,
        tree: &Tree,
        v3: V3,
        hits: Hits<'_>,
        reference: &MemRef,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        self.reference(tree, v3, hits, reference, line, updates)
    }

    /// Marks lines as modified that a vCPU has written by permission of its L0 filter cache.
    #[inline(always)]
    pub(crate) fn modified<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        vcpu: u16,
        lines: &[u64],
    ) {
        let first = tree.vcpu_caches[usize::from(vcpu)].first[Side::Data as usize];
        for line in lines {
            self.modify(tree, variant, first, self.line(tree, *line));
        }
    }

    /// Returns the number of the line at a physical address.
    #[inline(always)]
    fn line(&self, tree: &Tree, physical: u64) -> u64 {
        (physical & PHYSICAL_MASK) >> tree.line_shift
    }

    /// Serves one reference to `line`, which is below `line_limit`.
    #[inline(always)]
    fn reference<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        hits: Hits<'_>,
        reference: &MemRef,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let side = reference.access.side();
        if !hits.modified.is_empty() {
            self.modified(tree, variant, reference.vcpu, hits.modified);
        }
        let first = tree.vcpu_caches[usize::from(reference.vcpu)].first[side as usize];
        if first == NONE {
            // There is no instruction cache.
            return Outcome::new(0, Permission::Read, None);
        }
        if reference.non_temporal && tree.non_temporal_stores == NonTemporalStores::Bypass {
            self.begin_request(reference);
            self.store_past_caches(tree, line, updates);
            let stall = u32::try_from(self.request.stall).unwrap_or(u32::MAX);
            return self.with_toll(Outcome::new(stall, Permission::None, None));
        }
        let geometry = &tree.nodes.get(first).geometry;
        let lookup = geometry.lookup(line);
        // An L0 filter cache that holds the whole set has found that the line is not in the set.
        let way = match hits.oldest {
            Some(_) => None,
            None => self.tags.find(variant, geometry, lookup),
        };
        debug_assert!(
            way.is_some() || self.tags.find(variant, geometry, lookup).is_none(),
            "an L0 filter cache that keeps a whole set misses a line of it"
        );
        match way {
            Some(way) => self.first_level_hit(tree, first, lookup, way, line, reference, updates),
            None => {
                let oldest = hits.oldest.map(|oldest| self.line(tree, oldest));
                self.first_level_miss(
                    tree, variant, first, lookup, line, oldest, reference, updates,
                )
            }
        }
    }

    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn first_level_miss<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        first: u32,
        lookup: LineLookup,
        line: u64,
        oldest: Option<u64>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let access = reference.access;
        self.begin_request(reference);
        if tree.keep.is_some() {
            self.begin_watching(reference, line);
        }
        let wanted = Wanted {
            first,
            lookup,
            line,
            access: match reference.locked && tree.writes_allocate {
                true => Access::Write,
                false => access,
            },
            counted: access,
            oldest,
        };
        let arrived = self.miss(tree, variant, wanted, updates);
        let replaced = arrived.replaced.map(|line| line << tree.line_shift);
        let settled = arrived.state.is_some() && self.settled::<V>(tree, first, line, arrived.way);
        let mut taken = false;
        if let Some(keep) = tree.keep {
            taken = self.request.taken && access.side() == Side::Data;
            if taken {
                self.take(tree, keep, reference, line);
            }
            self.request.buffered = false;
        }
        let stall = self.request.stall;
        if !V::USUAL && tree.any_prefetcher {
            let observed = observed_miss(line, reference.site, access);
            self.observe_miss(tree, first, observed, &arrived, updates);
        }
        let Some(state) = arrived.state else {
            let stall = u32::try_from(stall).unwrap_or(u32::MAX);
            return self.with_toll(Outcome::new(stall, Permission::None, None));
        };
        let outcome = tree
            .first_level
            .outcome(stall, state, access.side(), replaced);
        let outcome = self.watched(tree, outcome, reference, line, taken);
        let outcome = self.with_toll(outcome);
        self.unless_revoked::<V>(tree, outcome, settled, reference, line, updates)
    }

    /// Serves a reference to a line that the first level has.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn first_level_hit(
        &mut self,
        tree: &Tree,
        first: u32,
        lookup: LineLookup,
        way: usize,
        line: u64,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let access = reference.access;
        let this = tree.nodes.get(first);
        let traits = this.traits;
        let entry = self.tags.way(&this.geometry, lookup, way);
        if traits.several_vcpus && (way != 0 || !traits.lru) {
            self.revoke_used(tree, first, line, Some(reference.vcpu), updates);
        }
        let way = self.touch(
            tree,
            Baseline,
            first,
            line,
            lookup,
            way,
            without_prefetch_mark(entry),
        );
        let mut stall = 0;
        if is_prefetched(entry) {
            self.begin_request(reference);
            self.charge_access::<Baseline>(tree, access, 0, Some(entry));
            stall += self.request.stall;
        } else {
            let hit = u64::from(tree.first_level.hits[access as usize]);
            self.ledger.charges.stall(StallTerm::Level1, hit);
            stall += hit;
        }
        let mut state = State::of(entry);
        match (access, state) {
            (Access::Write, State::Shared | State::Forward) => {
                self.begin_request(reference);
                if tree.keep.is_some() {
                    self.begin_watching(reference, line);
                }
                self.own(tree, first, line, updates);
                self.request.buffered = false;
                state = State::Modified;
                stall += self.request.stall;
            }
            (Access::Write, State::Exclusive) => {
                self.modify(tree, Baseline, first, line);
                state = State::Modified;
            }
            _ => {}
        }
        let settled = self.settled::<Baseline>(tree, first, line, way);
        if traits.prefetches {
            self.begin_request(reference);
            self.prefetched.clear();
            let observed = Observed {
                answer: answer_of_hit(entry),
                ..observed_miss(line, reference.site, access)
            };
            self.observe(tree, first, observed, updates);
        }
        let outcome = tree.first_level.outcome(stall, state, access.side(), None);
        let outcome = self.watched(tree, outcome, reference, line, false);
        let outcome = self.with_toll(outcome);
        self.unless_revoked::<Baseline>(tree, outcome, settled, reference, line, updates)
    }

    /// Returns the answer without a permission if further hits must reach the model, or if prefetches have revoked the permission already.
    #[inline(always)]
    fn unless_revoked<V: Variant>(
        &self,
        tree: &Tree,
        outcome: Outcome,
        settled: bool,
        reference: &MemRef,
        line: u64,
        updates: &[L0Update],
    ) -> Outcome {
        let revoked = |update: &L0Update| {
            update.vcpu == reference.vcpu
                && update.side == reference.access.side()
                && update.line == line << tree.line_shift
        };
        if V::USUAL || settled && !(tree.any_prefetcher && updates.iter().any(revoked)) {
            return outcome;
        }
        Outcome::new(outcome.stall(), Permission::None, outcome.replaced())
    }
}
