//! Builder of images: installs packages into a tree, makes a root disk from the tree, and takes the kernel and its modules from the tree.
//! All files of an image enter the cache in one step.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cache::{INITRAMFS, ROOT, VMLINUX, open, open_checked, record};
use crate::claim::{Claim, remove_leftovers};
use crate::initramfs::{ModuleFile, initramfs, module_order};
use crate::manifest::{BlockRecord, MANIFEST_FORMAT};
use crate::subordinate_ids::check_subordinate_ids;
use crate::tools::{find_tool, run, tidy_environment};
use crate::{
    BuildOptions, Image, ImageError, ImageSpec, InputSet, Manifest, Recipe, unpack_bzimage,
};

/// Latest time stamp of the image's files: 2024-01-01, in seconds of Unix time. Newer files get this stamp, so that the same inputs give
/// the same bytes.
const EPOCH: &str = "1704067200";

/// Returns the image of `spec` from the cache at `cache_dir`. If the image is missing, builds it and adds it to the cache. Calls `progress`
/// with a line of text for each step.
///
/// # Errors
///
/// As [`build_with`].
pub fn build(
    spec: &ImageSpec,
    cache_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Image, ImageError> {
    build_with(spec, cache_dir, &BuildOptions::default(), progress)
}

/// Returns the image of `spec` like [`build`], with options for the build.
///
/// Runs mmdebstrap, a C compiler (through the tools' `build`) and mke2fs on the host, and fetches packages from Debian's mirrors. A build
/// that fails or is interrupted leaves nothing that a later build would take for an image; its log remains in `cache_dir`. If another
/// process builds this image, this process waits for the image and returns it.
///
/// # Errors
///
/// A tool is missing (the error names the package to install); the recipe or a package name is invalid; a program failed (the error has the
/// end of its log); the build was interrupted; a file could not be read or written.
pub fn build_with(
    spec: &ImageSpec,
    cache_dir: &Path,
    options: &BuildOptions<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<Image, ImageError> {
    let recipe = Recipe::read(&spec.recipe)?;
    let inputs = InputSet::of(spec)?;
    // The path must be absolute, because scripts and hooks run in other folders than the caller's.
    let recipe_dir =
        fs::canonicalize(&spec.recipe).map_err(ImageError::io("resolve", &spec.recipe))?;
    let spec = &ImageSpec {
        recipe: recipe_dir,
        ..spec.clone()
    };
    let key = inputs.key();
    let dir = cache_dir.join(&key);
    if !options.force
        && let Some(image) = cached(&dir, &key, progress)?
    {
        return Ok(image);
    }
    fs::create_dir_all(cache_dir).map_err(ImageError::io("create", cache_dir))?;
    let mut waited = false;
    let claim = Claim::take(cache_dir, &key, options, || {
        progress(&format!(
            "another process builds image {key}; waiting for it"
        ));
        waited = true;
    })?;
    // The image that the other process has built has the same key, so that this process need not build it.
    if waited && let Some(image) = cached(&dir, &key, progress)? {
        return Ok(image);
    }
    let temporary = std::env::temp_dir();
    remove_leftovers(cache_dir, &claim, &[cache_dir, &temporary], progress)?;
    progress(&format!("building image {key}"));
    let work = claim.folder(cache_dir)?;
    let unpacked = claim.folder(&temporary)?;
    let log = cache_dir.join(format!("{key}.log"));
    fs::write(&log, "").map_err(ImageError::io("write", &log))?;
    let (stage, tree, out) = (
        work.path().join("stage"),
        work.path().join("tree"),
        work.path().join("out"),
    );
    fs::create_dir(&out).map_err(ImageError::io("create", &out))?;

    // All missing tools are reported before the build, which takes minutes.
    let mmdebstrap = find_tool("mmdebstrap", "mmdebstrap")?;
    for tool in ["mke2fs", "debugfs"] {
        find_tool(tool, "e2fsprogs")?;
    }
    let fakeroot = if is_root() {
        None
    } else {
        Some(find_tool("fakeroot", "fakeroot")?)
    };
    if fakeroot.is_some() {
        check_subordinate_ids()?;
    }

    progress("compiling the in-guest tools");
    stage_files(spec, &recipe, work.path(), &stage, &log, options)?;

    progress("installing Debian packages (mmdebstrap)");
    let tar = work.path().join("root.tar");
    let mut command = Command::new(mmdebstrap);
    command.args(["--variant=apt", "--format=tar"]);
    command.arg(format!(
        "--include={}",
        package_list(spec, &recipe).join(",")
    ));
    command.args(
        recipe
            .exclude
            .iter()
            .map(|pattern| format!("--dpkgopt=path-exclude={pattern}")),
    );
    command.arg(format!(
        "--customize-hook={} \"$1\"",
        shell_word(&spec.recipe.join("customize"))
    ));
    command.arg(&recipe.suite).arg(&tar).args(&spec.mirror);
    command
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("NODESCOPE_KERNEL", &recipe.kernel)
        // If this build is killed, the next build finds the temporary files in this folder and removes them.
        .env("TMPDIR", unpacked.path())
        .env("LC_ALL", "C.UTF-8");
    tidy_environment(&mut command);
    run(
        &command,
        "installing Debian packages",
        &log,
        options,
        &mut |line| {
            if let Some(step) = line.strip_prefix("I: ") {
                progress(&format!("  {step}"));
            }
        },
    )
    .map_err(
        |error| match missing_packages(&read_text(&log).unwrap_or_default()) {
            packages if packages.is_empty() || matches!(error, ImageError::Interrupted) => error,
            packages => ImageError::NoPackage {
                packages,
                suite: recipe.suite.clone(),
                log: log.clone(),
            },
        },
    )?;

    progress("making the root disk (mke2fs)");
    let assemble = spec.recipe.join("assemble");
    let mut command = match &fakeroot {
        None => Command::new(&assemble),
        Some(fakeroot) => {
            let mut command = Command::new(fakeroot);
            command.arg("--").arg(&assemble);
            command
        }
    };
    command
        .args([&tar, &stage, &tree, &out.join(ROOT)])
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("LC_ALL", "C.UTF-8");
    command.env("PATH", with_sbin());
    tidy_environment(&mut command);
    run(&command, "making the root disk", &log, options, &mut |_| {})?;

    progress("unpacking the kernel, making the initramfs");
    let kernel = read_text(&tree.join("opt/nodescope/kernel"))?
        .trim()
        .to_owned();
    let vmlinuz = tree.join("boot/vmlinuz");
    let elf = unpack_bzimage(&vmlinuz, &read(&vmlinuz)?)?;
    write(&out.join(VMLINUX), &elf)?;
    let modules = modules(&recipe, &tree, &kernel)?;
    let init = read(&spec.recipe.join("initramfs/init"))?;
    write(
        &out.join(INITRAMFS),
        &initramfs(&init, &read(&tree.join("bin/busybox"))?, &modules),
    )?;

    let packages = read_text(&tree.join("opt/nodescope/packages"))?;
    let manifest = Manifest {
        format: MANIFEST_FORMAT,
        key: key.clone(),
        suite: recipe.suite.clone(),
        kernel,
        modules: modules.into_iter().map(|module| module.name).collect(),
        extra_packages: spec.packages.clone(),
        packages: packages
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(a, b)| (a.into(), b.into()))
            .collect(),
        files: BTreeMap::new(),
        blocks: BlockRecord::default(),
        inputs,
        checksum: String::new(),
    };
    record(&out, manifest)?;

    options.check()?;
    // The key must be that of the inputs from which the image was built.
    if InputSet::of(spec)?.key() != key {
        return Err(ImageError::InputsChanged(spec.recipe.clone()));
    }
    // A run that has the old image's files open keeps these files. A reader between the two renames finds no image.
    if dir.exists() {
        let before = work.path().join("before");
        fs::rename(&dir, &before).map_err(ImageError::io("rename", &dir))?;
    }
    fs::rename(&out, &dir).map_err(ImageError::io("rename", &out))?;
    let image = open(&dir)?;
    progress(&format!("image {key} is ready: {}", dir.display()));
    Ok(image)
}

/// Returns the image in folder `dir`. Returns `None` if the folder is missing, or if the image is damaged, so that it must be built again.
fn cached(
    dir: &Path,
    key: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<Image>, ImageError> {
    if !dir.is_dir() {
        return Ok(None);
    }
    match open_checked(dir) {
        Ok(image) => {
            progress(&format!("image {key} is in the cache"));
            Ok(Some(image))
        }
        Err(damage @ ImageError::Damaged { .. }) => {
            progress(&format!("{damage}"));
            progress("building it again");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Puts into `stage` the files that are added to the packages' tree: the recipe's own, and the compiled in-guest tools.
fn stage_files(
    spec: &ImageSpec,
    recipe: &Recipe,
    work: &Path,
    stage: &Path,
    log: &Path,
    options: &BuildOptions<'_>,
) -> Result<(), ImageError> {
    copy_tree(&spec.recipe.join("root"), stage)?;
    let built = work.join("tools");
    let script = spec.recipe.join(&recipe.tools).join("build");
    let mut command = Command::new(&script);
    command.arg(&built);
    tidy_environment(&mut command);
    run(
        &command,
        "compiling the in-guest tools",
        log,
        options,
        &mut |_| {},
    )?;
    for folder in ["bin", "lib"] {
        let folder = stage.join("opt/nodescope").join(folder);
        fs::create_dir_all(&folder).map_err(ImageError::io("create", &folder))?;
    }
    for entry in fs::read_dir(&built).map_err(ImageError::io("list", &built))? {
        let entry = entry.map_err(ImageError::io("list", &built))?;
        let folder = if entry.file_name().as_encoded_bytes().ends_with(b".so") {
            "lib"
        } else {
            "bin"
        };
        let target = stage
            .join("opt/nodescope")
            .join(folder)
            .join(entry.file_name());
        fs::copy(entry.path(), &target).map_err(ImageError::io("write", &target))?;
    }
    Ok(())
}

/// Copies a folder with its files, folders and symbolic links; files keep their permissions.
fn copy_tree(from: &Path, to: &Path) -> Result<(), ImageError> {
    fs::create_dir_all(to).map_err(ImageError::io("create", to))?;
    for entry in fs::read_dir(from).map_err(ImageError::io("list", from))? {
        let entry = entry.map_err(ImageError::io("list", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry
            .file_type()
            .map_err(ImageError::io("examine", &source))?;
        if kind.is_dir() {
            copy_tree(&source, &target)?;
        } else if kind.is_symlink() {
            let link = fs::read_link(&source).map_err(ImageError::io("read", &source))?;
            std::os::unix::fs::symlink(link, &target).map_err(ImageError::io("write", &target))?;
        } else {
            fs::copy(&source, &target).map_err(ImageError::io("write", &target))?;
        }
    }
    Ok(())
}

fn modules(recipe: &Recipe, tree: &Path, kernel: &str) -> Result<Vec<ModuleFile>, ImageError> {
    let folder = tree.join("usr/lib/modules").join(kernel);
    let dep = read_text(&folder.join("modules.dep"))?;
    let builtin = read_text(&folder.join("modules.builtin"))?;
    let mut modules = Vec::new();
    for path in module_order(&recipe.modules, &dep, &builtin, kernel)? {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        modules.push(ModuleFile {
            name,
            data: read(&folder.join(&path))?,
        });
    }
    Ok(modules)
}

/// Returns the packages of the recipe and those of the study, sorted, each once.
fn package_list(spec: &ImageSpec, recipe: &Recipe) -> Vec<String> {
    let mut packages = [&recipe.packages[..], &spec.packages[..]].concat();
    packages.sort();
    packages.dedup();
    packages
}

/// Returns the packages that apt could not find or has no version of, according to its messages. The messages are in English, because the
/// build sets the locale.
fn missing_packages(log: &str) -> Vec<String> {
    let name = |line: &str| {
        let unknown = line.strip_prefix("E: Unable to locate package ");
        let empty = || {
            let rest = line.strip_prefix("E: Package '")?;
            rest.strip_suffix("' has no installation candidate")
        };
        Some(unknown.or_else(empty)?.to_owned())
    };
    log.lines().filter_map(name).collect()
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
    })
}

/// Returns PATH with `/usr/sbin` and `/sbin`, where mke2fs is. On Debian, a plain user's PATH lacks these folders.
fn with_sbin() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// Quotes a path for the shell that runs mmdebstrap's hooks.
fn shell_word(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    fs::read(path).map_err(ImageError::io("read", path))
}

fn read_text(path: &Path) -> Result<String, ImageError> {
    fs::read_to_string(path).map_err(ImageError::io("read", path))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    fs::write(path, bytes).map_err(ImageError::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::tests::sample;

    #[test]
    fn a_path_with_quotes_stays_one_shell_word() {
        assert_eq!(shell_word(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }

    #[test]
    fn packages_are_listed_once_and_in_order() {
        let (_dir, mut spec) = sample();
        spec.packages = vec!["lammps".into(), "hpcc".into(), "gromacs".into()];
        let recipe = Recipe::read(&spec.recipe).unwrap();
        assert_eq!(package_list(&spec, &recipe), ["gromacs", "hpcc", "lammps"]);
    }

    #[test]
    fn packages_that_the_archive_lacks_are_found_in_apts_words() {
        let log = "Building dependency tree...\nE: Unable to locate package no-such-package\n\
                   E: Package 'bcc' has no installation candidate\nE: setup failed: E: apt-get install no-such failed\n";
        assert_eq!(missing_packages(log), ["no-such-package", "bcc"]);
        assert!(missing_packages("E: cannot copy to root.tar\n").is_empty());
    }

    #[test]
    fn a_build_that_fails_leaves_a_log_and_no_image() {
        let (dir, spec) = sample();
        let build_script = dir.path().join("tracer/build");
        fs::write(
            &build_script,
            "#!/bin/sh\necho mpicc.mpich not found >&2\nexit 1\n",
        )
        .unwrap();
        fs::set_permissions(
            &build_script,
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let cache = tempfile::tempdir().unwrap();
        let error = build(&spec, cache.path(), &mut |_| {}).unwrap_err();
        if let missing @ ImageError::MissingTool { .. } = error {
            nodescope_test_needs::skip(nodescope_test_needs::Need::Image, missing);
            return;
        }
        let message = error.to_string();
        assert!(
            message
                .starts_with("compiling the in-guest tools failed (exit status: 1); the end of "),
            "{message}"
        );
        assert!(message.ends_with("\nmpicc.mpich not found"), "{message}");
        let left = fs::read_dir(cache.path()).unwrap();
        let mut left: Vec<_> = left
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let key = InputSet::of(&spec).unwrap().key();
        assert_eq!(left, [format!("{key}.lock"), format!("{key}.log")]);
    }
}
