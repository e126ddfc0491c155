//! Export of a window's code: as text or JSON, as a drawing, or in the formats of other tools.

use nodescope_profile::{Detail, Stacks, WindowProfile, folded, perf_script, pprof};
use nodescope_window::WindowRecord;

use super::{CodeReport, Core, flame_svg, labels, tables};
use crate::input::ReportError;
use crate::text::WIDTH;

/// Format of an exported window's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tables of at most 100 columns, as in the report.
    Text,
    /// [`CodeReport`] as JSON.
    Json,
    /// A flame graph as an SVG file.
    Svg,
    /// Folded stacks: a line of text for each call path.
    Folded,
    /// The gzipped protocol buffer of `pprof`.
    Pprof,
    /// Text in the format of `perf script`.
    PerfScript,
}

impl Format {
    /// Returns the name of a file for a window in this format. Of the window's name, at most 100 characters are used; those other than
    /// ASCII letters, digits, `.`, `_` and `-` become underscores.
    pub fn file_name(self, window: &str) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let window: String = (window.chars())
            .map(|c| if plain(c) { c } else { '_' })
            .take(100)
            .collect();
        match self {
            Format::Text => format!("code-{window}.txt"),
            Format::Json => format!("code-{window}.json"),
            Format::Svg => format!("flame-{window}.svg"),
            Format::Folded => format!("stacks-{window}.folded"),
            Format::Pprof => format!("profile-{window}.pb.gz"),
            Format::PerfScript => format!("perf-{window}.txt"),
        }
    }
}

/// Returns a window's code in a format. Call paths and graphs use the cycles of the first core.
pub fn export(
    record: &WindowRecord,
    profile: &WindowProfile,
    cores: &[Core<'_>],
    format: Format,
) -> Result<Vec<u8>, ReportError> {
    let failed = |what: &str| ReportError::Code {
        window: record.name.clone(),
        what: what.to_owned(),
    };
    let core = cores.first().ok_or_else(|| failed("no core is given"))?;
    let stacks = |detail| Stacks::new(profile, &*core.cycles, &labels(record), detail);
    Ok(match format {
        Format::Text => {
            let code = CodeReport::new(record, profile, cores)?;
            format!(
                "Code of window \"{}\"\n{}",
                record.name,
                tables::text(&code, WIDTH)
            )
            .into()
        }
        Format::Json => {
            let code = CodeReport::new(record, profile, cores)?;
            let json = serde_json::to_string_pretty(&code);
            let mut json = json.map_err(|error| failed(&error.to_string()))?;
            json.push('\n');
            json.into()
        }
        Format::Svg => flame_svg(record, profile, &*core.cycles).into(),
        Format::Folded => folded::folded(profile, &stacks(Detail::Functions)).into(),
        Format::PerfScript => perf_script::perf_script(profile, &stacks(Detail::Functions)).into(),
        Format::Pprof => pprof::write(profile, &stacks(Detail::Lines))
            .map_err(|error| failed(&error.to_string()))?,
    })
}
