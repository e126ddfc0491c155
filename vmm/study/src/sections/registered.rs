//! Readers of `study.plugins` and `[models.NAME]`: models that do not come with nodescope.

use std::path::{Path, PathBuf};

use nodescope_config::quantity::{Bytes, Frequency};
use nodescope_config::reader::{Item, Section, closest};
use nodescope_model_libraries::load;
use nodescope_plugin_api::{Kind, Model, ModelName, Parameter, Registry, Unit};
use nodescope_plugin_cache::{CacheConfig, Policy, Prefetch};
use nodescope_window::{ModelSpec, RegisteredSpec, WindowSpec, built_in};

use super::models::cycles;
use super::resolve;

/// Models that a study can name.
pub(super) struct Known {
    pub registry: Registry,
    /// Paths of the libraries in `study.plugins`.
    pub libraries: Vec<PathBuf>,
    /// False if a library has a problem, so that its models are missing.
    pub complete: bool,
}

/// Returns the models that the study can name.
pub(super) fn known(folder: &Path, section: &Section<'_>) -> Known {
    let before = section.source().count();
    let mut registry = Registry::linked();
    for model in built_in() {
        if let Err(problem) = registry.add(model) {
            section.source().problem_of("models", problem);
        }
    }
    let mut libraries: Vec<PathBuf> = Vec::new();
    let list = section.item("plugins");
    let files = list.map(|list| list.lines("./libmine.so"));
    for (item, file) in files.into_iter().flatten() {
        let path = resolve(folder, &file);
        if libraries.contains(&path) {
            item.add_problem("is given twice; leave one out");
            continue;
        }
        match load(&path) {
            Ok(models) => {
                for model in models {
                    if let Err(problem) = registry.add(model) {
                        item.add_problem(problem);
                    }
                }
            }
            Err(error) => item.add_problem(error.to_string()),
        }
        libraries.push(path);
    }
    Known {
        complete: section.source().count() == before,
        registry,
        libraries,
    }
}

/// Reads `[models.NAME]`: the models that the study sets, with the values of their parameters, in the order of their names.
pub(super) fn models(
    section: &Section<'_>,
    known: &Known,
    frequency: Frequency,
) -> Vec<RegisteredSpec> {
    let registry = &known.registry;
    let mut specs = Vec::new();
    for (name, item) in section.free_entries() {
        let found = registry.find(&name);
        let Some(model) = found.filter(|model| model.place().is_none()) else {
            // The problem of a library is told already.
            if found.is_some() || known.complete {
                item.add_problem(unknown(&name, found, registry));
            }
            continue;
        };
        let own = item.section();
        let mut spec = RegisteredSpec {
            name,
            ..RegisteredSpec::default()
        };
        for parameter in model.declaration().parameters {
            if let Some(value) = own
                .item(parameter.name)
                .and_then(|item| value(&item, parameter, frequency))
            {
                spec.parameters.insert(parameter.name.to_owned(), value);
            }
        }
        own.finish();
        specs.push(spec);
    }
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    specs
}

fn unknown(name: &str, known: Option<&Model>, registry: &Registry) -> String {
    if let Some(place) = known.and_then(Model::place) {
        return format!("is a model of nodescope, which {place} describes; move its keys there");
    }
    let own = || {
        registry
            .models()
            .iter()
            .filter(|model| model.place().is_none())
    };
    let names = || own().map(|model| model.declaration().name);
    if own().next().is_none() {
        return "names a model, but none is registered; name its library in study.plugins".into();
    }
    match closest(name, names()) {
        Some(close) => format!("is no registered model; did you mean {close:?}?"),
        None => format!(
            "is no registered model; there are {}",
            names().collect::<Vec<_>>().join(", ")
        ),
    }
}

fn value(item: &Item<'_>, parameter: &Parameter, frequency: Frequency) -> Option<u64> {
    let Parameter {
        unit, least, most, ..
    } = *parameter;
    let value = match unit {
        Unit::Number => return item.integer(least..=most),
        Unit::Switch => return item.boolean().map(u64::from),
        Unit::Bytes => item.quantity::<Bytes>()?.0,
        Unit::Cycles => cycles(item, frequency)?.into(),
    };
    if (least..=most).contains(&value) {
        return Some(value);
    }
    item.add_problem(format!(
        "is {}; write a value from {:?} to {:?}",
        unit.write(value),
        unit.write(least),
        unit.write(most)
    ));
    None
}

/// Reads the replacement policy of a level.
pub(super) fn policy(item: &Item<'_>, registry: &Registry) -> Option<Policy> {
    let text = item.text("lru")?;
    match text.parse() {
        Ok(Policy::Registered(_)) | Err(_) if is(registry, &text, Kind::Replacement) => {
            Some(Policy::Registered(ModelName::new(&text)))
        }
        Ok(Policy::Registered(name)) => {
            item.add_problem(name.unknown());
            None
        }
        Ok(policy) => Some(policy),
        Err(error) => {
            item.add_problem(error.to_string());
            None
        }
    }
}

/// Reads a prefetcher of a level.
pub(super) fn prefetcher(item: &Item<'_>, registry: &Registry) -> Option<Prefetch> {
    let text = item.text("next-line")?;
    let name = text.split_once(':').map_or(text.as_str(), |(name, _)| name);
    let read = match is(registry, name, Kind::Prefetcher) {
        true => format!("{}{text}", ModelName::PREFIX).parse(),
        false => text.parse::<Prefetch>(),
    };
    match read {
        Ok(prefetch) => {
            let registered = prefetch.registered();
            let missing = registered.filter(|name| !is(registry, name.name(), Kind::Prefetcher));
            if let Some(name) = missing {
                item.add_problem(name.unknown());
            }
            Some(prefetch)
        }
        Err(error) => {
            item.add_problem(error.to_string());
            None
        }
    }
}

/// Returns whether a registered model of this name and kind does not come with nodescope.
fn is(registry: &Registry, name: &str, kind: Kind) -> bool {
    let model = registry.find(name).filter(|model| model.place().is_none());
    model.is_some_and(|model| model.declaration().kind == kind)
}

/// Returns the names of the registered models that caches name.
fn of_caches(caches: &CacheConfig) -> Vec<&'static str> {
    let levels = caches.levels.iter().chain(&caches.instruction);
    let mut names: Vec<&'static str> = levels
        .flat_map(|level| {
            let policy = match level.policy {
                Policy::Registered(name) => Some(name),
                _ => None,
            };
            let prefetchers = level.prefetch.iter().filter_map(Prefetch::registered);
            policy.into_iter().chain(prefetchers)
        })
        .map(ModelName::name)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns whether a window attaches a model by its name.
pub(super) fn is_attached(registry: &Registry, name: &str) -> bool {
    let model = registry.find(name).filter(|model| model.place().is_none());
    model.is_some_and(|model| model.declaration().kind.is_attached())
}

/// Adds the models that the caches of a study name, with defaults where the study has no section for them.
pub(super) fn with_models_of_caches(
    mut specs: Vec<RegisteredSpec>,
    caches: &CacheConfig,
) -> Vec<RegisteredSpec> {
    for name in of_caches(caches) {
        if !specs.iter().any(|spec| spec.name == name) {
            specs.push(RegisteredSpec {
                name: name.to_owned(),
                ..RegisteredSpec::default()
            });
        }
    }
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    specs
}

/// Returns the models of a study that a window uses: those that it attaches, by name or all, and those that its caches name.
pub(super) fn of_window(
    all: &ModelSpec,
    chosen: Option<&[String]>,
    registry: &Registry,
) -> Vec<RegisteredSpec> {
    let in_caches = all.caches.as_ref().map(of_caches).unwrap_or_default();
    let wanted = |spec: &&RegisteredSpec| match is_attached(registry, &spec.name) {
        true => chosen.is_none_or(|chosen| chosen.contains(&spec.name)),
        false => in_caches.contains(&spec.name.as_str()),
    };
    let mut specs: Vec<RegisteredSpec> = all.registered.iter().filter(wanted).cloned().collect();
    for name in chosen.into_iter().flatten() {
        if is_attached(registry, name) && !specs.iter().any(|spec| spec.name == *name) {
            specs.push(RegisteredSpec {
                name: name.clone(),
                ..RegisteredSpec::default()
            });
        }
    }
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    specs
}

/// Adds a problem for each section `[models.NAME]` of which no window makes use, and for windows with models of memory that they cannot
/// have.
pub(super) fn check(section: &Section<'_>, registry: &Registry, windows: &[WindowSpec]) {
    for window in windows {
        let models = window.models.registered.iter();
        let memories: Vec<&str> = models
            .filter_map(|spec| registry.find(&spec.name))
            .map(Model::declaration)
            .filter(|declaration| declaration.kind == Kind::Memory)
            .map(|declaration| declaration.name)
            .collect();
        let problem = match memories[..] {
            [first, second, ..] => format!(
                "are two models of memory, {first:?} and {second:?}, in window {:?}; choose one by window.plugins",
                window.name
            ),
            [name] if window.models.caches.is_none() => format!(
                "{name:?} times memory behind caches; add \"cache\" to the plugins of window {:?}",
                window.name
            ),
            _ => continue,
        };
        section.source().problem_of("models", problem);
    }
    for (name, item) in section.free_entries() {
        let used = |window: &WindowSpec| {
            window
                .models
                .registered
                .iter()
                .any(|spec| spec.name == name)
        };
        if windows.iter().any(used) {
            continue;
        }
        let Some(model) = registry.find(&name).filter(|model| model.place().is_none()) else {
            continue;
        };
        let kind = model.declaration().kind;
        item.add_problem(match kind.is_attached() {
            true => "has no effect: no [[window]] attaches the model; add one, or its name to window.plugins".to_owned(),
            false => format!(
                "has no effect: a {} works in a cache; name it in a [[caches.level]], in caches that a [[window]] attaches",
                kind.name()
            ),
        });
    }
}
