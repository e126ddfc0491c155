//! Builds the image of nodescope's own recipe into the default cache and prints where it is.

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
