//! `nodescope image`.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nodescope_image::{BuildOptions, Image, ImageError, ImageSpec};
use nodescope_study::quantity::Bytes;
use nodescope_study::{ImageSource, Study};

use crate::args::{self, ImageCommand};
use crate::exit::{Exit, Failure};
use crate::interrupt::on_interrupt;
use crate::terminal::print_note;

/// Builds, lists or shows images.
pub fn image(args: &args::Image) -> Result<Exit, Failure> {
    match &args.command {
        ImageCommand::Build { study, force } => {
            let spec = spec(study.as_deref())?;
            let signals = on_interrupt()?;
            let image = build(&spec, *force, signals.flag(), &mut print_note)?;
            println!("{}", image.dir.display());
        }
        ImageCommand::List => {
            for image in nodescope_image::list(&cache()?).map_err(fail)? {
                match image {
                    Ok(image) => println!("{}", line(&image)),
                    Err(error) => tracing::warn!("{error}"),
                }
            }
        }
        ImageCommand::Show { study } => {
            let spec = spec(study.as_deref())?;
            let Some(image) = nodescope_image::find(&spec, &cache()?).map_err(fail)? else {
                let of = study.as_ref().map(|path| format!(" {}", path.display()));
                return Err(Failure::new(
                    Exit::Study,
                    format!(
                        "the image is not built yet; run: nodescope image build{}",
                        of.unwrap_or_default()
                    ),
                ));
            };
            show(&image);
        }
    }
    Ok(Exit::Ok)
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

fn fail(error: ImageError) -> Failure {
    let exit = match error {
        ImageError::Interrupted => Exit::Interrupted,
        ImageError::PackageName(_) | ImageError::NoPackage { .. } => Exit::Study,
        _ => Exit::Host,
    };
    Failure::of(exit, &error)
}

fn spec(study: Option<&Path>) -> Result<ImageSpec, Failure> {
    let Some(path) = study else {
        return Ok(ImageSpec::debian());
    };
    let study = Study::load(path).map_err(|problems| {
        eprintln!("{problems}");
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

fn show(image: &Image) {
    println!("{}", line(image));
    for path in [&image.vmlinux, &image.initramfs, &image.root] {
        println!("  {}", path.display());
    }
    for (package, version) in &image.manifest.packages {
        println!("  {package} {version}");
    }
}
