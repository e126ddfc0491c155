//! What a model declares of itself. The study's section of the model, its checks, the command `nodescope models` and the reference page
//! follow from the declaration.

use crate::L0Geometry;

/// Kind of a model: what it sees, and what it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Sees the stream of events and counts. It cannot change time ([`crate::Observer`]).
    Observer,
    /// Adds cycles to references, in a term of its own ([`crate::ReferenceTiming`]).
    References,
    /// Gives the latency of main memory ([`crate::MemoryLatency`]).
    Memory,
    /// Chooses the line of a full set that makes room ([`crate::Replacement`]).
    Replacement,
    /// Brings lines into a cache before they are asked for ([`crate::Prefetcher`]).
    Prefetcher,
    /// Times the instructions of a core ([`crate::CoreModel`]). Only nodescope's own model is of this kind.
    Core,
}

impl Kind {
    /// Every kind of which others can write models, by its number in the C interface.
    pub const ALL: [Kind; 5] = [
        Kind::Observer,
        Kind::References,
        Kind::Memory,
        Kind::Replacement,
        Kind::Prefetcher,
    ];

    /// Returns the kind's name for people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Observer => "observer",
            Kind::References => "timing of references",
            Kind::Memory => "timing of memory",
            Kind::Replacement => "replacement policy",
            Kind::Prefetcher => "prefetcher",
            Kind::Core => "timing of the core",
        }
    }

    /// Returns whether a window attaches models of this kind. Caches name the others.
    pub fn is_attached(self) -> bool {
        matches!(self, Kind::Observer | Kind::References | Kind::Memory)
    }
}

/// Unit of a parameter: how a study writes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A whole number, such as `4`.
    Number,
    /// Bytes, such as `"64 KiB"`.
    Bytes,
    /// Cycles of the vCPU, such as `"12 cycles"` or `"5 ns"`.
    Cycles,
    /// `true` or `false`, as 1 or 0.
    Switch,
}

impl Unit {
    /// Every unit, by its number in the C interface.
    pub const ALL: [Unit; 4] = [Unit::Number, Unit::Bytes, Unit::Cycles, Unit::Switch];

    /// Returns a value with its unit, as a study writes it.
    pub fn write(self, value: u64) -> String {
        match self {
            Unit::Number => value.to_string(),
            Unit::Switch => (value != 0).to_string(),
            Unit::Cycles => format!("{value} cycles"),
            Unit::Bytes => {
                let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
                let whole = |&&(size, _): &&(u64, _)| value >= size && value.is_multiple_of(size);
                match units.iter().find(whole) {
                    Some((size, unit)) => format!("{} {unit}", value / size),
                    None => format!("{value} B"),
                }
            }
        }
    }
}

/// Parameter of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name: small letters, digits and `_`, a letter first.
    pub name: &'static str,
    /// What the parameter means, in one line.
    pub line: &'static str,
    /// Unit of its value.
    pub unit: Unit,
    /// Value where a study gives none.
    pub default: u64,
    /// Smallest value.
    pub least: u64,
    /// Largest value.
    pub most: u64,
}

/// Kind of event that a model counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind {
    /// Name, as those of parameters. In reports the model's name and a dot stand before.
    pub name: &'static str,
    /// What is counted, in one line.
    pub line: &'static str,
}

/// What a model needs to see, beyond misses of the first level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// True if the model sees every reference, not only those that the first level did not answer. A window then takes several times as
    /// long.
    pub every_reference: bool,
    /// True if the model asks for [`crate::MemRef::large_page`]. A window then takes longer.
    pub page_sizes: bool,
}

impl Needs {
    /// Misses of the first level, without page sizes.
    pub const DEFAULT: Needs = Needs {
        every_reference: false,
        page_sizes: false,
    };

    /// Returns what two models together need.
    pub fn and(self, other: Needs) -> Needs {
        Needs {
            every_reference: self.every_reference || other.every_reference,
            page_sizes: self.page_sizes || other.page_sizes,
        }
    }

    /// Returns the shape of an L0 filter cache that lets these models see what they need.
    pub fn of(self, geometry: L0Geometry) -> L0Geometry {
        let ways = |ways| if self.every_reference { 1 } else { ways };
        L0Geometry {
            data_ways: ways(geometry.data_ways),
            instruction_ways: ways(geometry.instruction_ways),
            page_sizes: geometry.page_sizes || self.page_sizes,
            ..geometry
        }
    }
}

/// What a model declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Name: small letters, digits, `_` and `-`, a letter first.
    pub name: &'static str,
    /// What the model is, in one line.
    pub line: &'static str,
    /// Kind of the model.
    pub kind: Kind,
    /// What it needs to see.
    pub needs: Needs,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Events that it counts, at most [`MOST_EVENTS`].
    pub events: &'static [EventKind],
}

/// Most parameters of a model.
pub const MOST_PARAMETERS: usize = 64;
/// Most kinds of events of a model.
pub const MOST_EVENTS: usize = 256;
/// Names of the terms of the CPI equations, which no model can have.
const TERMS: [&str; 7] = [
    "core",
    "memory_local",
    "memory_other",
    "memory_remote",
    "mpi",
    "spinning",
    "unattributed",
];
/// Longest name of a model, a parameter or an event, in bytes.
const LONGEST_NAME: usize = 40;

impl Declaration {
    /// A declaration without a name, parameters and events, to fill in the rest of another.
    pub const DEFAULT: Declaration = Declaration {
        name: "",
        line: "",
        kind: Kind::Observer,
        needs: Needs::DEFAULT,
        parameters: &[],
        events: &[],
    };

    /// Returns what is wrong with the declaration; `None` if nothing is.
    pub fn fault(&self) -> Option<String> {
        let bad_name = |name: &str, dash: bool| {
            let good = |c: char| {
                c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || (dash && c == '-')
            };
            let first = name.chars().next();
            let starts = first.is_some_and(|first| first.is_ascii_lowercase());
            !(starts && name.len() <= LONGEST_NAME && name.chars().all(good))
        };
        let rule =
            format!("write 1 to {LONGEST_NAME} small letters, digits and \"_\", a letter first");
        if bad_name(self.name, true) {
            return Some(format!("{:?} cannot name a model; {rule}", self.name));
        }
        if TERMS.contains(&self.name) {
            return Some(format!(
                "{:?} is the name of a term of the report",
                self.name
            ));
        }
        if self.line.trim().is_empty() || self.line.contains('\n') {
            return Some("its description is not one line".into());
        }
        let counts = [
            ("parameters", self.parameters.len(), MOST_PARAMETERS),
            ("events", self.events.len(), MOST_EVENTS),
        ];
        if let Some((what, count, most)) = counts.into_iter().find(|(_, n, most)| n > most) {
            return Some(format!("it has {count} {what}; {most} at most"));
        }
        for (index, parameter) in self.parameters.iter().enumerate() {
            let Parameter {
                name,
                default,
                least,
                most,
                ..
            } = *parameter;
            let before = &self.parameters[..index];
            if bad_name(name, false) {
                return Some(format!("{name:?} cannot name a parameter; {rule}"));
            }
            if before.iter().any(|other| other.name == name) {
                return Some(format!("it has two parameters {name:?}"));
            }
            if !(least..=most).contains(&default) || parameter.unit == Unit::Switch && most > 1 {
                return Some(format!(
                    "the default {default} of its parameter {name:?} is not between {least} and {most}, or a switch has more than two values"
                ));
            }
        }
        for (index, event) in self.events.iter().enumerate() {
            if bad_name(event.name, false) {
                return Some(format!("{:?} cannot name an event; {rule}", event.name));
            }
            if self.events[..index]
                .iter()
                .any(|other| other.name == event.name)
            {
                return Some(format!("it has two events {:?}", event.name));
            }
        }
        let has_events = matches!(self.kind, Kind::Observer | Kind::References);
        if has_events && self.events.is_empty() {
            return Some(format!(
                "a model of kind {:?} counts at least one event",
                self.kind.name()
            ));
        }
        if !self.kind.is_attached() && !self.events.is_empty() {
            return Some(format!(
                "a {} counts no events; the cache counts them",
                self.kind.name()
            ));
        }
        None
    }

    /// Returns the default values of all parameters.
    pub fn defaults(&self) -> Vec<u64> {
        self.parameters
            .iter()
            .map(|parameter| parameter.default)
            .collect()
    }
}
