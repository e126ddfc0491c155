//! Tests of `[models.NAME]` and of registered models in caches and windows. The models are linked to the test.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Once;

use nodescope_plugin_api::{
    Batch, CacheAnswer, Declaration, EventKind, Latency, MemoryLatency, MemoryRequest, Model,
    Observed, Observer, Parameter, Prefetcher, Registry, Replacement, SetState, Unit,
};
use nodescope_study::{Problems, Study};
use nodescope_window::RegisteredSpec;

const EVENTS: &[EventKind] = &[EventKind {
    name: "one",
    line: "an event",
}];

#[derive(Debug)]
struct Nothing;

impl Observer for Nothing {
    fn observe(&mut self, _: &Batch<'_>, _: &mut [u64]) {}
}

impl MemoryLatency for Nothing {
    fn request(&mut self, _: &MemoryRequest) -> Latency {
        Latency {
            cycles: 1,
            event: None,
        }
    }
}

impl Replacement for Nothing {
    fn hit(&mut self, _: SetState<'_>, _: u32) {}
    fn insert(&mut self, _: SetState<'_>, _: u32) {}
    fn victim(&mut self, _: SetState<'_>) -> u32 {
        0
    }
}

impl Prefetcher for Nothing {
    fn observe(&mut self, access: &Observed, _: &mut Vec<u64>) {
        assert_ne!(access.answer, CacheAnswer::Hit);
    }
}

fn link() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let parameter = |name, unit, most| Parameter {
            name,
            line: "a parameter",
            unit,
            default: 1,
            least: 0,
            most,
        };
        let parameters: &'static [Parameter] = vec![
            parameter("count", Unit::Number, 8),
            parameter("size", Unit::Bytes, 1 << 20),
            parameter("walk", Unit::Cycles, 100),
            parameter("deep", Unit::Switch, 1),
        ]
        .leak();
        let watching = Declaration {
            name: "watch",
            line: "Watches.",
            parameters,
            events: EVENTS,
            ..Declaration::DEFAULT
        };
        let of_cache = |name| Declaration {
            name,
            line: "Works in a cache.",
            parameters,
            ..Declaration::DEFAULT
        };
        let memory = |name| Declaration {
            name,
            line: "Memory.",
            ..Declaration::DEFAULT
        };
        let models = [
            Model::observer(watching, |_, _| Ok(Box::new(Nothing))),
            Model::replacement(of_cache("first"), |_, _| Ok(Box::new(Nothing))),
            Model::prefetcher(of_cache("none"), |_, _| Ok(Box::new(Nothing))),
            Model::memory(memory("dram"), |_, _| Ok(Box::new(Nothing))),
            Model::memory(memory("sram"), |_, _| Ok(Box::new(Nothing))),
        ];
        Registry::link(models).unwrap();
    });
}

const STUDY: &str = r#"
[cluster]
nodes = 1

[job]
command = "true"
"#;

const WINDOW: &str = "\n[[window]]\nname = \"w\"\nmeasure = \"1 M instructions\"\n";

fn read(text: &str) -> Result<Study, Problems> {
    link();
    Study::parse(Path::new("study.toml"), &format!("{STUDY}{text}"))
}

/// Returns the registered models of the only window.
fn models(text: &str) -> Vec<RegisteredSpec> {
    let study = read(text).unwrap_or_else(|problems| panic!("{problems}"));
    study.windows[0].models.registered.clone()
}

fn spec(name: &str, parameters: &[(&str, u64)]) -> RegisteredSpec {
    let parameters = parameters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    RegisteredSpec {
        name: name.into(),
        parameters: parameters.collect::<BTreeMap<_, _>>(),
    }
}

/// Returns the problems of a text, in one line each.
fn problems(text: &str) -> String {
    read(text).map(|_| ()).unwrap_err().to_string()
}

const LEVELS: &str = "
[[caches.level]]
level = 1
size = \"32 KiB\"
ways = 8
policy = \"first\"
prefetch = [\"none:accuracy=40\"]
";

#[test]
fn a_section_attaches_a_model_to_every_window() {
    assert_eq!(models(WINDOW), []);
    let section =
        "\n[models.watch]\ncount = 3\nsize = \"64 KiB\"\nwalk = \"12 cycles\"\ndeep = true\n";
    let values = [("count", 3), ("size", 65536), ("walk", 12), ("deep", 1)];
    assert_eq!(
        models(&format!("{section}{WINDOW}")),
        [spec("watch", &values)]
    );
    let without =
        format!("{section}{WINDOW}plugins = [\"cache\"]\n{WINDOW}").replacen("\"w\"", "\"v\"", 1);
    let study = read(&without).unwrap();
    assert!(study.windows[0].models.registered.is_empty());
    assert_eq!(study.windows[1].models.registered, [spec("watch", &values)]);
    let named = format!("{WINDOW}plugins = [\"cache\", \"watch\"]\n");
    assert_eq!(models(&named), [spec("watch", &[])]);
}

#[test]
fn caches_name_policies_and_prefetchers() {
    let both = [spec("first", &[]), spec("none", &[])];
    assert_eq!(models(&format!("{LEVELS}{WINDOW}")), both);
    let set = models(&format!("\n[models.first]\ncount = 2\n{LEVELS}{WINDOW}"));
    assert_eq!(set, [spec("first", &[("count", 2)]), spec("none", &[])]);
    let study = read(&format!("{LEVELS}{WINDOW}")).unwrap();
    let caches = study.windows[0].models.caches.clone().unwrap();
    assert_eq!(caches.levels[0].policy.to_string(), "model:first");
    assert_eq!(
        caches.levels[0].prefetch[0].to_string(),
        "model:none:accuracy=40"
    );
    // What is written can be read where the models are not there.
    let text = serde_json::to_string(&study.windows[0]).unwrap();
    let again: nodescope_window::WindowSpec = serde_json::from_str(&text).unwrap();
    assert_eq!(again, study.windows[0]);
}

#[test]
fn what_has_no_meaning_or_no_effect_is_refused() {
    for (text, says) in [
        (
            format!("\n[models.wotch]\n{WINDOW}"),
            "models.wotch: is no registered model; did you mean \"watch\"?",
        ),
        (
            format!("\n[models.lru]\n{WINDOW}"),
            "is a model of nodescope, which caches.level.policy describes; move its keys there",
        ),
        (
            format!("\n[models.watch]\ncuont = 3\n{WINDOW}"),
            "models.watch.cuont: is not a known key; did you mean \"count\"?",
        ),
        (
            format!("\n[models.watch]\ncount = 9\n{WINDOW}"),
            "models.watch.count: is 9",
        ),
        (
            format!("\n[models.watch]\nsize = \"2 MiB\"\n{WINDOW}"),
            "models.watch.size: is 2 MiB; write a value from \"0 B\" to \"1 MiB\"",
        ),
        (
            "\n[models.watch]\n".to_owned(),
            "models.watch: has no effect: no [[window]] attaches the model",
        ),
        (
            format!("\n[models.first]\n{WINDOW}"),
            "models.first: has no effect: a replacement policy works in a cache",
        ),
        (
            format!("\n[models.dram]\n[models.sram]\n{WINDOW}"),
            "are two models of memory, \"dram\" and \"sram\", in window \"w\"",
        ),
        (
            format!("{WINDOW}plugins = [\"numa\", \"dram\"]\n"),
            "\"dram\" times memory behind caches; add \"cache\" to the plugins of window \"w\"",
        ),
        (
            format!("{WINDOW}plugins = [\"first\"]\n"),
            "\"first\" is not a plugin",
        ),
        (
            format!("{}{WINDOW}", LEVELS.replace("\"first\"", "\"model:last\"")),
            "model \"last\" is not registered in this program",
        ),
        (
            format!(
                "{}{WINDOW}",
                LEVELS.replace("none:accuracy", "non:accuracy")
            ),
            "\"non\" is no prefetcher",
        ),
        (
            format!("\n[study]\nplugins = [\"./no.so\"]\n{WINDOW}"),
            "study.plugins[0]: cannot load ./no.so",
        ),
    ] {
        let found = problems(&text);
        assert!(found.contains(says), "{says}\nis not in\n{found}");
    }
}
