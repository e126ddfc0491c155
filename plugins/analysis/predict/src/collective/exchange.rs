//! Collectives in which every rank exchanges with partners.

use super::{Round, Shape, tree};

fn log2_ceil(size: u32) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

/// Exchanges signals: to the rank 2^k after the caller, from the rank 2^k before.
pub(super) fn dissemination(shape: &Shape<'_>, k: u32) -> Option<Round> {
    (k < log2_ceil(shape.size)).then(|| {
        let distance = 1 << k;
        Round::exchange(shape.after(distance), 0, shape.before(distance), 0)
    })
}

/// Part of a rank in an algorithm for a power of two of ranks: of the first 2 * rest ranks, the even ones join the odd one
/// after them.
struct Folded {
    /// Number of ranks that take part.
    power: u32,
    rest: u32,
    /// The caller's number among the ranks that take part; `None` if it joins another rank.
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

    /// Returns a round of `inner`, or a round around these in which the joining ranks hand in their vector and get the result.
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

/// Exchanges whole vectors with partners at distance 1, 2, 4, ...
pub(super) fn recursive_doubling(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let folded = Folded::new(shape);
    let bytes = shape.bytes;
    folded.around(shape, k, bytes, folded.levels(), |number, k| {
        let partner = folded.rank(number ^ (1 << k));
        Round::exchange(partner, bytes, partner, bytes).reducing(bytes)
    })
}

/// Reduces and scatters halves, quarters, ... with partners at distance 1, 2, ...; then gathers in the opposite order.
pub(super) fn rabenseifner(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let folded = Folded::new(shape);
    let levels = folded.levels();
    folded.around(shape, k, shape.bytes, 2 * levels, |number, k| {
        if k < levels {
            let partner = folded.rank(number ^ (1 << k));
            let bytes = shape.bytes >> (k + 1);
            Round::exchange(partner, bytes, partner, bytes).reducing(bytes)
        } else {
            let level = k - levels;
            let partner = folded.rank(number ^ (folded.power >> (level + 1)));
            let bytes = shape.bytes >> (levels - level);
            Round::exchange(partner, bytes, partner, bytes)
        }
    })
}

/// Reduces after Rabenseifner: a reduce-scatter among the greatest power of two of ranks, then a gather by a binomial tree to the root,
/// from the farthest partners first. Of the first 2 * rest ranks the even ones take part, so rank 0 always does. A root that does not take
/// part replaces rank 0 when it has got rank 0's part of the result.
pub(super) fn rabenseifner_reduce(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let power = 1u32 << shape.size.ilog2();
    let (rest, levels) = (shape.size - power, power.trailing_zeros());
    let folded = |rank: u32| rank < 2 * rest;
    let rank_of = |number: u32| {
        if number < rest {
            2 * number
        } else {
            number + rest
        }
    };
    let number_of = |rank: u32| if folded(rank) { rank / 2 } else { rank - rest };
    let outside = folded(shape.root) && shape.root % 2 == 1;
    let root = if outside { 0 } else { number_of(shape.root) };
    let part = shape.bytes >> levels;
    // The rank that has a number in the gather.
    let place = |number: u32| match number {
        0 if outside => shape.root,
        _ => rank_of(number),
    };
    let gather = |number: u32, step: u32| {
        let v = number ^ root;
        let sends = if v == 0 {
            levels
        } else {
            levels - 1 - v.ilog2()
        };
        if step > sends || step == levels {
            return None;
        }
        let partner = place(number ^ (power >> (step + 1)));
        let bytes = shape.bytes >> (levels - step);
        Some(if step == sends {
            Round::send(partner, bytes)
        } else {
            Round::receive(partner, bytes)
        })
    };
    if folded(shape.me) && shape.me % 2 == 1 {
        return match k {
            0 => Some(Round::send(shape.me - 1, shape.bytes)),
            1 if shape.me == shape.root => Some(Round::receive(0, part)),
            _ if shape.me == shape.root => gather(0, k - 2),
            _ => None,
        };
    }
    let before = u32::from(folded(shape.me));
    if k < before {
        return Some(Round::receive(shape.me + 1, shape.bytes).reducing(shape.bytes));
    }
    let (number, k) = (number_of(shape.me), k - before);
    if k < levels {
        let partner = rank_of(number ^ (1 << k));
        let bytes = shape.bytes >> (k + 1);
        return Some(Round::exchange(partner, bytes, partner, bytes).reducing(bytes));
    }
    if outside && number == 0 {
        return (k == levels).then(|| Round::send(shape.root, part));
    }
    gather(number, k - levels)
}

/// Passes and reduces blocks of the vector around a ring, then passes the complete blocks around again.
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

/// Returns a round of the first half of a ring all-reduce.
pub(super) fn ring_reduce_scatter(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let block = shape.bytes.div_ceil(u64::from(shape.size));
    (k + 1 < shape.size)
        .then(|| Round::exchange(shape.after(1), block, shape.before(1), block).reducing(block))
}

/// Passes every rank's block around a ring.
pub(super) fn ring_allgather(shape: &Shape<'_>, k: u32) -> Option<Round> {
    (k + 1 < shape.size).then(|| {
        // In round k the caller passes on the block that it got in round k - 1: that of the rank k before it.
        Round::exchange(
            shape.after(1),
            shape.block(shape.before(k)),
            shape.before(1),
            shape.block(shape.before(k + 1)),
        )
    })
}

/// Gathers blocks of different sizes around a ring in pieces, as MPICH does. A piece has at most `segment` bytes, or the size of the
/// smallest block if that is larger. Pieces follow one another wherever blocks end, so ranks with small blocks do not wait for those with
/// large ones.
pub(super) fn ring_allgatherv(shape: &Shape<'_>, k: u32, segment: u64) -> Option<Round> {
    let blocks = || (0..shape.size).map(|rank| shape.block(rank));
    let (Some(least), Some(most)) = (blocks().min(), blocks().max()) else {
        return None;
    };
    let piece = least.max(segment);
    if most <= piece {
        return ring_allgather(shape, k);
    }
    // Returns the bytes of piece `k` of the blocks from that of `first` backwards; the last block is not passed on.
    let piece = |first: u32| {
        let mut before = 0;
        for distance in 0..shape.size - 1 {
            let block = shape.block((first + shape.size - distance) % shape.size);
            let pieces = block.div_ceil(piece);
            if u64::from(k) < before + pieces {
                let passed = (u64::from(k) - before) * piece;
                return Some((block - passed).min(piece));
            }
            before += pieces;
        }
        None
    };
    let (sent, received) = (piece(shape.me), piece(shape.before(1)));
    if sent.is_none() && received.is_none() {
        return None;
    }
    Some(Round {
        send: sent.map(|bytes| (shape.after(1), bytes)),
        receive: received.map(|bytes| (shape.before(1), bytes)),
        wait: true,
        reduce: 0,
    })
}

/// Gathers blocks by neighbour exchange (Chen, Zhang, Zhang and Yuan, 2005), for an even number of ranks: in round 0 pairs exchange their
/// blocks; then each rank passes the two blocks that it got last to its other neighbour and gets two from there, in turn.
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

/// Exchanges twice as many blocks with partners twice as far in each level. If the number of ranks is no power of two, a partner's half
/// may lack ranks. Then the ranks with a partner pass the blocks that they got to the ranks without one, along a tree, before the next
/// level.
pub(super) fn doubling_allgather(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let (me, size) = (shape.me, shape.size);
    let mut left = k;
    for level in 0..log2_ceil(size) {
        let half = 1u32 << level;
        let (own, other) = (me & !(half - 1), (me ^ half) & !(half - 1));
        let blocks = |first: u32| shape.blocks(first, half.min(size.saturating_sub(first)));
        let partner = me ^ half;
        if partner < size {
            if left == 0 {
                return Some(Round::exchange(
                    partner,
                    blocks(own),
                    partner,
                    blocks(other),
                ));
            }
            left -= 1;
        }
        // Only the lower half has ranks without partner: those from `have` on within it.
        if other < own || other >= size || other + half <= size {
            continue;
        }
        let have = size - other;
        let mut step = half / 2;
        while step > 0 {
            // Of each group of 2 * step ranks, the lower ones give to the upper ones.
            let first = me & !(2 * step - 1);
            let (peer, has) = (me ^ step, |rank: u32| rank < first + have.min(2 * step));
            // The first `have` ranks of the half have the blocks at the beginning, and as many of each group that the tree has reached.
            let passes = if peer > me {
                has(me) && !has(peer)
            } else {
                has(peer) && !has(me)
            };
            if passes {
                if left == 0 {
                    let bytes = blocks(other);
                    return Some(if peer > me {
                        Round {
                            wait: true,
                            ..Round::send(peer, bytes)
                        }
                    } else {
                        Round::receive(peer, bytes)
                    });
                }
                left -= 1;
            }
            step /= 2;
        }
    }
    None
}

/// Gathers blocks by Bruck's algorithm, for any number of ranks.
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

/// Exchanges blocks by Bruck's algorithm: in round k the blocks whose distance has bit k.
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

/// Exchanges with all ranks at once, one more partner in each round, without a wait between rounds.
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

/// Exchanges with the rank k + 1 after and the rank k + 1 before.
pub(super) fn pairwise(shape: &Shape<'_>, k: u32) -> Option<Round> {
    linear(shape, k, |rank| shape.to(rank), |rank| shape.from(rank)).map(|round| Round {
        wait: true,
        ..round
    })
}

/// Exchanges a block of the vector with the rank k + 1 after and the rank k + 1 before.
pub(super) fn pairwise_reduce_scatter(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let block = shape.bytes.div_ceil(u64::from(shape.size));
    (k + 1 < shape.size).then(|| {
        let (to, from) = (shape.after(k + 1), shape.before(k + 1));
        Round::exchange(to, block, from, block).reducing(block)
    })
}

/// Reduces and scatters halves, quarters, ... of the ranks' blocks with partners. Ranks beyond the power of two hand in their vector and
/// get their block, so the ranks that they join handle two blocks.
pub(super) fn halving_reduce_scatter(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let folded = Folded::new(shape);
    // Byte at which the blocks of a number begin.
    let begin = |number: u32| {
        let rank = number + number.min(folded.rest);
        let bytes = u128::from(shape.bytes) * u128::from(rank) / u128::from(shape.size);
        bytes as u64
    };
    let even = shape.me & !1;
    let block = |rank: u64| shape.bytes * rank / u64::from(shape.size);
    let result = block(u64::from(even) + 1) - block(u64::from(even));
    folded.around(shape, k, result, folded.levels(), |number, k| {
        let half = folded.power >> (k + 1);
        let of = |number: u32| {
            let first = number & !(half - 1);
            begin(first + half) - begin(first)
        };
        let (partner, sent, received) = (number ^ half, of(number ^ half), of(number));
        let partner = folded.rank(partner);
        Round::exchange(partner, sent, partner, received).reducing(received)
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

/// Returns a binomial scatter of the vector, then a ring all-gather of its blocks.
pub(super) fn scatter_allgather(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let block = shape.bytes.div_ceil(u64::from(shape.size));
    let part = |ranks: u32| block * u64::from(ranks);
    let mut scattering = 0;
    // At most log2(size) rounds.
    while scattering <= k {
        let round = tree::binomial_out(shape, scattering, shape.root, part);
        match round.map(Round::in_turn) {
            Some(round) if scattering == k => return Some(round),
            Some(_) => scattering += 1,
            None => break,
        }
    }
    let index = k - scattering;
    (index + 1 < shape.size).then(|| Round::exchange(shape.after(1), block, shape.before(1), block))
}
