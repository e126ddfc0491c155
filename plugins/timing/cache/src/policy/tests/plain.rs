//! The policies again, as plain lists that are written from their definitions.

/// A policy of a whole cache. Sets and ways are counted from 0.
pub(super) trait Plain: Clone + PartialEq + std::fmt::Debug {
    fn hit(&mut self, set: usize, way: usize);
    /// Chooses the way of a new line; `used` says which ways have lines.
    fn miss(&mut self, set: usize, used: &[bool]) -> usize;
    fn removed(&mut self, set: usize, way: usize);
}

fn leftmost_empty(used: &[bool]) -> Option<usize> {
    used.iter().position(|used| !used)
}

/// Tree-PLRU as orders of use. In each half, the victim is in the quarter that was not used last, and so on down.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TreePlru {
    /// For each set, the ways that were ever used, the latest last.
    orders: Vec<Vec<usize>>,
}

impl TreePlru {
    pub(super) fn new(sets: usize) -> TreePlru {
        TreePlru {
            orders: vec![Vec::new(); sets],
        }
    }

    fn victim(&self, set: usize, from: usize, to: usize) -> usize {
        if to - from == 1 {
            return from;
        }
        let middle = (from + to) / 2;
        let last = self.orders[set]
            .iter()
            .rfind(|&way| (from..to).contains(way));
        match last {
            Some(&way) if way < middle => self.victim(set, middle, to),
            _ => self.victim(set, from, middle),
        }
    }
}

impl Plain for TreePlru {
    fn hit(&mut self, set: usize, way: usize) {
        self.orders[set].retain(|&other| other != way);
        self.orders[set].push(way);
    }

    fn miss(&mut self, set: usize, used: &[bool]) -> usize {
        let way = leftmost_empty(used).unwrap_or_else(|| self.victim(set, 0, used.len()));
        self.hit(set, way);
        way
    }

    fn removed(&mut self, _: usize, _: usize) {}
}

/// Numbers and flag of a quad-age policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quad {
    pub(super) hit: (u32, u32),
    pub(super) insert: u32,
    pub(super) replace: u32,
    pub(super) update: u32,
    pub(super) on_miss_only: bool,
}

impl Quad {
    /// Returns every policy of the family.
    pub(super) fn all() -> Vec<Quad> {
        let mut all = Vec::new();
        for hit in [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (0, 1)] {
            for insert in 0..4 {
                for (replace, update) in [
                    (0, 0),
                    (0, 1),
                    (1, 0),
                    (1, 1),
                    (1, 2),
                    (1, 3),
                    (2, 0),
                    (2, 1),
                ] {
                    for on_miss_only in [false, true] {
                        all.push(Quad {
                            hit,
                            insert,
                            replace,
                            update,
                            on_miss_only,
                        });
                    }
                }
            }
        }
        all
    }

    pub(super) fn text(self) -> String {
        let ((x, y), umo) = (self.hit, if self.on_miss_only { "-umo" } else { "" });
        format!(
            "qlru-h{x}{y}-m{}-r{}-u{}{umo}",
            self.insert, self.replace, self.update
        )
    }
}

/// Quad-age LRU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Qlru {
    quad: Quad,
    ages: Vec<Vec<u32>>,
}

impl Qlru {
    pub(super) fn new(quad: Quad, sets: usize, ways: usize) -> Qlru {
        Qlru {
            quad,
            ages: vec![vec![3; ways]; sets],
        }
    }

    fn update(&mut self, set: usize, accessed: Option<usize>) {
        let before = self.ages[set].clone();
        let spared = |way| accessed == Some(way) && self.quad.update % 2 == 1;
        let others = || (0..before.len()).filter(|&way| !spared(way));
        let growth = match self.quad.update {
            0 | 1 => 3 - others().map(|way| before[way]).max().unwrap_or(3),
            _ if before.contains(&3) => 0,
            _ => 1,
        };
        for way in others() {
            self.ages[set][way] += growth;
        }
    }

    fn accessed(&mut self, set: usize, way: usize) {
        if !self.quad.on_miss_only {
            self.update(set, Some(way));
        }
    }
}

impl Plain for Qlru {
    fn hit(&mut self, set: usize, way: usize) {
        let age = &mut self.ages[set][way];
        *age = [0, 0, self.quad.hit.1, self.quad.hit.0][*age as usize];
        self.accessed(set, way);
    }

    fn miss(&mut self, set: usize, used: &[bool]) -> usize {
        if self.quad.on_miss_only {
            self.update(set, None);
        }
        let aged = self.ages[set].iter().position(|&age| age == 3);
        let empty = if self.quad.replace == 2 {
            used.iter().rposition(|used| !used)
        } else {
            leftmost_empty(used)
        };
        let way = match (empty, self.quad.replace) {
            (Some(way), _) => way,
            (None, 1) => aged.unwrap_or(0),
            (None, _) if used.len() == 1 => 0,
            (None, _) => aged.expect("r0 and r2 find a line of age 3"),
        };
        self.ages[set][way] = self.quad.insert;
        self.accessed(set, way);
        way
    }

    fn removed(&mut self, set: usize, way: usize) {
        self.ages[set][way] = 3;
    }
}

/// SRRIP; with a duel, DRRIP.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rrip {
    intervals: Vec<Vec<u32>>,
    duel: Option<Duel>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Duel {
    static_leaders: Vec<usize>,
    bimodal_leaders: Vec<usize>,
    /// Misses of leaders of SRRIP less those of BRRIP, limited to -511 to 512.
    lead: i32,
    bimodal_insertions: u64,
}

impl Rrip {
    pub(super) fn srrip(sets: usize, ways: usize) -> Rrip {
        Rrip {
            intervals: vec![vec![3; ways]; sets],
            duel: None,
        }
    }

    pub(super) fn drrip(sets: usize, ways: usize) -> Rrip {
        let leaders = usize::min(sets / 4, 32);
        let starts: Vec<usize> = (0..leaders)
            .map(|region| region * (sets / leaders))
            .collect();
        Rrip {
            duel: Some(Duel {
                bimodal_leaders: starts
                    .iter()
                    .map(|start| start + sets / leaders / 2)
                    .collect(),
                static_leaders: starts,
                lead: 0,
                bimodal_insertions: 0,
            }),
            ..Rrip::srrip(sets, ways)
        }
    }

    fn inserted(&mut self, set: usize) -> u32 {
        let Some(duel) = &mut self.duel else { return 2 };
        let bimodal = if duel.static_leaders.contains(&set) {
            duel.lead = i32::min(duel.lead + 1, 512);
            false
        } else if duel.bimodal_leaders.contains(&set) {
            duel.lead = i32::max(duel.lead - 1, -511);
            true
        } else {
            duel.lead > 0
        };
        if bimodal {
            duel.bimodal_insertions += 1;
        }
        let long = !bimodal || duel.bimodal_insertions.is_multiple_of(32);
        if long { 2 } else { 3 }
    }
}

impl Plain for Rrip {
    fn hit(&mut self, set: usize, way: usize) {
        self.intervals[set][way] = 0;
    }

    fn miss(&mut self, set: usize, used: &[bool]) -> usize {
        let inserted = self.inserted(set);
        let way = leftmost_empty(used).unwrap_or_else(|| {
            loop {
                let distant = self.intervals[set].iter().position(|&rrpv| rrpv == 3);
                if let Some(way) = distant {
                    break way;
                }
                self.intervals[set].iter_mut().for_each(|rrpv| *rrpv += 1);
            }
        });
        self.intervals[set][way] = inserted;
        way
    }

    fn removed(&mut self, set: usize, way: usize) {
        self.intervals[set][way] = 3;
    }
}

/// First in, first out, by the time of arrival.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fifo {
    arrivals: Vec<Vec<u64>>,
    now: u64,
}

impl Fifo {
    pub(super) fn new(sets: usize, ways: usize) -> Fifo {
        Fifo {
            arrivals: vec![vec![0; ways]; sets],
            now: 0,
        }
    }
}

impl Plain for Fifo {
    fn hit(&mut self, _: usize, _: usize) {}

    fn miss(&mut self, set: usize, used: &[bool]) -> usize {
        let arrivals = &mut self.arrivals[set];
        let first = || (0..used.len()).min_by_key(|&way| arrivals[way]);
        let way = leftmost_empty(used).or_else(first).unwrap();
        self.now += 1;
        arrivals[way] = self.now;
        way
    }

    fn removed(&mut self, _: usize, _: usize) {}
}

/// Random replacement. The state is the number of replacements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Random {
    seed: u64,
    replacements: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random {
            seed,
            replacements: 0,
        }
    }
}

impl Plain for Random {
    fn hit(&mut self, _: usize, _: usize) {}

    fn miss(&mut self, _: usize, used: &[bool]) -> usize {
        leftmost_empty(used).unwrap_or_else(|| {
            self.replacements += 1;
            let steps = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(self.replacements);
            let mut number = self.seed.wrapping_add(steps);
            for (shift, factor) in [
                (30, 0xbf58_476d_1ce4_e5b9),
                (27, 0x94d0_49bb_1331_11eb),
                (31, 1),
            ] {
                number = (number ^ (number >> shift)).wrapping_mul(factor);
            }
            // The numbers are cut into as many equal ranges as there are ways.
            let ways = used.len() as u128;
            let end = |way: u128| ((way + 1) << 64).div_ceil(ways);
            (0..ways)
                .find(|&way| u128::from(number) < end(way))
                .unwrap() as usize
        })
    }

    fn removed(&mut self, _: usize, _: usize) {}
}
