//! The prefetchers of a description, written from their rules.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_plugin_api::{Access, Site};
use nodescope_plugin_cache::{CacheConfig, CacheKind, Prefetch};

use super::Plain;
use super::prefetch::{Answer, Observed, Prefetchers};

/// Prefetcher of one cache. It does not see hits of lines that no prefetch brought, or whose prefetch was used before.
trait Prefetcher {
    /// Returns the lines that an access asks for. Lines in other pages are left out by the caller.
    fn observe(&mut self, access: &Observed) -> Vec<i128>;
}

/// A miss, or the first use of a prefetched line, asks for the next line.
struct NextLine;

impl Prefetcher for NextLine {
    fn observe(&mut self, access: &Observed) -> Vec<i128> {
        vec![i128::from(access.line) + 1]
    }
}

/// A miss asks for the other line of the pair.
struct AdjacentLine;

impl Prefetcher for AdjacentLine {
    fn observe(&mut self, access: &Observed) -> Vec<i128> {
        let other = i128::from(access.line ^ 1);
        let misses = access.answer == Answer::Miss;
        misses.then_some(other).into_iter().collect()
    }
}

/// Goes on in the direction of the last two accesses, if they were to one page.
#[derive(Default)]
struct UpDown(Vec<i128>);

impl Prefetcher for UpDown {
    fn observe(&mut self, access: &Observed) -> Vec<i128> {
        self.0.push(access.line.into());
        match self.0[..] {
            [.., before, last] if before != last && page(before) == page(last) => {
                vec![last + (last - before).signum()]
            }
            _ => Vec::new(),
        }
    }
}

/// The third access of an instruction at equal distances asks for lines ahead.
struct Stride {
    entries: u64,
    distance: i128,
    degree: i128,
    /// Instruction of each entry, and the different lines that it accessed one after the other.
    histories: BTreeMap<u64, (Site, Vec<i128>)>,
}

impl Stride {
    fn entry(&self, site: Site) -> u64 {
        let site = u64::from(site.block) << 32 | u64::from(site.operation);
        // The number as a fraction of the circle, after so many steps of the golden ratio.
        let fraction = site.wrapping_mul(0x9e37_79b9_7f4a_7c15) / (1 << 32);
        fraction * self.entries / (1 << 32)
    }
}

impl Prefetcher for Stride {
    fn observe(&mut self, access: &Observed) -> Vec<i128> {
        if access.access == Access::Fetch {
            return Vec::new();
        }
        let entry = self.entry(access.site);
        let new = || (access.site, Vec::new());
        let history = self.histories.entry(entry).or_insert_with(new);
        if history.0 != access.site {
            *history = new();
        }
        let lines = &mut history.1;
        let line = i128::from(access.line);
        if lines.last() == Some(&line) {
            return Vec::new();
        }
        lines.push(line);
        match lines[..] {
            [.., third, second, last] if last - second == second - third => {
                let strides = self.distance..self.distance + self.degree;
                strides.map(|n| last + n * (last - second)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Accesses of a page in one direction, after some of them for training, ask for the next lines that they have not asked for.
struct Stream {
    streams: usize,
    distance: i128,
    degree: usize,
    train: usize,
    accesses: u64,
    pages: BTreeMap<i128, Followed>,
}

/// Page that a [`Stream`] follows.
struct Followed {
    /// Number of the last access of this page among those of all pages.
    last_access: u64,
    /// Lines that were accessed in one direction.
    run: Vec<i128>,
    /// Lines that the run has asked for.
    asked: BTreeSet<i128>,
}

impl Prefetcher for Stream {
    fn observe(&mut self, access: &Observed) -> Vec<i128> {
        let line = i128::from(access.line);
        let page = page(line);
        self.accesses += 1;
        if !self.pages.contains_key(&page) && self.pages.len() == self.streams {
            let ages = self.pages.iter().map(|(page, of)| (of.last_access, *page));
            let (_, oldest) = ages.min().expect("some stream");
            self.pages.remove(&oldest);
        }
        let of = self.pages.entry(page).or_insert_with(|| Followed {
            last_access: 0,
            run: Vec::new(),
            asked: BTreeSet::new(),
        });
        of.last_access = self.accesses;
        if of.run.last() == Some(&line) {
            return Vec::new();
        }
        if let [.., before, last] = of.run[..]
            && (last > before) != (line > last)
        {
            of.run = vec![last];
            of.asked.clear();
        }
        of.run.push(line);
        let [.., before, _] = of.run[..] else {
            return Vec::new();
        };
        // The run starts at a line that has no direction.
        if of.run.len() - 1 <= self.train {
            return Vec::new();
        }
        let direction = (line - before).signum();
        let ahead = (1..=self.distance).map(|n| line + n * direction);
        let new = ahead.filter(|line| !of.asked.contains(line));
        let wanted: Vec<i128> = new.take(self.degree).collect();
        of.asked.extend(&wanted);
        wanted
    }
}

/// Returns the number of a line's page, which has 64 lines of 64 bytes.
fn page(line: i128) -> i128 {
    line.div_euclid(64)
}

fn prefetcher(prefetch: &Prefetch) -> Box<dyn Prefetcher> {
    let text = prefetch.to_string();
    let (name, parameters) = text.split_once(':').unwrap_or((&text, ""));
    let parameters = parameters.split(',').filter_map(|one| one.split_once('='));
    let parameters: BTreeMap<&str, &str> = parameters.collect();
    let number = |name: &str| parameters[name].parse::<u16>().expect("a number");
    match name {
        "next-line" => Box::new(NextLine),
        "up-down" => Box::new(UpDown::default()),
        "adjacent-line" => Box::new(AdjacentLine),
        "stride" => Box::new(Stride {
            entries: number("entries").into(),
            distance: number("distance").into(),
            degree: number("degree").into(),
            histories: BTreeMap::new(),
        }),
        "stream" => Box::new(Stream {
            streams: number("streams").into(),
            distance: number("distance").into(),
            degree: number("degree").into(),
            train: number("train").into(),
            accesses: 0,
            pages: BTreeMap::new(),
        }),
        _ => panic!("prefetcher {text} has no plain implementation"),
    }
}

/// The prefetchers of all caches of a description.
struct Described {
    config: CacheConfig,
    /// Prefetchers of each cache that had an access.
    caches: BTreeMap<usize, Vec<Box<dyn Prefetcher>>>,
}

impl Prefetchers for Described {
    fn observe(&mut self, access: &Observed) -> Vec<u64> {
        let level = match (access.kind, &self.config.instruction) {
            (CacheKind::Instruction, Some(instruction)) => instruction,
            _ => &self.config.levels[usize::from(access.level) - 1],
        };
        let new = || level.prefetch.iter().map(prefetcher).collect();
        let prefetchers = self.caches.entry(access.cache).or_insert_with(new);
        if access.answer == Answer::Hit {
            return Vec::new();
        }
        let lines = prefetchers.iter_mut().flat_map(|one| one.observe(access));
        let here = page(access.line.into());
        let inside = lines.filter(|&line| page(line) == here);
        inside.map(|line| line as u64).collect()
    }
}

impl Plain {
    /// Returns this machine with the prefetchers of its description.
    pub fn with_described_prefetchers(self) -> Plain {
        assert_eq!(self.config.levels[0].line, 64);
        let config = self.config.clone();
        self.with_prefetchers(Box::new(Described {
            config,
            caches: BTreeMap::new(),
        }))
    }
}
