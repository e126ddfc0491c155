//! Collectives along trees and chains.

use super::{Round, Shape};

/// Bits of the distance to the caller's parent, and how many children it has, in a binomial tree over ranks relative to the root.
/// Child j is 2^j after the caller.
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

/// Ranks below a relative rank, itself included.
fn below(v: u32, size: u32) -> u32 {
    if v == 0 {
        size
    } else {
        (1u32 << v.trailing_zeros()).min(size - v)
    }
}

/// From the root outwards, `bytes` of so many ranks to each child, the largest subtree first.
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

/// To the root, the smallest subtree first.
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

/// The root sends to everybody.
pub(super) fn linear_out(shape: &Shape<'_>, k: u32, bytes: impl Fn(u32) -> u64) -> Option<Round> {
    if shape.me != shape.root {
        return (k == 0).then(|| Round::receive(shape.root, shape.bytes));
    }
    (k + 1 < shape.size).then(|| {
        let to = shape.after(k + 1);
        Round::send(to, bytes(to))
    })
}

/// Everybody sends to the root, which has posted all receives at once.
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

/// Everybody tells rank 0, which tells everybody.
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

/// Number and size of segments; the last may be shorter.
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

/// Segments along a chain that begins at the root.
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

/// Segments along a chain that ends at the root, reduced on the way.
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

/// A binomial reduction to rank 0 and a binomial broadcast from it.
pub(super) fn reduce_broadcast(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let inward = binomial(shape.me, shape.size) + u32::from(shape.me != 0);
    if k < inward {
        binomial_in(shape, k, 0, |_| shape.bytes).map(|r| super::reduced(r, shape.bytes))
    } else {
        binomial_out(shape, k - inward, 0, |_| shape.bytes)
    }
}

/// From each rank to the next.
pub(super) fn chain_scan(shape: &Shape<'_>, k: u32) -> Option<Round> {
    let receives = u32::from(shape.me > 0);
    if k < receives {
        return Some(Round::receive(shape.me - 1, shape.bytes).reducing(shape.bytes));
    }
    (k == receives && shape.me + 1 < shape.size).then(|| Round::send(shape.me + 1, shape.bytes))
}
