//! `nodescope models`.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Instant;

use nodescope_model_libraries::load;
use nodescope_plugin_api::{Declaration, Kind, Model, Registry, conformance, stream};
use nodescope_window::built_in;

use crate::args;
use crate::exit::{Exit, Failure};
use crate::terminal::print;

/// Lists the models that studies can name, or shows one.
pub fn models(args: &args::Models) -> Result<Exit, Failure> {
    let registry = registry(args)?;
    let text = match &args.name {
        _ if args.markdown => reference(&registry),
        None => list(&registry),
        Some(name) => {
            let model = registry.find(name).ok_or_else(|| {
                Failure::new(
                    Exit::Study,
                    format!(
                        "there is no model {name:?}; nodescope models lists all, and --plugin adds those of a library"
                    ),
                )
            })?;
            match &args.check {
                None => show(model),
                Some(file) => check(model, file.as_deref())?,
            }
        }
    };
    print(&text)?;
    Ok(Exit::Ok)
}

/// Checks a model with a stream of events, and returns what the check found.
fn check(model: &Model, file: Option<&Path>) -> Result<String, Failure> {
    let of = model.declaration();
    if model.place().is_some() {
        let problem = format!("model {:?} is part of nodescope, and has no check", of.name);
        return Err(Failure::new(Exit::Study, problem));
    }
    let stream = match file {
        None => conformance::made_up(),
        Some(file) => {
            let bytes = fs::read(file).map_err(Failure::input("read", file))?;
            stream::read(&bytes)
                .map_err(|error| Failure::new(Exit::Study, format!("{} {error}", file.display())))?
        }
    };
    let begin = Instant::now();
    let checked = conformance::check(model, &of.defaults(), &stream);
    let checked = checked.map_err(|problem| Failure::new(Exit::Study, problem))?;
    let passes = match of.kind {
        Kind::Replacement | Kind::Prefetcher => 3,
        _ => 2,
    };
    let nanoseconds = begin.elapsed().as_nanos() as f64 / (passes * checked.events).max(1) as f64;
    let mut text = format!(
        "{}: {} events, answers {:016x}, the same in each of {passes} passes; {nanoseconds:.1} ns an event\n",
        of.name, checked.events, checked.answers
    );
    for (event, count) in of.events.iter().zip(checked.counts) {
        let _ = writeln!(text, "  {}.{}  {count}", of.name, event.name);
    }
    Ok(text)
}

/// Returns the models of this program, and those of the named libraries.
fn registry(args: &args::Models) -> Result<Registry, Failure> {
    let failed = |problem: String| Failure::new(Exit::Study, problem);
    let mut registry = Registry::linked();
    for model in built_in() {
        registry.add(model).map_err(failed)?;
    }
    for path in &args.plugin {
        let models = load(path).map_err(|error| Failure::of(Exit::Study, &error))?;
        for model in models {
            registry.add(model).map_err(failed)?;
        }
    }
    Ok(registry)
}

/// Returns a line for each model: name, kind, description.
fn list(registry: &Registry) -> String {
    let models = registry.models();
    let width = |of: fn(&Declaration) -> usize| {
        let widths = models.iter().map(|model| of(model.declaration()));
        widths.max().unwrap_or(0)
    };
    let (name, kind) = (width(|d| d.name.len()), width(|d| d.kind.name().len()));
    let mut text = String::new();
    for model in models {
        let of = model.declaration();
        let _ = writeln!(
            text,
            "{:name$}  {:kind$}  {}",
            of.name,
            of.kind.name(),
            of.line
        );
    }
    text
}

/// Returns what a model declares, and how a study names the model.
fn show(model: &Model) -> String {
    let of = model.declaration();
    let mut text = format!("{}: {}\n\nkind    {}\n", of.name, of.line, of.kind.name());
    let _ = writeln!(text, "from    {}", model.origin());
    let _ = writeln!(text, "study   {}", place(model));
    let needs = [
        (of.needs.every_reference, "every reference"),
        (of.needs.page_sizes, "page sizes"),
    ];
    let needs: Vec<&str> = needs
        .into_iter()
        .filter(|(set, _)| *set)
        .map(|(_, name)| name)
        .collect();
    if !needs.is_empty() {
        let _ = writeln!(text, "needs   {}", needs.join(", "));
    }
    for (title, rows) in [("parameters", parameters(of)), ("events", events(of))] {
        if rows.is_empty() {
            continue;
        }
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let _ = writeln!(text, "\n{title}");
        for (name, line) in rows {
            let _ = writeln!(text, "  {name:width$}  {line}");
        }
    }
    text
}

/// Returns how a study names a model and sets its parameters.
fn place(model: &Model) -> String {
    let of = model.declaration();
    match (model.place(), of.kind) {
        (Some(place), _) => place.to_owned(),
        (None, Kind::Replacement) => {
            format!("caches.level.policy = {:?}, [models.{}]", of.name, of.name)
        }
        (None, Kind::Prefetcher) => {
            format!(
                "caches.level.prefetch = [{:?}], [models.{}]",
                of.name, of.name
            )
        }
        (None, _) => format!("[models.{}]", of.name),
    }
}

fn parameters(of: &Declaration) -> Vec<(String, String)> {
    let rows = of.parameters.iter().map(|parameter| {
        let value = |value| parameter.unit.write(value);
        let line = format!(
            "{}; default {}, from {} to {}",
            parameter.line,
            value(parameter.default),
            value(parameter.least),
            value(parameter.most)
        );
        (parameter.name.to_owned(), line)
    });
    rows.collect()
}

fn events(of: &Declaration) -> Vec<(String, String)> {
    let rows = of.events.iter();
    rows.map(|event| (format!("{}.{}", of.name, event.name), event.line.to_owned()))
        .collect()
}

/// Returns the reference page of all models in Markdown.
fn reference(registry: &Registry) -> String {
    let mut text = String::from(
        "# Models\n\nThis page is the output of `nodescope models --markdown`. [Own models](../extending.md) shows how to add one.\n",
    );
    let mut kinds: Vec<Kind> = registry
        .models()
        .iter()
        .map(|model| model.declaration().kind)
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let name = kind.name();
        let (first, rest) = name.split_at(1);
        let _ = write!(text, "\n## {}{rest}\n\n", first.to_uppercase());
        let _ = write!(
            text,
            "| model | what it is | in a study | parameters |\n|---|---|---|---|\n"
        );
        for model in registry.models() {
            let of = model.declaration();
            if of.kind != kind {
                continue;
            }
            let parameters: Vec<String> = parameters(of)
                .into_iter()
                .map(|(name, line)| format!("`{name}`: {line}"))
                .collect();
            let _ = writeln!(
                text,
                "| `{}` | {} | `{}` | {} |",
                of.name,
                of.line,
                place(model),
                parameters.join("<br>")
            );
        }
    }
    text
}
