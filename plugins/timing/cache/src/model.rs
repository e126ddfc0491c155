//! The cache model as the engine drives it.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use nodescope_plugin_api::{
    Access, Charges, ContendedLine, Context, Counters, DirectMiss, DirectMisses, Hits, Key,
    L0Geometry, L0Update, Ledger, LineMoves, MemRef, MemoryModel, MemoryTimingModel, Outcome,
    Prefetched, Privilege, Statistic, Tally, Term, VcpuPlace,
};

use crate::builder::Builder;
use crate::config::{CacheConfig, CacheConfigError};
use crate::events::{Events, LevelEvent};
use crate::hierarchy::{CacheContents, ChargeTarget, Hierarchy};
use crate::reference::PHYSICAL_MASK;
use crate::registered::{NoModels, RegisteredModels};
use crate::tree::Tree;
use crate::word::{Baseline, V3};

/// The caches of one node.
pub struct CacheModel {
    tree: Tree,
    caches: Caches,
    l0_geometry: L0Geometry,
    fetches_cached: bool,
    /// Updates that direct misses have caused.
    updates: Vec<L0Update>,
}

/// The hierarchy, with words as wide as the line numbers seen so far need.
enum Caches {
    Narrow(Hierarchy<u32>, Option<V3>),
    Wide(Hierarchy<u64>),
}

impl Caches {
    fn charge_target(&mut self) -> &mut ChargeTarget {
        match self {
            Caches::Narrow(caches, _) => &mut caches.request.charges,
            Caches::Wide(caches) => &mut caches.request.charges,
        }
    }

    /// Serves one reference.
    #[inline(always)]
    fn reference(
        &mut self,
        tree: &Tree,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let line = (reference.physical & PHYSICAL_MASK) >> tree.line_shift;
        if let Caches::Narrow(caches, _) = self
            && line >= caches.line_limit
        {
            self.widen(tree);
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            Caches::Narrow(caches, Some(v3)) if tree.usual => {
                // SAFETY: a `V3` exists only on a host with the instructions for which the function is compiled.
                unsafe { caches.reference_usual_v3(tree, *v3, hits, reference, line, updates) }
            }
            #[cfg(target_arch = "x86_64")]
            Caches::Narrow(caches, Some(v3)) => {
                // SAFETY: a `V3` exists only on a host with the instructions for which the function is compiled.
                unsafe { caches.reference_v3(tree, *v3, hits, reference, line, updates) }
            }
            Caches::Narrow(caches, _) => {
                caches.reference_baseline(tree, hits, reference, line, updates)
            }
            Caches::Wide(caches) => caches.reference_baseline(tree, hits, reference, line, updates),
        }
    }

    /// Moves all lines to wider words, before the first reference to a line whose tag needs them.
    #[cold]
    #[inline(never)]
    fn widen(&mut self, tree: &Tree) {
        if let Caches::Narrow(caches, _) = self {
            *self = Caches::Wide(caches.widen(tree));
        }
    }
}

/// Serves a direct miss.
///
/// # Safety
/// As for [`nodescope_plugin_api::DirectMissFunction`], for a [`CacheModel`].
unsafe extern "sysv64" fn direct_miss(model: NonNull<()>, miss: *const DirectMiss) -> Outcome {
    // SAFETY: the caller's promise. While the function runs, nothing else uses the model or the miss.
    let (model, miss) = unsafe { (model.cast::<CacheModel>().as_mut(), &*miss) };
    let modified = match miss.modified_count {
        0 => &[],
        // SAFETY: the caller's promise.
        count => unsafe { std::slice::from_raw_parts(miss.modified, count as usize) },
    };
    let hits = Hits {
        oldest: Some(miss.oldest),
        modified,
    };
    let CacheModel {
        tree,
        caches,
        updates,
        ..
    } = model;
    // SAFETY: the caller's promise, and the target is set anew below.
    unsafe { caches.charge_target().set(miss.charges) };
    let outcome = caches.reference(tree, hits, &miss.reference, updates);
    // SAFETY: there is no pointer.
    unsafe { caches.charge_target().set(std::ptr::null_mut()) };
    outcome.with_updates(!updates.is_empty())
}

impl CacheModel {
    /// Makes empty caches for vCPUs at `places` in front of `memory`. An error is the first fault of the description
    /// ([`CacheConfig::faults`] lists all).
    pub fn new(
        config: &CacheConfig,
        places: &[VcpuPlace],
        memory: Box<dyn MemoryTimingModel>,
    ) -> Result<CacheModel, CacheConfigError> {
        CacheModel::with_models(config, places, memory, &NoModels)
    }

    /// Makes empty caches as [`CacheModel::new`] does, with registered policies and prefetchers.
    pub fn with_models(
        config: &CacheConfig,
        places: &[VcpuPlace],
        memory: Box<dyn MemoryTimingModel>,
        models: &dyn RegisteredModels,
    ) -> Result<CacheModel, CacheConfigError> {
        if let Some(fault) = config.faults(places).into_iter().next() {
            return Err(fault);
        }
        let builder = Builder::new(config, places);
        let parts = builder.parts(models).map_err(CacheConfigError::Model)?;
        let (tree, l0_geometry) = Tree::new(config, places, &builder, parts.sees_hits);
        let caches = Hierarchy::new(&tree, parts, memory);
        Ok(CacheModel {
            tree,
            caches: Caches::Narrow(caches, V3::detect()),
            l0_geometry,
            fetches_cached: config.instruction.is_some(),
            updates: Vec::new(),
        })
    }

    /// Returns the contents of every cache, inner caches before the outer caches of the same vCPU.
    pub fn contents(&self) -> Vec<CacheContents> {
        match &self.caches {
            Caches::Narrow(caches, _) => caches.contents(&self.tree),
            Caches::Wide(caches) => caches.contents(&self.tree),
        }
    }

    fn ledger(&self) -> &Ledger {
        match &self.caches {
            Caches::Narrow(caches, _) => &caches.ledger,
            Caches::Wide(caches) => &caches.ledger,
        }
    }

    fn row(&self, key: Key, event: usize, tally: Tally) -> Statistic {
        let kind = self.tree.events.kind(event);
        let (vcpu, context, privilege) = key;
        let fixed = u64::from(kind.latency);
        let latency = if self.tree.events.varies(event) {
            tally.latency()
        } else if tally.cycles == tally.count * fixed {
            fixed
        } else {
            // Those events that prefetches caused cost nothing.
            0
        };
        Statistic {
            vcpu,
            context,
            privilege,
            event: kind.name.clone(),
            term: kind.term,
            count: tally.count,
            latency,
            cycles: tally.cycles,
        }
    }
}

impl MemoryModel for CacheModel {
    fn l0_geometry(&self) -> L0Geometry {
        self.l0_geometry
    }

    /// # Panics
    /// Panics if the reference names a vCPU for which the model was not built.
    #[inline]
    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        self.caches.reference(&self.tree, hits, reference, updates)
    }

    fn direct_misses(&mut self) -> Option<DirectMisses> {
        // SAFETY: the function expects this model, and makes no other demands than those of its type.
        Some(unsafe { DirectMisses::new(NonNull::from(self).cast(), direct_miss) })
    }

    fn take_updates(&mut self, updates: &mut Vec<L0Update>) {
        updates.append(&mut self.updates);
    }

    fn take_charges(&mut self) -> Charges {
        std::mem::take(match &mut self.caches {
            Caches::Narrow(caches, _) => &mut caches.ledger.charges,
            Caches::Wide(caches) => &mut caches.ledger.charges,
        })
    }

    fn take_prefetched(&mut self, prefetched: &mut Vec<Prefetched>) {
        prefetched.append(match &mut self.caches {
            Caches::Narrow(caches, _) => &mut caches.prefetched,
            Caches::Wide(caches) => &mut caches.prefetched,
        });
    }

    fn line_moves(&self) -> LineMoves {
        match &self.caches {
            Caches::Narrow(caches, _) => caches.contention.moves(),
            Caches::Wide(caches) => caches.contention.moves(),
        }
    }

    fn contended_lines(&self) -> Vec<ContendedLine> {
        match &self.caches {
            Caches::Narrow(caches, _) => caches.contention.lines(&self.tree),
            Caches::Wide(caches) => caches.contention.lines(&self.tree),
        }
    }

    fn modified(&mut self, vcpu: u16, lines: &[u64]) {
        match &mut self.caches {
            Caches::Narrow(caches, _) => caches.modified(&self.tree, Baseline, vcpu, lines),
            Caches::Wide(caches) => caches.modified(&self.tree, Baseline, vcpu, lines),
        }
    }

    fn reset_statistics(&mut self) {
        match &mut self.caches {
            Caches::Narrow(caches, _) => caches.clear_statistics(),
            Caches::Wide(caches) => caches.clear_statistics(),
        }
    }

    fn statistics(&self, counted: &[(u16, Context, Privilege, Counters)]) -> Vec<Statistic> {
        let accounts = self.ledger().accounts();
        let mut references: BTreeMap<Key, [u64; 3]> =
            accounts.keys().map(|&key| (key, [0; 3])).collect();
        for (vcpu, context, privilege, counters) in counted {
            let sums = references.entry((*vcpu, *context, *privilege)).or_default();
            for (sum, count) in
                sums.iter_mut()
                    .zip([counters.loads, counters.stores, counters.fetches])
            {
                *sum += count;
            }
        }
        let events = &self.tree.events;
        let mut statistics = Vec::new();
        for (key, references) in references {
            let tallies = accounts.get(&key).map(|tallies| events.complete(tallies));
            let tally = |event: usize| {
                let tallies = tallies.as_ref();
                tallies.map(|tallies| tallies[event]).unwrap_or_default()
            };
            for (access, count) in [Access::Read, Access::Write, Access::Fetch]
                .into_iter()
                .zip(references)
            {
                let counted = [LevelEvent::miss(access), LevelEvent::prefetch_hit(access)]
                    .map(|event| tally(Events::at_level(0, event)).count);
                let past_caches = match access {
                    Access::Write => tally(Events::at_level(0, LevelEvent::NonTemporalStore)).count,
                    _ => 0,
                };
                let count = count.saturating_sub(counted.iter().sum::<u64>() + past_caches);
                if count == 0 || (access == Access::Fetch && !self.fetches_cached) {
                    continue;
                }
                let latency = u64::from(self.tree.first_level.hits[access as usize]);
                let row = self.row(
                    key,
                    Events::at_level(0, LevelEvent::hit(access)),
                    Tally::default(),
                );
                statistics.push(Statistic {
                    count,
                    latency,
                    cycles: count * latency,
                    ..row
                });
            }
            for event in 0..events.len() {
                let tally = tally(event);
                if tally.count != 0 {
                    statistics.push(self.row(key, event, tally));
                }
            }
            for level in 1..events.levels() {
                let count = [Access::Read, Access::Write, Access::Fetch]
                    .map(|access| tally(Events::at_level(level, LevelEvent::miss(access))).count)
                    .iter()
                    .sum();
                if count != 0 {
                    let (vcpu, context, privilege) = key;
                    statistics.push(Statistic {
                        vcpu,
                        context,
                        privilege,
                        event: format!("L{}.miss", level + 1),
                        term: Term::None,
                        count,
                        latency: 0,
                        cycles: 0,
                    });
                }
            }
        }
        statistics
    }
}
