//! Costs of first-level hits, and permissions of the L0 filter cache.

use nodescope_plugin_api::{L0Geometry, Outcome, Permission, Side};

use crate::config::{CacheConfig, LevelConfig, NonTemporalStores};
use crate::policy::Policy;
use crate::tags::State;

/// Largest number of ways of a cache whose whole sets an engine's L0 filter cache may hold.
const MOST_WAYS: u32 = 16;

/// Costs of first-level hits, and permissions of the L0 filter cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstLevel {
    /// Cycles of a hit: read, write, fetch.
    pub(crate) hits: [u32; 3],
    /// True if an L0 filter cache (for data, for instructions) holds all lines of a set instead of only the most recently used line.
    pub(crate) whole_sets: [bool; 2],
    /// Permissions of the L0 filter cache, for data and for instructions, indexed by the line's state.
    grants: [[Permission; 5]; 2],
}

impl FirstLevel {
    /// Makes the costs and permissions for a valid description. `several_vcpus` says for which side several vCPUs use one first-level
    /// cache.
    pub(crate) fn new(
        config: &CacheConfig,
        several_vcpus: [bool; 2],
        sees_hits: [bool; 2],
    ) -> (FirstLevel, L0Geometry) {
        let data = &config.levels[0];
        let line_shift = data.line.trailing_zeros();
        // With fewer slots than sets, the results are exact, too. An engine is expected to have 64 slots.
        let most = (12 - line_shift).min(6);
        let slots = |level: &LevelConfig| level.sets().trailing_zeros().min(most) as u8;
        // The L0 filter cache may hold whole sets if a slot is a set, nothing else changes the order of the set, and the order is LRU.
        let ways = |level: &LevelConfig, side: Side| {
            let whole = level.sets() == 1 << slots(level) && level.ways <= MOST_WAYS;
            let alone = !several_vcpus[side as usize] && level.prefetch.is_empty();
            if whole && alone && level.policy == Policy::Lru && level.line == 64 {
                level.ways as u8
            } else {
                1
            }
        };
        let instruction = config.instruction.as_ref();
        let data_ways = ways(data, Side::Data);
        let instruction_ways = instruction.map_or(1, |level| ways(level, Side::Instruction));
        let geometry = L0Geometry {
            line_shift: line_shift as u8,
            data_slots: slots(data),
            instruction_slots: instruction.map_or(most as u8, slots),
            data_ways,
            instruction_ways,
            page_sizes: false,
        };
        let fetch_hit = instruction.map_or(0, |level| level.latency.fetch_hit);
        let hits = [data.latency.read_hit, data.latency.write_hit, fetch_hit];
        let whole_sets = [data_ways > 1, instruction_ways > 1];
        // Hits that cost cycles must reach the model, so that the L0 filter cache must not answer them. An L0 filter cache does not tell
        // non-temporal stores from others, so all stores must reach the model where those go past the caches.
        let bypasses = config.non_temporal_stores == NonTemporalStores::Bypass;
        let most = match hits {
            _ if sees_hits[Side::Data as usize] => Permission::None,
            [0, 0, _] if !bypasses => Permission::ReadWrite,
            [0, _, _] => Permission::Read,
            _ => Permission::None,
        };
        let most_for_fetches = match hits {
            _ if sees_hits[Side::Instruction as usize] => Permission::None,
            [_, _, 0] => Permission::Read,
            _ => Permission::None,
        };
        let grants = |most: Permission, whole: bool| {
            let mut grants = [Permission::Read.min(most); 5];
            grants[State::Modified as usize] = most;
            if whole {
                grants[State::Exclusive as usize] = Permission::Exclusive.min(most);
            }
            grants
        };
        let first_level = FirstLevel {
            hits,
            whole_sets,
            grants: [
                grants(most, whole_sets[0]),
                grants(most_for_fetches, whole_sets[1]),
            ],
        };
        (first_level, geometry)
    }

    /// Returns the answer to a reference after which the first level has the line in this state.
    #[inline(always)]
    pub(crate) fn outcome(
        &self,
        stall: u64,
        state: State,
        side: Side,
        replaced: Option<u64>,
    ) -> Outcome {
        let stall = u32::try_from(stall).unwrap_or(u32::MAX);
        Outcome::new(stall, self.grants[side as usize][state as usize], replaced)
    }
}
