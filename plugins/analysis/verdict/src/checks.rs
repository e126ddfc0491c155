//! The checks: what may cost time in a program, and how each is remedied.

use std::collections::BTreeMap;

use nodescope_loop_tree::sequence::Entry;
use nodescope_loop_tree::{Action, CollectiveKind, PeerRef, Sequences, Site};
use nodescope_predict::{Outcome, WaitKind};

use crate::cause::Kind;
use crate::edit::{Call, Edit, MILLION, Parts, State, Stretch, call, stretches, waiting_rows};
use crate::placement;

/// Most candidates of a check.
const MOST: usize = 6;
/// A rank is a candidate if it computes longer than the mean by one part in so many of the run's time.
const LEAST_EXCESS: u64 = 100;
/// A computation is of one rank alone if the mean of the others is below this part of its time.
const ALONE: u64 = 10;
/// A rank has the same work as the others if it executes at most so many times their instructions.
const SAME_WORK: f64 = 1.05;
/// Least number of messages in a row that may be joined, and the longest computation between two of them, in latencies of the network.
const ROW: usize = 4;
const MOST_BETWEEN: u64 = 10;

/// Something that may cost time.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) kind: Kind,
    pub(crate) subject: Subject,
    pub(crate) edit: Edit,
}

/// What a candidate is about.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// A computation of a rank: its time and instructions, and the means of all other ranks.
    Computation {
        stretch: Stretch,
        rank: u32,
        own: Work,
        others: Work,
    },
    /// All computations of a rank: their time and instructions, and the means of all other ranks.
    Rank { rank: u32, own: Work, others: Work },
    /// A computation, and how many times the mean of all ranks its slowest rank takes each time.
    Varying { stretch: Stretch, times: f64 },
    /// A call, executed so many times by all ranks together.
    Call { call: Call, count: u64 },
    /// The call that waits longest for messages.
    Messages(Option<Call>),
    /// The node of each rank.
    Nodes(Vec<u32>),
}

/// Returns the candidates of all checks. `outcome` is the state's replay.
pub(crate) fn all(state: &State, outcome: &Outcome) -> Vec<Candidate> {
    let mut found = imbalance(&state.sequences, outcome.time);
    found.extend(slow_rank(&state.sequences, outcome.time));
    found.extend(varying_work(&state.sequences, outcome.time));
    found.extend(overlaps(&state.sequences));
    found.extend(collectives(&state.sequences));
    found.extend(short_messages(state));
    found.extend(late_receiver(&state.sequences, outcome));
    found.extend(
        placement::placements(&state.sequences)
            .into_iter()
            .map(|nodes| Candidate {
                kind: Kind::Placement,
                subject: Subject::Nodes(nodes.clone()),
                edit: Edit::Place(nodes),
            }),
    );
    let path = outcome.critical_path.as_ref();
    let name = path.and_then(|path| path.calls.first());
    let longest = name.and_then(|(name, _)| find_call(&state.sequences, name.site, &name.call));
    let messages = |kind, edit| Candidate {
        kind,
        subject: Subject::Messages(longest),
        edit,
    };
    found.push(messages(Kind::Latency, Edit::NoLatency));
    found.push(messages(Kind::Bandwidth, Edit::NoBytes));
    found
}

/// Returns the call that the interpreter means by a call site and the name of a function.
fn find_call(sequences: &Sequences, site: Site, function: &str) -> Option<Call> {
    let mut entries = sequences.ranks.iter().flat_map(|rank| &rank.entries);
    let found = entries.find(|e| e.op.site == site && e.op.function.name() == function);
    found.map(call)
}

/// The time and the instructions of a rank's computations.
type Work = (u64, u64);

/// Returns the mean work of all ranks but one, whose own work is `own`.
fn of_others<'a>(works: impl Iterator<Item = &'a Work> + Clone, own: Work, ranks: usize) -> Work {
    let mean = |own: u64, of: fn(&Work) -> u64| {
        let all: u128 = works.clone().map(|work| u128::from(of(work))).sum();
        all.saturating_sub(own.into()) / (ranks as u128).saturating_sub(1).max(1)
    };
    let mean = (mean(own.0, |work| work.0), mean(own.1, |work| work.1));
    (mean.0 as u64, mean.1 as u64)
}

/// Returns the work of each rank between the same two calls, where the ranks' work can be compared.
fn comparable(sequences: &Sequences) -> BTreeMap<Stretch, BTreeMap<usize, Work>> {
    let ranks = sequences.ranks.len();
    let mut sums: BTreeMap<Stretch, BTreeMap<usize, Work>> = BTreeMap::new();
    for (number, rank) in sequences.ranks.iter().enumerate() {
        for (stretch, entry) in stretches(&rank.entries) {
            let of_rank = sums.entry(stretch).or_default().entry(number).or_default();
            of_rank.0 = of_rank.0.saturating_add(entry.burst.time);
            of_rank.1 = of_rank.1.saturating_add(entry.burst.instructions);
        }
    }
    // What half of the ranks do has a counterpart in what the others do.
    sums.retain(|_, sums| ranks >= 2 && (sums.len() == ranks || sums.len() * 4 <= ranks));
    sums
}

/// Returns the mean time of all ranks, and the change with which each rank takes this time.
fn even(stretch: Stretch, sums: &BTreeMap<usize, Work>, ranks: usize) -> (u64, Parts) {
    let all: u128 = sums.values().map(|sum| u128::from(sum.0)).sum();
    let mean = all / ranks as u128;
    let parts = |sum: u64| (mean * u128::from(MILLION)).checked_div(sum.into());
    let parts = (sums.iter())
        .filter_map(|(rank, sum)| Some(((stretch, *rank), parts(sum.0)? as u64)))
        .collect();
    (mean as u64, parts)
}

/// Returns the change with which all ranks compute equally long between the same two calls.
pub(crate) fn balance(sequences: &Sequences) -> Parts {
    let ranks = sequences.ranks.len();
    let sums = comparable(sequences).into_iter();
    sums.flat_map(|(stretch, sums)| even(stretch, &sums, ranks).1)
        .collect()
}

/// Computations that take different times on different ranks.
fn imbalance(sequences: &Sequences, time: u64) -> Vec<Candidate> {
    let ranks = sequences.ranks.len();
    let mut found: Vec<(u64, Candidate)> = Vec::new();
    for (stretch, sums) in comparable(sequences) {
        let Some((&rank, &own)) = sums.iter().max_by_key(|(_, sum)| sum.0) else {
            continue;
        };
        let others = of_others(sums.values(), own, ranks);
        let (mean, parts) = even(stretch, &sums, ranks);
        if (own.0 - mean).saturating_mul(LEAST_EXCESS) < time {
            continue;
        }
        let candidate = Candidate {
            kind: match others.0.saturating_mul(ALONE) < own.0 {
                true => Kind::SerialRank,
                false => Kind::Imbalance,
            },
            subject: Subject::Computation {
                stretch,
                rank: rank as u32,
                own,
                others,
            },
            edit: Edit::Scale(parts),
        };
        found.push((own.0 - mean, candidate));
    }
    found.sort_by_key(|(excess, _)| u64::MAX - excess);
    found.truncate(MOST);
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The rank that computes longest beyond the mean of the others, over all computations.
fn slow_rank(sequences: &Sequences, time: u64) -> Option<Candidate> {
    let ranks = sequences.ranks.len();
    let comparable: Vec<_> = (comparable(sequences).into_iter())
        .filter(|(_, sums)| sums.len() == ranks)
        .collect();
    let mut sums: Vec<Work> = vec![(0, 0); ranks];
    for (rank, work) in comparable.iter().flat_map(|(_, sums)| sums) {
        sums[*rank].0 = sums[*rank].0.saturating_add(work.0);
        sums[*rank].1 = sums[*rank].1.saturating_add(work.1);
    }
    let (rank, &own) = sums.iter().enumerate().max_by_key(|(_, sum)| sum.0)?;
    let others = of_others(sums.iter(), own, ranks);
    if own.0.saturating_sub(others.0).saturating_mul(LEAST_EXCESS) < time {
        return None;
    }
    // More instructions are work that the others would have to do.
    let slower = own.1 as f64 <= SAME_WORK * others.1 as f64;
    let mut parts = Parts::new();
    for (stretch, sums) in &comparable {
        let of_rank = sums[&rank];
        let (mut target, _) = of_others(sums.values(), of_rank, ranks);
        let moved = match slower {
            true => 0,
            false => of_rank.0.saturating_sub(target) / ranks as u64,
        };
        target += moved;
        for (of, work) in sums {
            let time = match *of == rank {
                true => target.min(work.0),
                false => work.0.saturating_add(moved),
            };
            let part = u128::from(time) * u128::from(MILLION);
            if let Some(part) = part.checked_div(work.0.into()) {
                parts.insert((*stretch, *of), part as u64);
            }
        }
    }
    Some(Candidate {
        kind: Kind::SlowRank,
        subject: Subject::Rank {
            rank: rank as u32,
            own,
            others,
        },
        edit: Edit::Scale(parts),
    })
}

/// Computations in which each time another rank takes longest, though all take equally long together.
fn varying_work(sequences: &Sequences, time: u64) -> Vec<Candidate> {
    let ranks = sequences.ranks.len();
    let mut instances: BTreeMap<Stretch, Vec<Vec<(usize, u64)>>> = BTreeMap::new();
    for (number, rank) in sequences.ranks.iter().enumerate() {
        for (index, (stretch, entry)) in stretches(&rank.entries).enumerate() {
            let of_ranks = instances
                .entry(stretch)
                .or_insert_with(|| vec![Vec::new(); ranks]);
            of_ranks[number].push((index, entry.burst.time));
        }
    }
    let mut found: Vec<(u64, Candidate)> = Vec::new();
    for (stretch, of_ranks) in instances {
        let count = of_ranks[0].len();
        if ranks < 2 || count < 2 || of_ranks.iter().any(|of_rank| of_rank.len() != count) {
            continue;
        }
        // Times of a damaged trace may have any value, so that their sums saturate.
        let sum = |of_rank: &Vec<(usize, u64)>| {
            let mut times = of_rank.iter().map(|(_, time)| *time);
            times.try_fold(0, u64::checked_add).unwrap_or(u64::MAX)
        };
        let sums: Vec<u64> = of_ranks.iter().map(sum).collect();
        let all = sums.iter().map(|sum| sum / ranks as u64).sum::<u64>();
        let (mut last, mut parts) = (0_u64, BTreeMap::new());
        for step in 0..count {
            let times = || of_ranks.iter().map(|of_rank| of_rank[step]);
            let mean = times().map(|(_, time)| time / ranks as u64).sum::<u64>();
            last = last.saturating_add(times().map(|(_, time)| time).max().unwrap_or(0));
            for (rank, (index, time)) in times().enumerate().filter(|(_, (_, time))| *time > 0) {
                let part = u128::from(mean) * u128::from(MILLION) / u128::from(time);
                parts.insert((rank, index), part as u64);
            }
        }
        // What the same rank does longest each time is an imbalance.
        let always = sums.iter().max().unwrap_or(&0).saturating_sub(all);
        let excess = last.saturating_sub(all);
        if excess.saturating_mul(LEAST_EXCESS) >= time && always < excess / 2 {
            let candidate = Candidate {
                kind: Kind::VaryingWork,
                subject: Subject::Varying {
                    stretch,
                    times: last as f64 / all.max(1) as f64,
                },
                edit: Edit::ScaleEach(parts),
            };
            found.push((excess, candidate));
        }
    }
    found.sort_by_key(|(excess, _)| u64::MAX - excess);
    found.truncate(MOST);
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

/// Calls that wait for messages before a computation.
fn overlaps(sequences: &Sequences) -> Vec<Candidate> {
    let mut counts: BTreeMap<Call, u64> = BTreeMap::new();
    for rank in &sequences.ranks {
        for (_, last) in waiting_rows(&rank.entries) {
            *counts.entry(call(&rank.entries[last])).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| u64::MAX - count);
    counts.truncate(MOST);
    let candidate = |(call, count)| Candidate {
        kind: Kind::Overlap,
        subject: Subject::Call { call, count },
        edit: Edit::Overlap(call),
    };
    counts.into_iter().map(candidate).collect()
}

/// Collective operations that could be left out.
fn collectives(sequences: &Sequences) -> Vec<Candidate> {
    let mut counts: BTreeMap<(Call, CollectiveKind), u64> = BTreeMap::new();
    for entry in sequences.ranks.iter().flat_map(|rank| &rank.entries) {
        if let Action::Collective(of) = &entry.op.action
            && of.request.is_none()
            && of.kind != CollectiveKind::Create
        {
            *counts.entry((call(entry), of.kind)).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| u64::MAX - count);
    counts.truncate(MOST);
    let candidate = |((call, kind), count)| Candidate {
        kind: match kind {
            CollectiveKind::Barrier => Kind::Barrier,
            _ => Kind::Collective,
        },
        subject: Subject::Call { call, count },
        edit: Edit::Without(call),
    };
    counts.into_iter().map(candidate).collect()
}

/// A message's sender, receiver and tag.
type Route = (u32, u32, u32);

/// Rows of messages of one call: the rank, the index of each entry, and the bytes.
type Rows = BTreeMap<Route, Vec<(usize, Vec<usize>, Vec<u64>)>>;

/// Returns the route and the bytes of a blocking send, or of a blocking receive.
fn message(rank: usize, entry: &Entry, sends: bool) -> Option<(Route, u64)> {
    match &entry.op.action {
        Action::Send {
            to: PeerRef::Absolute(to),
            tag,
            bytes,
            request: None,
            ..
        } if sends => Some(((rank as u32, *to, *tag), *bytes)),
        Action::Receive {
            from,
            tag: Some(tag),
            room,
            request: None,
        } if !sends => match from.peer()? {
            PeerRef::Absolute(from) => Some(((from, rank as u32, *tag), *room)),
            PeerRef::Relative(_) => None,
        },
        _ => None,
    }
}

/// Returns the rows of blocking sends, or receives, of one route without another call or a longer computation between.
fn rows(sequences: &Sequences, sends: bool, most_between: u64) -> Rows {
    let mut rows = Rows::new();
    for (number, rank) in sequences.ranks.iter().enumerate() {
        let mut last: Option<(Call, Route)> = None;
        for (index, entry) in rank.entries.iter().enumerate() {
            let Some((route, bytes)) = message(number, entry, sends) else {
                last = None;
                continue;
            };
            let of_route = rows.entry(route).or_default();
            match of_route.last_mut() {
                Some(row)
                    if last == Some((call(entry), route)) && entry.burst.time <= most_between =>
                {
                    row.1.push(index);
                    row.2.push(bytes);
                }
                _ => of_route.push((number, vec![index], vec![bytes])),
            }
            last = Some((call(entry), route));
        }
    }
    rows
}

/// Messages in a row that could be one. Both ends have the same rows, so that the joined messages match.
fn short_messages(state: &State) -> Option<Candidate> {
    let sequences = &state.sequences;
    let network = &state.cluster.network;
    if network.per_byte <= 0.0 {
        return None;
    }
    // The size at which latency and transfer take equally long.
    let short = (network.latency as f64 / network.per_byte) as u64;
    let most_between = MOST_BETWEEN.saturating_mul(network.latency);
    let (sends, receives) = (
        rows(sequences, true, most_between),
        rows(sequences, false, most_between),
    );
    let mut changes = BTreeMap::new();
    let mut counts: BTreeMap<Call, u64> = BTreeMap::new();
    for (route, sent) in &sends {
        let Some(received) = receives.get(route) else {
            continue;
        };
        let lengths = |rows: &[(usize, Vec<usize>, Vec<u64>)]| -> Vec<usize> {
            rows.iter().map(|row| row.1.len()).collect()
        };
        if lengths(sent) != lengths(received) {
            continue;
        }
        for (sent, received) in sent.iter().zip(received) {
            let (rank, indices, bytes) = sent;
            let all: u64 = bytes.iter().sum();
            if indices.len() < ROW || bytes.iter().any(|bytes| *bytes > short) {
                continue;
            }
            let at = call(&sequences.ranks[*rank].entries[indices[0]]);
            *counts.entry(at).or_default() += indices.len() as u64;
            for (rank, indices, _) in [sent, received] {
                let each = indices.iter().enumerate();
                changes.extend(each.map(|(n, index)| ((*rank, *index), (n == 0).then_some(all))));
            }
        }
    }
    let (call, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    Some(Candidate {
        kind: Kind::ShortMessages,
        subject: Subject::Call { call, count },
        edit: Edit::Join(changes),
    })
}

/// Large messages whose senders wait for their receivers.
fn late_receiver(sequences: &Sequences, outcome: &Outcome) -> Option<Candidate> {
    let mut waits = outcome.waits.iter();
    let wait = waits.find(|wait| wait.kind == WaitKind::LateReceiver)?;
    let call = find_call(sequences, wait.because_of.site, &wait.because_of.call)?;
    Some(Candidate {
        kind: Kind::LateReceiver,
        subject: Subject::Call {
            call,
            count: wait.count,
        },
        edit: Edit::NoRendezvous,
    })
}
