//! Measurements as JSON, in the schema that `README.md` describes and [`crate::import()`] reads.

use serde_json::{Map, Value, json};

use crate::error::CountersError;
use crate::formulas::Derived;
use crate::measurement::{Counts, Measurement};

/// Value of the member `format` in a file of counters.
pub const FORMAT: &str = "nodescope-counters";

/// Value of the member `version` in a file of counters.
pub(crate) const VERSION: u32 = 1;

impl Measurement {
    /// Writes the measurement as a JSON text, with the figures that follow from the counts.
    ///
    /// # Errors
    ///
    /// Fails for the same counts as [`Measurement::derive`].
    pub fn json(&self) -> Result<String, CountersError> {
        let ranks = self.derive_ranks()?;
        let rank = |(rank, counts): (&u32, &Counts)| {
            let mut value = scope(counts, &ranks[rank]);
            value.insert("rank".into(), json!(rank));
            Value::Object(value)
        };
        let mut file = Map::new();
        file.insert("format".into(), json!(FORMAT));
        file.insert("version".into(), json!(VERSION));
        file.insert("tool".into(), json!(self.tool));
        if let Some(processor) = &self.processor {
            file.insert("processor".into(), json!(processor));
        }
        file.insert("notes".into(), json!(self.notes));
        file.insert("ranks".into(), self.ranks.iter().map(rank).collect());
        file.insert(
            "whole".into(),
            Value::Object(scope(&self.whole, &self.derive()?)),
        );
        let mut text = format!("{:#}", Value::Object(file));
        text.push('\n');
        Ok(text)
    }
}

fn scope(counts: &Counts, derived: &Derived) -> Map<String, Value> {
    let event = |reading: &crate::measurement::Reading| {
        let mut event = Map::new();
        event.insert("event".into(), json!(reading.event));
        if let Some(quantity) = reading.quantity {
            event.insert("quantity".into(), json!(quantity.name()));
        }
        match reading.value {
            Some(value) => event.insert("value".into(), number(value)),
            None => event.insert("unread".into(), json!(reading.unread)),
        };
        event.insert("running".into(), number(reading.running));
        event.insert("user_only".into(), json!(reading.user_only));
        Value::Object(event)
    };
    let mut figures = Map::new();
    figures.insert("cpi".into(), json!(derived.cpi));
    if let Some(alpha) = derived.alpha {
        figures.insert("alpha".into(), json!(alpha));
    }
    match &derived.core {
        Ok(core) => {
            figures.insert("cpi_core".into(), json!(core.cpi));
            figures.insert("memory_stalls".into(), number(core.stalls));
            figures.insert("cpi_core_from".into(), json!(core.events));
        }
        Err(why) => {
            figures.insert("no_cpi_core".into(), json!(why));
        }
    }
    if let Some(split) = derived.top_down {
        figures.insert(
            "top_down".into(),
            json!({
                "retiring": split.retiring,
                "bad_speculation": split.bad_speculation,
                "frontend": split.frontend,
                "backend": split.backend,
            }),
        );
    }
    figures.insert("limits".into(), json!(derived.limits));
    let mut value = Map::new();
    value.insert("events".into(), counts.readings.iter().map(event).collect());
    value.insert("derived".into(), Value::Object(figures));
    value
}

/// Makes a JSON number, without a fraction if the value is whole.
fn number(value: f64) -> Value {
    // Whole numbers up to 2^53 are exact.
    if value.fract() == 0.0 && value < 9.0e15 {
        json!(value as u64)
    } else {
        json!(value)
    }
}
