//! Tests of the interface of models: declarations, the registry, what a failing model does, and the check.

use nodescope_plugin_api::{
    Answered, Batch, CacheShape, Context, Declaration, Event, EventKind, Extra, Failure, Kind,
    Latency, MemRef, MemoryLatency, MemoryRequest, Model, NodeShape, Observed, Observer, Parameter,
    Prefetcher, Privilege, ReferenceTiming, Registry, Replacement, SetState, Unit, VcpuPlace,
    conformance,
};

const EVENTS: &[EventKind] = &[EventKind {
    name: "one",
    line: "an event",
}];

const SIZE: Parameter = Parameter {
    name: "size",
    line: "a size",
    unit: Unit::Number,
    default: 4,
    least: 1,
    most: 8,
};

fn declaration(name: &'static str) -> Declaration {
    Declaration {
        name,
        line: "A model.",
        events: EVENTS,
        ..Declaration::DEFAULT
    }
}

fn node() -> NodeShape {
    NodeShape {
        vcpus: VcpuPlace::grid(1, 1, 1),
        hertz: 1_000_000_000,
        line_bytes: 64,
    }
}

const CACHE: CacheShape = CacheShape {
    level: 1,
    sets: 4,
    ways: 4,
    line_bytes: 64,
};

struct Quiet;

impl Observer for Quiet {
    fn observe(&mut self, _: &Batch<'_>, _: &mut [u64]) {}
}

fn quiet(declaration: Declaration) -> Model {
    Model::observer(declaration, |_, _| Ok(Box::new(Quiet)))
}

#[test]
fn wrong_declarations_are_refused() {
    for (declaration, why) in [
        (declaration("Capital"), "cannot name a model"),
        (declaration(""), "cannot name a model"),
        (declaration("a.b"), "cannot name a model"),
        (declaration("mpi"), "is the name of a term of the report"),
        (
            Declaration {
                line: "two\nlines",
                ..declaration("a")
            },
            "is not one line",
        ),
        (
            Declaration {
                events: &[],
                ..declaration("a")
            },
            "counts at least one event",
        ),
        (
            Declaration {
                parameters: &[SIZE, SIZE],
                ..declaration("a")
            },
            "two parameters \"size\"",
        ),
        (
            Declaration {
                parameters: &[Parameter { default: 9, ..SIZE }],
                ..declaration("a")
            },
            "is not between 1 and 8",
        ),
    ] {
        let mut registry = Registry::default();
        let refused = registry.add(quiet(declaration)).unwrap_err();
        assert!(refused.contains(why), "{refused}");
        assert!(registry.models().is_empty());
    }
    let policy = Model::replacement(declaration("a"), |_, _| Ok(Box::new(Way(0))));
    let refused = Registry::default().add(policy).unwrap_err();
    assert!(
        refused.contains("a replacement policy counts no events"),
        "{refused}"
    );
}

#[test]
fn a_name_belongs_to_one_model() {
    let mut registry = Registry::default();
    registry
        .add(quiet(declaration("b")).from("one.so"))
        .unwrap();
    registry
        .add(quiet(declaration("a")).from("two.so"))
        .unwrap();
    let twice = registry
        .add(quiet(declaration("b")).from("two.so"))
        .unwrap_err();
    assert_eq!(
        twice,
        "model \"b\" (two.so) has the name of another one (one.so)"
    );
    let names: Vec<&str> = registry
        .models()
        .iter()
        .map(|model| model.declaration().name)
        .collect();
    assert_eq!(names, ["a", "b"]);
    let failure = Failure::default();
    let other = registry
        .find("a")
        .unwrap()
        .make_memory(&node(), &[], &failure);
    let other = other.map(|_| ()).unwrap_err();
    assert_eq!(
        other,
        "model \"a\" is of kind \"observer\", not \"timing of memory\""
    );
}

#[derive(Debug)]
struct Way(u32);

impl Replacement for Way {
    fn hit(&mut self, _: SetState<'_>, _: u32) {}
    fn insert(&mut self, _: SetState<'_>, _: u32) {}
    fn victim(&mut self, _: SetState<'_>) -> u32 {
        self.0
    }
}

#[derive(Debug)]
struct Greedy(usize);

impl Prefetcher for Greedy {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        assert!(access.line != 13, "line 13");
        wanted.extend((0..self.0 as u64).map(|next| access.line + next));
    }
}

struct Answers(u32, u16);

impl MemoryLatency for Answers {
    fn request(&mut self, _: &MemoryRequest) -> Latency {
        Latency {
            cycles: self.0,
            event: Some(self.1),
        }
    }
}

impl ReferenceTiming for Answers {
    fn reference(&mut self, _: &MemRef, _: Answered) -> Option<Extra> {
        Some(Extra {
            event: self.1,
            cycles: self.0,
        })
    }
}

#[test]
fn answers_that_mean_nothing_fail_the_model() {
    let stream = conformance::made_up();
    let without_events = Declaration {
        events: &[],
        ..declaration("m")
    };
    let check = |model: Model| conformance::check(&model, &model.declaration().defaults(), &stream);
    for (model, why) in [
        (
            Model::replacement(without_events, |_, _| Ok(Box::new(Way(9)))),
            "replaces the line of way 9 in a set of 8 ways",
        ),
        (
            Model::prefetcher(without_events, |_, _| Ok(Box::new(Greedy(513)))),
            "asks for 513 lines upon one access; 512 at most",
        ),
        (
            Model::memory(declaration("m"), |_, _| Ok(Box::new(Answers(1_000_001, 0)))),
            "answers with 1000001 cycles; at most 1000000 are modelled for one event",
        ),
        (
            Model::references(declaration("m"), |_, _| Ok(Box::new(Answers(1, 1)))),
            "counts event 1, but it declares 1 events",
        ),
        (
            Model::observer(declaration("m"), |_, values| {
                values.get("length");
                Ok(Box::new(Quiet))
            }),
            "it declares no parameter \"length\"",
        ),
        (
            Model::observer(declaration("m"), |_, _| Err("needs two sockets".into())),
            "needs two sockets",
        ),
    ] {
        let failed = check(model).unwrap_err();
        assert!(
            failed.starts_with("model \"m\" ") && failed.ends_with(why),
            "{failed}"
        );
    }
    check(Model::prefetcher(without_events, |_, _| {
        Ok(Box::new(Greedy(512)))
    }))
    .unwrap_err();
    let fine = Model::memory(declaration("m"), |_, _| Ok(Box::new(Answers(1_000_000, 0))));
    let checked = check(fine).unwrap();
    assert_eq!(checked.counts, [checked.events]);
}

#[test]
fn a_model_that_failed_is_not_called_again() {
    let without_events = Declaration {
        events: &[],
        ..declaration("m")
    };
    let model = Model::prefetcher(without_events, |_, _| Ok(Box::new(Greedy(1))));
    let failure = Failure::default();
    let mut prefetcher = model.make_prefetcher(&CACHE, &[], &failure).unwrap();
    let mut observe = |line| {
        let mut wanted = Vec::new();
        prefetcher.observe(
            &Observed {
                line,
                site: Default::default(),
                access: nodescope_plugin_api::Access::Read,
                answer: nodescope_plugin_api::CacheAnswer::Miss,
            },
            &mut wanted,
        );
        wanted
    };
    assert_eq!(observe(12), [12]);
    assert!(observe(13).is_empty());
    let why = failure.get().unwrap();
    assert!(why.starts_with("model \"m\" panicked at "), "{why}");
    assert!(why.ends_with(": line 13"), "{why}");
    assert!(observe(12).is_empty());
}

/// A prefetcher that wants a line upon every access that it sees.
#[derive(Debug)]
struct Ahead;

impl Prefetcher for Ahead {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        wanted.push(access.line + 1);
    }
}

/// A policy whose repeated hits count, whatever it says.
#[derive(Debug)]
struct Counts {
    hits: u32,
    honest: bool,
}

impl Replacement for Counts {
    fn hit(&mut self, _: SetState<'_>, _: u32) {
        self.hits += 1;
    }
    fn insert(&mut self, _: SetState<'_>, _: u32) {}
    fn victim(&mut self, set: SetState<'_>) -> u32 {
        self.hits % set.ways
    }
    fn settled(&self, _: SetState<'_>, _: u32) -> bool {
        !self.honest
    }
}

#[test]
fn the_check_finds_what_is_not_repeatable() {
    let stream = conformance::made_up();
    let without_events = Declaration {
        events: &[],
        ..declaration("m")
    };
    let policy = |honest| {
        Model::replacement(without_events, move |_, _| {
            Ok(Box::new(Counts { hits: 0, honest }))
        })
    };
    conformance::check(&policy(true), &[], &stream).unwrap();
    let found = conformance::check(&policy(false), &[], &stream).unwrap_err();
    assert!(
        found.contains("says by settled() that a repeated hit changes nothing"),
        "{found}"
    );

    let prefetcher = Model::prefetcher(without_events, |_, _| Ok(Box::new(Ahead)));
    let found = conformance::check(&prefetcher, &[], &stream).unwrap_err();
    assert!(
        found.contains("depends on hits that it does not ask for"),
        "{found}"
    );

    let made = std::sync::atomic::AtomicU32::new(0);
    let another = Model::memory(declaration("m"), move |_, _| {
        let cycles = made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Box::new(Answers(cycles, 0)))
    });
    let found = conformance::check(&another, &[], &stream).unwrap_err();
    assert!(found.contains("gives other answers"), "{found}");
}

#[test]
fn an_event_has_sixteen_bytes_and_keeps_what_it_is_made_of() {
    assert_eq!(size_of::<Event>(), 16);
    let reference = MemRef {
        vcpu: 1,
        privilege: Privilege::User,
        access: nodescope_plugin_api::Access::Write,
        context: Context(2),
        physical: (1 << 40) - 64,
        linear: 0,
        size: 8,
        now: 0,
        site: nodescope_plugin_api::Site {
            block: 77,
            operation: 300,
        },
        non_temporal: true,
        locked: true,
        large_page: true,
    };
    let mut charges = nodescope_plugin_api::Charges::default();
    charges.answer(nodescope_plugin_api::Source::Level2);
    charges.answer(nodescope_plugin_api::Source::RemoteMemory);
    let event = Event::of_reference(&reference, &charges, 6, 1 << 30);
    assert_eq!(event.line(), ((1 << 40) - 64) >> 6);
    assert_eq!(event.cycles(), Event::MOST_CYCLES);
    assert_eq!((event.block, event.operation), (77, 255));
    assert_eq!(
        event.source(),
        Some(nodescope_plugin_api::Source::RemoteMemory)
    );
    assert!(event.locked() && event.non_temporal() && event.large_page());
    assert_eq!(
        Batch::access(&event),
        Some(nodescope_plugin_api::Access::Write)
    );
    assert_eq!(Event::from_bytes(&event.to_bytes()), event);
}

#[test]
fn kinds_and_units_have_the_numbers_of_the_header() {
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, number);
    }
    for (number, unit) in Unit::ALL.into_iter().enumerate() {
        assert_eq!(unit as usize, number);
    }
    assert_eq!(Unit::Bytes.write(3 << 19), "1536 KiB");
    assert_eq!(Unit::Bytes.write(100), "100 B");
    assert_eq!(Unit::Switch.write(1), "true");
}
