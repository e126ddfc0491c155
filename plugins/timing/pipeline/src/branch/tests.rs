use super::*;

const SITE: u64 = 0x40_1000;

fn new() -> Predictor {
    Predictor::new(&PredictorConfig::default())
}

/// Numbers that look random, the same in every run.
fn random() -> impl FnMut() -> u64 {
    let mut state = 1u64;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

/// Executes a conditional branch and returns 1 if it was mispredicted.
fn conditional(predictor: &mut Predictor, address: u64, taken: bool) -> usize {
    let right = predictor.branch(address, Flow::Conditional, taken, address - 64, address + 2);
    usize::from(!right)
}

/// Returns the mispredictions of one branch by these directions, which follow `warm` others that are not counted.
fn wrong(predictor: &mut Predictor, warm: usize, directions: impl Iterator<Item = bool>) -> usize {
    let wrong = directions.map(|taken| conditional(predictor, SITE, taken));
    wrong.skip(warm).sum()
}

/// Returns the mispredictions of an indirect jump in the second half of `count` jumps to these targets.
fn wrong_targets(predictor: &mut Predictor, count: usize, target: impl Fn(usize) -> u64) -> usize {
    let jump = |n| {
        let right = predictor.branch(SITE, Flow::IndirectJump, true, target(n), SITE + 2);
        usize::from(!right)
    };
    (0..count).map(jump).skip(count / 2).sum()
}

#[test]
fn branches_that_never_change_are_right() {
    // Counters begin as weakly taken.
    assert_eq!(wrong(&mut new(), 0, (0..10_000).map(|_| true)), 0);
    assert!(wrong(&mut new(), 0, (0..10_000).map(|_| false)) <= 4);
    assert_eq!(wrong(&mut new(), 1_000, (0..10_000).map(|_| false)), 0);
}

#[test]
fn short_patterns_are_learnt() {
    let twelve = 0b1011_0001_1101u32;
    assert_eq!(wrong(&mut new(), 200, (0..10_000).map(|n| n % 2 == 0)), 0);
    assert_eq!(
        wrong(&mut new(), 500, (0..10_000).map(|n| n / 2 % 2 == 0)),
        0
    );
    let pattern = (0..20_000).map(|n| twelve >> (n % 12) & 1 == 1);
    assert_eq!(wrong(&mut new(), 2_000, pattern), 0);
}

/// Executes rounds of two nested loops and returns the mispredictions after the first `warm` rounds.
fn nested(predictor: &mut Predictor, warm: usize, rounds: usize, trips: [usize; 2]) -> usize {
    let mut wrong = 0;
    for round in 0..rounds {
        let mut this = 0;
        for outer in 1..=trips[0] {
            for inner in 1..=trips[1] {
                this += conditional(predictor, SITE, inner < trips[1]);
            }
            this += conditional(predictor, SITE + 64, outer < trips[0]);
        }
        wrong += if round < warm { 0 } else { this };
    }
    wrong
}

#[test]
fn exits_of_nested_loops_with_constant_trips_are_predicted() {
    for trips in [[3, 4], [10, 7], [5, 16], [20, 60], [60, 20]] {
        assert_eq!(nested(&mut new(), 20, 100, trips), 0, "{trips:?}");
    }
}

#[test]
fn longer_loops_need_a_larger_limit_of_trips() {
    let config = |loop_max_trips| PredictorConfig {
        loop_max_trips,
        ..PredictorConfig::default()
    };
    // One exit in each round of 1,000 trips. Histories end at 210 branches.
    let exits = |loop_max_trips| {
        let mut predictor = Predictor::new(&config(loop_max_trips));
        wrong(
            &mut predictor,
            20_000,
            (1..=100_000).map(|n| n % 1_000 != 0),
        )
    };
    assert_eq!(exits(64), 80);
    assert_eq!(exits(999), 80);
    assert_eq!(exits(1_000), 0);
    assert_eq!(exits(4_000), 0);
    // Without trip counts, history alone finds the exits of loops that it covers.
    let mut predictor = Predictor::new(&config(0));
    let short = (1..=100_000).map(|n| n % 100 != 0);
    assert!(wrong(&mut predictor, 50_000, short) <= 5);
}

#[test]
fn a_loop_whose_trips_vary_is_not_predicted_by_trips() {
    let run = |loop_entries| {
        let config = PredictorConfig {
            loop_entries,
            ..PredictorConfig::default()
        };
        let (mut predictor, mut random) = (Predictor::new(&config), random());
        let mut wrong = 0;
        for _ in 0..5_000 {
            let trips = 5 + random() % 8;
            for trip in 1..=trips {
                wrong += conditional(&mut predictor, SITE, trip < trips);
            }
        }
        wrong as f64 / 5_000.0
    };
    let (with, without) = (run(64), run(0));
    assert!((0.8..1.5).contains(&without), "{without} for each round");
    assert!(with < without + 0.05, "{with} for {without}");
}

#[test]
fn random_directions_are_wrong_half_of_the_time() {
    let mut random = random();
    let rate = wrong(&mut new(), 0, (0..100_000).map(|_| random() & 1 == 1)) as f64 / 100_000.0;
    assert!((0.48..0.52).contains(&rate), "{rate}");
    // A branch that is taken three times of four: the best guess is to take it always.
    let mut random = self::random();
    let rate = wrong(&mut new(), 0, (0..100_000).map(|_| random() & 3 != 0)) as f64 / 100_000.0;
    assert!((0.24..0.32).contains(&rate), "{rate}");
}

#[test]
fn a_repeated_random_sequence_is_learnt() {
    let rate = |length: usize, rounds: usize| {
        let mut random = random();
        let sequence: Vec<bool> = (0..length).map(|_| random() & 1 == 1).collect();
        let directions = (0..rounds * length).map(|n| sequence[n % length]);
        wrong(&mut new(), (rounds - 1) * length, directions) as f64 / length as f64
    };
    assert!(rate(1_000, 10) < 0.01, "{}", rate(1_000, 10));
    assert!(rate(5_000, 20) < 0.05, "{}", rate(5_000, 20));
    assert!(rate(100_000, 5) > 0.3, "{}", rate(100_000, 5));
}

#[test]
fn a_branch_that_repeats_another_is_right() {
    let (mut predictor, mut random) = (new(), random());
    let (mut first, mut second) = (0, 0);
    for n in 0..20_000 {
        let taken = random() & 1 == 1;
        first += conditional(&mut predictor, SITE, taken);
        conditional(&mut predictor, SITE + 16, true);
        let wrong = conditional(&mut predictor, SITE + 32, !taken);
        second += if n < 2_000 { 0 } else { wrong };
    }
    assert!((9_000..11_000).contains(&first), "{first}");
    assert!(second <= 90, "{second} of 18,000");
}

#[test]
fn constant_and_cyclic_targets_are_learnt() {
    assert_eq!(wrong_targets(&mut new(), 100, |_| 0x50_0000), 0);
    let cyclic = |n: usize| 0x50_0000 + 64 * (n % 5) as u64;
    assert_eq!(wrong_targets(&mut new(), 1_000, cyclic), 0);
}

/// Returns the share of wrong targets of a repeated random sequence of 64 targets.
fn sequence_of_targets(length: usize) -> f64 {
    let mut random = random();
    let targets: Vec<u64> = (0..length)
        .map(|_| 0x50_0000 + 80 * (random() % 64))
        .collect();
    let count = 40 * length;
    wrong_targets(&mut new(), count, |n| targets[n % length]) as f64 / (count / 2) as f64
}

#[test]
fn random_targets_are_learnt_as_far_as_the_tables_reach() {
    let mut random = random();
    let targets: Vec<u64> = (0..20_000)
        .map(|_| 0x50_0000 + 80 * (random() % 64))
        .collect();
    let rate = wrong_targets(&mut new(), 20_000, |n| targets[n]) as f64 / 10_000.0;
    assert!(rate > 0.97, "{rate}");
    let [short, middle, long] = [1_000, 3_000, 9_000].map(sequence_of_targets);
    assert!(short < 0.02, "{short}");
    assert!((0.3..0.8).contains(&middle), "{middle}");
    assert!(long > 0.8, "{long}");
}

#[test]
fn a_branch_behind_an_indirect_jump_knows_its_target() {
    let (mut predictor, mut random) = (new(), random());
    let mut wrong = 0;
    for n in 0..20_000 {
        let target = 0x50_0000 + 16 * (random() % 4);
        predictor.branch(SITE, Flow::IndirectJump, true, target, SITE + 2);
        let miss = conditional(&mut predictor, SITE + 32, target & 16 != 0);
        wrong += if n < 2_000 { 0 } else { miss };
    }
    assert!(wrong <= 90, "{wrong} of 18,000");
}

/// Calls a function that calls itself `depth` deep, from a new place at each depth, and returns the wrong returns.
fn recursion(predictor: &mut Predictor, depth: u64) -> usize {
    let call = |n: u64| 0x60_0000 + 32 * n;
    for n in 0..depth {
        assert!(predictor.branch(call(n), Flow::Call, true, call(n + 1), call(n) + 5));
    }
    let back = |n| {
        let right = predictor.branch(call(n) + 20, Flow::Return, true, call(n) + 5, 0);
        usize::from(!right)
    };
    (0..depth).rev().map(back).sum()
}

#[test]
fn returns_are_right_up_to_the_depth_of_the_stack() {
    assert_eq!(recursion(&mut new(), 32), 0);
    // The 8 outermost calls were overwritten.
    assert_eq!(recursion(&mut new(), 40), 8);
    let none = PredictorConfig {
        return_entries: 0,
        ..PredictorConfig::default()
    };
    assert_eq!(recursion(&mut Predictor::new(&none), 3), 3);
}

#[test]
fn calls_of_all_lengths_return_behind_the_call() {
    let mut predictor = new();
    let steps = [
        (Flow::Call, 0x1000, 0x2000, 0x1005, true),
        (Flow::Call, 0x2003, 0x3000, 0x2008, true),
        (Flow::Return, 0x3010, 0x2008, 0x3011, true),
        // CALL with a register has 2 bytes, with a displacement 6. The first execution finds no target.
        (Flow::IndirectCall, 0x2010, 0x4000, 0x2012, false),
        (Flow::Return, 0x4001, 0x2012, 0x4002, true),
        (Flow::IndirectCall, 0x2010, 0x4000, 0x2012, true),
        (Flow::Jump, 0x4000, 0x5000, 0x4005, true),
        (Flow::Return, 0x5001, 0x2012, 0x5002, true),
        // A return that goes elsewhere than behind the call, as that of a switch between threads does.
        (Flow::Return, 0x2020, 0x7777, 0x2021, false),
    ];
    for (step, (flow, address, target, next, right)) in steps.into_iter().enumerate() {
        let answer = predictor.branch(address, flow, true, target, next);
        assert_eq!(answer, right, "step {step}");
    }
    for flow in [Flow::Next, Flow::System] {
        assert!(predictor.branch(0x1000, flow, false, 0, 0x1002));
    }
}

#[test]
fn a_copy_goes_on_as_the_original() {
    let (mut predictor, mut random) = (new(), random());
    let mut run = |predictor: &mut Predictor, count| {
        let step = |_| {
            let number = random();
            let site = SITE + 4 * (number >> 8 & 63);
            let flow = if number & 64 == 0 {
                Flow::Conditional
            } else {
                Flow::IndirectJump
            };
            (site, flow, number & 3 != 0, 0x50_0000 + (number & 0xC0))
        };
        let steps: Vec<_> = (0..count).map(step).collect();
        let answer = |predictor: &mut Predictor| -> Vec<bool> {
            let branch = |&(site, flow, taken, target)| {
                predictor.branch(site, flow, taken, target, site + 2)
            };
            steps.iter().map(branch).collect()
        };
        (answer(&mut predictor.clone()), answer(predictor))
    };
    for count in [50_000, 50_000] {
        let (copy, original) = run(&mut predictor, count);
        assert_eq!(copy, original);
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let text = |change: fn(&mut PredictorConfig)| {
        let mut config = PredictorConfig::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert_eq!(PredictorConfig::default().check(), Ok(()));
    assert_eq!(
        text(|c| c.entries = 1_000),
        "entries: 1000 is not possible; write a power of two from 2 to 65536"
    );
    assert_eq!(
        text(|c| c.histories = vec![5, 5]),
        "histories: write at most 8 rising numbers from 1 to 255"
    );
    assert!(text(|c| c.indirect_histories = vec![256]).starts_with("indirect_histories:"));
    assert!(text(|c| c.steady_after = 120).starts_with("steady_after:"));
    assert!(text(|c| c.loop_entries = 2).starts_with("loop_entries:"));
    assert!(text(|c| c.return_entries = 5_000).starts_with("return_entries:"));
}

#[test]
fn a_predictor_without_tables_is_its_base() {
    let config: PredictorConfig =
        toml::from_str("histories = []\nindirect_histories = []\nloop_entries = 0").unwrap();
    let mut predictor = Predictor::new(&config);
    // A counter of 2 bits mispredicts the exit of a loop, and nothing else.
    assert_eq!(
        wrong(&mut predictor, 0, (1..=1_000).map(|n| n % 10 != 0)),
        100
    );
    // The base of indirect jumps expects the last target.
    assert_eq!(
        wrong_targets(&mut predictor, 1_000, |n| 64 * (n / 10) as u64),
        50
    );
}
