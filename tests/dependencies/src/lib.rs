//! Checks the workspace's dependencies against the policy in `deny.toml`: the part of `cargo deny check` that needs nothing but
//! Cargo. Also finds dependencies that nothing uses.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// The part of `deny.toml` that is checked here.
#[derive(Debug, Deserialize)]
pub struct Policy {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

#[derive(Debug, Deserialize)]
struct Skip {
    /// Package and version, as `name@version`.
    #[serde(rename = "crate")]
    package: String,
}

/// The part of the output of `cargo metadata` that is checked here.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// The workspace's crates and what they depend on.
    pub packages: Vec<Package>,
}

/// A crate of the workspace or of a registry.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Package {
    /// Name of the crate.
    pub name: String,
    /// Version of the crate.
    pub version: String,
    /// Licence of the crate, an SPDX expression.
    pub license: Option<String>,
    /// Source of the crate; None for a crate of the workspace.
    pub source: Option<String>,
    /// Path of the crate's `Cargo.toml`.
    pub manifest_path: String,
    /// Dependencies that the crate's manifest names.
    pub dependencies: Vec<Dependency>,
}

/// A dependency in a manifest.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Dependency {
    /// Name of the crate on which the manifest's crate depends.
    pub name: String,
    /// `dev` or `build`; None for a normal dependency.
    pub kind: Option<String>,
}

impl Policy {
    /// Parses the text of `deny.toml`.
    ///
    /// # Errors
    ///
    /// If the text is no valid policy.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Returns every violation of the policy, and each exception in the policy that is not needed.
    pub fn problems(&self, packages: &[Package]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for package in packages {
            let Package { name, version, .. } = package;
            let id = format!("{name}@{version}");
            let license = package.license.as_deref().unwrap_or_default();
            if !self.allows(license) {
                problems.push(format!("{id}: the licence '{license}' is not allowed"));
            }
            match package.source.as_deref() {
                None => {}
                Some(source) if source.starts_with("registry+") => {}
                Some(source) => problems.push(format!("{id} comes from {source}, no registry")),
            }
            versions.entry(name).or_default().insert(id);
        }
        let skipped = self.bans.skip.iter().map(|skip| skip.package.clone());
        let skipped: BTreeSet<String> = skipped.collect();
        let several = |ids: &&BTreeSet<String>| ids.len() > 1;
        for ids in versions.values().filter(several) {
            let counted: Vec<&str> = ids.difference(&skipped).map(String::as_str).collect();
            if counted.len() > 1 {
                let all = counted.join(" and ");
                problems.push(format!("{all}: use one version, or list the older ones"));
            }
        }
        let needed: BTreeSet<String> = versions
            .into_values()
            .filter(|ids| several(&ids))
            .flatten()
            .collect();
        for id in skipped.difference(&needed) {
            problems.push(format!("{id} is listed, but there is no other version"));
        }
        problems
    }

    /// Returns whether the allowed licences satisfy an SPDX expression.
    fn allows(&self, license: &str) -> bool {
        let mode = spdx::ParseMode::LAX;
        spdx::Expression::parse_mode(license, mode).is_ok_and(|expression| {
            expression
                .evaluate(|requirement| self.licenses.allow.contains(&requirement.to_string()))
        })
    }
}

/// Returns whether Rust code uses a crate: its name is the beginning of a path, a macro, or stands in `use`. Comment lines do not count.
pub fn uses(text: &str, package: &str) -> bool {
    let name = package.replace('-', "_");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.into_iter().any(|line| {
        line.match_indices(&name).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + name.len()..]);
            !before.ends_with(is_word)
                && ["::", ";", " as ", "!"]
                    .iter()
                    .any(|next| after.starts_with(next))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Package, Policy, uses};

    fn package(id: &str, license: &str, source: &str) -> Package {
        let (name, version) = id.split_once('@').unwrap();
        Package {
            name: name.into(),
            version: version.into(),
            license: Some(license.into()),
            source: Some(source.into()),
            ..Package::default()
        }
    }

    #[test]
    fn what_the_policy_does_not_allow_is_told() {
        let policy = Policy::parse(
            "[licenses]\nallow = ['MIT', 'Apache-2.0', 'Apache-2.0 WITH LLVM-exception']\n\
             [bans]\nskip = [{ crate = 'old@1.0.0' }, { crate = 'gone@1.0.0' }]\n",
        )
        .unwrap();
        let registry = "registry+somewhere";
        let packages = [
            package("good@1.0.0", "MIT/GPL-3.0", registry),
            package("compiler@1.0.0", "Apache-2.0 WITH LLVM-exception", registry),
            package("old@1.0.0", "MIT", registry),
            package("old@2.0.0", "MIT", registry),
        ];
        let told = |more: Package| policy.problems(&[&packages[..], &[more]].concat());
        let gone = "gone@1.0.0 is listed, but there is no other version";
        assert_eq!(policy.problems(&packages), [gone]);
        assert_eq!(
            told(package("copyleft@1.0.0", "MIT AND GPL-3.0", registry)),
            [
                "copyleft@1.0.0: the licence 'MIT AND GPL-3.0' is not allowed",
                gone
            ]
        );
        assert_eq!(
            told(package("fork@1.0.0", "MIT", "git+somewhere")),
            ["fork@1.0.0 comes from git+somewhere, no registry", gone]
        );
        assert_eq!(
            told(package("good@2.0.0", "MIT", registry)),
            [
                "good@1.0.0 and good@2.0.0: use one version, or list the older ones",
                gone
            ]
        );
    }

    #[test]
    fn crates_are_used_by_paths() {
        assert!(uses("let x = serde_json::to_string(&y);", "serde_json"));
        assert!(uses("use serde_json as json;", "serde-json"));
        assert!(uses("    use libc;", "libc"));
        assert!(!uses("my_libc::call()", "libc"));
        assert!(!uses("// libc::call()", "libc"));
        assert!(!uses("the tracing of calls", "tracing"));
    }
}
