//! Published reference cases, from generated traces.

mod support;

use nodescope_phases::{Analysis, Phase, Request, analyse};
use support::{MS, SECOND, Trace, hadamard, solver, torus};

fn find(trace: &Trace, step: Option<u64>, classes: Option<usize>) -> Analysis {
    let request = Request {
        step,
        classes,
        seed: 1,
    };
    analyse(&trace.messages(), &request).unwrap()
}

fn talking(analysis: &Analysis) -> Vec<&Phase> {
    let phases = analysis.phases.iter();
    phases.filter(|phase| !phase.matrix.is_empty()).collect()
}

/// Returns the rank that each rank sends to in a phase in which it sends to only one.
fn receivers(phase: &Phase) -> Vec<u32> {
    let cells: Vec<(u32, u32)> = phase.matrix.cells().map(|cell| (cell.0, cell.1)).collect();
    assert!(cells.iter().map(|cell| cell.0).eq(0..cells.len() as u32));
    cells.into_iter().map(|cell| cell.1).collect()
}

fn check_torus(analysis: &Analysis) {
    assert_eq!(analysis.phases.len(), 8, "{}", analysis.text());
    let talking = talking(analysis);
    assert_eq!(talking.len(), 4);
    for (at, phase) in analysis.phases.iter().enumerate() {
        assert_eq!(phase.matrix.is_empty(), at % 2 == 1);
        assert_eq!(
            phase.to,
            analysis
                .phases
                .get(at + 1)
                .map_or(analysis.to, |next| next.from)
        );
    }
    // Up, right, left, down.
    let to: Vec<[u32; 3]> = (talking.iter())
        .map(|phase| {
            let to = receivers(phase);
            [to[0], to[9], to[31]]
        })
        .collect();
    assert_eq!(to, [[24, 1, 23], [1, 10, 24], [7, 8, 30], [8, 17, 7]]);
    for phase in talking {
        let figures = &phase.figures;
        assert_eq!(
            (figures.total.messages, figures.total.bytes),
            (32, 32 << 20)
        );
        assert_eq!((figures.sent.min, figures.sent.max), (1 << 20, 1 << 20));
        assert_eq!(figures.sent.mean, f64::from(1 << 20));
        // Up and down on four rows have two partners, left and right on eight columns too.
        assert_eq!(figures.degree.mean, 2.0);
    }
}

#[test]
fn a_torus_of_four_exchanges_has_eight_phases() {
    check_torus(&find(&torus(), Some(300 * MS), Some(5)));
}

#[test]
fn the_step_and_the_classes_of_the_torus_are_found() {
    let analysis = find(&torus(), None, None);
    check_torus(&analysis);
    assert_eq!(analysis.classes.len(), 5);
    assert_eq!(analysis.class_choice.stability, 1.0);
    assert_eq!(analysis.class_choice.ward_agreement, 1.0);
}

/// Checks that halves exchange with halves, then quarters, and so on down to `least`, and that about half of the run is silent at its end.
fn check_hadamard(analysis: &Analysis, least: u32) {
    let (last, exchanges) = analysis.phases.split_last().unwrap();
    assert_eq!(exchanges.len(), 5, "{}", analysis.text());
    assert!(last.matrix.is_empty());
    let silent = (last.to - last.from) as f64 / (analysis.to - analysis.from) as f64;
    assert!((0.4..=0.55).contains(&silent), "{silent}");
    let part = (16u64 << 25) / u64::from(analysis.ranks);
    for (at, phase) in exchanges.iter().enumerate() {
        let distance = analysis.ranks >> (at + 1);
        // Exchanges within the ranks that one cell averages look alike.
        let distances = if at == 4 {
            least..distance + 1
        } else {
            distance..distance + 1
        };
        let distances: Vec<u32> = distances.filter(|of| of.is_power_of_two()).collect();
        let mut expected: Vec<(u32, u32, u64)> = (0..analysis.ranks)
            .flat_map(|rank| distances.iter().map(move |of| (rank, rank ^ of, part)))
            .collect();
        expected.sort_unstable();
        let cells = phase
            .matrix
            .cells()
            .map(|(from, to, of)| (from, to, of.bytes));
        assert_eq!(cells.collect::<Vec<_>>(), expected, "phase {at}");
    }
}

#[test]
fn a_hadamard_transform_exchanges_halves_then_quarters_and_so_on() {
    let small = find(&hadamard(25, 32), Some(SECOND), None);
    check_hadamard(&small, 1);
    assert_eq!(small.classes.len(), 6);
    // Twice the ranks and half the step: distances 2 and 1 are within the same cell of the scaled matrix.
    let large = find(&hadamard(25, 64), Some(SECOND / 2), None);
    check_hadamard(&large, 1);
}

#[test]
fn the_step_and_the_classes_of_the_hadamard_transform_are_found() {
    for ranks in [32, 64] {
        let analysis = find(&hadamard(25, ranks), None, None);
        let talking = talking(&analysis);
        assert_eq!(talking.len(), 5, "{}", analysis.text());
        for (at, phase) in talking.into_iter().enumerate() {
            let distance = ranks >> (at + 1);
            let largest = phase
                .matrix
                .cells()
                .max_by_key(|cell| cell.2.bytes)
                .unwrap();
            assert!(at == 4 || largest.0 ^ largest.1 == distance);
        }
        assert!(analysis.phases.last().unwrap().matrix.is_empty());
    }
}

#[test]
fn a_solver_has_one_pattern_whose_classes_differ_in_volume_alone() {
    let trace = solver(10 * SECOND);
    // The last of the four steps has one second of communication.
    let analysis = find(&trace, Some(3 * SECOND), None);
    assert_eq!(analysis.step_classes, [0, 0, 0, 1]);
    let [whole, rest] = [0, 1].map(|at| &analysis.phases[at]);
    let pattern = |phase: &Phase| {
        let bytes = phase.matrix.cells().next().unwrap().2.bytes;
        let cells = phase.matrix.cells();
        cells
            .map(|(from, to, of)| (from, to, of.bytes as f64 / bytes as f64))
            .collect::<Vec<_>>()
    };
    assert_eq!(pattern(whole), pattern(rest));
    assert_eq!(whole.figures.degree, rest.figures.degree);
    assert_eq!(whole.figures.total.bytes, 9 * rest.figures.total.bytes);
    // Without a given step, the solver has one class.
    let analysis = find(&trace, None, None);
    assert_eq!((analysis.classes.len(), analysis.phases.len()), (1, 1));
    assert_eq!(analysis.class_choice.stability, 1.0);
}

#[test]
fn results_are_the_same_bytes() {
    let json = || find(&hadamard(25, 32), None, None).json();
    assert_eq!(json(), json());
}
