//! Collectives along trees and chains.

use super::{Round, Shape};

/// Returns the number of children of a rank in a binomial tree over ranks relative to the root. Child j is 2^j after its parent, with j
/// from 0.
fn binomial(v: u32, size: u32) -> u32 {
    let bits = if v == 0 { 32 } else { v.trailing_zeros() };
    // Children 2^j for j < bits, as far as they exist: v + 2^j < size.
    let room = u64::from(size - v);
    let mut count = 0;
    while count < bits && (1u64 << count) < room {
        count += 1;
    }
    count
}

fn relative(shape: &Shape<'_>, root: u32) -> u32 {
    (shape.me + shape.size - root % shape.size) % shape.size
}

fn absolute(shape: &Shape<'_>, root: u32, v: u32) -> u32 {
    ((u64::from(v) + u64::from(root)) % u64::from(shape.size)) as u32
}

/// Returns the number of ranks in the subtree of a relative rank, itself included.
fn below(v: u32, size: u32) -> u32 {
    if v == 0 {
        size
    } else {
        (1u32 << v.trailing_zeros()).min(size - v)
    }
}

/// Sends from the root outwards along a binomial tree, the largest subtree first. A child gets `bytes` of the number of ranks in its
/// subtree.
pub(super) fn binomial_out(
    shape: &Shape<'_>,
    k: u32,
    root: u32,
    bytes: impl Fn(u32) -> u64,
) -> Option<Round> {
    let v = relative(shape, root);
    let own = u32::from(v != 0);
    if k < own {
        let parent = v & (v - 1);
        let size = bytes(below(v, shape.size));
        return Some(Round::receive(absolute(shape, root, parent), size));
    }
    let children = binomial(v, shape.size);
    let index = k - own;
    (index < children).then(|| {
        let child = v + (1 << (children - 1 - index));
        Round::send(
            absolute(shape, root, child),
            bytes(below(child, shape.size)),
        )
    })
}

/// Sends from the root outwards along a binomial tree, to one child after the other, the smallest subtree first.
pub(super) fn binomial_ascending(
    shape: &Shape<'_>,
    k: u32,
    bytes: impl Fn(u32) -> u64,
) -> Option<Round> {
    let v = relative(shape, shape.root);
    let own = u32::from(v != 0);
    let children = binomial(v, shape.size);
    // The rounds are those of the outward tree from the largest child; senders take them in the opposite order.
    let k = match k.checked_sub(own) {
        Some(index) if index < children => own + children - 1 - index,
        Some(_) => return None,
        None => k,
    };
    binomial_out(shape, k, shape.root, bytes).map(Round::in_turn)
}

/// Sends to the root along a binomial tree, the smallest subtree first.
pub(super) fn binomial_in(
    shape: &Shape<'_>,
    k: u32,
    root: u32,
    bytes: impl Fn(u32) -> u64,
) -> Option<Round> {
    let v = relative(shape, root);
    let children = binomial(v, shape.size);
    if k < children {
        let child = v + (1 << k);
        let size = bytes(below(child, shape.size));
        return Some(Round::receive(absolute(shape, root, child), size));
    }
    (v != 0 && k == children).then(|| {
        let parent = v & (v - 1);
        Round::send(absolute(shape, root, parent), bytes(below(v, shape.size)))
    })
}

/// Returns a rank's parent and the distance to its first child in a tree of two children each, by ranks relative to the root. The second
/// child is as far again. Level l has the ranks from 2^l - 1, and the children of a rank are 2^l and 2^(l + 1) after it.
fn binary(v: u32) -> (Option<u32>, u64) {
    let level = (v + 1).ilog2();
    let parent = (level > 0).then(|| {
        // The level above has 2^(level - 1) ranks.
        let width = 1u32 << (level - 1);
        let first = width - 1;
        first + (v - (2 * width - 1)) % width
    });
    (parent, 1 << level)
}

fn binary_children(v: u32, size: u32) -> (u32, u64) {
    let (_, distance) = binary(v);
    let exists = |child: u64| u64::from(v) + child * distance < u64::from(size);
    (u32::from(exists(1)) + u32::from(exists(2)), distance)
}

/// Sends from a root along a binary tree.
pub(super) fn binary_out(shape: &Shape<'_>, k: u32, root: u32, bytes: u64) -> Option<Round> {
    let v = relative(shape, root);
    let (parent, _) = binary(v);
    if let (Some(parent), 0) = (parent, k) {
        return Some(Round::receive(absolute(shape, root, parent), bytes));
    }
    let index = k - u32::from(parent.is_some());
    let (children, distance) = binary_children(v, shape.size);
    (index < children).then(|| {
        let child = v + (index + 1) * distance as u32;
        Round::send(absolute(shape, root, child), bytes)
    })
}

/// Sends to the root along a binary tree.
pub(super) fn binary_in(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let v = relative(shape, shape.root);
    let (children, distance) = binary_children(v, shape.size);
    if k < children {
        let child = v + (k + 1) * distance as u32;
        return Some(Round::receive(
            absolute(shape, shape.root, child),
            shape.bytes,
        ));
    }
    let (parent, _) = binary(v);
    let parent = parent.filter(|_| k == children)?;
    Some(Round::send(
        absolute(shape, shape.root, parent),
        shape.bytes,
    ))
}

/// Sends from the root along a tree with children at distance 1, 2, 3, 4, 8, 12, 16, ..., the greatest power of four first.
pub(super) fn knomial_out(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let v = relative(shape, shape.root);
    let size = u64::from(shape.size);
    // The power of four whose digit is the lowest of `v` that is not 0; beyond all ranks for the root.
    let mut mask = 1u64;
    while mask < size && u64::from(v).is_multiple_of(4 * mask) {
        mask *= 4;
    }
    let own = u32::from(v != 0);
    if k < own {
        let parent = u64::from(v) / (4 * mask) * (4 * mask);
        return Some(Round::receive(
            absolute(shape, shape.root, parent as u32),
            shape.bytes,
        ));
    }
    let mut index = k - own;
    while mask > 1 {
        mask /= 4;
        for step in 1..4 {
            let child = u64::from(v) + step * mask;
            if child < size {
                if index == 0 {
                    let to = absolute(shape, shape.root, child as u32);
                    return Some(Round::send(to, shape.bytes));
                }
                index -= 1;
            }
        }
    }
    None
}

/// Sends every rank's block to rank 0, then all blocks from there along a binary tree.
pub(super) fn gather_broadcast(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let all = shape.blocks(0, shape.size);
    if shape.me != 0 {
        return match k {
            0 => Some(Round::send(0, shape.block(shape.me))),
            _ => binary_out(shape, k - 1, 0, all),
        };
    }
    let others = shape.size - 1;
    if k < others {
        return Some(Round {
            wait: k + 1 == others,
            ..Round::receive(k + 1, shape.block(k + 1))
        });
    }
    binary_out(shape, k - others, 0, all)
}

/// Sends from the root to every rank.
pub(super) fn linear_out(shape: &Shape<'_>, k: u32, bytes: impl Fn(u32) -> u64) -> Option<Round> {
    if shape.me != shape.root {
        return (k == 0).then(|| Round::receive(shape.root, shape.bytes));
    }
    (k + 1 < shape.size).then(|| {
        let to = shape.after(k + 1);
        Round::send(to, bytes(to))
    })
}

/// Sends from every rank to the root, which has posted all receives at once.
pub(super) fn linear_in(shape: &Shape<'_>, k: u32, bytes: impl Fn(u32) -> u64) -> Option<Round> {
    if shape.me != shape.root {
        return (k == 0).then(|| Round::send(shape.root, shape.bytes));
    }
    (k + 1 < shape.size).then(|| {
        let from = shape.after(k + 1);
        Round {
            wait: false,
            ..Round::receive(from, bytes(from))
        }
    })
}

/// Sends a signal from every rank to rank 0, then from rank 0 to every rank.
pub(super) fn linear_barrier(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let others = shape.size - 1;
    if shape.me != 0 {
        return match k {
            0 => Some(Round::send(0, 0)),
            1 => Some(Round::receive(0, 0)),
            _ => None,
        };
    }
    if k < others {
        return Some(Round {
            wait: k + 1 == others,
            ..Round::receive(k + 1, 0)
        });
    }
    (k < 2 * others).then(|| Round::send(k - others + 1, 0))
}

/// Returns the number of segments and the bytes of each; the last may be shorter.
fn segments(bytes: u64, segment: u64) -> (u32, u64) {
    if segment == 0 || bytes <= segment {
        return (1, bytes);
    }
    let count = bytes.div_ceil(segment).min(1 << 20);
    (count as u32, bytes.div_ceil(count))
}

fn segment_bytes(bytes: u64, size: u64, index: u32) -> u64 {
    size.min(bytes.saturating_sub(size * u64::from(index)))
}

/// Passes segments along a chain that begins at the root.
pub(super) fn pipeline(shape: &Shape<'_>, k: u32, segment: u64) -> Option<Round> {
    let (count, size) = segments(shape.bytes, segment);
    let v = relative(shape, shape.root);
    let (first, last) = (v == 0, v + 1 == shape.size);
    let steps = 2 - u32::from(first) - u32::from(last);
    let index = k / steps.max(1);
    if index >= count {
        return None;
    }
    let bytes = segment_bytes(shape.bytes, size, index);
    Some(if !first && k.is_multiple_of(steps) {
        Round::receive(absolute(shape, shape.root, v - 1), bytes)
    } else {
        Round::send(absolute(shape, shape.root, v + 1), bytes)
    })
}

/// Passes segments along a chain that ends at the root, and reduces them on the way.
pub(super) fn reduce_pipeline(shape: &Shape<'_>, k: u32, segment: u64) -> Option<Round> {
    let (count, size) = segments(shape.bytes, segment);
    let v = relative(shape, shape.root);
    let (first, last) = (v + 1 == shape.size, v == 0);
    let steps = 2 - u32::from(first) - u32::from(last);
    let index = k / steps.max(1);
    if index >= count {
        return None;
    }
    let bytes = segment_bytes(shape.bytes, size, index);
    Some(if !first && k.is_multiple_of(steps) {
        Round::receive(absolute(shape, shape.root, v + 1), bytes).reducing(bytes)
    } else {
        Round::send(absolute(shape, shape.root, v - 1), bytes)
    })
}

/// Returns a binomial reduction to rank 0 and a binomial broadcast from it.
pub(super) fn reduce_broadcast(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let inward = binomial(shape.me, shape.size) + u32::from(shape.me != 0);
    if k < inward {
        binomial_in(shape, k, 0, |_| shape.bytes).map(|r| super::reduced(r, shape.bytes))
    } else {
        binomial_out(shape, k - inward, 0, |_| shape.bytes)
    }
}

/// Agrees on a new communicator: reductions to rank 0, each with a broadcast. Open MPI 4.1 makes three, for the communicator's number, for
/// whether all ranks have that number free, and before the first use.
pub(super) fn agreements(shape: &Shape<'_>, k: u32) -> Option<Round> {
    const AGREEMENTS: u32 = 3;
    let rounds = 2 * (binomial(shape.me, shape.size) + u32::from(shape.me != 0));
    if k / rounds >= AGREEMENTS {
        return None;
    }
    reduce_broadcast(shape, k % rounds)
}

/// Passes the vector from each rank to the next, reduced on the way.
pub(super) fn chain_scan(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let receives = u32::from(shape.me > 0);
    if k < receives {
        return Some(Round::receive(shape.me - 1, shape.bytes).reducing(shape.bytes));
    }
    (k == receives && shape.me + 1 < shape.size).then(|| Round::send(shape.me + 1, shape.bytes))
}
