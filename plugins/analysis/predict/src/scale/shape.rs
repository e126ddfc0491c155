//! Regular arrangements of ranks, and descriptions of partners in them.

use std::fmt;

/// Arrangement of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Dimensions of the grid, 1 to 3; 0 for a hypercube, whose partners differ in the same bits.
    pub dimensions: u32,
    /// True if sides ascend; otherwise they descend.
    pub ascending: bool,
    /// True if ranks with even and odd sums of coordinates may do different things.
    pub parity: bool,
}

/// Role of a rank: for each dimension, at which end the rank is, or between the ends. Ranks of one role do the same operations.
pub type Role = Vec<u8>;

/// Partner of a rank, described so that the description applies to any number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Partner {
    /// Number of steps along each dimension, with wrap-around at its ends.
    Offset([i32; 3]),
    /// World rank of the partner, 0 first.
    First(u32),
    /// Distance of the partner from the last rank; 0 is the last rank.
    Last(u32),
    /// Bits in which the partner's number differs from the rank's.
    Bits(u32),
}

/// All shapes in the order in which they are tried: lines and grids, the simplest first, then the hypercube.
pub const SHAPES: [Shape; 11] = {
    const fn grid(dimensions: u32, ascending: bool, parity: bool) -> Shape {
        Shape {
            dimensions,
            ascending,
            parity,
        }
    }
    [
        grid(1, false, false),
        grid(1, false, true),
        grid(2, false, false),
        grid(2, true, false),
        grid(2, false, true),
        grid(2, true, true),
        grid(3, false, false),
        grid(3, true, false),
        grid(3, false, true),
        grid(3, true, true),
        grid(0, false, false),
    ]
};

impl Shape {
    /// Returns the sides of the arrangement of `ranks`, as `MPI_Dims_create` balances them; `None` if the ranks cannot be arranged so.
    /// A grid has no side of 1.
    pub fn sides(self, ranks: u32) -> Option<[u32; 3]> {
        let mut sides = match self.dimensions {
            0 => return ranks.is_power_of_two().then_some([ranks, 1, 1]),
            1 => return Some([ranks, 1, 1]),
            2 => balanced(ranks, 2)?,
            _ => balanced(ranks, 3)?,
        };
        if self.ascending {
            sides[..self.dimensions as usize].reverse();
        }
        Some(sides)
    }

    /// Returns the coordinates of a rank, the last dimension fastest, as in MPI's Cartesian topologies.
    fn coordinates(rank: u32, sides: [u32; 3], dimensions: u32) -> [u32; 3] {
        let mut coordinates = [0; 3];
        let mut left = rank;
        for axis in (0..dimensions.max(1) as usize).rev() {
            coordinates[axis] = left % sides[axis];
            left /= sides[axis];
        }
        coordinates
    }

    /// Returns the role of a rank. By dimension: 0 at the low end, 1 between, 2 at the high end, 3 if the side is 1; then the parity.
    /// On a hypercube, the role is 1 for rank 0 and 0 for others.
    pub fn role(self, rank: u32, ranks: u32) -> Role {
        let Some(sides) = self.sides(ranks) else {
            return Role::new();
        };
        if self.dimensions == 0 {
            return vec![u8::from(rank == 0)];
        }
        let at = Self::coordinates(rank, sides, self.dimensions);
        let mut role: Role = (0..self.dimensions as usize)
            .map(|axis| match (sides[axis], at[axis]) {
                (1, _) => 3,
                (_, 0) => 0,
                (side, place) if place + 1 == side => 2,
                _ => 1,
            })
            .collect();
        if self.parity {
            role.push((at.iter().sum::<u32>() % 2) as u8);
        }
        role
    }

    /// Returns all descriptions of `peer` as a partner of `rank` among `ranks`.
    pub fn partners(self, rank: u32, peer: u32, ranks: u32) -> Vec<Partner> {
        let mut all = vec![Partner::First(peer), Partner::Last(ranks - 1 - peer)];
        let Some(sides) = self.sides(ranks) else {
            return all;
        };
        if self.dimensions == 0 {
            all.push(Partner::Bits(rank ^ peer));
            return all;
        }
        let (from, to) = (
            Self::coordinates(rank, sides, self.dimensions),
            Self::coordinates(peer, sides, self.dimensions),
        );
        let mut offsets = vec![[0i32; 3]];
        for axis in 0..self.dimensions as usize {
            let side = sides[axis] as i32;
            let forward = (to[axis] as i32 - from[axis] as i32).rem_euclid(side);
            let ways = if forward == 0 {
                vec![0]
            } else {
                vec![forward, forward - side]
            };
            offsets = (offsets.iter())
                .flat_map(|offset| {
                    ways.iter().map(|&way| {
                        let mut offset = *offset;
                        offset[axis] = way;
                        offset
                    })
                })
                .collect();
        }
        all.extend(offsets.into_iter().map(Partner::Offset));
        all
    }

    /// Returns the rank that is the partner of `rank` among `ranks`; `None` if no rank has that number.
    pub fn resolve(self, partner: Partner, rank: u32, ranks: u32) -> Option<u32> {
        let peer = match partner {
            Partner::First(peer) => Some(peer),
            Partner::Last(back) => ranks.checked_sub(1 + back),
            Partner::Bits(bits) => Some(rank ^ bits),
            Partner::Offset(offset) => {
                let sides = self.sides(ranks)?;
                let at = Self::coordinates(rank, sides, self.dimensions);
                let axes = 0..self.dimensions.max(1) as usize;
                Some(axes.fold(0, |peer, axis| {
                    let side = sides[axis];
                    let place = (at[axis] as i32 + offset[axis]).rem_euclid(side as i32);
                    peer * side + place as u32
                }))
            }
        };
        peer.filter(|&peer| peer < ranks)
    }
}

impl Partner {
    /// Returns the order in which descriptions are preferred, lowest first: near neighbours and bits, ranks from the start, ranks from
    /// the end, then other offsets.
    pub fn preference(self) -> (u32, u32) {
        match self {
            Partner::Offset(offset) => {
                let steps: u32 = offset.iter().map(|step| step.unsigned_abs()).sum();
                (if steps <= 2 { 0 } else { 3 }, steps)
            }
            Partner::Bits(bits) => (0, bits),
            Partner::First(rank) => (1, rank),
            Partner::Last(back) => (2, back),
        }
    }
}

/// Returns the factors of a number, as equal as possible, the greatest first; `None` if one of them would be 1.
fn balanced(ranks: u32, count: usize) -> Option<[u32; 3]> {
    let mut best: Option<[u32; 3]> = None;
    let divisors = |of: u32| (1..=of).filter(move |divisor| of.is_multiple_of(*divisor));
    for a in divisors(ranks) {
        let rest = ranks / a;
        let others: Vec<[u32; 3]> = if count == 2 {
            vec![[a, rest, 1]]
        } else {
            divisors(rest).map(|b| [a, b, rest / b]).collect()
        };
        for sides in others {
            let sides_used = &sides[..count];
            let falls = sides_used.windows(2).all(|pair| pair[0] >= pair[1]);
            let better = best.is_none_or(|known| {
                sides[0] < known[0] || (sides[0] == known[0] && sides[1] < known[1])
            });
            if falls && better {
                best = Some(sides);
            }
        }
    }
    // A grid with a side of 1 has fewer dimensions.
    best.filter(|sides| sides[count - 1] > 1)
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dimensions {
            0 => f.write_str("a hypercube (partners whose numbers differ in the same bits)")?,
            1 => f.write_str("a line or ring (partners at the same distance)")?,
            n => {
                let order = if self.ascending {
                    "shortest"
                } else {
                    "longest"
                };
                write!(
                    f,
                    "a {n}-dimensional grid, balanced, its {order} side first"
                )?;
            }
        }
        if self.parity {
            f.write_str("; even and odd ranks differ")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_balanced() {
        let sides = |shape: usize, ranks: u32| SHAPES[shape].sides(ranks);
        assert_eq!(sides(2, 16), Some([4, 4, 1]));
        assert_eq!(sides(2, 8), Some([4, 2, 1]));
        assert_eq!(sides(3, 8), Some([2, 4, 1]));
        assert_eq!(sides(2, 12), Some([4, 3, 1]));
        assert_eq!(sides(2, 7), None);
        assert_eq!(sides(6, 64), Some([4, 4, 4]));
        assert_eq!(sides(6, 16), Some([4, 2, 2]));
        assert_eq!(sides(10, 12), None);
    }

    #[test]
    fn partners_resolve_to_themselves_in_every_shape() {
        for shape in SHAPES {
            for ranks in [4, 8, 12, 16, 27, 64] {
                if shape.sides(ranks).is_none() {
                    continue;
                }
                for rank in 0..ranks {
                    for peer in 0..ranks {
                        for partner in shape.partners(rank, peer, ranks) {
                            let back = shape.resolve(partner, rank, ranks);
                            assert_eq!(back, Some(peer), "{shape:?} {partner:?} {rank} of {ranks}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn roles_tell_ends_from_the_middle() {
        let line = SHAPES[0];
        let roles: Vec<Role> = (0..4).map(|rank| line.role(rank, 4)).collect();
        assert_eq!(roles, [vec![0], vec![1], vec![1], vec![2]]);
        let grid = SHAPES[2];
        assert_eq!(grid.role(5, 16), [1, 1]);
        assert_eq!(grid.role(3, 16), [0, 2]);
        assert_eq!(SHAPES[1].role(2, 4), [1, 0]);
    }
}
