//! Built images on disk: one folder each, named by its key, complete or not there at all.

use std::fs;
use std::path::{Path, PathBuf};

use crate::manifest::MANIFEST_FORMAT;
use crate::{Image, ImageError, ImageSpec, InputSet, Manifest};

pub(crate) const VMLINUX: &str = "vmlinux";
pub(crate) const INITRAMFS: &str = "initramfs.cpio";
pub(crate) const ROOT: &str = "root.img";
pub(crate) const MANIFEST: &str = "manifest.json";

/// Where images are kept unless the caller says otherwise: `$XDG_CACHE_HOME/nodescope/images`, by default `~/.cache/nodescope/images`.
///
/// # Errors
///
/// [`ImageError::NoCacheDir`] if neither variable is set.
pub fn default_cache_dir() -> Result<PathBuf, ImageError> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = set("XDG_CACHE_HOME")
        .or_else(|| Some(set("HOME")?.join(".cache")))
        .ok_or(ImageError::NoCacheDir)?;
    Ok(cache.join("nodescope/images"))
}

/// The image of `spec`, if it has been built before.
///
/// # Errors
///
/// [`ImageError::Damaged`] if it is there but incomplete; whatever keeps the inputs from being read.
pub fn find(spec: &ImageSpec, cache_dir: &Path) -> Result<Option<Image>, ImageError> {
    let key = InputSet::of(spec)?.key();
    let dir = cache_dir.join(&key);
    if dir.is_dir() {
        open(&dir).map(Some)
    } else {
        Ok(None)
    }
}

/// Every image in the cache, by key; a damaged one as the error that says so.
///
/// # Errors
///
/// [`ImageError::Io`] if the cache is there but cannot be listed.
pub fn list(cache_dir: &Path) -> Result<Vec<Result<Image, ImageError>>, ImageError> {
    if !cache_dir.exists() {
        return Ok(Vec::new());
    }
    let mut dirs = Vec::new();
    for entry in fs::read_dir(cache_dir).map_err(ImageError::io("list", cache_dir))? {
        let entry = entry.map_err(ImageError::io("list", cache_dir))?;
        let name = entry.file_name();
        let is_key = name.len() == 32 && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit);
        if is_key && entry.path().is_dir() {
            dirs.push(entry.path());
        }
    }
    dirs.sort();
    Ok(dirs.iter().map(|dir| open(dir)).collect())
}

/// Opens the image in folder `dir`, checking that its files are there and have their recorded sizes.
pub(crate) fn open(dir: &Path) -> Result<Image, ImageError> {
    let damaged = |problem: String| ImageError::Damaged {
        dir: dir.to_path_buf(),
        problem,
    };
    let text = fs::read(dir.join(MANIFEST))
        .map_err(|error| damaged(format!("cannot read {MANIFEST}: {error}")))?;
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| damaged(format!("{MANIFEST} cannot be understood: {error}")))?;
    if manifest.format != MANIFEST_FORMAT {
        return Err(damaged(format!(
            "{MANIFEST} has format {}, {MANIFEST_FORMAT} is known",
            manifest.format
        )));
    }
    for name in [VMLINUX, INITRAMFS, ROOT] {
        let record = manifest
            .files
            .get(name)
            .ok_or_else(|| damaged(format!("{MANIFEST} does not list {name}")))?;
        let bytes = fs::metadata(dir.join(name))
            .map_err(|error| damaged(format!("cannot read {name}: {error}")))?
            .len();
        if bytes != record.bytes {
            return Err(damaged(format!(
                "{name} has {bytes} bytes, {} recorded",
                record.bytes
            )));
        }
    }
    Ok(Image {
        dir: dir.to_path_buf(),
        vmlinux: dir.join(VMLINUX),
        initramfs: dir.join(INITRAMFS),
        root: dir.join(ROOT),
        manifest,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::FileRecord;
    use crate::key::tests::sample;

    /// Puts a tiny complete image of `spec` into `cache`, as a build would.
    fn plant(spec: &ImageSpec, cache: &Path) -> PathBuf {
        let inputs = InputSet::of(spec).unwrap();
        let dir = cache.join(inputs.key());
        fs::create_dir_all(&dir).unwrap();
        let mut files = BTreeMap::new();
        for name in [VMLINUX, INITRAMFS, ROOT] {
            fs::write(dir.join(name), name).unwrap();
            let sha256 = crate::key::file_sha256(&dir.join(name)).unwrap();
            files.insert(
                name.to_owned(),
                FileRecord {
                    bytes: name.len() as u64,
                    sha256,
                },
            );
        }
        let manifest = Manifest {
            format: MANIFEST_FORMAT,
            key: inputs.key(),
            suite: "bookworm".into(),
            kernel: "6.1.0-1-cloud-amd64".into(),
            modules: vec!["overlay.ko".into()],
            extra_packages: Vec::new(),
            packages: BTreeMap::from([("hpcc".into(), "1.5.0-3".into())]),
            files,
            inputs,
        };
        fs::write(
            dir.join(MANIFEST),
            serde_json::to_vec_pretty(&manifest).unwrap(),
        )
        .unwrap();
        dir
    }

    #[test]
    fn a_built_image_is_found_until_an_input_changes() {
        let (_recipe, spec) = sample();
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(find(&spec, cache.path()).unwrap(), None);
        let dir = plant(&spec, cache.path());
        let image = find(&spec, cache.path()).unwrap().unwrap();
        assert_eq!(image.vmlinux, dir.join("vmlinux"));
        assert_eq!(image.manifest.packages["hpcc"], "1.5.0-3");
        // `build` takes it from there and runs nothing.
        let mut said = Vec::new();
        assert_eq!(
            crate::build(&spec, cache.path(), &mut |line| said.push(line.to_owned())).unwrap(),
            image
        );
        assert_eq!(
            said,
            [format!("image {} is in the cache", image.manifest.key)]
        );
        fs::write(spec.recipe.join("root/etc/motd"), "changed\n").unwrap();
        assert_eq!(find(&spec, cache.path()).unwrap(), None);
        assert_eq!(list(cache.path()).unwrap().len(), 1);
    }

    #[test]
    fn damage_is_named_with_the_folder_and_the_file() {
        let (_recipe, spec) = sample();
        let cache = tempfile::tempdir().unwrap();
        let dir = plant(&spec, cache.path());
        fs::write(dir.join(ROOT), "short").unwrap();
        let message = find(&spec, cache.path()).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "cached image {}: root.img has 5 bytes, 8 recorded; delete this folder and build again",
                dir.display()
            )
        );
        fs::remove_file(dir.join(INITRAMFS)).unwrap();
        let message = find(&spec, cache.path()).unwrap_err().to_string();
        assert!(
            message.contains("cannot read initramfs.cpio: No such file"),
            "{message}"
        );
        fs::write(dir.join(MANIFEST), "{").unwrap();
        let listed = list(cache.path()).unwrap();
        assert!(matches!(&listed[..], [Err(ImageError::Damaged { .. })]));
    }

    #[test]
    fn an_absent_cache_holds_nothing() {
        assert!(list(Path::new("/nonexistent/cache")).unwrap().is_empty());
    }
}
