//! `nodescope image`.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nodescope_hypercall::printable_lines;
use nodescope_image::{BuildOptions, Image, ImageError, ImageSpec, InputSet};
use nodescope_study::quantity::Bytes;
use nodescope_study::{ImageSource, Study};

use crate::args::{self, ImageCommand};
use crate::exit::{Exit, Failure};
use crate::interrupt::on_interrupt;
use crate::terminal::{argument, print, print_error_line, print_note};

/// Least number of characters of a key that name an image.
const SHORTEST: usize = 4;

/// Builds, lists or shows images.
pub fn image(args: &args::Image) -> Result<Exit, Failure> {
    match &args.command {
        ImageCommand::Build { study, force } => {
            let spec = spec(study.as_deref())?;
            let signals = on_interrupt()?;
            let image = build(&spec, *force, signals.flag(), &mut print_note)?;
            print(&format!("{}\n", image.dir.display()))?;
        }
        ImageCommand::List => {
            for image in nodescope_image::list(&cache()?).map_err(fail)? {
                match image {
                    Ok(image) => print(&format!("{}\n", line(&image)))?,
                    Err(error) => tracing::warn!("{error}"),
                }
            }
        }
        ImageCommand::Show { study } => {
            let spec = spec(study.as_deref())?;
            let Some(image) = nodescope_image::find(&spec, &cache()?).map_err(fail)? else {
                let of = study.as_ref().map(|path| format!(" {}", argument(path)));
                return Err(Failure::new(
                    Exit::Study,
                    format!(
                        "the image is not built yet; run: nodescope image build{}",
                        of.unwrap_or_default()
                    ),
                ));
            };
            show(&image)?;
        }
        ImageCommand::Remove(args) => remove(args)?,
    }
    Ok(Exit::Ok)
}

/// Removes images, and prints each with the disk space that it took.
fn remove(args: &args::ImageRemove) -> Result<(), Failure> {
    let cache = cache()?;
    let keys = nodescope_image::keys(&cache).map_err(fail)?;
    // Images that the user names must be removable; of all others, those in use stay.
    let (chosen, named) = match &args.image {
        Some(image) => (vec![chosen(image, &keys)?], true),
        None if args.all => (keys, false),
        None => (outdated(&cache, keys)?, false),
    };
    let mut freed = 0;
    for key in &chosen {
        match nodescope_image::remove(&cache, key) {
            Ok(removed) => {
                freed += removed.bytes;
                print(&format!(
                    "{}  {}\n",
                    removed.key,
                    Bytes(removed.bytes >> 20 << 20)
                ))?;
            }
            Err(error @ ImageError::InUse { .. }) if !named => tracing::warn!("{error}"),
            Err(error) => return Err(fail(error)),
        }
    }
    if !named {
        print(&format!("freed {}\n", Bytes(freed >> 20 << 20)))?;
    }
    Ok(())
}

/// Returns the key of the image that the user names: by the key, by its beginning, or by a study.
fn chosen(image: &str, keys: &[String]) -> Result<String, Failure> {
    let wrong = |text: String| Failure::new(Exit::Study, text);
    let found: Vec<_> = keys.iter().filter(|key| key.starts_with(image)).collect();
    match found[..] {
        [key] if image.len() >= SHORTEST => return Ok(key.clone()),
        [_, _, ..] if image.len() >= SHORTEST => {
            let keys: Vec<_> = found.iter().map(|key| key.as_str()).collect();
            return Err(wrong(format!(
                "{image} is the beginning of {} images; give more of it: {}",
                keys.len(),
                keys.join(", ")
            )));
        }
        _ => {}
    }
    let path = Path::new(image);
    if !path.is_file() {
        return Err(wrong(format!(
            "there is no image {image} in the cache, and no study {image}; nodescope image list shows the images"
        )));
    }
    let key = InputSet::of(&spec(Some(path))?).map_err(fail)?.key();
    match keys.contains(&key) {
        true => Ok(key),
        false => Err(wrong(format!(
            "the image of {image} is not in the cache; there is nothing to remove"
        ))),
    }
}

/// Returns the keys of the images that the present recipe makes no more, whatever packages a study adds, and of damaged ones.
fn outdated(cache: &Path, keys: Vec<String>) -> Result<Vec<String>, Failure> {
    let spec = ImageSpec::debian();
    let mut outdated = Vec::new();
    for key in keys {
        let current = match nodescope_image::open_key(cache, &key) {
            Ok(image) => image.is_of(&spec).map_err(fail)?,
            Err(ImageError::Damaged { .. }) => false,
            Err(error) => return Err(fail(error)),
        };
        if !current {
            outdated.push(key);
        }
    }
    Ok(outdated)
}

/// Returns the image of a spec; builds it if it is not in the cache, or with `force` in any case. Setting `interrupted` ends a build.
pub fn build(
    spec: &ImageSpec,
    force: bool,
    interrupted: &AtomicBool,
    progress: &mut dyn FnMut(&str),
) -> Result<Image, Failure> {
    let options = BuildOptions {
        force,
        stop: Some(interrupted),
    };
    nodescope_image::build_with(spec, &cache()?, &options, progress).map_err(fail)
}

fn cache() -> Result<PathBuf, Failure> {
    nodescope_image::default_cache_dir().map_err(fail)
}

/// Returns the failure for an image that cannot be built, found or removed.
pub fn fail(error: ImageError) -> Failure {
    let exit = match error {
        ImageError::Interrupted => Exit::Interrupted,
        ImageError::PackageName(_) | ImageError::NoPackage { .. } | ImageError::InUse { .. } => {
            Exit::Study
        }
        _ => Exit::Host,
    };
    Failure::of(exit, &error)
}

fn spec(study: Option<&Path>) -> Result<ImageSpec, Failure> {
    let Some(path) = study else {
        return Ok(ImageSpec::debian());
    };
    let study = Study::load(path).map_err(|problems| {
        print_error_line(&printable_lines(&problems.to_string()));
        Failure::new(Exit::Study, format!("{} has problems", path.display()))
    })?;
    match study.image {
        ImageSource::Debian(spec) => Ok(spec),
        ImageSource::Files { .. } => Err(Failure::new(
            Exit::Study,
            format!(
                "{} boots files of its own; there is nothing to build",
                path.display()
            ),
        )),
    }
}

fn bytes(image: &Image) -> Bytes {
    let bytes: u64 = image.manifest.files.values().map(|file| file.bytes).sum();
    Bytes(bytes >> 20 << 20)
}

fn line(image: &Image) -> String {
    let manifest = &image.manifest;
    let extra = if manifest.extra_packages.is_empty() {
        String::new()
    } else {
        format!(", with {}", manifest.extra_packages.join(", "))
    };
    format!(
        "{}  {}, Linux {}, {} packages, {}{extra}",
        manifest.key,
        manifest.suite,
        manifest.kernel,
        manifest.packages.len(),
        bytes(image)
    )
}

fn show(image: &Image) -> Result<(), Failure> {
    let mut text = format!("{}\n", line(image));
    for path in [&image.vmlinux, &image.initramfs, &image.root] {
        text += &format!("  {}\n", path.display());
    }
    for (package, version) in &image.manifest.packages {
        text += &format!("  {package} {version}\n");
    }
    print(&text)
}
