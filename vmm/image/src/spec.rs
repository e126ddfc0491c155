//! Inputs of an image: the recipe (guest-images/debian/image.toml) and the study's additions.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::ImageError;

/// Description of an image to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    /// The recipe's folder, which holds `image.toml`.
    pub recipe: PathBuf,
    /// Debian packages to install beyond the recipe's.
    pub packages: Vec<String>,
    /// Address of the package archive, for example `http://archive.example/debian/20260101`. `None` for Debian's own mirrors, with updates
    /// and security fixes.
    pub mirror: Option<String>,
}

impl ImageSpec {
    /// Returns the recipe that comes with nodescope, without additional packages. `$NODESCOPE_GUEST_IMAGES`, if set, names the folder that
    /// contains the recipe's. Otherwise the recipe is in the installation of the running program (`share/nodescope` beside the program's
    /// folder), or else in the source tree from which nodescope was built.
    pub fn debian() -> ImageSpec {
        let images = match std::env::var_os("NODESCOPE_GUEST_IMAGES") {
            Some(path) => PathBuf::from(path),
            None => guest_images(std::env::current_exe().ok().as_deref()),
        };
        ImageSpec {
            recipe: images.join("debian"),
            packages: Vec::new(),
            mirror: None,
        }
    }
}

/// Returns the folder `guest-images` of the installation of `program`, or of the source tree if the installation has none. If both are
/// missing, returns the installation's, so that the error message names the path that an installation should have.
fn guest_images(program: Option<&Path>) -> PathBuf {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images");
    let prefix = program.and_then(|program| program.parent()?.parent());
    let Some(installed) = prefix.map(|prefix| prefix.join("share/nodescope/guest-images")) else {
        return tree;
    };
    if installed.is_dir() || !tree.is_dir() {
        installed
    } else {
        tree
    }
}

/// Contents of a recipe's `image.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Code name of the Debian release, such as `bookworm`.
    pub suite: String,
    /// Kernel package; a meta package leads to the current kernel.
    pub kernel: String,
    /// Debian packages of every image.
    pub packages: Vec<String>,
    /// Kernel modules that the initramfs loads; their dependencies need not be listed.
    pub modules: Vec<String>,
    /// Path patterns that dpkg skips when it unpacks packages (`path-exclude`).
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Folder of the in-guest tools, relative to the recipe's folder; it has a program `build`.
    pub tools: PathBuf,
}

impl Recipe {
    /// Reads the recipe in folder `dir`.
    ///
    /// # Errors
    ///
    /// [`ImageError::NoRecipe`]; [`ImageError::Recipe`] with line and column; [`ImageError::PackageName`]; [`ImageError::Io`].
    pub fn read(dir: &Path) -> Result<Recipe, ImageError> {
        let path = dir.join("image.toml");
        if !path.is_file() {
            return Err(ImageError::NoRecipe(dir.to_path_buf()));
        }
        let text = fs::read_to_string(&path).map_err(ImageError::io("read", &path))?;
        let recipe: Recipe = toml::from_str(&text).map_err(|error| ImageError::Recipe {
            path,
            message: error.to_string().trim_end().to_owned(),
        })?;
        recipe
            .packages
            .iter()
            .chain([&recipe.kernel])
            .try_for_each(|name| check_package_name(name))?;
        Ok(recipe)
    }
}

/// Checks that `name` can be a package's name (Debian Policy 5.6.1). Such names become arguments of other programs, so all other names are
/// rejected.
///
/// # Errors
///
/// [`ImageError::PackageName`] for all other names.
pub fn check_package_name(name: &str) -> Result<(), ImageError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.len() >= 2
        && name.starts_with(plain)
        && name.chars().all(|c| plain(c) || "+-.".contains(c))
    {
        Ok(())
    } else {
        Err(ImageError::PackageName(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_of_the_repository_is_valid() {
        let spec = ImageSpec {
            recipe: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/debian"),
            ..ImageSpec::debian()
        };
        let recipe = Recipe::read(&spec.recipe).unwrap();
        assert!(
            recipe.packages.iter().any(|name| name == "busybox-static"),
            "process 1 is a busybox script"
        );
        assert!(spec.recipe.join(&recipe.tools).join("build").is_file());
        for file in [
            "customize",
            "assemble",
            "initramfs/init",
            "root/opt/nodescope/init",
        ] {
            assert!(spec.recipe.join(file).is_file(), "{file}");
        }
    }

    #[test]
    fn an_installed_program_takes_the_recipe_of_its_installation() {
        let prefix = tempfile::tempdir().unwrap();
        let program = prefix.path().join("bin/nodescope");
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images");
        assert_eq!(guest_images(None), tree);
        assert_eq!(guest_images(Some(&program)), tree);
        let installed = prefix.path().join("share/nodescope/guest-images");
        fs::create_dir_all(&installed).unwrap();
        assert_eq!(guest_images(Some(&program)), installed);
    }

    #[test]
    fn a_mistake_in_a_recipe_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("image.toml"),
            "suite = \"bookworm\"\nkernle = \"x\"\n",
        )
        .unwrap();
        let message = Recipe::read(dir.path()).unwrap_err().to_string();
        assert!(
            message.contains("image.toml: TOML parse error at line 2, column 1"),
            "{message}"
        );
        assert!(message.contains("unknown field `kernle`"), "{message}");
    }

    #[test]
    fn a_folder_without_a_recipe_says_how_to_find_one() {
        assert_eq!(
            Recipe::read(Path::new("/nonexistent/debian"))
                .unwrap_err()
                .to_string(),
            "/nonexistent/debian holds no image recipe (no image.toml): set NODESCOPE_GUEST_IMAGES to nodescope's guest-images folder"
        );
    }

    #[test]
    fn only_package_names_pass_as_packages() {
        for name in ["hpcc", "libstdc++6", "g++-12", "0ad"] {
            check_package_name(name).unwrap();
        }
        for name in ["", "a", "-y", "Hpcc", "a b", "a,b", "../x", "a;b"] {
            assert!(
                matches!(check_package_name(name), Err(ImageError::PackageName(bad)) if bad == name),
                "{name}"
            );
        }
    }
}
