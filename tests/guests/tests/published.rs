//! Test of published reference programs: traced in one network and predicted for another, compared with an emulation in that network.
//! Virtual time does not depend on the host, so the error is the same on every machine.

use nodescope_guest_tests::image;
use nodescope_guest_tests::published::{
    PUBLISHED, REFERENCE, emulate, launch, overheads, programs, section, target,
};

#[test]
fn programs_on_four_ranks_are_predicted_for_another_network() {
    let Some(programs) = programs() else { return };
    let Some(image) = image() else { return };
    let [traced, emulated] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let run = launch(4, "reference heat 1024 10 jacobi-f 1920 10");
    let commands = [launch(4, "transfer 9000 6"), run.clone()];
    let (trace, _) = emulate(image, &REFERENCE, 4, &programs, &commands, traced.path());
    let overheads = overheads(&trace, &REFERENCE);
    println!("{overheads:?}");
    let myrinet = &PUBLISHED[0];
    let (there, console) = emulate(image, myrinet, 4, &programs, &[run], emulated.path());
    let sums: Vec<&str> = (console.lines())
        .filter_map(|line| line.split_once("on 4: sum "))
        .map(|(_, values)| values.split_whitespace().next().unwrap_or_default())
        .collect();
    assert_eq!(sums, ["1.267668934e+05", "2.106216908E+00"], "{console}");
    for (number, name, most) in [(0, "heat", 0.013), (1, "jacobi-f", 0.01)] {
        let cluster = target(myrinet, &overheads);
        let predicted = section(&trace, 1, number, &cluster).time;
        let emulated = section(&there, 0, number, &cluster).traced;
        let error = predicted as f64 / emulated as f64 - 1.0;
        println!(
            "{name}: emulated {:.3} ms, predicted {:.3} ms, {:+.2} %",
            emulated as f64 / 1e9,
            predicted as f64 / 1e9,
            100.0 * error
        );
        assert!(error.abs() <= most, "{name}: {error}");
    }
}
