//! The observers `record` and `record-every`: they write the stream of events to a file of the results.

use nodescope_plugin_api::{
    Batch, Declaration, EventKind, Model, Needs, Observer, Parameter, Unit, stream,
};

const DECLARATION: Declaration = Declaration {
    name: "record",
    line: "Writes the misses of the first level to a file, models/record-WINDOW-nodeN, for --check and other tools.",
    parameters: &[Parameter {
        name: "most",
        line: "events that are written; later ones are left out",
        unit: Unit::Number,
        default: 1_000_000,
        least: 1,
        most: 4_000_000,
    }],
    events: &[
        EventKind {
            name: "recorded",
            line: "events that were written",
        },
        EventKind {
            name: "left_out",
            line: "events beyond those",
        },
    ],
    ..Declaration::DEFAULT
};

const EVERY: Declaration = Declaration {
    name: "record-every",
    line: "Writes every reference to a file, models/record-every-WINDOW-nodeN.",
    needs: Needs {
        every_reference: true,
        page_sizes: true,
    },
    ..DECLARATION
};

/// Returns the models.
pub(crate) fn models() -> [Model; 2] {
    [DECLARATION, EVERY].map(model)
}

fn model(declaration: Declaration) -> Model {
    Model::observer(declaration, |node, values| {
        Ok(Box::new(Recorder {
            bytes: stream::head(node.line_bytes),
            room: values.get("most") as usize,
        }))
    })
    .from("nodescope")
}

struct Recorder {
    bytes: Vec<u8>,
    /// Events that may still be written.
    room: usize,
}

impl Observer for Recorder {
    fn observe(&mut self, batch: &Batch<'_>, counts: &mut [u64]) {
        let recorded = batch.events.len().min(self.room);
        if recorded > 0 {
            let events = &batch.events[..recorded];
            stream::append(&mut self.bytes, &Batch { events, ..*batch });
        }
        self.room -= recorded;
        counts[0] += recorded as u64;
        counts[1] += (batch.events.len() - recorded) as u64;
    }

    fn file(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}
