//! The model, compared on random machines and traces with a second, simple implementation of its semantics.

mod support;

use nodescope_plugin_api::VcpuPlace;
use nodescope_plugin_cache::CacheConfig;
use proptest::prelude::*;
use support::machines::{machines, memory, steps, traces};
use support::plain::Plain;
use support::{Engine, Step};

/// Checks that the model and the simple implementation agree on the stall of every reference, on statistics and on contents. `l0_filter`
/// selects the model with or without the L0 filter cache.
fn check(
    config: &CacheConfig,
    places: &[VcpuPlace],
    steps: &[Step],
    reset: usize,
    l0_filter: bool,
) -> Result<(), TestCaseError> {
    let mut plain = Plain::new(config, places, memory());
    let mut engine = Engine::with_memory(config, places, memory());
    if !l0_filter {
        engine = engine.without_l0_filter();
    }
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
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_does_what_its_description_says(
        (config, places) in machines(),
        trace in traces(),
        reset in any::<prop::sample::Index>(),
        l0_filter in any::<bool>(),
    ) {
        let steps = steps(&trace, &places);
        check(&config, &places, &steps, reset.index(steps.len()), l0_filter)?;
    }

    /// From a random step on, two thirds of the references use addresses up to the highest. Their tags do not fit into the narrow tag words
    /// that the model uses at first.
    #[test]
    fn high_addresses_are_like_any_other(
        (config, places) in machines(),
        trace in traces(),
        from in any::<prop::sample::Index>(),
        high in proptest::collection::vec(prop_oneof![38..52_u32, Just(51)], 2),
        l0_filter in any::<bool>(),
    ) {
        let mut steps = steps(&trace, &places);
        let from = from.index(steps.len());
        for (index, step) in steps.iter_mut().enumerate().skip(from) {
            if index % 3 != 0 {
                step.address += 1 << high[index % 2];
            }
        }
        check(&config, &places, &steps, from / 2, l0_filter)?;
    }
}
