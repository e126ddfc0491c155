//! Log messages of all crates on standard error: warnings; with `-v` the phases of a run and how long each took; with `-vv` details.
//! `RUST_LOG` asks for more of single crates, such as `RUST_LOG=nodescope_cluster=debug`.

use std::fmt::{Debug, Write};
use std::time::Instant;

use nodescope_hypercall::printable_lines;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::args::{Args, LogFormat};
use crate::terminal::{print_error_json, print_error_line};

/// Installs the logger, with the levels that the command line and the environment ask for.
pub fn start(args: &Args) {
    let level = match (args.quiet, args.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let mut filter = Targets::new().with_default(level);
    let mut wrong = None;
    if let Ok(text) = std::env::var("RUST_LOG") {
        match text.parse::<Targets>() {
            Ok(asked) => {
                // The command line's level is the least for all crates that the variable does not name.
                let default = asked.default_level().filter(|asked| *asked > level);
                filter = asked.with_default(default.unwrap_or(level));
            }
            Err(error) => wrong = Some(error),
        }
    }
    let lines = Lines(args.log_format);
    // This fails only if a logger is installed already.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(filter).with(lines));
    if let Some(error) = wrong {
        tracing::warn!("RUST_LOG is not understood: {error}; write e.g. nodescope_cluster=debug");
    }
}

/// Layer that writes a line for each event, and for each span when the span ends.
struct Lines(LogFormat);

/// Moment at which a span began, and the span's fields.
struct Begun {
    at: Instant,
    fields: Text,
}

impl Lines {
    fn report(&self, level: Level, text: &str) {
        let word = match level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        match self.0 {
            LogFormat::Text => print_error_line(&printable_lines(&format!("{word}: {text}"))),
            LogFormat::Json => print_error_json(&json!({"event": word, "text": text})),
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, details } = text;
        self.report(*event.metadata().level(), &format!("{message}{details}"));
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Text::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(Begun {
            at: Instant::now(),
            fields,
        });
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else {
            return;
        };
        let extensions = span.extensions();
        let Some(begun) = extensions.get::<Begun>() else {
            return;
        };
        let (name, seconds) = (span.name(), begun.at.elapsed().as_secs_f64());
        match self.0 {
            LogFormat::Text => {
                let text = format!("{name}{} took {seconds:.2} s", begun.fields.details);
                self.report(*span.metadata().level(), &text);
            }
            LogFormat::Json => print_error_json(&json!({
                "event": "phase",
                "phase": name,
                "of": begun.fields.details.trim_start_matches(", "),
                "host_seconds": seconds,
            })),
        }
    }
}

/// An event's message, and its other fields as text to follow the message.
#[derive(Default)]
struct Text {
    message: String,
    details: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.details, ", {} {value:?}", field.name())
        };
    }
}
