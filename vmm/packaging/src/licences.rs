//! Licences of the libraries that the program contains.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cargo_metadata::{CargoOpt, DependencyKind, MetadataCommand, PackageId, TargetKind};

/// Platform of the packages; dependencies of other platforms are not in the program.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// Prefixes, in lower case, of the names of files with licences and notices.
const NAMES: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];
/// Number of levels of folders below a library's own folder that are searched for files of [`NAMES`]. Sources of C libraries within a
/// library have such files of their own.
const DEPTH: usize = 2;

/// A library from a registry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Library {
    /// Name of the library.
    pub name: String,
    /// Version of the library.
    pub version: String,
    /// Licence of the library, an SPDX expression; empty if the manifest names none.
    pub licence: String,
    /// Authors of the library, as its manifest names them.
    pub authors: Vec<String>,
    /// Address of the library's source repository; empty if the manifest names none.
    pub repository: String,
    /// Folder of the library's source on this machine.
    pub folder: PathBuf,
}

/// Returns the libraries from registries with which the crate `root` is linked, sorted by name and version. The crate is one of the
/// workspace around the current folder. Macros, which run when the program is compiled, and dependencies of tests and build scripts are
/// left out.
///
/// # Errors
///
/// Cargo fails, or the workspace has no such crate.
pub fn libraries(root: &str) -> Result<Vec<Library>, String> {
    let mut command = MetadataCommand::new();
    command
        .features(CargoOpt::SomeFeatures(Vec::new()))
        .other_options(["--filter-platform", PLATFORM, "--locked"].map(String::from));
    let metadata = command
        .exec()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let resolve = metadata.resolve.as_ref().ok_or("cargo resolves nothing")?;
    let nodes: BTreeMap<&PackageId, _> =
        resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let first = metadata
        .workspace_packages()
        .into_iter()
        .find(|package| package.name.as_str() == root)
        .ok_or(format!("the workspace has no crate {root}"))?;
    let mut seen = BTreeSet::from([&first.id]);
    let mut open = vec![&first.id];
    let mut libraries = BTreeSet::new();
    while let Some(id) = open.pop() {
        let package = &metadata[id];
        let macros = |kind: &TargetKind| *kind == TargetKind::ProcMacro;
        if package
            .targets
            .iter()
            .any(|target| target.kind.iter().any(macros))
        {
            continue;
        }
        if package.source.is_some() {
            libraries.insert(Library {
                name: package.name.to_string(),
                version: package.version.to_string(),
                licence: package.license.clone().unwrap_or_default(),
                authors: package.authors.clone(),
                repository: package.repository.clone().unwrap_or_default(),
                folder: package
                    .manifest_path
                    .parent()
                    .map(Into::into)
                    .unwrap_or_default(),
            });
        }
        let normal = nodes[id].deps.iter().filter(|dependency| {
            let mut kinds = dependency.dep_kinds.iter();
            kinds.any(|kind| kind.kind == DependencyKind::Normal)
        });
        for dependency in normal {
            if seen.insert(&dependency.pkg) {
                open.push(&dependency.pkg);
            }
        }
    }
    Ok(libraries.into_iter().collect())
}

/// Returns the page `THIRD-PARTY.md` of a package: a list of libraries with their licences, then each text of a licence or notice in their
/// sources, once.
///
/// # Errors
///
/// A folder or file of a library cannot be read.
pub fn third_party(libraries: &[Library]) -> Result<String, String> {
    let mut page = String::from(
        "# Libraries in nodescope, and their licences\n\n\
         The program contains Rust's standard library (MIT OR Apache-2.0, the Rust project's contributors) and these libraries.\n\n\
         | library | version | licence | source |\n|---|---|---|---|\n",
    );
    // Users of each licence text: the libraries whose sources contain this text.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for library in libraries {
        let Library {
            name,
            version,
            licence,
            repository,
            ..
        } = library;
        let _ = writeln!(page, "| {name} | {version} | {licence} | {repository} |");
        let files = files(&library.folder, DEPTH)
            .map_err(|error| format!("cannot read {}: {error}", library.folder.display()))?;
        if files.is_empty() {
            without.push(library);
        }
        for file in files {
            let text = fs::read(&file)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
            let users = texts.entry(text.trim().to_owned()).or_default();
            let user = format!("{name} {version}");
            if !users.contains(&user) {
                users.push(user);
            }
        }
    }
    if !without.is_empty() {
        page.push_str("\nThe sources of these libraries hold no text of their licence:\n\n");
        for Library {
            name,
            version,
            licence,
            authors,
            ..
        } in without
        {
            let _ = writeln!(
                page,
                "- {name} {version}: {licence}; {}",
                authors.join(", ")
            );
        }
    }
    // The texts are sorted by the names of their users.
    let mut texts: Vec<_> = texts
        .into_iter()
        .map(|(text, users)| (users, text))
        .collect();
    texts.sort();
    for (users, text) in texts {
        let _ = write!(page, "\n## {}\n\n", users.join(", "));
        for line in text.lines() {
            let line = format!("    {line}");
            let _ = writeln!(page, "{}", line.trim_end());
        }
    }
    Ok(page)
}

/// Returns the files with licences and notices in a folder and in folders up to `depth` levels below, sorted by path.
fn files(folder: &Path, depth: usize) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 {
            found.extend(files(&entry.path(), depth - 1)?);
        }
        let name = entry.file_name().to_string_lossy().to_lowercase();
        // Rust source files with such names are code, not licences.
        if kind.is_file()
            && NAMES.iter().any(|begin| name.starts_with(begin))
            && !name.ends_with(".rs")
        {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
