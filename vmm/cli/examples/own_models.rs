//! nodescope with a model of its own, an observer that counts misses of the first level by their kind.

use nodescope_plugin_api::{Batch, Declaration, EventKind, Model, Observer};

fn main() -> std::process::ExitCode {
    nodescope::run_with([kinds()])
}

fn kinds() -> Model {
    let event = |name, line| EventKind { name, line };
    let declaration = Declaration {
        name: "kinds",
        line: "Misses of the first level by their kind.",
        events: Box::leak(Box::new([
            event("reads", "data reads"),
            event("writes", "data writes"),
            event("fetches", "instruction fetches"),
            event("prefetches", "lines that prefetchers brought"),
        ])),
        ..Declaration::DEFAULT
    };
    Model::observer(declaration, |_node, _values| Ok(Box::new(Kinds)))
}

struct Kinds;

impl Observer for Kinds {
    fn observe(&mut self, batch: &Batch<'_>, counts: &mut [u64]) {
        for event in batch.events {
            counts[event.reason() as usize] += 1;
        }
    }
}
