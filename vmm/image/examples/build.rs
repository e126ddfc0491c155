//! Builds an image from nodescope's own recipe, with the packages named as arguments, in the default cache and prints its folder.

fn main() -> Result<(), nodescope_image::ImageError> {
    let spec = nodescope_image::ImageSpec {
        packages: std::env::args().skip(1).collect(),
        ..nodescope_image::ImageSpec::debian()
    };
    let cache = nodescope_image::default_cache_dir()?;
    let image = nodescope_image::build(&spec, &cache, &mut |line| eprintln!("{line}"))?;
    println!("{}", image.dir.display());
    Ok(())
}
