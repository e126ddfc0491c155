//! Collectives in which everybody exchanges with partners.

use super::{Round, Shape, tree};

fn log2_ceil(size: u32) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

/// Signals to the rank 2^k after, from the rank 2^k before.
pub(super) fn dissemination(shape: &Shape<'_>, k: u32) -> Option<Round> {
    (k < log2_ceil(shape.size)).then(|| {
        let distance = 1 << k;
        Round::exchange(shape.after(distance), 0, shape.before(distance), 0)
    })
}

/// How a rank takes part in an algorithm for a power of two of ranks: of the first 2 * rest ranks, the even ones join the odd one
/// after them.
struct Folded {
    /// Ranks that take part.
    power: u32,
    rest: u32,
    /// The caller's number among them, unless it joins another.
    number: Option<u32>,
}

impl Folded {
    fn new(shape: &Shape<'_>) -> Folded {
        let power = 1 << (31 - shape.size.leading_zeros());
        let rest = shape.size - power;
        let number = if shape.me < 2 * rest {
            (shape.me % 2 == 1).then_some(shape.me / 2)
        } else {
            Some(shape.me - rest)
        };
        Folded {
            power,
            rest,
            number,
        }
    }

    fn rank(&self, number: u32) -> u32 {
        if number < self.rest {
            2 * number + 1
        } else {
            number + self.rest
        }
    }

    fn levels(&self) -> u32 {
        self.power.trailing_zeros()
    }

    /// Rounds before and after those of `inner`, in which the others hand in their vector and get the result.
    fn around(
        &self,
        shape: &Shape<'_>,
        k: u32,
        result: u64,
        inner_rounds: u32,
        inner: impl Fn(u32, u32) -> Round,
    ) -> Option<Round> {
        let joins = shape.me < 2 * self.rest;
        let Some(number) = self.number else {
            return match k {
                0 => Some(Round::send(shape.me + 1, shape.bytes)),
                1 => Some(Round::receive(shape.me + 1, result)),
                _ => None,
            };
        };
        let before = u32::from(joins);
        if k < before {
            return Some(Round::receive(shape.me - 1, shape.bytes).reducing(shape.bytes));
        }
        let k = k - before;
        if k < inner_rounds {
            return Some(inner(number, k));
        }
        (joins && k == inner_rounds).then(|| Round::send(shape.me - 1, result))
    }
}

/// Whole vectors with partners at distance 1, 2, 4, ...
pub(super) fn recursive_doubling(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let folded = Folded::new(shape);
    let bytes = shape.bytes;
    folded.around(shape, k, bytes, folded.levels(), |number, k| {
        let partner = folded.rank(number ^ (1 << k));
        Round::exchange(partner, bytes, partner, bytes).reducing(bytes)
    })
}

/// Reduce-scatter by halving, all-gather by doubling.
pub(super) fn rabenseifner(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let folded = Folded::new(shape);
    let levels = folded.levels();
    folded.around(shape, k, shape.bytes, 2 * levels, |number, k| {
        if k < levels {
            let partner = folded.rank(number ^ (folded.power >> (k + 1)));
            let bytes = shape.bytes >> (k + 1);
            Round::exchange(partner, bytes, partner, bytes).reducing(bytes)
        } else {
            let level = k - levels;
            let partner = folded.rank(number ^ (1 << level));
            let bytes = shape.bytes >> (levels - level);
            Round::exchange(partner, bytes, partner, bytes)
        }
    })
}

/// Reduce-scatter by halving among the greatest power of two of ranks, then gathering by a binomial tree to the root. A root that
/// is not among them gets the result from the rank that it joined.
pub(super) fn rabenseifner_reduce(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let folded = Folded::new(shape);
    let levels = folded.levels();
    // The root's number, or that of the rank which it joined.
    let (root, outside) = if shape.root < 2 * folded.rest {
        (shape.root / 2, shape.root.is_multiple_of(2))
    } else {
        (shape.root - folded.rest, false)
    };
    let Some(number) = folded.number else {
        return match k {
            0 => Some(Round::send(shape.me + 1, shape.bytes)),
            1 if shape.me == shape.root => Some(Round::receive(shape.me + 1, shape.bytes)),
            _ => None,
        };
    };
    let before = u32::from(shape.me < 2 * folded.rest);
    if k < before {
        return Some(Round::receive(shape.me - 1, shape.bytes).reducing(shape.bytes));
    }
    let k = k - before;
    if k < levels {
        let partner = folded.rank(number ^ (folded.power >> (k + 1)));
        let bytes = shape.bytes >> (k + 1);
        return Some(Round::exchange(partner, bytes, partner, bytes).reducing(bytes));
    }
    // Gathering: at level j, of two partners that agree with the root above bit j, the one that differs from it at bit j sends.
    let level = k - levels;
    let v = number ^ root;
    let sends = v.trailing_zeros().min(levels);
    if level < sends {
        let partner = folded.rank(number ^ (1 << level));
        return Some(Round::receive(partner, shape.bytes >> (levels - level)));
    }
    if v != 0 {
        let partner = folded.rank(number ^ (1 << sends));
        return (level == sends).then(|| Round::send(partner, shape.bytes >> (levels - level)));
    }
    (outside && level == sends).then(|| Round::send(shape.root, shape.bytes))
}

/// Blocks of the vector around a ring, reduced; then around again, complete.
pub(super) fn ring_allreduce(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let block = shape.bytes.div_ceil(u64::from(shape.size));
    (k < 2 * (shape.size - 1)).then(|| {
        let round = Round::exchange(shape.after(1), block, shape.before(1), block);
        if k < shape.size - 1 {
            round.reducing(block)
        } else {
            round
        }
    })
}

/// The first half of a ring all-reduce.
pub(super) fn ring_reduce_scatter(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let block = shape.bytes.div_ceil(u64::from(shape.size));
    (k + 1 < shape.size)
        .then(|| Round::exchange(shape.after(1), block, shape.before(1), block).reducing(block))
}

/// Everybody's block around a ring.
pub(super) fn ring_allgather(shape: &Shape<'_>, k: u32) -> Option<Round> {
    (k + 1 < shape.size).then(|| {
        // In round k the caller passes on what it got in round k - 1: the block of the rank k before it.
        Round::exchange(
            shape.after(1),
            shape.block(shape.before(k)),
            shape.before(1),
            shape.block(shape.before(k + 1)),
        )
    })
}

/// Neighbour exchange (Chen, Zhang, Zhang and Yuan, 2005), for an even number of ranks: in round 0 pairs exchange their blocks; then
/// each rank passes the two blocks that it got last to its other neighbour and gets two from there, in turn.
pub(super) fn neighbour_allgather(shape: &Shape<'_>, k: u32) -> Option<Round> {
    if k >= shape.size / 2 {
        return None;
    }
    let even = shape.me.is_multiple_of(2);
    let partner = if even == k.is_multiple_of(2) {
        shape.after(1)
    } else {
        shape.before(1)
    };
    if k == 0 {
        let (own, other) = (shape.block(shape.me), shape.block(partner));
        return Some(Round::exchange(partner, own, partner, other));
    }
    // The pair of blocks that a rank has got last before round k begins with the first block of its own pair, moved on by two
    // ranks for each round on that side.
    let pair = |rank: u32, rounds: u32| {
        let first = rank - rank % 2;
        let even = rank.is_multiple_of(2);
        // Rounds with the neighbour beyond the pair: 1, 3, ...; with the partner: 2, 4, ...
        let beyond = !rounds.is_multiple_of(2);
        let moved = 2 * rounds.div_ceil(2);
        let back = if beyond { even } else { !even };
        let size = shape.size;
        let moved = moved % size;
        if rounds == 0 {
            first
        } else if back {
            (first + size - moved) % size
        } else {
            (first + moved) % size
        }
    };
    let sent = shape.blocks(pair(shape.me, k - 1), 2);
    let received = shape.blocks(pair(partner, k - 1), 2);
    Some(Round::exchange(partner, sent, partner, received))
}

/// Twice as many blocks with partners twice as far, for powers of two.
pub(super) fn doubling_allgather(shape: &Shape<'_>, k: u32) -> Option<Round> {
    (k < log2_ceil(shape.size)).then(|| {
        let partner = shape.me ^ (1 << k);
        let bytes = shape.bytes << k;
        Round::exchange(partner, bytes, partner, bytes)
    })
}

/// Bruck's all-gather: for any number of ranks.
pub(super) fn bruck_allgather(shape: &Shape<'_>, k: u32) -> Option<Round> {
    (k < log2_ceil(shape.size)).then(|| {
        let distance = 1u32 << k;
        let blocks = distance.min(shape.size - distance);
        let (to, from) = (shape.before(distance), shape.after(distance));
        let sent = shape.blocks(shape.me, blocks);
        let received = shape.blocks(from, blocks);
        Round::exchange(to, sent, from, received)
    })
}

/// Bruck's all-to-all: in round k the blocks whose distance has bit k.
pub(super) fn bruck_alltoall(shape: &Shape<'_>, k: u32) -> Option<Round> {
    (k < log2_ceil(shape.size)).then(|| {
        let distance = 1u32 << k;
        // Numbers below size with bit k set.
        let (size, period) = (u64::from(shape.size), 2u64 << k);
        let half = u64::from(distance);
        let blocks = size / period * half + (size % period).saturating_sub(half);
        let bytes = shape.bytes * blocks;
        Round::exchange(shape.after(distance), bytes, shape.before(distance), bytes)
    })
}

/// Everything at once.
pub(super) fn linear(
    shape: &Shape<'_>,
    k: u32,
    to: impl Fn(u32) -> u64,
    from: impl Fn(u32) -> u64,
) -> Option<Round> {
    (k + 1 < shape.size).then(|| {
        let (receiver, sender) = (shape.after(k + 1), shape.before(k + 1));
        Round {
            wait: false,
            ..Round::exchange(receiver, to(receiver), sender, from(sender))
        }
    })
}

/// With the rank k after and the rank k before.
pub(super) fn pairwise(shape: &Shape<'_>, k: u32) -> Option<Round> {
    linear(shape, k, |rank| shape.to(rank), |rank| shape.from(rank)).map(|round| Round {
        wait: true,
        ..round
    })
}

/// A block of the vector with the rank k after and the rank k before.
pub(super) fn pairwise_reduce_scatter(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let block = shape.bytes.div_ceil(u64::from(shape.size));
    (k + 1 < shape.size).then(|| {
        let (to, from) = (shape.after(k + 1), shape.before(k + 1));
        Round::exchange(to, block, from, block).reducing(block)
    })
}

/// Halves, quarters, ... with partners; ranks beyond the power of two hand their vector in and get their block.
pub(super) fn halving_reduce_scatter(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let folded = Folded::new(shape);
    let block = shape.bytes.div_ceil(u64::from(shape.size));
    folded.around(shape, k, block, folded.levels(), |number, k| {
        let partner = folded.rank(number ^ (folded.power >> (k + 1)));
        let bytes = shape.bytes >> (k + 1);
        Round::exchange(partner, bytes, partner, bytes).reducing(bytes)
    })
}

/// Scans with partners at distance 1, 2, 4, ... as far as they exist.
pub(super) fn doubling_scan(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let exists = |k: u32| shape.me ^ (1 << k) < shape.size;
    let levels = log2_ceil(shape.size);
    let level = (0..levels).filter(|&k| exists(k)).nth(k as usize)?;
    let partner = shape.me ^ (1 << level);
    Some(Round::exchange(partner, shape.bytes, partner, shape.bytes).reducing(shape.bytes))
}

/// A binomial scatter of the vector, then a ring all-gather of its blocks.
pub(super) fn scatter_allgather(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let block = shape.bytes.div_ceil(u64::from(shape.size));
    let part = |ranks: u32| block * u64::from(ranks);
    let mut scattering = 0;
    // At most log2(size) rounds.
    while scattering <= k {
        match tree::binomial_out(shape, scattering, shape.root, part) {
            Some(round) if scattering == k => return Some(round),
            Some(_) => scattering += 1,
            None => break,
        }
    }
    let index = k - scattering;
    (index + 1 < shape.size).then(|| Round::exchange(shape.after(1), block, shape.before(1), block))
}
