//! Keys without effect in their study are refused with their line and the reason, and keys of narrow effect are remarked on.

use std::path::Path;

use nodescope_study::Study;

/// Returns a study of a node of this shape, with further text.
fn text(node: &str, rest: &str) -> String {
    format!(
        "[cluster]\nnodes = 1\n[job]\ncommand = \"true\"\nmpi = \"none\"\n[node]\nmemory = \"256 MiB\"\n{node}\n{rest}"
    )
}

const WINDOW: &str = "[[window]]\nmeasure = \"1 M instructions\"\n";
/// Caches of a core, and a cache that the cores of a socket share.
const LEVELS: &str = "[[caches.level]]\nlevel = 1\nsize = \"32 KiB\"\nways = 8\n\
    [[caches.level]]\nlevel = 1\nkind = \"instruction\"\nsize = \"32 KiB\"\nways = 8\n\
    [[caches.level]]\nlevel = 2\nsize = \"1 MiB\"\nways = 16\nshared_by = \"socket\"\n";

fn refusal(text: &str) -> String {
    match Study::parse(Path::new("s.toml"), text) {
        Ok(_) => String::new(),
        Err(problems) => problems.to_string(),
    }
}

/// Checks that a key is refused in the first study, at the line that has `key`, and not in the second study.
fn only_in(one: &str, other: &str, key: &str, why: &str) {
    let told = refusal(one);
    let name = key.rsplit('.').next().unwrap_or(key);
    let line = one.lines().position(|line| line.contains(name)).unwrap() + 1;
    let begins = format!("s.toml:{line}: {key}: has no effect");
    assert!(
        told.contains(&begins) && told.contains(why),
        "{begins}: {told:?}\n{one}"
    );
    assert_eq!(refusal(other), "", "{other}");
}

#[test]
fn keys_of_the_core_need_a_core_and_a_window() {
    let both = "core = \"znver4\"\nmemory_parallelism = 4";
    only_in(
        &text("memory_parallelism = 4", WINDOW),
        &text(both, WINDOW),
        "node.memory_parallelism",
        "without node.core",
    );
    only_in(
        &text("core = \"znver4\"", ""),
        &text("core = \"znver4\"", WINDOW),
        "node.core",
        "the study has no [[window]]",
    );
    let unattributed = format!("{WINDOW}attribution = false\n");
    only_in(
        &text("core = \"znver4\"", &unattributed),
        &text("core = \"znver4\"", &format!("{unattributed}{WINDOW}")),
        "node.core",
        "window.attribution is false",
    );
}

#[test]
fn memory_of_other_sockets_needs_other_sockets() {
    for (key, value) in [
        ("remote", "220 cycles"),
        ("remote_write_back", "6 cycles"),
        ("remote_bandwidth", "16 GB/s"),
    ] {
        let rest = format!("{WINDOW}[memory]\n{key} = \"{value}\"\n");
        only_in(
            &text("", &rest),
            &text("sockets = 2", &rest),
            &format!("memory.{key}"),
            "one socket",
        );
    }
    let rest = |plugins: &str| {
        format!("{WINDOW}plugins = [{plugins}]\n[memory]\nlocal_write_back = \"5 cycles\"\n")
    };
    only_in(
        &text("", &rest("\"cache\"")),
        &text("", &rest("\"numa\"")),
        "memory.local_write_back",
        "\"numa\"",
    );
}

#[test]
fn latencies_between_caches_need_caches_that_meet() {
    let rest = |key: &str| format!("{WINDOW}[caches.coherence]\n{key} = \"40 cycles\"\n");
    for (key, one, other, why) in [
        (
            "from_modified.other_socket",
            "cores = 2",
            "sockets = 2",
            "one socket",
        ),
        (
            "from_modified.other_core",
            "sockets = 2",
            "cores = 2",
            "one core",
        ),
        ("snoop.other_core", "sockets = 2", "cores = 2", "one core"),
        (
            "invalidate.other_core",
            "sockets = 2",
            "cores = 2",
            "one core",
        ),
        ("upgrade", "cores = 2", "sockets = 2", "one outermost cache"),
        ("keep.locked", "threads = 2", "cores = 2", "one core"),
        ("keep.stores", "", "sockets = 2", "one core"),
    ] {
        let field = format!("caches.coherence.{key}");
        only_in(
            &text(one, &rest(key)),
            &text(other, &rest(key)),
            &field,
            why,
        );
    }
    // Clean lines come from the level that the cores share, if there is one.
    let private = |shared: &str| {
        let levels = LEVELS.replace("shared_by = \"socket\"\n", shared);
        format!("{}{levels}", rest("from.other_core"))
    };
    only_in(
        &text("cores = 2", &private("shared_by = \"socket\"\n")),
        &text("cores = 2", &private("")),
        "caches.coherence.from.other_core",
        "the level that the cores share",
    );
    let unknown = refusal(&text("sockets = 2", &rest("snoop.other_socket")));
    assert!(
        unknown.contains("caches.coherence.snoop.other_socket"),
        "{unknown}"
    );
    only_in(
        &text("sockets = 2", &rest("upgrade").replace(WINDOW, "")),
        &text("sockets = 2", &rest("upgrade")),
        "caches.coherence.upgrade",
        "no [[window]] attaches",
    );
}

#[test]
fn latencies_of_a_level_need_references_that_the_level_answers() {
    let with = |level: usize, key: &str| {
        let mut sections: Vec<String> = LEVELS.split_inclusive("[[").map(str::to_owned).collect();
        sections[level + 1] =
            sections[level + 1].replacen("ways", &format!("latency.{key} = \"5 cycles\"\nways"), 1);
        format!("{WINDOW}{}", sections.concat())
    };
    let refused = |level: usize, key: &str, why: &str| {
        let told = refusal(&text("cores = 2", &with(level, key)));
        let field = format!("caches.level[{level}].latency.{key}: has no effect");
        assert!(
            told.contains(&field) && told.contains(why),
            "{field}: {told:?}"
        );
    };
    refused(0, "fetch_miss", "answers no fetches");
    refused(0, "upgrade", "no two caches inside");
    refused(1, "read_miss", "answers fetches alone");
    for (level, key) in [
        (0, "read_miss"),
        (0, "writeback"),
        (1, "fetch_miss"),
        (2, "fetch_miss"),
        (2, "upgrade"),
        (2, "writeback"),
    ] {
        assert_eq!(
            refusal(&text("cores = 2", &with(level, key))),
            "",
            "{level} {key}"
        );
    }
    // Without an instruction cache, fetches are not timed anywhere.
    let told = text("cores = 2", &with(2, "fetch_miss"));
    let instruction =
        "[[caches.level]]\nlevel = 1\nkind = \"instruction\"\nsize = \"32 KiB\"\nways = 8\n";
    let told = refusal(&told.replace(instruction, ""));
    assert!(told.contains("without an instruction cache"), "{told}");
}

/// Returns [`LEVELS`] with further lines in one section.
fn with_lines(level: usize, lines: &str) -> String {
    let mut sections: Vec<String> = LEVELS.split_inclusive("[[").map(str::to_owned).collect();
    sections[level + 1] = sections[level + 1].replacen("ways", &format!("{lines}ways"), 1);
    format!("{WINDOW}{}", sections.concat())
}

#[test]
fn properties_of_levels_need_a_model_that_uses_them() {
    for (level, key, value) in [
        (2, "policy", "\"srrip\""),
        (1, "prefetch", "[\"next-line\"]"),
    ] {
        let rest = with_lines(level, &format!("{key} = {value}\n"));
        let field = format!("caches.level[{level}].{key}");
        only_in(
            &text("", &rest.replace(WINDOW, "")),
            &text("", &rest),
            &field,
            "no [[window]] attaches",
        );
    }
    let rest = format!("{WINDOW}[caches]\nnon_temporal_stores = \"bypass\"\n");
    only_in(
        &text(
            "",
            &rest.replace("measure", "plugins = [\"numa\"]\nmeasure"),
        ),
        &text("", &rest),
        "caches.non_temporal_stores",
        "no [[window]] attaches",
    );
    // Guests are told of inclusion, groups of cores and allocation. Values that are the defaults are never refused.
    for lines in [
        "inclusion = \"exclusive\"\n",
        "inclusion = \"non_inclusive\"\nwrite_allocate = false\n",
        "policy = \"lru\"\nprefetch = []\n",
    ] {
        let rest = with_lines(2, lines).replace(WINDOW, "");
        assert_eq!(refusal(&text("", &rest)), "", "{lines}");
    }
    for level in 0..2 {
        let lines = "inclusion = \"inclusive\"\nwrite_allocate = true\nprefetch = []\n";
        assert_eq!(refusal(&text("", &with_lines(level, lines))), "");
    }
}

#[test]
fn properties_without_effect_are_refused() {
    only_in(
        &text(
            "",
            &with_lines(2, "policy = \"drrip\"\n").replace("ways = 16", "ways = 1"),
        ),
        &text("", &with_lines(2, "policy = \"drrip\"\n")),
        "caches.level[2].policy",
        "ways = 1",
    );
    let lines = "[caches]\nline = \"4096 B\"\n";
    let prefetch = with_lines(2, "prefetch = [\"stream\"]\n");
    only_in(
        &text("", &format!("{lines}{prefetch}")),
        &text("", &prefetch),
        "caches.level[2].prefetch",
        "no prefetcher leaves",
    );
    let stride = |level| {
        text(
            "",
            &with_lines(level, "prefetch = [\"next-line\", \"stride\"]\n"),
        )
    };
    assert!(refusal(&stride(1)).contains(
        "caches.level[1].prefetch[1]: has no effect, since the prefetcher stride follows reads and writes"
    ));
    assert_eq!(refusal(&stride(0)), "");
    let allocates = |inclusion: &str| {
        let lines = format!("write_allocate = false\ninclusion = \"{inclusion}\"\n");
        text("", &with_lines(2, &lines))
    };
    only_in(
        &allocates("exclusive"),
        &allocates("non_inclusive"),
        "caches.level[2].write_allocate",
        "takes only lines that the level inside it replaces",
    );
    let grouped = |cores: &str, group: u32| {
        let levels = LEVELS.replace("\"socket\"", &format!("\"{group} cores\""));
        refusal(&text(cores, &format!("{WINDOW}{levels}")))
    };
    assert_eq!(
        grouped("cores = 3", 4),
        "s.toml:24: caches.level[2].shared_by: is 4 cores, but a socket has 3 (node.cores); write \"socket\", or raise node.cores"
    );
    for cores in [4, 5] {
        assert_eq!(grouped(&format!("cores = {cores}"), 4), "");
    }
}

#[test]
fn caches_of_groups_of_cores_meet_within_a_socket() {
    let study = |cores: u32, inclusion: &str, key: &str| {
        let lines = format!("inclusion = \"{inclusion}\"\n");
        let levels = with_lines(2, &lines).replace("\"socket\"", "\"2 cores\"");
        let coherence = format!("[caches.coherence]\n{key} = \"5 cycles\"\n");
        text(&format!("cores = {cores}"), &format!("{levels}{coherence}"))
    };
    // Two groups are peers within a socket. One group is as a socket.
    for (key, why) in [
        ("from.other_core", "the level that the cores share"),
        ("upgrade", "one outermost cache"),
    ] {
        only_in(
            &study(2, "inclusive", key),
            &study(4, "inclusive", key),
            &format!("caches.coherence.{key}"),
            why,
        );
    }
    for key in ["snoop.other_core", "invalidate.other_core"] {
        assert_eq!(refusal(&study(4, "inclusive", key)), "", "{key}");
    }
    // A level that may lack the lines inside it asks the caches inside it, and the interconnect.
    for (key, why) in [
        ("from.other_core", "the level that the cores share"),
        ("from.same_core", "come from the next level"),
        ("upgrade", "one outermost cache"),
    ] {
        for inclusion in ["exclusive", "non_inclusive"] {
            only_in(
                &study(2, "inclusive", key),
                &study(2, inclusion, key),
                &format!("caches.coherence.{key}"),
                why,
            );
        }
    }
    // A level that may lack lines passes requests for permission on, so that a level around one cache grants them too.
    let further = |inclusion: &str| {
        let lines = format!("inclusion = \"{inclusion}\"\n");
        let further = "[[caches.level]]\nlevel = 3\nsize = \"8 MiB\"\nways = 16\nshared_by = \"socket\"\n\
            latency.upgrade = \"5 cycles\"\n";
        text("cores = 2", &format!("{}{further}", with_lines(2, &lines)))
    };
    assert!(refusal(&further("inclusive")).contains("no two caches inside this level"));
    assert_eq!(refusal(&further("non_inclusive")), "");
}

#[test]
fn keys_of_narrow_effect_are_remarked_on() {
    let remarks = |node: &str, rest: &str| {
        let study = Study::parse(Path::new("s.toml"), &text(node, rest));
        let study = study.unwrap_or_else(|problems| panic!("{problems}"));
        let remarks = study.remarks().into_iter();
        remarks.map(|(field, _)| field).collect::<Vec<_>>()
    };
    assert_eq!(remarks("cores = 2", WINDOW), [""; 0]);
    assert_eq!(remarks("threads = 2", WINDOW), ["node.threads"]);
    let bandwidth = format!("{WINDOW}[memory]\nlocal_bandwidth = \"32 GB/s\"\n");
    assert_eq!(remarks("", &bandwidth), ["memory.local_bandwidth"]);
}
