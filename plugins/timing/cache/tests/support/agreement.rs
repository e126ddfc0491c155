//! The model against the simple implementation.

use nodescope_plugin_api::VcpuPlace;
use nodescope_plugin_cache::CacheConfig;
use proptest::prelude::*;

use super::machines::memory;
use super::plain::Plain;
use super::{Engine, Step};

/// How the references reach the model.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    WithoutL0Filter,
    WithL0Filter,
    /// With the L0 filter cache. Misses of full sets go to the model's function for generated code.
    DirectMisses,
}

pub fn ways() -> impl Strategy<Value = Way> {
    use Way::{DirectMisses, WithL0Filter, WithoutL0Filter};
    prop_oneof![
        Just(WithoutL0Filter),
        Just(WithL0Filter),
        Just(DirectMisses)
    ]
}

/// Checks that the model and the simple implementation agree on the stall of every reference, on statistics and on contents.
/// Both lose their statistics before the step `reset`. Returns the simple implementation.
pub fn check(
    config: &CacheConfig,
    places: &[VcpuPlace],
    steps: &[Step],
    reset: usize,
    way: Way,
) -> Result<Plain, TestCaseError> {
    let mut plain = Plain::new(config, places, memory()).with_described_prefetchers();
    let engine = Engine::with_memory(config, places, memory());
    let mut engine = match way {
        Way::WithoutL0Filter => engine.without_l0_filter(),
        Way::WithL0Filter => engine,
        Way::DirectMisses => engine.with_direct_misses(),
    };
    for (index, &step) in steps.iter().enumerate() {
        if index == reset {
            plain.reset();
            engine.reset();
        }
        prop_assert_eq!(
            engine.step(step),
            plain.step(step),
            "step {} {:?}",
            index,
            step
        );
    }
    prop_assert_eq!(
        &Plain::events_of(&engine.statistics()),
        plain.events(),
        "events"
    );
    prop_assert_eq!(engine.contents(), plain.contents());
    engine.check_equations();
    Ok(plain)
}
