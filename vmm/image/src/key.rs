//! The cache key: a hash over all inputs that decide the contents of an image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::spec::check_package_name;
use crate::{ImageError, ImageSpec, Recipe};

/// Version of the builder, to be raised when a change gives other images for equal inputs.
const BUILDER_VERSION: u32 = 2;

/// Input of an image: a file, a package or a setting on which the image's contents depend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Input {
    /// Name of the input: `recipe/...` and `tools/...` for files, `package/...` for a package of the study, `mirror`, or `builder`.
    pub name: String,
    /// SHA-256 of the input in hexadecimal: of a file's contents and executable bit, a link's target, or a setting's value.
    pub sha256: String,
}

/// Inputs of an image, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputSet(pub Vec<Input>);

impl InputSet {
    /// Collects the inputs of `spec`.
    ///
    /// # Errors
    ///
    /// The recipe cannot be read, a package name is invalid, or a file cannot be read.
    pub fn of(spec: &ImageSpec) -> Result<InputSet, ImageError> {
        let recipe = Recipe::read(&spec.recipe)?;
        let mut inputs = vec![input("builder", &[&BUILDER_VERSION.to_le_bytes()])];
        files(&spec.recipe, "recipe", &mut inputs)?;
        files(&spec.recipe.join(&recipe.tools), "tools", &mut inputs)?;
        for package in &spec.packages {
            check_package_name(package)?;
            // A package that the recipe already has does not change the image.
            if !recipe.packages.contains(package) {
                inputs.push(input(&format!("package/{package}"), &[package.as_bytes()]));
            }
        }
        if let Some(mirror) = &spec.mirror {
            inputs.push(input("mirror", &[mirror.as_bytes()]));
        }
        inputs.sort();
        inputs.dedup();
        Ok(InputSet(inputs))
    }

    /// Returns the key: the first 16 bytes of a SHA-256 over all inputs, in hexadecimal.
    pub fn key(&self) -> String {
        let mut hash = Sha256::new();
        for input in &self.0 {
            hash.update(format!("{}\0{}\n", input.name, input.sha256));
        }
        hex(&hash.finalize()[..16])
    }
}

fn input(name: &str, parts: &[&[u8]]) -> Input {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    Input {
        name: name.to_owned(),
        sha256: hex(&hash.finalize()),
    }
}

/// Adds every file under `dir` to the inputs, except hidden files, editors' backups (`~`) and Markdown files.
fn files(dir: &Path, prefix: &str, inputs: &mut Vec<Input>) -> Result<(), ImageError> {
    let entries = fs::read_dir(dir).map_err(ImageError::io("list", dir))?;
    for entry in entries {
        let entry = entry.map_err(ImageError::io("list", dir))?;
        let file_name = entry.file_name();
        let file_name = file_name.to_string_lossy();
        if file_name.starts_with('.') || file_name.ends_with('~') || file_name.ends_with(".md") {
            continue;
        }
        let path = entry.path();
        let name = format!("{prefix}/{file_name}");
        let kind = entry
            .file_type()
            .map_err(ImageError::io("examine", &path))?;
        if kind.is_dir() {
            files(&path, &name, inputs)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(ImageError::io("read", &path))?;
            inputs.push(input(
                &name,
                &[b"link", target.as_os_str().as_encoded_bytes()],
            ));
        } else {
            let mode = entry
                .metadata()
                .map_err(ImageError::io("examine", &path))?
                .permissions()
                .mode();
            let contents = fs::read(&path).map_err(ImageError::io("read", &path))?;
            inputs.push(input(
                &name,
                &[if mode & 0o100 != 0 { b"exec" } else { b"file" }, &contents],
            ));
        }
    }
    Ok(())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the SHA-256 of a file's contents, in hexadecimal.
pub(crate) fn file_sha256(path: &PathBuf) -> Result<String, ImageError> {
    let mut file = fs::File::open(path).map_err(ImageError::io("open", path))?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash).map_err(ImageError::io("read", path))?;
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a small recipe in a fresh folder.
    pub(crate) fn sample() -> (tempfile::TempDir, ImageSpec) {
        let dir = tempfile::tempdir().unwrap();
        let recipe = dir.path().join("debian");
        fs::create_dir_all(recipe.join("root/etc")).unwrap();
        fs::create_dir_all(dir.path().join("tracer")).unwrap();
        fs::write(
            recipe.join("image.toml"),
            "suite = \"bookworm\"\nkernel = \"linux-image-cloud-amd64\"\npackages = [\"hpcc\"]\nmodules = [\"overlay\"]\ntools = \"../tracer\"\n",
        )
        .unwrap();
        fs::write(recipe.join("root/etc/motd"), "hello\n").unwrap();
        fs::write(dir.path().join("tracer/build"), "#!/bin/sh\n").unwrap();
        let spec = ImageSpec {
            recipe,
            packages: Vec::new(),
            mirror: None,
        };
        (dir, spec)
    }

    fn key(spec: &ImageSpec) -> String {
        InputSet::of(spec).unwrap().key()
    }

    #[test]
    fn the_same_inputs_in_another_place_give_the_same_key() {
        let (_first, a) = sample();
        let (_second, b) = sample();
        assert_eq!(key(&a), key(&b));
        assert_eq!(key(&a).len(), 32);
    }

    #[test]
    fn a_change_of_any_input_changes_the_key() {
        let (dir, spec) = sample();
        let mut keys = vec![key(&spec)];
        fs::write(spec.recipe.join("root/etc/motd"), "hallo\n").unwrap();
        keys.push(key(&spec));
        fs::rename(
            spec.recipe.join("root/etc/motd"),
            spec.recipe.join("root/etc/issue"),
        )
        .unwrap();
        keys.push(key(&spec));
        fs::write(dir.path().join("tracer/build"), "#!/bin/sh\ntrue\n").unwrap();
        keys.push(key(&spec));
        fs::set_permissions(
            dir.path().join("tracer/build"),
            fs::Permissions::from_mode(0o755),
        )
        .unwrap();
        keys.push(key(&spec));
        std::os::unix::fs::symlink("issue", spec.recipe.join("root/etc/motd")).unwrap();
        keys.push(key(&spec));
        keys.push(key(&ImageSpec {
            packages: vec!["lammps".into()],
            ..spec.clone()
        }));
        keys.push(key(&ImageSpec {
            mirror: Some("http://archive.example/x".into()),
            ..spec.clone()
        }));
        let mut distinct = keys.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), keys.len(), "{keys:?}");
    }

    #[test]
    fn what_is_no_input_leaves_the_key_alone() {
        let (_dir, spec) = sample();
        let before = key(&spec);
        fs::write(spec.recipe.join("README.md"), "words").unwrap();
        fs::write(spec.recipe.join(".swp"), "editor").unwrap();
        assert_eq!(key(&spec), before);
        let twice = ImageSpec {
            packages: vec!["gromacs".into(), "lammps".into(), "gromacs".into()],
            ..spec.clone()
        };
        let once = ImageSpec {
            packages: vec!["lammps".into(), "gromacs".into()],
            ..spec.clone()
        };
        assert_eq!(
            key(&twice),
            key(&once),
            "order and repetition of packages do not matter"
        );
        let known = ImageSpec {
            packages: vec!["hpcc".into()],
            ..spec
        };
        assert_eq!(key(&known), before, "the recipe installs hpcc anyway");
    }

    #[test]
    fn a_bad_package_name_is_refused_before_anything_is_built() {
        let (_dir, mut spec) = sample();
        spec.packages.push("--simulate".into());
        assert_eq!(
            InputSet::of(&spec).unwrap_err().to_string(),
            "`--simulate` is not a Debian package name: two or more lower-case letters, digits, `+`, `-` and `.`, a letter or digit first"
        );
    }
}
