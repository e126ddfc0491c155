//! When quanta end that follow each other.

/// Quanta to run one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stretch {
    /// End of the first, picoseconds.
    pub first_ps: u64,
    /// Each of the others ends so long after it begins or, where all nodes sleep, after the first of them wakes up.
    pub lookahead_ps: u64,
    /// The same as long as no node has a network interface that is up.
    pub apart_ps: u64,
    /// No quantum goes on beyond this.
    pub limit_ps: u64,
    /// None begins at this time or later.
    pub until_ps: u64,
    /// Quanta at most, the first included.
    pub most: u64,
}

impl Stretch {
    /// The end of the quantum that follows the one which ended at `now_ps`, if one does; `all`: of all nodes.
    pub(crate) fn following(&mut self, now_ps: u64, all: Meeting) -> Option<u64> {
        self.most -= 1;
        let ends = self.most == 0 || now_ps >= self.until_ps || all.activity_ps == u64::MAX;
        if ends || !all.quiet {
            return None;
        }
        let lookahead_ps = if all.connected {
            self.lookahead_ps
        } else {
            self.apart_ps
        };
        Some((all.activity_ps.max(now_ps) + lookahead_ps).min(self.limit_ps))
    }
}

/// What is known where all nodes meet.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    /// They run on, and nobody waits for what they say.
    pub quiet: bool,
    /// When the first of them, or the network, has something to do; it may lie in the past.
    pub activity_ps: u64,
    /// Any has a network interface that is up.
    pub connected: bool,
}

impl Meeting {
    /// What it is nearly always.
    pub const USUAL: Self = Self {
        quiet: true,
        activity_ps: 0,
        connected: true,
    };

    /// What is known of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            quiet: self.quiet && other.quiet,
            activity_ps: self.activity_ps.min(other.activity_ps),
            connected: self.connected || other.connected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(mut stretch: Stretch, all: impl Fn(u64) -> Meeting) -> Vec<u64> {
        let mut ends = vec![stretch.first_ps];
        while let Some(next) = stretch.following(ends[ends.len() - 1], all(ends[ends.len() - 1])) {
            ends.push(next);
        }
        ends
    }

    fn active_at(activity_ps: u64) -> Meeting {
        Meeting {
            activity_ps,
            ..Meeting::USUAL
        }
    }

    #[test]
    fn quanta_follow_each_other_until_something_is_to_be_done() {
        let stretch = Stretch {
            first_ps: 10,
            lookahead_ps: 10,
            apart_ps: 70,
            limit_ps: 1000,
            until_ps: 1000,
            most: 4,
        };
        assert_eq!(ends(stretch, |_| Meeting::USUAL), [10, 20, 30, 40]);
        let due = Stretch {
            until_ps: 25,
            ..stretch
        };
        assert_eq!(
            ends(due, |_| Meeting::USUAL),
            [10, 20, 30],
            "the first that ends at 25 or later is the last"
        );
        let short = Stretch {
            limit_ps: 25,
            until_ps: 25,
            ..stretch
        };
        assert_eq!(
            ends(short, |_| Meeting::USUAL),
            [10, 20, 25],
            "none goes beyond a limit"
        );
        assert_eq!(
            ends(stretch, |now| active_at(if now == 20 { 500 } else { 0 })),
            [10, 20, 510, 520],
            "what all sleep through is passed over"
        );
        assert_eq!(
            ends(stretch, |_| active_at(u64::MAX)),
            [10],
            "nothing will happen"
        );
        let connected = |now| Meeting {
            connected: now > 80,
            ..Meeting::USUAL
        };
        assert_eq!(
            ends(stretch, connected),
            [10, 80, 150, 160],
            "nodes that cannot hear of each other need not meet so often"
        );
        let loud = Meeting {
            quiet: false,
            ..Meeting::USUAL
        };
        assert_eq!({ stretch }.following(10, loud), None, "there is output");
    }
}
