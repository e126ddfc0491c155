//! Target for extrapolation: a program at several numbers of ranks, predicted for more ranks.

use std::path::Path;

use nodescope_loop_tree::{CollectiveKind, PeerRef, Program, ProgramBuilder};
use nodescope_predict::{Channel, Cluster, Model, Request, ScaleRequest, scale};

use super::Target;
use crate::choices::Choices;

/// Target that predicts programs for more ranks than were traced.
pub const SCALE: Target = Target {
    name: "scale",
    what: "programs of three sizes, with times, sizes and peers of all kinds: predictions of more ranks",
    seeds: || vec![vec![7; 64]],
    mutate: |choices| (0..512).map(|_| choices.byte()).collect(),
    run: scaled,
    foreign: false,
};

/// Largest size of a message that a trace may contain, in bytes (`plugins/analysis/loop-tree`). `LATEST` is the largest time, in
/// picoseconds.
const MOST_BYTES: u64 = 1 << 43;
const LATEST: u64 = 1 << 61;

/// Dependence of a value on the number of ranks.
#[derive(Clone, Copy)]
struct Rule {
    kind: usize,
    base: u64,
    most: u64,
}

impl Rule {
    fn new(choices: &mut Choices<'_>, most: u64) -> Rule {
        Rule {
            kind: choices.below(6),
            base: choices.number(1000),
            most,
        }
    }

    fn at(self, ranks: u64) -> u64 {
        let value = match self.kind {
            0 | 1 => self.base,
            2 => self.base.saturating_mul(ranks),
            3 => self.base / ranks,
            4 => self.base.saturating_mul(ranks).saturating_mul(ranks),
            _ => u64::from(ranks.ilog2()).saturating_mul(self.base),
        };
        value.min(self.most)
    }
}

fn scaled(input: &[u8], _: &Path) {
    let mut choices = Choices::new(input);
    let mut rule = |most| Rule::new(&mut choices, most);
    let rules = [
        LATEST,
        MOST_BYTES,
        LATEST,
        MOST_BYTES,
        12,
        u64::from(u32::MAX),
    ]
    .map(&mut rule);
    let kind = choices.of(&CollectiveKind::ALL).copied();
    let kind = kind.unwrap_or(CollectiveKind::Barrier);
    let programs = [2, 4, 8].map(|ranks| program(ranks, rules, kind));
    let mut channel = Channel::new(Model::LogGp, 1_000_000, 1_000_000_000);
    channel.eager_limit = choices.number(65_536);
    let cluster = Cluster::simple("cluster", channel);
    let request = ScaleRequest {
        targets: vec![3, 16, 64],
        threshold: 0.5,
        request: Request {
            replicas: 0,
            ..Request::default()
        },
    };
    match scale(&programs, &cluster, &request) {
        Ok((scaled, prediction)) => {
            let _ = (scaled.text(), scaled.json());
            let _ = prediction.map(|prediction| prediction.text());
        }
        Err(error) => drop(error.to_string()),
    }
}

fn program(ranks: u32, rules: [Rule; 6], kind: CollectiveKind) -> Program {
    let at = |rule: Rule| rule.at(ranks.into());
    let [burst, bytes, own, vector, count, distance] = rules;
    let mut builder = ProgramBuilder::new();
    let next = PeerRef::Relative(at(distance) as u32 % ranks);
    let before = PeerRef::Relative((ranks - at(distance) as u32 % ranks) % ranks);
    builder.begin();
    builder.compute(at(burst)).isend(next, 1, at(bytes), 0);
    builder.receive(before, 1, at(bytes)).wait(&[0]);
    builder.end(1 + at(count) as u32);
    builder.compute(at(own)).collective(kind, 0, at(vector));
    builder.ranks(ranks).finish()
}
