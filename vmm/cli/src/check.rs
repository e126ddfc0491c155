//! `nodescope check`, and the same checks before a run.

use std::path::{Path, PathBuf};

use nodescope_cluster::build::BuildError;
use nodescope_cluster::kvm;
use nodescope_hypercall::printable_lines;
use nodescope_image::ImageSpec;
use nodescope_machine::cpuid::shown;
use nodescope_study::{Engine, Host, ImageSource, Problems, Study};

use crate::args::{self, EngineChoice};
use crate::config;
use crate::exit::{Exit, Failure};
use crate::terminal::{print, print_error_line, print_note};

/// Runs `nodescope check`: reports the problems of a study and of this host, or describes a study without problems, its image and KVM.
pub fn check(args: &args::Check) -> Result<Exit, Failure> {
    let study = load(&args.study, None, 1)?;
    let mut text = format!("{}: no problems\n", study.file.display());
    let mut row = |label: &str, value: &str| text += &format!("  {label:<9} {value}\n");
    for (label, value) in study.description() {
        row(&label, &value);
    }
    if let ImageSource::Debian(spec) = &study.image {
        let cached = nodescope_image::default_cache_dir()
            .and_then(|cache| nodescope_image::find(spec, &cache))
            .is_ok_and(|image| image.is_some());
        let state = if cached {
            "is built"
        } else {
            "will be built by the first run, which then compares the job's programs with it"
        };
        row("image", state);
    }
    row("kvm", &of_kvm());
    for (field, remark) in study.remarks() {
        let line = study.position_of(field).map_or(1, |position| position.line);
        let at = study.file.display();
        row("note", &format!("{at}:{line}: {field}: {remark}"));
    }
    print(&text)?;
    Ok(Exit::Ok)
}

/// Returns a line that says how KVM would serve on this host, or why it cannot be used.
fn of_kvm() -> String {
    match kvm::usable() {
        Ok(found) => {
            let cores = Host::probe().cores;
            let features = shown().filter(|feature| {
                let (leaf, subleaf) = feature.leaf;
                let bit = (feature.register, feature.bit);
                let has = found.cpuid.has(leaf, subleaf, bit.0, bit.1);
                !has && !feature.is_the_platforms()
            });
            let missing: Vec<_> = features.map(|feature| feature.name).collect();
            let without = match missing.is_empty() {
                true => "all features of the guests".to_owned(),
                false => format!("all features of the guests but {}", missing.join(", ")),
            };
            format!(
                "engine = \"kvm\" would run between windows at this host's speed: ring 0 native, up to {cores} vCPUs in parallel, {without}"
            )
        }
        Err(error) => format!("engine = \"kvm\" cannot be used: {error}"),
    }
}

/// Returns the study in `file` if this host can run it. Prints the problems that it finds, and fails unless all of them are warnings.
/// `engine`, if given, replaces the study's engine and fast-forward. `hosts` is the number of hosts that share the nodes.
pub fn load(file: &Path, engine: Option<EngineChoice>, hosts: u32) -> Result<Study, Failure> {
    let _span = tracing::info_span!("check").entered();
    let host = Host {
        hosts,
        ..Host::probe()
    };
    let said = |exit, problems: &Problems| {
        print_error_line(&printable_lines(&problems.to_string()));
        let count = problems.count();
        let are = if count == 1 {
            "1 problem"
        } else {
            &format!("{count} problems")
        };
        Failure::new(exit, format!("{} cannot be run: {are}", file.display()))
    };
    let mut study = match Study::load(file) {
        Ok(study) => study,
        Err(problems) => {
            // Report at once what the host lacks whatever the study says.
            let of_host = Problems::new(file, host.image_problems(&ImageSpec::debian()));
            return Err(said(Exit::Study, &problems.and(of_host)));
        }
    };
    if let Some(engine) = engine {
        study.fast_forward = None;
        study.engine = match engine {
            EngineChoice::Soft => Engine::Soft,
            EngineChoice::Kvm => Engine::Kvm,
        };
    }
    let programs = Problems::new(
        &study.file,
        nodescope_program::problems(&study, root(&study).as_deref()),
    );
    if programs.has_errors() {
        return Err(said(Exit::Study, &programs.and(host.problems(&study))));
    }
    let problems = host.problems(&study).and(programs);
    let unknown = host.unknown_cores(&study);
    if unknown.has_errors() {
        return Err(said(Exit::Study, &unknown.and(problems)));
    }
    if problems.has_errors() {
        return Err(said(Exit::Host, &problems));
    }
    if study.uses_kvm() {
        kvm::usable().map_err(|error| Failure::of(Exit::Host, &BuildError::Kvm(error)))?;
    }
    config::counting(&study)?;
    if !problems.is_empty() {
        print_note(&printable_lines(&problems.to_string()));
    }
    Ok(study)
}

/// Returns the root disk of a study's image; `None` if the image has not been built.
pub fn root(study: &Study) -> Option<PathBuf> {
    match &study.image {
        ImageSource::Debian(spec) => {
            let cache = nodescope_image::default_cache_dir().ok()?;
            Some(nodescope_image::find(spec, &cache).ok()??.root)
        }
        ImageSource::Files { root, .. } => Some(root.clone()),
    }
}

/// Compares the job's programs with an image that [`load`] has not seen, because the image had not been built. Prints the problems that this
/// adds, and fails unless all of them are warnings.
pub fn programs(study: &Study, root: &Path) -> Result<(), Failure> {
    let known = nodescope_program::problems(study, None);
    let mut found = nodescope_program::problems(study, Some(root));
    found.retain(|problem| !known.contains(problem));
    let problems = Problems::new(&study.file, found);
    if problems.has_errors() {
        eprintln!("{problems}");
        let file = study.file.display();
        let message = format!("{file} cannot be run: its programs do not fit the image");
        return Err(Failure::new(Exit::Study, message));
    }
    if !problems.is_empty() {
        print_note(&problems.to_string());
    }
    Ok(())
}
