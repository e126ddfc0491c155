//! Names of policies, and refusals.

use nodescope_plugin_api::VcpuPlace;
use serde::{Deserialize, Serialize};

use super::{Policy, Quad};
use crate::config::{CacheConfig, LevelConfig};

#[test]
fn texts_are_those_of_their_policies() {
    let quads = Quad::all().into_iter().map(Quad::text);
    let names = ["lru", "fifo", "tree-plru", "srrip", "drrip", "random"];
    let seeds = ["random-0", "random-2", "random-18446744073709551615"];
    let texts: Vec<String> = names
        .into_iter()
        .chain(seeds)
        .map(str::to_owned)
        .chain(quads)
        .collect();
    assert_eq!(texts.len(), 9 + 384);
    for text in texts {
        let policy: Policy = text.parse().unwrap();
        assert_eq!(policy.to_string(), text);
    }
    assert_eq!("random".parse(), Ok(Policy::Random(1)));
    assert_eq!("random-1".parse(), Ok(Policy::Random(1)));
}

#[test]
fn configurations_have_texts() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Level {
        policy: Policy,
    }
    let text = "policy = \"qlru-h11-m1-r1-u2\"\n";
    let level: Level = toml::from_str(text).unwrap();
    assert_eq!(toml::to_string(&level).unwrap(), text);
    let wrong = toml::from_str::<Level>("policy = \"mru\"").unwrap_err();
    assert!(
        wrong
            .to_string()
            .contains("\"mru\" is no replacement policy"),
        "{wrong}"
    );
}

#[test]
fn unknown_texts_are_refused_with_what_is_wrong() {
    let all = "write \"lru\", \"fifo\", \"tree-plru\", \"qlru-hXY-mZ-rN-uN\", \"qlru-hXY-mZ-rN-uN-umo\", \"srrip\", \"drrip\", \"random\", or \
               \"random-SEED\"";
    let form = "write \"qlru-hXY-mZ-rN-uN\", with or without \"-umo\"";
    let hits = "is none of h00, h01, h10, h11, h20 and h21";
    for (text, advice) in [
        ("", all.to_owned()),
        ("mru", all.to_owned()),
        ("LRU", all.to_owned()),
        ("lru ", all.to_owned()),
        ("qlru", all.to_owned()),
        ("qlru-", form.to_owned()),
        ("qlru-h11-m1-r0", form.to_owned()),
        ("qlru-h11-m1-r0-u0-um", form.to_owned()),
        ("qlru-h11-m1-r0-u0-umo-umo", form.to_owned()),
        ("qlru-h31-m1-r0-u0", format!("\"h31\" {hits}")),
        ("qlru-h12-m1-r0-u0", format!("\"h12\" {hits}")),
        ("qlru-h1-m1-r0-u0", format!("\"h1\" {hits}")),
        ("qlru-11-m1-r0-u0", format!("\"11\" {hits}")),
        (
            "qlru-h11-m4-r0-u0",
            "\"m4\" is none of m0, m1, m2 and m3".to_owned(),
        ),
        (
            "qlru-h11-mr2-r0-u0",
            "\"mr2\" is none of m0, m1, m2 and m3".to_owned(),
        ),
        (
            "qlru-h11-m1-r3-u0",
            "\"r3\" is none of r0, r1 and r2".to_owned(),
        ),
        (
            "qlru-h11-m1-r0-u4",
            "\"u4\" is none of u0, u1, u2 and u3".to_owned(),
        ),
        (
            "qlru-h11-m1-r0-u2",
            "u2 may leave no line of age 3 for r0 to replace; write \"r1\"".to_owned(),
        ),
        (
            "qlru-h11-m1-r2-u3-umo",
            "u3 may leave no line of age 3 for r2 to replace; write \"r1\"".to_owned(),
        ),
        (
            "random-",
            "the seed \"\" is no whole number from 0 to 18446744073709551615".to_owned(),
        ),
        (
            "random-+1",
            "the seed \"+1\" is no whole number from 0 to 18446744073709551615".to_owned(),
        ),
        (
            "random-18446744073709551616",
            "the seed \"18446744073709551616\" is no whole number from 0 to 18446744073709551615"
                .to_owned(),
        ),
    ] {
        let error = text.parse::<Policy>().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("\"{text}\" is no replacement policy; {advice}")
        );
    }
}

#[test]
fn numbers_of_ways_are_refused_with_what_is_wrong() {
    for (text, most) in [
        ("lru", 1024),
        ("fifo", 16),
        ("tree-plru", 64),
        ("qlru-h00-m1-r2-u1", 32),
        ("srrip", 32),
        ("drrip", 32),
        ("random", 64),
    ] {
        let policy: Policy = text.parse().unwrap();
        assert_eq!(policy.fault(most), None);
        let more = 2 * most;
        assert_eq!(
            policy.fault(more),
            Some(format!(
                "is {more}, but policy {text} is modelled for at most {most} ways"
            ))
        );
        // Another fault tells of sets without ways.
        assert_eq!(policy.fault(0), None);
    }
    let powers: Vec<u32> = (1..=64)
        .filter(|&ways| Policy::TreePlru.fault(ways).is_none())
        .collect();
    assert_eq!(powers, [1, 2, 4, 8, 16, 32, 64]);
}

#[test]
fn a_configuration_names_the_ways() {
    let mut config = CacheConfig::xeon_x5680();
    config.levels = vec![LevelConfig {
        policy: Policy::TreePlru,
        ..LevelConfig::new(768, 12)
    }];
    let faults: Vec<String> = config
        .faults(&VcpuPlace::grid(1, 1, 1))
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        faults,
        ["levels[0].ways: is 12, but policy tree-plru needs a power of two from 1 to 64"]
    );
}
