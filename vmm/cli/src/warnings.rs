//! Warnings of the crates that do the work, such as a host that gives no executable memory, on standard error.

use std::fmt::{Debug, Write};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::args::LogFormat;

/// Print warnings and errors from now on.
pub fn print(format: LogFormat) {
    // Only a second call fails.
    let _ = tracing::subscriber::set_global_default(Printer(format));
}

struct Printer(LogFormat);

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, details } = text;
        match self.0 {
            LogFormat::Text => eprintln!("warning: {message}{details}"),
            LogFormat::Json => eprintln!(
                "{}",
                json!({"event": "warning", "text": format!("{message}{details}")})
            ),
        }
    }

    // Nobody makes spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event's message, and its other fields behind it.
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
