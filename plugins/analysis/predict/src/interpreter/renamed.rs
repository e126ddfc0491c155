//! Peers of ranks whose receives from any source take other messages than where the program was traced.
//!
//! A server that receives a request from any rank answers the rank that asked. If the request of another rank comes first here, the answer
//! must go there. So what the traced program did with one rank is done with the other rank, and the reverse. A rank's peers are a permutation of
//! those traced, which each such receive changes.

use std::collections::HashMap;

use nodescope_loop_tree::PeerRef;

use super::Interpreter;
use crate::code::{ANY, NONE};

/// For each rank the peers that differ from those traced; or the requests, whose numbers stand in the place of peers (see [`super::race`]).
#[derive(Debug, Default)]
pub(super) struct Renamed {
    /// True if receives from any source take the first message that comes.
    pub(super) by_arrival: bool,
    /// By rank: peer here by traced peer. A peer that is missing is itself.
    peers: HashMap<u32, HashMap<u32, u32>>,
}

/// Sender from which a receive or probe accepts a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    /// Rank of the sender, or `ANY`.
    pub(super) peer: u32,
    /// Rank whose message matched where the program was traced, if here the first that comes matches; otherwise `NONE`.
    pub(super) traced: u32,
}

impl Renamed {
    pub(super) fn new(by_arrival: bool) -> Renamed {
        Renamed {
            by_arrival,
            peers: HashMap::new(),
        }
    }

    /// Returns the peer of a rank in place of the traced one.
    pub(super) fn here(&self, rank: u32, traced: u32) -> u32 {
        if !self.by_arrival {
            return traced;
        }
        let here = self.peers.get(&rank).and_then(|peers| peers.get(&traced));
        here.copied().unwrap_or(traced)
    }

    /// Notes that a rank received a message from `here` in place of one from `traced`. Whatever peer stood for `here` now stands for the
    /// former peer, so that the peers stay a permutation.
    pub(super) fn swap(&mut self, rank: u32, traced: u32, here: u32) {
        let former = self.here(rank, traced);
        if former == here {
            return;
        }
        let peers = self.peers.entry(rank).or_default();
        let other = peers.iter().find(|&(_, &peer)| peer == here);
        let other = other.map_or(here, |(&other, _)| other);
        for (traced, here) in [(traced, here), (other, former)] {
            if traced == here {
                peers.remove(&traced);
            } else {
                peers.insert(traced, here);
            }
        }
    }
}

impl Interpreter<'_> {
    /// Returns from whom an operation accepts a message. If `any` is true, the program named no rank, and the trace tells whose message
    /// matched.
    pub(super) fn accepted(&self, context: u32, from: Option<PeerRef>, any: bool) -> Accepted {
        let traced = self.source(context, from);
        match any && self.renamed.by_arrival {
            true => Accepted { peer: ANY, traced },
            false => Accepted {
                peer: match traced {
                    ANY => ANY,
                    traced => self.renamed.here(context, traced),
                },
                traced: NONE,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_stay_a_permutation() {
        let mut renamed = Renamed::new(true);
        let peers = |renamed: &Renamed| [1, 2, 3, 4].map(|peer| renamed.here(0, peer));
        renamed.swap(0, 1, 2);
        assert_eq!(peers(&renamed), [2, 1, 3, 4]);
        renamed.swap(0, 3, 1);
        assert_eq!(peers(&renamed), [2, 3, 1, 4]);
        renamed.swap(0, 1, 1);
        assert_eq!(peers(&renamed), [1, 3, 2, 4]);
        renamed.swap(0, 2, 2);
        assert_eq!(peers(&renamed), [1, 2, 3, 4]);
        assert!(renamed.peers[&0].is_empty());
        assert_eq!(renamed.here(1, 3), 3);
    }
}
