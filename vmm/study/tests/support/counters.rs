//! Files of hardware counters for tests.

/// Returns the output of `perf stat -j` for 800 instructions with these cycles and stalls.
pub fn perf(cycles: u32, stalls: u32) -> String {
    let line = |value: u32, event: &str| {
        format!(
            "{{\"counter-value\" : \"{value}.000000\", \"unit\" : \"\", \"event\" : \"{event}\", \"event-runtime\" : 1, \"pcnt-running\" : 100.00}}\n"
        )
    };
    line(cycles, "cycles:u")
        + &line(800, "instructions:u")
        + &line(stalls, "cycle_activity.stalls_l1d_miss:u")
}
