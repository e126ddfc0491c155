//! Measures the machine on which the tests run.

use nodescope_measure::measure;

/// Values are compared with wide limits alone, since any machine may run this.
#[test]
#[ignore = "takes half a minute, and a busy machine changes the values: cargo test --release -p nodescope-measure -- --ignored"]
fn this_machine_is_plausible() {
    let host = measure(&mut |line| eprintln!("{line}")).unwrap();
    let text = host.to_toml();
    text.parse::<toml::Table>().unwrap();
    let cycles: Vec<f64> = host
        .levels
        .iter()
        .map(|level| level.time.cycles.value)
        .collect();
    assert!((2.0..8.0).contains(&cycles[0]), "{text}");
    assert!(cycles.is_sorted(), "{text}");
    assert!(host.memory.nanoseconds.value > 20.0, "{text}");
    assert!(
        (5.0..60.0).contains(&host.branches.mispredict.cycles.value),
        "{text}"
    );
    assert!(
        host.parallelism.iter().all(|p| p.misses.value > 2.0),
        "{text}"
    );
}
