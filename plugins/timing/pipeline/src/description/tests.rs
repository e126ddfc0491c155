use super::*;

#[test]
fn all_presets_are_complete() {
    for name in Core::presets() {
        let core = Core::preset(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(core.name, name);
        assert!(!core.title.is_empty() && !core.sources.is_empty());
        assert_eq!(core.validated, name == "zen4", "{name}");
    }
}

/// A few numbers that tell the cores apart, so that a wrong base or an override in the wrong table is noticed.
#[test]
fn presets_are_the_cores_of_their_names() {
    let numbers = |name| {
        let core = Core::preset(name).unwrap();
        let add = core.recipe(Class::FloatAdd).steps[0];
        let widths = (core.pipeline.dispatch, core.pipeline.reorder_buffer);
        (widths, add.ports.count_ones(), add.latency)
    };
    assert_eq!(numbers("westmere"), ((4, 128), 1, 3));
    assert_eq!(numbers("sandy-bridge"), ((4, 168), 1, 3));
    assert_eq!(numbers("skylake-server"), ((4, 224), 2, 4));
    assert_eq!(numbers("ice-lake-server"), ((5, 352), 2, 4));
    assert_eq!(numbers("sapphire-rapids"), ((6, 512), 2, 3));
    assert_eq!(numbers("granite-rapids"), ((6, 512), 2, 3));
    assert_eq!(numbers("zen2"), ((6, 224), 2, 3));
    assert_eq!(numbers("zen4"), ((6, 320), 2, 3));
    assert_eq!(numbers("zen5"), ((8, 448), 2, 3));
}

/// Returns the message about a description that is `zen4` but for some lines.
fn message(lines: &str) -> String {
    let text = format!("base = \"zen4\"\nname = \"x\"\n{lines}");
    match Core::from_toml(&text) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn wrong_values_are_named() {
    assert_eq!(message(""), "");
    assert_eq!(
        message("[pipeline]\ndispatch = 0"),
        "pipeline.dispatch: is not from 1 to 1000000"
    );
    assert_eq!(
        message("[classes]\ninteger = [{ ports = \"alu9\", latency = 1 }]"),
        "classes.integer: there is no port \"alu9\""
    );
    assert_eq!(
        message("[classes]\ninteger = [{ ports = \"alu\", latency = 1, beside = true }]"),
        "classes.integer: the last step has the result"
    );
    assert_eq!(
        message("[tlb]\nfirst_ways = 5"),
        "tlb.first_ways: does not divide the number of entries"
    );
    assert_eq!(
        message("schedulers = [{ entries = 9, ports = \"alu alu0\" }]"),
        "schedulers.ports: \"br\" has no scheduler"
    );
    assert!(message("[classes]\nunknown = []").contains("unknown variant"));
    assert!(message("[pipeline]\nwidth = 4").contains("unknown field `width`"));
}

#[test]
fn bases_are_read_and_checked() {
    let core = Core::from_toml("base = \"zen4\"\nname = \"x\"\n[load]\nqueue = 7\n").unwrap();
    assert_eq!((core.name.as_str(), core.load.queue), ("x", 7));
    assert_eq!(core.pipeline, Core::preset("zen4").unwrap().pipeline);
    assert!(matches!(
        Core::from_toml("base = \"zen0\""),
        Err(DescriptionError::Unknown { .. })
    ));
    assert_eq!(
        Core::from_toml("base = 4").unwrap_err().to_string(),
        "base: is no name of a core"
    );
}

#[test]
fn missing_classes_are_named() {
    let text = preset_text("zen4").unwrap().replace("crc32 = ", "# ");
    assert_eq!(
        Core::from_toml(&text).unwrap_err().to_string(),
        "classes.crc32: is missing"
    );
}
