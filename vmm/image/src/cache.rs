//! Images in the cache: one folder for each, named by its key. A folder is either complete or absent.

use std::fs;
use std::path::{Path, PathBuf};

use crate::blocks::{BLOCK_BYTES, BlockHash, block_count};
use crate::key::file_sha256;
use crate::manifest::{BlockRecord, MANIFEST_FORMAT};
use crate::{BlockHashes, FileRecord, Image, ImageError, ImageSpec, InputSet, Manifest};

pub(crate) const VMLINUX: &str = "vmlinux";
pub(crate) const INITRAMFS: &str = "initramfs.cpio";
pub(crate) const ROOT: &str = "root.img";
pub(crate) const MANIFEST: &str = "manifest.json";
/// File with the hashes of the blocks of [`FILES`], in the order of that list.
const BLOCKS: &str = "blocks.blake3";
/// Files that a guest boots from.
const FILES: [&str; 3] = [INITRAMFS, ROOT, VMLINUX];

/// Returns the default folder of images: `$XDG_CACHE_HOME/nodescope/images`, or `$HOME/.cache/nodescope/images` where the first variable is
/// not set.
///
/// # Errors
///
/// [`ImageError::NoCacheDir`] if neither `XDG_CACHE_HOME` nor `HOME` is set.
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

/// Returns the image of `spec` from the cache; `None` if it has not been built.
///
/// # Errors
///
/// [`ImageError::Damaged`] if the image lacks a file, a file's size is wrong, or its records are damaged; any error of reading the inputs.
pub fn find(spec: &ImageSpec, cache_dir: &Path) -> Result<Option<Image>, ImageError> {
    let key = InputSet::of(spec)?.key();
    let dir = cache_dir.join(&key);
    if dir.is_dir() {
        open(&dir).map(Some)
    } else {
        Ok(None)
    }
}

/// Returns every image in the cache, sorted by key. A damaged image is represented by its error.
///
/// # Errors
///
/// [`ImageError::Io`] if the cache exists but cannot be listed.
pub fn list(cache_dir: &Path) -> Result<Vec<Result<Image, ImageError>>, ImageError> {
    let keys = keys(cache_dir)?;
    Ok(keys.iter().map(|key| open_key(cache_dir, key)).collect())
}

/// Opens the image with this key.
///
/// # Errors
///
/// [`ImageError::Damaged`] if the image is damaged or missing.
pub fn open_key(cache_dir: &Path, key: &str) -> Result<Image, ImageError> {
    open(&cache_dir.join(key))
}

/// Returns the keys of all images in the cache, damaged ones included, sorted.
///
/// # Errors
///
/// [`ImageError::Io`] if the cache exists but cannot be listed.
pub fn keys(cache_dir: &Path) -> Result<Vec<String>, ImageError> {
    if !cache_dir.exists() {
        return Ok(Vec::new());
    }
    let mut keys = Vec::new();
    for entry in fs::read_dir(cache_dir).map_err(ImageError::io("list", cache_dir))? {
        let entry = entry.map_err(ImageError::io("list", cache_dir))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_key = name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_key && entry.path().is_dir() {
            keys.push(name.into_owned());
        }
    }
    keys.sort();
    Ok(keys)
}

/// Records sizes and hashes of the files in folder `dir`, in the manifest and in the file of hashes. The image is then complete.
pub(crate) fn record(dir: &Path, mut manifest: Manifest) -> Result<(), ImageError> {
    let mut hashes = Vec::new();
    manifest.files.clear();
    for name in FILES {
        let path = dir.join(name);
        let data = fs::metadata(&path).map_err(ImageError::io("examine", &path))?;
        let record = FileRecord {
            bytes: data.len(),
            sha256: file_sha256(&path)?,
        };
        manifest.files.insert(name.to_owned(), record);
        hashes.extend_from_slice(BlockHashes::of(&path)?.hashes());
    }
    let hashes = hashes.as_flattened();
    manifest.blocks = BlockRecord {
        bytes: BLOCK_BYTES,
        blake3: blake3::hash(hashes).to_hex().to_string(),
    };
    let path = dir.join(BLOCKS);
    fs::write(&path, hashes).map_err(ImageError::io("write", &path))?;
    let path = dir.join(MANIFEST);
    let text = manifest.expected_checksum().and_then(|checksum| {
        manifest.checksum = checksum;
        serde_json::to_vec_pretty(&manifest)
    });
    text.map_err(Into::into)
        .and_then(|mut text| {
            text.push(b'\n');
            fs::write(&path, text)
        })
        .map_err(ImageError::io("write", &path))
}

/// Opens the image in folder `dir`. Checks that its files exist with their recorded sizes, and that manifest and hashes are intact; does
/// not read the files' contents.
pub(crate) fn open(dir: &Path) -> Result<Image, ImageError> {
    Ok(open_with_hashes(dir)?.0)
}

/// Opens the image as [`open`] does, and checks the contents of the kernel and the initramfs. The reader of the root disk checks the disk's
/// blocks ([`Image::root_blocks`]).
pub(crate) fn open_checked(dir: &Path) -> Result<Image, ImageError> {
    let (image, hashes) = open_with_hashes(dir)?;
    for (name, hashes) in FILES.iter().zip(hashes) {
        if *name == ROOT {
            continue;
        }
        if let Some(offset) = hashes.first_damage(&dir.join(name))? {
            return Err(ImageError::Damaged {
                dir: dir.to_path_buf(),
                problem: format!(
                    "{name} does not hold what was recorded, in the block at offset {offset}"
                ),
            });
        }
    }
    Ok(image)
}

/// Returns the image in a folder, and the recorded hashes of the blocks of each of [`FILES`].
fn open_with_hashes(dir: &Path) -> Result<(Image, [BlockHashes; 3]), ImageError> {
    let damaged = |problem: String| ImageError::Damaged {
        dir: dir.to_path_buf(),
        problem,
    };
    let text = fs::read(dir.join(MANIFEST))
        .map_err(|error| damaged(format!("cannot read {MANIFEST}: {error}")))?;
    let not_understood = |error| damaged(format!("{MANIFEST} cannot be understood: {error}"));
    #[derive(serde::Deserialize)]
    struct Format {
        format: u32,
    }
    let Format { format } = serde_json::from_slice(&text).map_err(not_understood)?;
    if format != MANIFEST_FORMAT {
        return Err(damaged(format!(
            "{MANIFEST} has format {format}; this program reads format {MANIFEST_FORMAT}",
        )));
    }
    let manifest: Manifest = serde_json::from_slice(&text).map_err(not_understood)?;
    if manifest.checksum != manifest.expected_checksum().map_err(not_understood)? {
        return Err(damaged(format!("{MANIFEST} does not fit its checksum")));
    }
    let blocks = fs::read(dir.join(BLOCKS))
        .map_err(|error| damaged(format!("cannot read {BLOCKS}: {error}")))?;
    let (hashes, rest) = blocks.as_chunks::<{ size_of::<BlockHash>() }>();
    let whole = blake3::hash(&blocks).to_hex().as_str() == manifest.blocks.blake3;
    if !whole || !rest.is_empty() || manifest.blocks.bytes != BLOCK_BYTES {
        return Err(damaged(format!("{BLOCKS} is not what was recorded")));
    }
    let mut rest = hashes;
    let mut hashes = [(); 3].map(|()| BlockHashes::recorded(&[]));
    for (name, hashes) in FILES.iter().zip(&mut hashes) {
        let record = manifest
            .files
            .get(*name)
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
        let count = usize::try_from(block_count(bytes)).ok();
        let Some((own, others)) = count.and_then(|count| rest.split_at_checked(count)) else {
            return Err(damaged(format!("{BLOCKS} has no hashes for {name}")));
        };
        *hashes = BlockHashes::recorded(own);
        rest = others;
    }
    let image = Image {
        dir: dir.to_path_buf(),
        vmlinux: dir.join(VMLINUX),
        initramfs: dir.join(INITRAMFS),
        root: dir.join(ROOT),
        root_blocks: hashes[1].clone(),
        manifest,
    };
    Ok((image, hashes))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::key::tests::sample;

    /// Writes a small complete image of `spec` into `cache`, as a build would.
    pub(crate) fn plant(spec: &ImageSpec, cache: &Path) -> PathBuf {
        let inputs = InputSet::of(spec).unwrap();
        let dir = cache.join(inputs.key());
        fs::create_dir_all(&dir).unwrap();
        for name in FILES {
            fs::write(dir.join(name), name.repeat(10_000)).unwrap();
        }
        let manifest = Manifest {
            format: MANIFEST_FORMAT,
            key: inputs.key(),
            suite: "bookworm".into(),
            kernel: "6.1.0-1-cloud-amd64".into(),
            modules: vec!["overlay.ko".into()],
            extra_packages: Vec::new(),
            packages: BTreeMap::from([("hpcc".into(), "1.5.0-3".into())]),
            files: BTreeMap::new(),
            blocks: BlockRecord::default(),
            inputs,
            checksum: String::new(),
        };
        record(&dir, manifest).unwrap();
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
        // `build` takes the image from the cache and runs no program.
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
                "cached image {}: root.img has 5 bytes, 80000 recorded; build it again: nodescope image build --force",
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

    /// A flipped bit anywhere in an image must be found: at opening in the kernel and the initramfs, otherwise in the block of the root
    /// disk.
    #[test]
    fn changed_contents_are_found_though_all_sizes_are_as_recorded() {
        let (_recipe, spec) = sample();
        let cache = tempfile::tempdir().unwrap();
        let dir = plant(&spec, cache.path());
        assert_eq!(open_checked(&dir).unwrap(), open(&dir).unwrap());
        let flipped = |name: &str, at: usize| {
            let path = dir.join(name);
            let before = fs::read(&path).unwrap();
            let mut bytes = before.clone();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            let result = open_checked(&dir);
            fs::write(&path, before).unwrap();
            result
        };
        let message = |name, at| flipped(name, at).unwrap_err().to_string();
        for (name, at, expected) in [
            (
                VMLINUX,
                66_000,
                "vmlinux does not hold what was recorded, in the block at offset 65536",
            ),
            (
                INITRAMFS,
                0,
                "initramfs.cpio does not hold what was recorded, in the block at offset 0",
            ),
            (BLOCKS, 40, "blocks.blake3 is not what was recorded"),
        ] {
            let message = message(name, at);
            assert!(message.contains(expected), "{message}");
        }
        let manifest = fs::read(dir.join(MANIFEST)).unwrap();
        for at in (0..manifest.len()).filter(|at| manifest[*at].is_ascii_alphanumeric()) {
            let message = message(MANIFEST, at);
            assert!(message.contains(MANIFEST), "{at}: {message}");
        }
        let image = flipped(ROOT, 70_000).unwrap();
        let mut root = fs::read(&image.root).unwrap();
        let size = BLOCK_BYTES as usize;
        assert!(image.root_blocks.holds(1, &root[size..]));
        root[70_000] ^= 1;
        assert!(image.root_blocks.holds(0, &root[..size]));
        assert!(!image.root_blocks.holds(1, &root[size..]));
    }

    #[test]
    fn an_absent_cache_holds_nothing() {
        assert!(list(Path::new("/nonexistent/cache")).unwrap().is_empty());
    }
}
