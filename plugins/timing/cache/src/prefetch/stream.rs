//! `stream`: prefetch ahead of accesses that go through a page in one direction, as Intel's L2 streamer does (Intel, Optimization Reference
//! Manual, "Data Prefetch to L2 and Last Level Cache").
//!
//! The manual gives the defaults: one forward or backward stream for each of 32 pages, two lines for an access, at most 20 lines ahead. It
//! does not say how many accesses a stream needs; `train` sets that.

use std::fmt;

use nodescope_plugin_api::Parameter;

use super::page::Pages;
use super::parameters::{self, UnknownPrefetcher, parameter};
use super::{Answer, Observed, Prefetcher};

/// Name in the text form.
pub(super) const NAME: &str = "stream";

pub(super) const PARAMETERS: [Parameter; 5] = [
    parameter("streams", "pages that are followed", 32, 1024),
    parameter(
        "distance",
        "most lines from the accessed line to a wanted one",
        20,
        64,
    ),
    parameter("degree", "most lines that one access asks for", 2, 16),
    parameter(
        "train",
        "accesses in one direction that ask for nothing",
        2,
        16,
    ),
    parameters::PAGES,
];

/// Parameters of the prefetcher `stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Pages that are followed.
    streams: u32,
    /// Most lines from the accessed line to a line that is asked for.
    distance: u32,
    /// Most lines that one access asks for.
    degree: u32,
    /// Accesses in one direction that ask for nothing.
    train: u32,
    /// Pages in which these lines are: that of the access, and those behind it. With more than 1, a stream goes on in the next page.
    pages: u32,
}

impl Stream {
    pub(super) fn read(values: Option<&str>) -> Result<Stream, UnknownPrefetcher> {
        parameters::read(NAME, &PARAMETERS, values).map(
            |[streams, distance, degree, train, pages]| Stream {
                streams,
                distance,
                degree,
                train,
                pages,
            },
        )
    }

    pub(super) fn prefetcher(self, pages: Pages) -> StreamTable {
        StreamTable {
            parameters: self,
            pages,
            streams: Vec::new(),
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = [
            self.streams,
            self.distance,
            self.degree,
            self.train,
            self.pages,
        ];
        parameters::write(f, NAME, &PARAMETERS, values)
    }
}

/// The accesses of one page.
#[derive(Clone, Copy, Debug)]
struct PageStream {
    page: u64,
    /// The line that was accessed last.
    line: u64,
    /// Direction of the last access from the one before: 1 or -1, or 0 after the first access.
    direction: i64,
    /// Accesses in this direction since the last change of direction, up to `train`.
    trained: u32,
    /// Lines ahead of the last access that were asked for since the last change of direction. Lines beyond the page count as asked for.
    ahead: u32,
}

impl PageStream {
    /// Returns whether the stream leaves its page for another one in which its next line is.
    fn comes_to(&self, page: u64, line: u64, parameters: &Stream) -> bool {
        let forward = if line > self.line { 1 } else { -1 };
        self.trained == parameters.train
            && self.direction == forward
            && page.abs_diff(self.page) < parameters.pages.into()
            && line.abs_diff(self.line) <= parameters.distance.into()
    }
}

/// The pages that are followed. An access has the direction from the last line of its page that was accessed to its own. An access to that
/// last line itself has no direction and asks for nothing. A change of direction starts a new stream.
#[derive(Debug)]
pub(super) struct StreamTable {
    parameters: Stream,
    pages: Pages,
    /// The streams, the most recently used first.
    streams: Vec<PageStream>,
}

impl StreamTable {
    /// Makes the stream of a page the most recently used one. Returns false if the page had none, and none came from the page before. It
    /// has a new one then, which starts at this line.
    fn touch(&mut self, page: u64, line: u64) -> bool {
        let found = self.streams.iter().position(|s| s.page == page);
        let found = found.or_else(|| {
            let comes = |s: &PageStream| s.comes_to(page, line, &self.parameters);
            let from = self.streams.iter().position(comes)?;
            self.streams[from].page = page;
            Some(from)
        });
        let last = found.unwrap_or_else(|| {
            if self.streams.len() == self.parameters.streams as usize {
                self.streams.pop();
            }
            self.streams.push(PageStream {
                page,
                line,
                direction: 0,
                trained: 0,
                ahead: 0,
            });
            self.streams.len() - 1
        });
        self.streams[..=last].rotate_right(1);
        found.is_some()
    }
}

impl Prefetcher for StreamTable {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        let line = access.line;
        if access.answer == Answer::Hit || !self.touch(self.pages.of(line), line) {
            return;
        }
        let stream = &mut self.streams[0];
        let direction = match line.cmp(&stream.line) {
            std::cmp::Ordering::Less => -1,
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Greater => 1,
        };
        if direction != stream.direction {
            stream.direction = direction;
            stream.trained = 0;
            stream.ahead = 0;
        }
        // Both lines are in one page, or at most `distance` apart.
        let passed = line.abs_diff(stream.line) as u32;
        stream.line = line;
        stream.ahead = stream.ahead.saturating_sub(passed);
        if stream.trained < self.parameters.train {
            stream.trained += 1;
            return;
        }
        let furthest = (stream.ahead + self.parameters.degree).min(self.parameters.distance);
        let ahead = (stream.ahead + 1..=furthest).map(|lines| direction * i64::from(lines));
        wanted.extend(
            ahead.map_while(|lines| self.pages.step_within(self.parameters.pages, line, lines)),
        );
        stream.ahead = furthest;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nodescope_plugin_api::Access;
    use proptest::prelude::*;

    use super::super::testing::{accesses, compare, reads, scan, wanted};
    use super::super::{Answer, Observed};
    use super::Stream;

    /// Returns the accessed lines of the last access's page, the last first. They end where `streams` other pages come between two of them:
    /// the page was given up there.
    fn followed(history: &[Observed], streams: u32, page: impl Fn(u64) -> u64) -> Vec<u64> {
        let now = page(history[history.len() - 1].line);
        let mut lines = Vec::new();
        let mut others = BTreeSet::new();
        for line in history.iter().rev().map(|access| access.line) {
            if page(line) == now {
                lines.push(line);
                others.clear();
            } else if others.insert(page(line)) && others.len() == streams as usize {
                break;
            }
        }
        lines
    }

    /// Returns the lines of a history that the last access wants. The run of the last access is played again from its start.
    fn plain(history: &[Observed], stream: Stream, line_shift: u32) -> Vec<u64> {
        if history[history.len() - 1].answer == Answer::Hit {
            return Vec::new();
        }
        let seen: Vec<Observed> = history
            .iter()
            .filter(|access| access.answer != Answer::Hit)
            .copied()
            .collect();
        let page = |line: u64| (line << line_shift) / 4096;
        let mut lines = followed(&seen, stream.streams, page);
        if lines.get(1) == lines.first() {
            return Vec::new();
        }
        lines.dedup();
        let Some(forward) = lines.get(1).map(|before| lines[0] > *before) else {
            return Vec::new();
        };
        let run = lines
            .windows(2)
            .take_while(|pair| (pair[0] > pair[1]) == forward)
            .count();
        let mut asked = BTreeSet::new();
        let mut wanted = Vec::new();
        for line in lines[..run].iter().rev().skip(stream.train as usize) {
            let ahead = 1..=u64::from(stream.distance);
            wanted = ahead
                .filter_map(|n| {
                    if forward {
                        Some(line + n)
                    } else {
                        line.checked_sub(n)
                    }
                })
                .filter(|next| page(*next) == page(*line) && !asked.contains(next))
                .take(stream.degree as usize)
                .collect();
            asked.extend(wanted.iter().copied());
        }
        wanted
    }

    proptest! {
        #[test]
        fn equals_the_plain_definition(
            streams in prop_oneof![1u32..=4, Just(32), Just(1024)],
            distance in prop_oneof![1u32..=5, Just(20), Just(64)],
            degree in prop_oneof![1u32..=3, Just(16)],
            train in prop_oneof![1u32..=3, Just(16)],
            line_shift in prop_oneof![4 => Just(6u32), 1 => 5u32..=12],
            accesses in accesses(),
        ) {
            let stream = Stream { streams, distance, degree, train, pages: 1 };
            compare(&stream.to_string(), line_shift, &accesses, |history| {
                plain(history, stream, line_shift)
            })?;
        }
    }

    #[test]
    fn a_long_scan_misses_only_the_training_of_each_page() {
        for train in 1..=16 {
            for (distance, degree) in [(1, 1), (20, 2), (64, 16), (3, 16), (64, 1)] {
                let text = format!("stream:distance={distance},degree={degree},train={train}");
                let forward = scan(&text, 6, 6400..6400 + 64 * 50);
                let trains = |line: &u64| line % 64 < train + 2;
                assert!(
                    forward
                        .misses
                        .iter()
                        .copied()
                        .eq((6400..9600).filter(trains))
                );
                let rest = (6400..9600).filter(|line| !trains(line));
                assert!(forward.wanted.into_iter().flatten().eq(rest));
                let backward = scan(&text, 6, (6400..9600).rev());
                let trains = |line: &u64| 63 - line % 64 < train + 2;
                let expected = (6400..9600).rev().filter(trains);
                assert!(backward.misses.into_iter().eq(expected));
                let rest = (6400..9600).rev().filter(|line| !trains(line));
                assert!(backward.wanted.into_iter().flatten().eq(rest));
            }
        }
    }

    #[test]
    fn a_stream_goes_on_in_the_next_page() {
        let forward = scan("stream:pages=2", 6, 6400..6400 + 64 * 50);
        assert_eq!(forward.misses, [6400, 6401, 6402, 6403]);
        let backward = scan("stream:pages=2", 6, (6400..9600).rev());
        assert_eq!(backward.misses, [9599, 9598, 9597, 9596]);
        // A page that is farther away begins a stream of its own.
        let far = scan("stream:pages=2", 6, (640..704).chain(768..772));
        assert_eq!(far.misses, [640, 641, 642, 643, 768, 769, 770, 771]);
    }

    #[test]
    fn a_stream_runs_up_to_the_distance_ahead() {
        let scan = scan("stream", 6, 640..704);
        assert_eq!(scan.wanted[..3], [[]; 3]);
        let mut asked = 643;
        for (line, wanted) in (640..704).zip(&scan.wanted).skip(3) {
            // Each access asks for two lines and passes one.
            let furthest = (line + (line - 641).min(20)).min(703);
            assert_eq!(*wanted, (asked + 1..=furthest).collect::<Vec<_>>());
            asked = furthest;
        }
        assert_eq!(asked, 703);
    }

    #[test]
    fn a_change_of_direction_trains_anew_and_forgets_what_was_asked() {
        let lines = [10, 11, 12, 13, 12, 11, 10, 9, 9, 20, 21, 22];
        let asked = wanted("stream:distance=4", reads(lines));
        let expected: [&[u64]; 12] = [
            &[],
            &[],
            &[],
            &[14, 15],
            &[],
            &[],
            &[9, 8],
            &[7, 6],
            &[],
            &[],
            &[],
            &[23, 24],
        ];
        assert_eq!(asked, expected);
        // A zigzag never trains a stream.
        let zigzag = (0..30).flat_map(|n| [n, n + 20]);
        assert!(wanted("stream", reads(zigzag)).concat().is_empty());
    }

    #[test]
    fn a_jump_past_the_lines_that_were_asked_goes_on_from_there() {
        let asked = wanted("stream", reads([0, 1, 2, 3, 30, 31, 63]));
        let expected: [&[u64]; 7] = [&[], &[], &[], &[4, 5], &[31, 32], &[33, 34], &[]];
        assert_eq!(asked, expected);
    }

    #[test]
    fn interleaved_streams_keep_apart_up_to_the_number_of_streams() {
        // Page n goes forward if even, backward if odd.
        let line = |page: u64, step: u64| {
            64 * page
                + if page.is_multiple_of(2) {
                    step
                } else {
                    63 - step
                }
        };
        for pages in [1, 31, 32, 33] {
            let lines = (0..64).flat_map(|step| (0..pages).map(move |page| line(page, step)));
            let scan = scan("stream", 6, lines);
            let misses = if pages <= 32 { 4 } else { 64 };
            assert_eq!(scan.misses.len() as u64, misses * pages);
        }
    }

    #[test]
    fn reads_writes_and_fetches_train_one_stream_but_hits_do_not() {
        let kinds = [Access::Read, Access::Write, Access::Fetch, Access::Write];
        let mixed = reads(0..4)
            .zip(kinds)
            .map(|(read, access)| Observed { access, ..read });
        assert_eq!(wanted("stream", mixed)[3], [4, 5]);
        let hits = reads(0..40).map(|read| Observed {
            answer: Answer::Hit,
            ..read
        });
        assert!(wanted("stream", hits).concat().is_empty());
    }

    #[test]
    fn the_last_page_of_memory_is_like_others() {
        let forward = wanted("stream", reads(u64::MAX - 5..=u64::MAX)).concat();
        assert_eq!(forward, [u64::MAX - 1, u64::MAX]);
        let backward = wanted("stream", reads((0..=5).rev())).concat();
        assert_eq!(backward, [1, 0]);
    }
}
