//! Reader of `[[window]]`.

use std::collections::BTreeMap;

use nodescope_hypercall::Function;
use nodescope_plugin_api::{Model, Registry};
use nodescope_window::{Measure, ModelSpec, Sampling, Trigger, WindowSpec};

use super::{plain_name, registered};
use crate::plan::{Job, Mpi};
use nodescope_config::quantity::{Instructions, Time};
use nodescope_config::reader::{Item, Section, closest};

/// Maximum number of windows of a study.
const MOST_WINDOWS: usize = 10_000;

/// Length of a sampled window's first warm-up, in warm-ups of its intervals.
const FIRST_WARM_UP: u64 = 20;

const OPEN_EXAMPLE: &str = r#""immediately", "job", "guest", { time = "2 s" }, { mpi = "MPI_Barrier", call = 3, rank = 0 } or { marker = "hpl" }"#;

pub(super) fn read(
    sections: Vec<Section<'_>>,
    job: &Job,
    sampling: Sampling,
    all: &ModelSpec,
    registry: &Registry,
) -> Vec<WindowSpec> {
    if let Some(beyond) = sections.get(MOST_WINDOWS) {
        beyond.add_problem(
            "name",
            format!(
                "is one of {} windows, but a study has {MOST_WINDOWS} at most; make a window longer in place of many, or several studies",
                sections.len()
            ),
        );
    }
    let mut windows = Vec::new();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (index, section) in sections.into_iter().enumerate() {
        let window = window(index, &section, job, sampling, all, registry);
        if let Some(first) = names.insert(window.name.clone(), index) {
            section.add_problem(
                "name",
                format!(
                    "{:?} is also the name of window[{first}]; give another",
                    window.name
                ),
            );
        }
        windows.push(window);
        section.finish();
    }
    windows
}

/// Returns the window of a study that has a core and no section `[[window]]`: it samples the whole job.
pub(super) fn whole_job(sampling: Sampling, all: &ModelSpec, registry: &Registry) -> WindowSpec {
    WindowSpec {
        name: "job".into(),
        open: Trigger::Job,
        warm_up: FIRST_WARM_UP * sampling.warm_up,
        measure: Measure::Guest,
        models: ModelSpec {
            registered: registered::of_window(all, None, registry),
            ..all.clone()
        },
        attribution: true,
        sampling: Some(sampling),
    }
}

fn window(
    index: usize,
    section: &Section<'_>,
    job: &Job,
    sampling: Sampling,
    all: &ModelSpec,
    registry: &Registry,
) -> WindowSpec {
    let name = section.item("name").and_then(|item| {
        let name = item.line("hpl")?;
        if !plain_name(&name) {
            item.add_problem(format!("{name:?} cannot name a window; use at most 100 letters, digits, \"-\", \"_\" and \".\", no \"-\" or \".\" first"));
        }
        Some(name)
    });
    let open = section.item("open").and_then(|item| trigger(&item, job));
    let warm_up = section
        .item("warm_up")
        .and_then(|item| item.quantity::<Instructions>());
    let timing = section.item("timing");
    let choices = [("complete", false), ("sampled", true)];
    let sampled = timing
        .as_ref()
        .and_then(|item| item.choice("a timing", &choices))
        .unwrap_or(false);
    let length = match sampled {
        true => section.item("measure"),
        false => section.require("measure", "\"50 M instructions\""),
    };
    let measure = length.and_then(|item| measure(&item));
    let attribution = section.item("attribution").and_then(|item| item.boolean());
    let attribution = attribution.unwrap_or(true);
    let mut models = all.clone();
    if let Some(item) = section.item("plugins") {
        let chosen = plugins(&item, registry);
        let names = |name: &str| chosen.iter().any(|chosen| chosen == name);
        models.caches = models.caches.filter(|_| names("cache"));
        models.memory = models.memory.filter(|_| names("numa"));
        if names("pipeline") && !models.can_model_core() {
            item.add_problem("\"pipeline\" needs \"cache\", and a core in [core] or node.model");
        }
        models.core = models.core.filter(|_| names("pipeline"));
        models.registered = registered::of_window(&models, Some(&chosen), registry);
    } else {
        models.registered = registered::of_window(&models, None, registry);
    }
    if !attribution {
        models.core = None;
    }
    if let Some(timing) = timing.filter(|_| sampled && models.core.is_none()) {
        timing.add_problem(
            "is \"sampled\", which needs the plugins \"cache\" and \"pipeline\", attribution, and a core in [core] or node.model",
        );
    }
    let default_warm_up = match sampled {
        true => FIRST_WARM_UP * sampling.warm_up,
        false => 0,
    };
    WindowSpec {
        name: name.unwrap_or_else(|| format!("window{}", index + 1)),
        open: open.unwrap_or(Trigger::Immediately),
        warm_up: warm_up.map_or(default_warm_up, |warm_up| warm_up.0),
        measure: measure.unwrap_or(Measure::Guest),
        attribution,
        sampling: sampled.then_some(sampling),
        models,
    }
}

/// Reads the names of the models that a window attaches.
fn plugins(item: &Item<'_>, registry: &Registry) -> Vec<String> {
    let attached = |model: &&Model| match model.place() {
        Some(place) => place.starts_with('['),
        None => model.declaration().kind.is_attached(),
    };
    let models = registry.models().iter().filter(attached);
    let choices: Vec<(&str, &str)> = models
        .map(|model| (model.declaration().name, model.declaration().name))
        .collect();
    let mut chosen: Vec<String> = Vec::new();
    for item in item.list(r#"["cache", "numa"]"#) {
        let Some(plugin) = item.choice("a plugin", &choices) else {
            continue;
        };
        if chosen.iter().any(|other| other == plugin) {
            item.add_problem("is given twice; leave one out");
        }
        chosen.push(plugin.to_owned());
    }
    chosen
}

pub(super) fn trigger(item: &Item<'_>, job: &Job) -> Option<Trigger> {
    if !item.is_table() {
        let choices = [
            ("immediately", &Trigger::Immediately),
            ("job", &Trigger::Job),
            ("guest", &Trigger::Guest),
        ];
        let what = format!("a trigger; write {OPEN_EXAMPLE}");
        return item.choice(&what, &choices).cloned();
    }
    let section = item.section();
    let time = section.item("time");
    let mpi = section.item("mpi");
    let marker = section.item("marker");
    let given = [time.is_some(), mpi.is_some(), marker.is_some()];
    if given.iter().filter(|given| **given).count() != 1 {
        item.add_problem(format!(
            "needs exactly one of time, mpi and marker; write e.g. {OPEN_EXAMPLE}"
        ));
    }
    let call = section.item("call");
    let rank = section.item("rank");
    let occurrence = section.item("occurrence");
    for (owner, key, sub) in [
        (&mpi, "mpi", &call),
        (&mpi, "mpi", &rank),
        (&marker, "marker", &occurrence),
    ] {
        if let (None, Some(sub)) = (owner, sub) {
            sub.add_problem(format!(
                "belongs to {key}, which is not given; leave it out"
            ));
        }
    }
    let call = call
        .and_then(|item| item.integer(1..=u64::MAX))
        .unwrap_or(1);
    let rank = rank
        .and_then(|item| item.count(0..=job.ranks.saturating_sub(1)))
        .unwrap_or(0);
    let occurrence = occurrence
        .and_then(|item| item.integer(1..=u64::MAX))
        .unwrap_or(1);
    let time = time.and_then(|item| item.quantity::<Time>());
    let function = mpi.and_then(|item| function(&item, job));
    let marker = marker.and_then(|item| item.line("hpl"));
    section.finish();
    match (time, function, marker) {
        (Some(time), ..) => Some(Trigger::Time { ps: time.0 }),
        (_, Some(function), _) => Some(Trigger::MpiCall {
            function,
            call,
            rank,
        }),
        (.., Some(name)) => Some(Trigger::Marker { name, occurrence }),
        _ => None,
    }
}

fn function(item: &Item<'_>, job: &Job) -> Option<Function> {
    let name = item.line("MPI_Barrier")?;
    let function = match named_function(&name) {
        Ok(function) => function,
        Err(problem) => {
            item.add_problem(problem);
            return None;
        }
    };
    if !job.trace || job.mpi == Mpi::None {
        item.add_problem("needs the MPI trace, which job.trace or job.mpi switches off; the window would never open");
    }
    Some(function)
}

/// Returns the MPI function of this name. `Err` is a sentence with a hint, for a name that is no traced function.
pub(crate) fn named_function(name: &str) -> Result<Function, String> {
    let known = Function::ALL
        .iter()
        .find(|function| function.name() == name);
    known.copied().ok_or_else(|| {
        let hint = closest(name, Function::ALL.iter().map(|function| function.name()))
            .map(|close| format!("; did you mean {close:?}?"))
            .unwrap_or_else(|| "; write e.g. \"MPI_Barrier\"".into());
        format!("{name:?} is not an MPI function that is traced{hint}")
    })
}

fn measure(item: &Item<'_>) -> Option<Measure> {
    let Length(measure) = item.with_unit("50 M instructions", "a length")?;
    if matches!(measure, Measure::Instructions(0) | Measure::Time { ps: 0 }) {
        item.add_problem("is 0, so nothing would be measured; write e.g. \"50 M instructions\"");
        return None;
    }
    Some(measure)
}

/// A [`Measure`] as a study writes it.
struct Length(Measure);

impl std::str::FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Length, String> {
        if text.trim() == "until closed" {
            return Ok(Length(Measure::Guest));
        }
        match (text.parse::<Instructions>(), text.parse::<Time>()) {
            (Ok(instructions), _) => Ok(Length(Measure::Instructions(instructions.0))),
            (_, Ok(time)) => Ok(Length(Measure::Time { ps: time.0 })),
            (Err(error), Err(_)) => {
                let text = error.to_string();
                let text = match text.split_once(" is not a number of instructions") {
                    Some((quoted, _)) => format!(
                        "{quoted} is neither a number of instructions nor a time; write e.g. \"50 M instructions\""
                    ),
                    None => text,
                };
                Err(format!("{text}, \"2 s\" or \"until closed\""))
            }
        }
    }
}
