//! `nodescope profile`.

use std::io::{self, IsTerminal};

use nodescope_profile::{ProfilesFile, WindowProfile};
use nodescope_report::ReportInput;
use nodescope_report::code::{Format, cores, export};
use nodescope_window::WindowRecord;

use crate::args;
use crate::exit::{Exit, Failure};
use crate::results::{input, refuse_existing, write_bytes};
use crate::terminal::{print, print_bytes};

/// Writes the profiles of windows in a format: to a file, to standard output, or to a folder.
pub fn profile(args: &args::Profile) -> Result<Exit, Failure> {
    let input = input(&args.results, None, &[])?;
    let windows = windows(args, &input)?;
    let format = Format::from(args.format);
    let made = |(record, profile): &(&WindowRecord, &WindowProfile)| {
        let cores = cores(&input.core, record, profile, input.cores_of(record));
        cores
            .and_then(|cores| export(record, profile, &cores, format))
            .map_err(|error| Failure::of(Exit::Study, &error))
    };
    // In a folder each window gets a file.
    if let Some(folder) = args.output.as_deref().filter(|output| output.is_dir()) {
        let path = |window: &(&WindowRecord, _)| folder.join(format.file_name(&window.0.name));
        for window in &windows {
            refuse_existing(&path(window), args.force)?;
        }
        for window in &windows {
            let path = path(window);
            write_bytes(&path, &made(window)?)?;
            print(&format!("{}\n", path.display()))?;
        }
        return Ok(Exit::Ok);
    }
    let [window] = &windows[..] else {
        return Err(several(&windows));
    };
    if let Some(path) = &args.output {
        refuse_existing(path, args.force)?;
    }
    let bytes = made(window)?;
    if let Some(path) = &args.output {
        write_bytes(path, &bytes)?;
    } else if io::stdout().is_terminal() {
        if format == Format::Pprof {
            return Err(Failure::new(
                Exit::Study,
                "pprof's format is no text for a terminal; give a file: --output profile.pb.gz",
            ));
        }
        print(&String::from_utf8_lossy(&bytes))?;
    } else {
        print_bytes(&bytes)?;
    }
    Ok(Exit::Ok)
}

/// Returns the windows that have a profile, or the one of these that `--window` names.
fn windows<'a>(
    args: &args::Profile,
    input: &'a ReportInput,
) -> Result<Vec<(&'a WindowRecord, &'a WindowProfile)>, Failure> {
    let wrong = |message| Err(Failure::new(Exit::Study, message));
    let Some(profiles) = &input.profiles else {
        return wrong(format!(
            "{} holds no profile (no {}); run a study whose windows have attribution = true",
            args.results.display(),
            ProfilesFile::NAME
        ));
    };
    let all = profiles.windows.iter().filter_map(|profile| {
        let mut records = input.windows.windows.iter();
        Some((records.find(|record| record.name == profile.name)?, profile))
    });
    let all: Vec<_> = all.collect();
    let named = |name: &String| all.iter().any(|(record, _)| record.name == *name);
    match &args.window {
        Some(name) if !named(name) => wrong(format!(
            "no window \"{name}\" has a profile; there are: {}",
            names(&all)
        )),
        None if all.is_empty() => wrong(format!(
            "no window in {} has a profile",
            args.results.display()
        )),
        name => Ok((all.into_iter())
            .filter(|(record, _)| name.as_ref().is_none_or(|name| record.name == *name))
            .collect()),
    }
}

fn several(windows: &[(&WindowRecord, &WindowProfile)]) -> Failure {
    Failure::new(
        Exit::Study,
        format!(
            "{} windows have a profile; choose one with --window, or give a folder that exists as --output: {}",
            windows.len(),
            names(windows)
        ),
    )
}

fn names(windows: &[(&WindowRecord, &WindowProfile)]) -> String {
    let names: Vec<String> = (windows.iter())
        .map(|(record, _)| format!("\"{}\"", record.name))
        .collect();
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}

impl From<args::ProfileFormat> for Format {
    fn from(format: args::ProfileFormat) -> Format {
        match format {
            args::ProfileFormat::Text => Format::Text,
            args::ProfileFormat::Json => Format::Json,
            args::ProfileFormat::Svg => Format::Svg,
            args::ProfileFormat::Folded => Format::Folded,
            args::ProfileFormat::Pprof => Format::Pprof,
            args::ProfileFormat::PerfScript => Format::PerfScript,
        }
    }
}
