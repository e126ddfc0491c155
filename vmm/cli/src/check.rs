//! `nodescope check`, and the same checks before a run.

use std::path::Path;

use nodescope_image::ImageSpec;
use nodescope_study::{Host, ImageSource, Problems, Study};

use crate::args;
use crate::exit::{Exit, Failure};
use crate::terminal::note;

/// Reads a study and tells all its problems and the host's.
pub fn check(args: &args::Check) -> Result<Exit, Failure> {
    let study = load(&args.study)?;
    println!("{}: no problems", study.file.display());
    for (label, value) in study.description() {
        println!("  {label:<9} {value}");
    }
    if let ImageSource::Debian(spec) = &study.image {
        let cached = nodescope_image::default_cache_dir()
            .and_then(|cache| nodescope_image::find(spec, &cache))
            .is_ok_and(|image| image.is_some());
        let state = if cached {
            "is built"
        } else {
            "will be built by the first run"
        };
        println!("  {:<9} {state}", "image");
    }
    Ok(Exit::Ok)
}

/// The study in `file` if it can be run here; its problems are printed otherwise, warnings in any case.
pub fn load(file: &Path) -> Result<Study, Failure> {
    let _span = tracing::info_span!("check").entered();
    let host = Host::probe();
    let said = |exit, problems: &Problems| {
        eprintln!("{problems}");
        let count = problems.count();
        let are = if count == 1 {
            "1 problem"
        } else {
            &format!("{count} problems")
        };
        Failure::new(exit, format!("{} cannot be run: {are}", file.display()))
    };
    let study = match Study::load(file) {
        Ok(study) => study,
        Err(problems) => {
            // What the host lacks whatever the study says is told in the same go.
            let of_host = Problems::new(file, host.image_problems(&ImageSpec::debian()));
            return Err(said(Exit::Study, &problems.and(of_host)));
        }
    };
    let problems = host.problems(&study);
    let unknown = host.unknown_cores(&study);
    if unknown.has_errors() {
        return Err(said(Exit::Study, &unknown.and(problems)));
    }
    if problems.has_errors() {
        return Err(said(Exit::Host, &problems));
    }
    if !problems.is_empty() {
        note(&problems.to_string());
    }
    Ok(study)
}
