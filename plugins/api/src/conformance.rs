//! Checks of a model without a guest: a stream of events is shown to the model, and what it answers must be possible and repeatable.

use crate::stream::StoredBatch;
use crate::{
    Access, Answered, Batch, CacheAnswer, CacheShape, Context, Event, Failure, Kind, MemRef,
    MemoryRequest, Model, NodeShape, Observed, Privilege, Reason, SetState, Site, VcpuPlace,
    stream,
};

/// What a check did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Number of events that the model saw, in one of the passes.
    pub events: u64,
    /// Hash of all answers.
    pub answers: u64,
    /// Counts by event, of a model that counts.
    pub counts: Vec<u64>,
}

/// Shape of the cache for which policies and prefetchers are checked: 64 sets of 8 ways.
const CACHE: CacheShape = CacheShape {
    level: 1,
    sets: 64,
    ways: 8,
    line_bytes: 64,
};

/// Shows a stream to a model, with these values of its parameters. An error is a sentence with the model's name.
///
/// - The model is made twice, sees the stream twice, and must give the same answers: it may depend on nothing but what it sees.
/// - Answers must be possible: known events, cycles up to a million, ways of the set.
/// - A prefetcher that does not ask for hits ([`crate::Prefetcher::sees_hits`]) is shown some, must want nothing, and must go on as before.
/// - A policy that says that a repeated hit would change nothing ([`crate::Replacement::settled`]) is shown the hit, and must go on as before.
pub fn check(model: &Model, values: &[u64], stream: &[StoredBatch]) -> Result<Checked, String> {
    let first = pass(model, values, stream, false)?;
    let again = pass(model, values, stream, false)?;
    let name = model.declaration().name;
    if first != again {
        return Err(format!(
            "model {name:?} gives other answers when it sees the same events a second time; it may depend on nothing but its arguments and its own memory"
        ));
    }
    let with_hits = || pass(model, values, stream, true);
    let wrong = match model.declaration().kind {
        Kind::Replacement if with_hits()? != first => {
            "says by settled() that a repeated hit changes nothing, but then goes on differently"
        }
        Kind::Prefetcher if with_hits()? != first => {
            "depends on hits that it does not ask for by sees_hits()"
        }
        _ => return Ok(first),
    };
    Err(format!("model {name:?} {wrong}"))
}

/// Returns a stream for models of which nothing was recorded: accesses in a row, at random, and to shared lines, by two vCPUs, of programs
/// and the kernel.
pub fn made_up() -> Vec<StoredBatch> {
    let mut bytes = stream::head(64);
    let mut random = 1_u64;
    for number in 0..64_u64 {
        let events: Vec<Event> = (0..1024)
            .map(|at| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let line = match number % 4 {
                    0 => number * 256 + at,
                    1 => random >> 44,
                    2 => random >> 60,
                    _ => (1 << 20) + (at * 7) % 600,
                };
                let [low, high] = [random as u8, (random >> 8) as u8];
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&(line | (3 * at) << Event::LINE_BITS).to_le_bytes());
                // Some operations of some blocks.
                bytes[8] = low % 16;
                bytes[12] = high % 8;
                // Reads, writes and fetches of data, of small and large pages.
                bytes[13] = ((random >> 20) % 3) as u8 | ((random >> 30) as u8 & 1) << 4;
                bytes[14] = ((random >> 24) % 5) as u8;
                Event::from_bytes(&bytes)
            })
            .collect();
        let privilege = [Privilege::User, Privilege::Kernel][(number % 8 == 7) as usize];
        let batch = Batch {
            vcpu: (number % 2) as u16,
            context: Context((number % 3) as u32),
            privilege,
            line_bytes: 64,
            clock: number * 4096,
            events: &events,
        };
        stream::append(&mut bytes, &batch);
    }
    stream::read(&bytes).unwrap_or_default()
}

/// Hash of answers, FNV-1a.
struct Hash(u64);

impl Hash {
    fn add(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x100_0000_01b3);
    }
}

/// Shows a batch to an instance: adds its answers to the hash and its events to the counts.
type Show = Box<dyn FnMut(&Batch<'_>, &mut Hash, &mut [u64])>;

/// Shows the stream to a new instance of the model; `more_hits`: with hits that the model need not see.
fn pass(
    model: &Model,
    values: &[u64],
    stream: &[StoredBatch],
    more_hits: bool,
) -> Result<Checked, String> {
    let failure = Failure::default();
    let line_bytes = stream.first().map_or(64, |batch| batch.batch().line_bytes);
    let vcpus = stream
        .iter()
        .map(|batch| batch.batch().vcpu)
        .max()
        .unwrap_or(0)
        + 1;
    let node = NodeShape {
        vcpus: VcpuPlace::grid(1, vcpus, 1),
        hertz: 2_000_000_000,
        line_bytes,
    };
    let cache = CacheShape {
        line_bytes,
        ..CACHE
    };
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    let mut counts = vec![0; model.declaration().events.len()];
    let mut events = 0;
    let mut seen: Show = match model.declaration().kind {
        Kind::Observer => {
            let mut observer = model.make_observer(&node, values, &failure)?;
            Box::new(move |batch, _, counts| observer.observe(batch, counts))
        }
        Kind::References => {
            let mut timing = model.make_references(&node, values, &failure)?;
            Box::new(move |batch, hash, counts| {
                for (event, reference) in references(batch) {
                    let stall = 10 * u32::from(event.source().is_some());
                    let source = event.source();
                    if let Some(extra) = timing.reference(&reference, Answered { source, stall }) {
                        counts[usize::from(extra.event)] += 1;
                        hash.add(u64::from(extra.cycles) << 16 | u64::from(extra.event));
                    }
                }
            })
        }
        Kind::Memory => {
            let mut memory = model.make_memory(&node, values, &failure)?;
            Box::new(move |batch, hash, counts| {
                for (event, reference) in references(batch) {
                    let latency = memory.request(&MemoryRequest {
                        line: reference.physical,
                        now: reference.now,
                        vcpu: reference.vcpu,
                        socket: 0,
                        home: 0,
                        write_back: event.reason() == Reason::Write,
                    });
                    if let Some(event) = latency.event {
                        counts[usize::from(event)] += 1;
                    }
                    hash.add(latency.cycles.into());
                }
            })
        }
        Kind::Replacement => {
            let policy = model.make_replacement(&cache, values, &failure)?;
            let mut sets = Sets::new(policy, more_hits);
            Box::new(move |batch, hash, _| {
                for event in batch.events {
                    hash.add(sets.access(event.line()).into());
                }
            })
        }
        Kind::Prefetcher => {
            let mut prefetcher = model.make_prefetcher(&cache, values, &failure)?;
            let more_hits = more_hits && !prefetcher.sees_hits();
            let mut wanted = Vec::new();
            Box::new(move |batch, hash, _| {
                for (event, reference) in references(batch) {
                    let observed = Observed {
                        line: event.line(),
                        site: reference.site,
                        access: reference.access,
                        answer: match event.source() {
                            Some(_) => CacheAnswer::Miss,
                            None => CacheAnswer::PrefetchedHit,
                        },
                    };
                    if more_hits {
                        let answer = CacheAnswer::Hit;
                        prefetcher.observe(&Observed { answer, ..observed }, &mut wanted);
                    }
                    prefetcher.observe(&observed, &mut wanted);
                    wanted.drain(..).for_each(|line| hash.add(line));
                }
            })
        }
        Kind::Core => {
            let name = model.declaration().name;
            return Err(format!("model {name:?} is of a kind that has no check"));
        }
    };
    for stored in stream {
        let batch = stored.batch();
        seen(&batch, &mut hash, &mut counts);
        events += batch.events.len() as u64;
        if let Some(why) = failure.get() {
            return Err(why.to_owned());
        }
    }
    drop(seen);
    if let Some(why) = failure.get() {
        return Err(why.to_owned());
    }
    counts.iter().for_each(|count| hash.add(*count));
    Ok(Checked {
        events,
        answers: hash.0,
        counts,
    })
}

/// Returns the references of a batch. Linear addresses are the physical ones.
fn references<'a>(batch: &'a Batch<'_>) -> impl Iterator<Item = (&'a Event, MemRef)> {
    batch.events.iter().filter_map(|event| {
        let address = event.line() * u64::from(batch.line_bytes);
        let reference = MemRef {
            vcpu: batch.vcpu,
            privilege: batch.privilege,
            access: Batch::access(event)?,
            context: batch.context,
            physical: address,
            linear: address,
            size: 8,
            now: batch.clock + event.cycles(),
            site: Site {
                block: event.block,
                operation: event.operation.into(),
            },
            non_temporal: event.non_temporal(),
            locked: event.locked() && event.reason() as u8 != Access::Fetch as u8,
            large_page: event.large_page(),
        };
        Some((event, reference))
    })
}

/// Returns the state of a set.
fn state(number: u32, bits: &mut u64) -> SetState<'_> {
    SetState {
        number,
        ways: CACHE.ways,
        bits,
    }
}

/// A cache that replaces its lines by a policy.
struct Sets {
    policy: Box<dyn crate::Replacement>,
    lines: Vec<[Option<u64>; CACHE.ways as usize]>,
    bits: Vec<u64>,
    repeat_hits: bool,
    accesses: u64,
}

impl Sets {
    fn new(policy: Box<dyn crate::Replacement>, repeat_hits: bool) -> Sets {
        Sets {
            policy,
            lines: vec![[None; CACHE.ways as usize]; CACHE.sets as usize],
            bits: vec![0; CACHE.sets as usize],
            repeat_hits,
            accesses: 0,
        }
    }

    /// Returns the way of a line after an access.
    fn access(&mut self, line: u64) -> u32 {
        let number = (line % u64::from(CACHE.sets)) as usize;
        let (lines, bits) = (&mut self.lines[number], &mut self.bits[number]);
        let number = number as u32;
        self.accesses += 1;
        // Now and then a line leaves otherwise, as when another core writes to it.
        if self.accesses.is_multiple_of(97)
            && let Some(way) = lines.iter().position(Option::is_some)
        {
            lines[way] = None;
            self.policy.remove(state(number, bits), way as u32);
        }
        let way = match lines.iter().position(|held| *held == Some(line)) {
            Some(way) => {
                self.policy.hit(state(number, bits), way as u32);
                way as u32
            }
            None => {
                let empty = lines.iter().enumerate();
                let empty = empty.filter(|(_, held)| held.is_none());
                let empty = empty.fold(0, |mask, (way, _)| mask | 1 << way);
                let way = match empty {
                    0 => self.policy.victim(state(number, bits)),
                    empty => self.policy.empty_way(empty),
                };
                lines[way as usize] = Some(line);
                self.policy.insert(state(number, bits), way);
                way
            }
        };
        if self.repeat_hits && self.policy.settled(state(number, bits), way) {
            self.policy.hit(state(number, bits), way);
        }
        way
    }
}
