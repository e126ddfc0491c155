//! What blocks keep of their costs under changes of code.

mod support;

use nodescope_plugin_api::{Cause, StallTerm};
use nodescope_profile::totals::CYCLE;
use nodescope_profile::{Clock, CodeChange, CodePlace, Costs, NominalCore, Scope, WindowProfile};
use support::{RELAX, profile};

const CPI: u32 = 65_536 * 3 / 5;
const CORE: fn(&WindowProfile) -> NominalCore<'_> = |profile| NominalCore {
    profile,
    cpi_65536: CPI,
};

fn function(name: &str) -> Option<CodePlace> {
    Some(CodePlace::Function(name.into()))
}

/// Returns the cycles that the window saves by a change, in 1/65536.
fn saved(profile: &WindowProfile, place: Option<CodePlace>, causes: &[Cause], kept: f64) -> f64 {
    let clock = Clock::new(profile, CPI);
    let change = CodeChange {
        place,
        causes: causes.to_vec(),
        kept,
    };
    let kept = profile.kept(&clock, &[change]).unwrap();
    let blocks = clock.by_block();
    let saved =
        (blocks.iter().zip(kept)).map(|(of, kept)| of.iter().sum::<i128>() as f64 * (1.0 - kept));
    saved.sum()
}

fn relax(profile: &WindowProfile) -> Costs {
    profile.by_function(Scope::Total, &CORE(profile))[&RELAX].clone()
}

fn assert_near(value: f64, wanted: i128) {
    assert!(
        (value / wanted as f64 - 1.0).abs() < 1e-3,
        "{value} for {wanted}"
    );
}

#[test]
fn a_function_without_parameters_in_its_name_loses_its_own_cycles() {
    let profile = profile("solve");
    let whole = relax(&profile).cycles_65536();
    assert_near(saved(&profile, function("relax"), &[], 0.0), whole);
    assert_near(saved(&profile, function("relax"), &[], 0.5), whole / 2);
    assert_near(saved(&profile, function("relax"), &[], 2.0), -whole);
}

#[test]
fn a_line_and_an_inlined_function_have_their_instructions_share() {
    let profile = profile("solve");
    let whole = relax(&profile).cycles_65536();
    // Of six instructions, the third and the second are line 42, the first is inlined.
    let line = Some(CodePlace::Line("src/solver.cpp".into(), 42));
    assert_near(saved(&profile, line, &[], 0.0), whole / 3);
    let inlined = function("grid::Field<double, 3ul>::at");
    assert_near(saved(&profile, inlined, &[], 0.0), whole / 6);
}

#[test]
fn a_term_that_is_off_takes_its_stalls_along() {
    let profile = profile("solve");
    let stalls = relax(&profile).stalls;
    let memory = stalls[StallTerm::LocalMemory as usize] + stalls[StallTerm::RemoteMemory as usize];
    let causes = [Cause::LocalMemory, Cause::RemoteMemory, Cause::Bandwidth];
    let saved = saved(&profile, function("relax"), &causes, 0.0);
    assert_near(saved, memory as i128 * CYCLE);
}

#[test]
fn costs_of_executions_add_up_to_the_clock() {
    let profile = profile("solve");
    let clock = Clock::new(&profile, CPI);
    let kept = vec![1.0; profile.blocks.len()];
    let mut sum = 0;
    for (block, sixteenths) in profile.costs(&clock, &kept) {
        let counts = profile.counts.iter().filter(|count| count.block == block);
        let executions: u64 = counts
            .map(|of| of.counts.executions + of.counts.partial.executions)
            .sum();
        sum += i128::from(sixteenths * executions) * (CYCLE / 16);
    }
    let whole = profile.total(Scope::Total, &CORE(&profile)).cycles_65536();
    assert!(
        (sum as f64 / whole as f64 - 1.0).abs() < 0.01,
        "{sum} for {whole}"
    );
}

#[test]
fn code_that_did_not_run_is_named_with_the_code_that_did() {
    let profile = profile("solve");
    let clock = Clock::new(&profile, CPI);
    let wrong = |place| {
        let change = CodeChange {
            place: Some(place),
            causes: Vec::new(),
            kept: 0.5,
        };
        profile.kept(&clock, &[change]).unwrap_err().to_string()
    };
    let text = wrong(CodePlace::Function("rela".into()));
    assert!(
        text.contains("is rela;") && text.contains("relax(double*"),
        "{text}"
    );
    let text = wrong(CodePlace::Line("solver.cpp".into(), 7));
    assert!(
        text.contains("solver.cpp:7") && text.contains("solver.cpp:41"),
        "{text}"
    );
}
