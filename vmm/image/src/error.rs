//! Errors of building, finding and reading an image.

use std::path::{Path, PathBuf};

/// What a user can do who may not build images.
const COPY: &str = "copy the folder .cache/nodescope/images of a user who has the image, on this or another machine with the same version of nodescope";

/// Reason why an image could not be built, found or read. Each message states what failed, where, and what the user can do about it.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A program that the build needs is not installed.
    #[error(
        "`{tool}` not found on PATH: install the Debian package `{package}` (apt-get install {package})"
    )]
    MissingTool {
        /// Name of the missing program.
        tool: &'static str,
        /// The Debian package that contains the command.
        package: &'static str,
    },
    /// A plain user's build needs `newuidmap`, which has rights of root and which only root can install.
    #[error(
        "a user who is not root needs newuidmap to build a guest image, and newuidmap is not installed; let root run: apt-get install uidmap; or {COPY}"
    )]
    NoUidmap,
    /// A plain user has no subordinate user and group IDs, or may not make a user namespace of them.
    #[error(
        "a user who is not root needs subordinate user and group IDs to build a guest image ({0}); let root run: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER, and sysctl kernel.unprivileged_userns_clone=1 where that is 0; or {COPY}"
    )]
    NoSubordinateIds(String),
    /// A program that the build ran has failed.
    #[error("{what} failed ({status}); the end of {}:\n{tail}", log.display())]
    Command {
        /// The task for which the program was run.
        what: String,
        /// Exit status of the program, in words.
        status: String,
        /// The file that holds the program's whole output.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },
    /// The recipe's folder has no `image.toml`.
    #[error(
        "{} holds no image recipe (no image.toml): set NODESCOPE_GUEST_IMAGES to nodescope's guest-images folder",
        .0.display()
    )]
    NoRecipe(PathBuf),
    /// The recipe cannot be parsed.
    #[error("{}: {message}", path.display())]
    Recipe {
        /// Path of the recipe's file.
        path: PathBuf,
        /// The mistake, with line and column.
        message: String,
    },
    /// A requested package name is not a Debian package name.
    #[error(
        "`{0}` is not a Debian package name: two or more lower-case letters, digits, `+`, `-` and `.`, a letter or digit first"
    )]
    PackageName(String),
    /// The package archive lacks requested packages.
    #[error(
        "Debian {suite} has no package {}; correct image.packages (the log of the build: {})",
        packages.join(", "),
        log.display()
    )]
    NoPackage {
        /// The missing packages, as they were requested.
        packages: Vec<String>,
        /// The release that was searched.
        suite: String,
        /// The file that holds the build's whole output.
        log: PathBuf,
    },
    /// A kernel image cannot be unpacked.
    #[error("kernel image {}: {problem}", path.display())]
    Kernel {
        /// Path of the bzImage.
        path: PathBuf,
        /// Description of the problem, with its offset if one is known.
        problem: String,
    },
    /// A kernel module that the recipe names is not in the kernel package.
    #[error(
        "kernel {kernel} has no module `{module}`: correct `modules` in the recipe's image.toml"
    )]
    Module {
        /// Version of the kernel.
        kernel: String,
        /// Name of the module.
        module: String,
    },
    /// A cpio archive is damaged.
    #[error("cpio archive: {problem} at offset {offset}")]
    Archive {
        /// Byte offset of the damage.
        offset: usize,
        /// Description of the damage.
        problem: String,
    },
    /// A file cannot be put on the job disk.
    #[error("job file `{path}`: {problem}")]
    JobFile {
        /// Path of the file on the job disk.
        path: String,
        /// Reason why the file cannot be put on the job disk.
        problem: &'static str,
    },
    /// A cached image lacks a file, or a file differs from its record.
    #[error("cached image {}: {problem}; build it again: nodescope image build --force", dir.display())]
    Damaged {
        /// Folder of the image.
        dir: PathBuf,
        /// The file that is missing or wrong, and how.
        problem: String,
    },
    /// A recipe, or the tools that it names, changed during the build.
    #[error("{} or the tools that it names changed while the image was built; build it again", .0.display())]
    InputsChanged(PathBuf),
    /// An image that was to be removed is in use.
    #[error("image {} stays: {what}", dir.display())]
    InUse {
        /// Folder of the image.
        dir: PathBuf,
        /// Who uses the image, and perhaps what to do.
        what: &'static str,
    },
    /// An image was removed after it had been found.
    #[error("image {} was removed by another process; run the command again", .0.display())]
    Gone(PathBuf),
    /// The caller stopped the build.
    #[error("the build of the guest image was interrupted; what it had unpacked is removed")]
    Interrupted,
    /// No folder for the cache is defined.
    #[error("no cache folder: set XDG_CACHE_HOME or HOME")]
    NoCacheDir,
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation that failed, such as `open`.
        action: &'static str,
        /// The file or folder of the operation.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
}

impl ImageError {
    /// Wraps an I/O error with the operation and the file, for `map_err`.
    pub(crate) fn io(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> ImageError {
        let path = path.to_path_buf();
        move |source| ImageError::Io {
            action,
            path,
            source,
        }
    }
}
