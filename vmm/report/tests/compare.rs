//! Comparisons of windows that measured different work.

mod support;

use nodescope_report::compare::{Comparison, compare};
use nodescope_report::{Report, build};
use support::*;

fn report() -> Report {
    build(&input(None, vec![window(vec![node0(), node1()])])).unwrap()
}

fn compared(change: impl FnOnce(&mut Report)) -> Comparison {
    let (a, mut b) = (report(), report());
    change(&mut b);
    compare(["a".into(), "b".into()], &a, &b, Vec::new())
}

/// Returns whether a figure of the first window is among the figures.
fn has(comparison: &Comparison, name: &str) -> bool {
    let mut figures = comparison.groups.iter().flat_map(|group| &group.figures);
    figures.any(|figure| figure.name == name)
}

#[test]
fn equal_windows_have_no_note() {
    let comparison = compared(|_| {});
    assert_eq!(comparison.different_work, []);
    assert!(!comparison.text().contains("other work"));
    assert!(!has(&comparison, "virtual time for 10^6 instructions"));
}

#[test]
fn different_work_is_told_before_all_figures_and_times_are_for_equal_work() {
    let comparison = compared(|b| {
        for scope in &mut b.windows[0].scopes {
            scope.instructions *= 2;
            scope.flops.total *= 3;
            scope.flops.in_mpi *= 3;
            scope.instructions_in_mpi *= 2;
        }
    });
    let [work] = comparison.different_work.as_slice() else {
        panic!("{:?}", comparison.different_work);
    };
    let ratios: Vec<_> = work.counts.iter().map(|c| (c.what, c.ratio)).collect();
    assert_eq!(
        ratios,
        [
            ("instructions outside MPI", Some(2.0)),
            ("floating-point operations", Some(3.0))
        ]
    );
    let text = comparison.text();
    let told = text.find("did other work in B than in A");
    assert!(told.is_some() && told < text.find("CPI"), "{text}");
    assert!(
        text.contains("3.000 times the floating-point operations"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let figures = comparison.groups.iter().flat_map(|group| &group.figures);
    let each = figures
        .filter(|figure| figure.name.starts_with("virtual time for 10^6"))
        .map(|figure| (figure.name.as_str(), figure.relative));
    let each: Vec<_> = each.collect();
    assert_eq!(each[0], ("virtual time for 10^6 instructions", Some(-0.5)));
    assert_eq!(each[1].0, "virtual time for 10^6 FLOP");
    assert!((each[1].1.unwrap() + 2.0 / 3.0).abs() < 1e-9);
    let json: serde_json::Value = serde_json::from_str(&comparison.json()).unwrap();
    assert_eq!(json["different_work"][0]["counts"][0]["ratio"], 2.0);
}

#[test]
fn loads_stores_and_triggers_that_differ_are_told() {
    let comparison = compared(|b| {
        b.windows[0].trigger = "MPI_Barrier 9 of rank 0".into();
        for scope in &mut b.windows[0].scopes {
            for privilege in &mut scope.privileges {
                privilege.stores *= 4;
            }
        }
    });
    let work = &comparison.different_work[0];
    let counts: Vec<_> = work.counts.iter().map(|c| (c.what, c.ratio)).collect();
    assert_eq!(counts, [("stores", Some(4.0))]);
    assert_eq!(
        work.triggers.as_ref().unwrap()[1],
        "MPI_Barrier 9 of rank 0"
    );
    assert!(comparison.text().contains("another trigger"));
}
