//! Tests of this workspace's dependencies: licences, sources, versions, and that each dependency is used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_test_dependencies::{Metadata, Policy, uses};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns every crate that the lock file has for x86-64 Linux.
fn metadata() -> Metadata {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn licences_sources_and_versions_are_as_the_policy_says() {
    let policy = fs::read_to_string(root().join("deny.toml")).unwrap();
    let metadata = metadata();
    assert!(metadata.packages.len() > 50);
    let problems = Policy::parse(&policy).unwrap().problems(&metadata.packages);
    assert!(problems.is_empty(), "see deny.toml: {problems:#?}");
}

/// Appends to `text` the code of a `.rs` file, or of all `.rs` files below a folder; nothing for other paths.
fn rust(path: &Path, text: &mut String) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            rust(&entry.unwrap().path(), text);
        }
    } else if path.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
        *text += &fs::read_to_string(path).unwrap();
    }
}

/// Crates of models need nothing of the platform but the interface, so that others can write such crates, too.
#[test]
fn crates_of_models_depend_on_the_interface_alone() {
    let metadata = metadata();
    let models = root().canonicalize().unwrap().join("plugins/timing");
    let mut found = 0;
    for package in &metadata.packages {
        let api = package.name == "nodescope-plugin-api";
        if !api && !Path::new(&package.manifest_path).starts_with(&models) {
            continue;
        }
        found += 1;
        for dependency in &package.dependencies {
            let own = dependency.name.starts_with("nodescope");
            let allowed = !api && dependency.name == "nodescope-plugin-api";
            assert!(
                !own || allowed || dependency.kind.as_deref() == Some("dev"),
                "{} depends on {}",
                package.name,
                dependency.name
            );
        }
    }
    assert!(found > 4, "{found}");
}

#[test]
fn every_dependency_is_used() {
    let mut unused = Vec::new();
    let mut named = Vec::new();
    for package in metadata().packages {
        if package.source.is_some() {
            continue;
        }
        let folder = Path::new(&package.manifest_path).parent().unwrap();
        let (mut program, mut tests, mut build) = (String::new(), String::new(), String::new());
        rust(&folder.join("src"), &mut program);
        for name in ["tests", "examples", "benches"] {
            rust(&folder.join(name), &mut tests);
        }
        rust(&folder.join("build.rs"), &mut build);
        for dependency in package.dependencies {
            let name = &dependency.name;
            let is_used = match dependency.kind.as_deref() {
                Some("dev") => uses(&program, name) || uses(&tests, name),
                Some("build") => uses(&build, name),
                _ => uses(&program, name),
            };
            if !is_used {
                let kind = dependency.kind.unwrap_or_else(|| "normal".into());
                unused.push(format!("{}: {name} ({kind})", package.name));
            }
            named.push(dependency.name);
        }
    }
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let all = manifest["workspace"]["dependencies"].as_table().unwrap();
    for name in all.keys().filter(|name| !named.contains(name)) {
        unused.push(format!("the workspace: {name}"));
    }
    assert!(unused.is_empty(), "nothing uses {unused:#?}");
}
