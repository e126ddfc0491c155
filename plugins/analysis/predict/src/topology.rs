//! Networks as links that messages share.
//!
//! Every node has a link into the network and a link out of it. Between these are the links of the topology, computed from the numbers
//! of the nodes; no routes are stored. Routing is deterministic: dimension order on tori, by the destination's number on fat trees
//! (D-mod-k), minimal on dragonflies.

use std::fmt;

use serde::Serialize;

/// The most dimensions of a torus.
pub const DIMENSIONS: usize = 6;

/// Topology of the network between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Topology {
    /// A single switch without limits of its own.
    Crossbar,
    /// Switches in levels. A switch of level i has `down[i]` children and `up[i]` links to the level above; the top level has none.
    FatTree {
        /// Children of a switch, by level, the lowest first.
        down: Vec<u32>,
        /// Uplinks of a switch, by level, the lowest first; one entry fewer than `down`.
        up: Vec<u32>,
    },
    /// A torus with a node at each point.
    Torus {
        /// Points in each dimension.
        size: Vec<u32>,
    },
    /// Groups of routers. In a group, a link joins each pair of routers; between groups, a link joins each pair of groups.
    Dragonfly {
        /// Number of groups.
        groups: u32,
        /// Routers of a group.
        routers: u32,
        /// Nodes of a router.
        nodes: u32,
    },
}

impl Topology {
    /// Returns the largest number of nodes that the topology connects; `u32::MAX` for a crossbar.
    pub fn capacity(&self) -> u64 {
        let product = |sizes: &[u32]| {
            sizes
                .iter()
                .fold(1u64, |all, &size| all.saturating_mul(u64::from(size)))
        };
        match self {
            Topology::Crossbar => u64::from(u32::MAX),
            Topology::FatTree { down, .. } => product(down),
            Topology::Torus { size } => product(size),
            Topology::Dragonfly {
                groups,
                routers,
                nodes,
            } => product(&[*groups, *routers, *nodes]),
        }
    }

    /// Returns the number of links, the `nodes` nodes' own included. Links below 2 * `nodes` are these: links into the network, then
    /// links out of it. On a dragonfly, the number includes links from a router or group to itself, which no route uses.
    pub fn links(&self, nodes: u32) -> u64 {
        let own = 2 * u64::from(nodes);
        own + match self {
            Topology::Crossbar => 0,
            Topology::FatTree { down, up } => (0..up.len())
                .map(|level| 2 * self.switches(down, level) * u64::from(up[level]))
                .sum(),
            Topology::Torus { size } => self.capacity() * 2 * size.len() as u64,
            Topology::Dragonfly {
                groups, routers, ..
            } => {
                let (groups, routers) = (u64::from(*groups), u64::from(*routers));
                groups * routers * routers + groups * groups
            }
        }
    }

    /// Returns the number of switches at a level of a fat tree, 0 being the lowest.
    fn switches(&self, down: &[u32], level: usize) -> u64 {
        down[level + 1..]
            .iter()
            .fold(1, |all, &children| all * u64::from(children))
    }

    /// Appends the numbers of the links between two nodes to `links`, without the nodes' own links.
    pub fn route(&self, from: u32, to: u32, nodes: u32, links: &mut Vec<u32>) {
        let base = 2 * nodes;
        match self {
            Topology::Crossbar => {}
            Topology::Torus { size } => torus(size, from, to, base, links),
            Topology::FatTree { down, up } => self.fat_tree(down, up, (from, to), base, links),
            Topology::Dragonfly {
                groups,
                routers,
                nodes,
            } => dragonfly([*groups, *routers, *nodes], (from, to), base, links),
        }
    }

    fn fat_tree(
        &self,
        down: &[u32],
        up: &[u32],
        (from, to): (u32, u32),
        base: u32,
        links: &mut Vec<u32>,
    ) {
        // Climb until both nodes are below the same switch.
        let (mut a, mut b) = (from / down[0], to / down[0]);
        let mut meet = 0;
        let mut bases = [0u32; 16];
        let mut next = base;
        while a != b && meet < up.len() {
            bases[meet] = next;
            links.push(next + a * up[meet] + to % up[meet]);
            next += 2 * (self.switches(down, meet) as u32) * up[meet];
            meet += 1;
            a /= down[meet];
            b /= down[meet];
        }
        // Descend the same levels, through the switches above the destination.
        for level in (0..meet).rev() {
            let below: u32 = down[..=level].iter().product();
            let switch = to / below;
            let upward = self.switches(down, level) as u32 * up[level];
            links.push(bases[level] + upward + switch * up[level] + to % up[level]);
        }
    }

    /// Returns a description of a link for reports: its two ends, or its switch and direction.
    pub fn link_name(&self, link: u32, nodes: u32) -> String {
        if link < nodes {
            return format!("node {link} → network");
        }
        if link < 2 * nodes {
            return format!("network → node {}", link - nodes);
        }
        let mut rest = link - 2 * nodes;
        match self {
            Topology::Crossbar => format!("link {link}"),
            Topology::Torus { size } => {
                let ports = 2 * size.len() as u32;
                let (node, port) = (rest / ports, rest % ports);
                let sign = if port % 2 == 0 { '+' } else { '-' };
                format!("node {node}, dimension {}, {sign}", port / 2)
            }
            Topology::FatTree { down, up } => {
                for (level, &width) in up.iter().enumerate() {
                    let each = self.switches(down, level) as u32 * width;
                    if rest < 2 * each {
                        let (way, at) = if rest < each {
                            ("up", rest)
                        } else {
                            ("down", rest - each)
                        };
                        return format!(
                            "level {level} switch {}, {way} link {}",
                            at / width,
                            at % width
                        );
                    }
                    rest -= 2 * each;
                }
                format!("link {link}")
            }
            Topology::Dragonfly {
                groups, routers, ..
            } => {
                let local = groups * routers * routers;
                if rest < local {
                    let (from, to) = (rest / routers, rest % routers);
                    format!(
                        "group {}, router {} → router {to}",
                        from / routers,
                        from % routers
                    )
                } else {
                    rest -= local;
                    format!("group {} → group {}", rest / groups, rest % groups)
                }
            }
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |sizes: &[u32]| {
            let sizes: Vec<_> = sizes.iter().map(u32::to_string).collect();
            sizes.join("x")
        };
        match self {
            Topology::Crossbar => f.write_str("crossbar"),
            Topology::FatTree { down, up } => {
                write!(f, "fat tree {} down, {} up", times(down), times(up))
            }
            Topology::Torus { size } => write!(f, "torus {}", times(size)),
            Topology::Dragonfly {
                groups,
                routers,
                nodes,
            } => write!(f, "dragonfly {groups}x{routers}x{nodes}"),
        }
    }
}

/// Adds the links of a route, one dimension after the other, in the shorter direction; in the positive one if both are equally long.
fn torus(size: &[u32], from: u32, to: u32, base: u32, links: &mut Vec<u32>) {
    let ports = 2 * size.len() as u32;
    let (mut at, mut stride) = (from, 1);
    for (dimension, &length) in size.iter().enumerate() {
        let (mut here, there) = (at / stride % length, to / stride % length);
        let forward = (there + length - here) % length;
        let positive = 2 * forward <= length;
        while here != there {
            let next = if positive {
                (here + 1) % length
            } else {
                (here + length - 1) % length
            };
            links.push(base + at * ports + 2 * dimension as u32 + u32::from(!positive));
            // In this order no intermediate value is negative.
            at = at + next * stride - here * stride;
            here = next;
        }
        stride *= length;
    }
}

/// Adds the links of a route: router to gateway, between the groups, gateway to router. The numbers of links from router to router
/// within the groups come first, then those from group to group.
fn dragonfly(
    [groups, routers, nodes]: [u32; 3],
    (from, to): (u32, u32),
    base: u32,
    links: &mut Vec<u32>,
) {
    let (from, to) = (from / nodes, to / nodes);
    let (group, target) = (from / routers, to / routers);
    let (here, there) = (from % routers, to % routers);
    let local = |group: u32, a: u32, b: u32| base + (group * routers + a) * routers + b;
    if group == target {
        if here != there {
            links.push(local(group, here, there));
        }
        return;
    }
    // The router of group `own` that has the link to group `other`.
    let gateway = |own: u32, other: u32| ((other + groups - own - 1) % groups) % routers;
    let (out, into) = (gateway(group, target), gateway(target, group));
    if here != out {
        links.push(local(group, here, out));
    }
    links.push(base + groups * routers * routers + group * groups + target);
    if into != there {
        links.push(local(target, into, there));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(topology: &Topology, from: u32, to: u32, nodes: u32) -> Vec<u32> {
        let mut links = Vec::new();
        topology.route(from, to, nodes, &mut links);
        links
    }

    #[test]
    fn tori_take_the_shorter_way() {
        let torus = Topology::Torus {
            size: vec![4, 4, 4],
        };
        let hops = |from, to| route(&torus, from, to, 64).len();
        assert_eq!(hops(0, 1), 1);
        assert_eq!(hops(0, 3), 1);
        assert_eq!(hops(0, 2), 2);
        assert_eq!(hops(0, 42), 6);
        assert_eq!(torus.link_name(128, 64), "node 0, dimension 0, +");
        assert_eq!(route(&torus, 0, 3, 64), [128 + 1]);
    }

    #[test]
    fn fat_trees_climb_as_far_as_they_must() {
        let tree = Topology::FatTree {
            down: vec![4, 2, 2],
            up: vec![2, 2],
        };
        assert_eq!(tree.capacity(), 16);
        let hops = |from, to| route(&tree, from, to, 16).len();
        assert_eq!(
            (hops(0, 3), hops(0, 4), hops(0, 8), hops(15, 0)),
            (0, 2, 4, 4)
        );
        // Different destinations take different up links.
        assert_ne!(route(&tree, 0, 8, 16)[0], route(&tree, 0, 9, 16)[0]);
    }

    #[test]
    fn dragonflies_pass_one_global_link() {
        let fly = Topology::Dragonfly {
            groups: 5,
            routers: 2,
            nodes: 2,
        };
        let hops = |from, to| route(&fly, from, to, 20).len();
        assert_eq!((hops(0, 1), hops(0, 2)), (0, 1));
        for to in 4..20 {
            assert!((1..=3).contains(&hops(0, to)));
        }
    }

    #[test]
    fn routes_stay_within_the_links_and_have_names_of_their_own() {
        let topologies = [
            Topology::Crossbar,
            Topology::Torus { size: vec![3, 5] },
            Topology::FatTree {
                down: vec![3, 5],
                up: vec![2],
            },
            Topology::Dragonfly {
                groups: 5,
                routers: 3,
                nodes: 1,
            },
        ];
        for topology in topologies {
            let links = topology.links(15);
            for from in 0..15 {
                for to in 0..15 {
                    for link in route(&topology, from, to, 15) {
                        assert!(u64::from(link) < links && link >= 30, "{topology}");
                    }
                }
            }
            let names: std::collections::BTreeSet<_> = (0..links as u32)
                .map(|link| topology.link_name(link, 15))
                .collect();
            assert_eq!(names.len() as u64, links);
        }
    }
}
