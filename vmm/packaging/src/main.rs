//! Writes manual pages, completions and the licences of libraries to a folder: `nodescope-packaging OUT DATE`. `DATE` is the date printed
//! in the manual pages, such as `2026-01-31`.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: nodescope-packaging OUT DATE";
    let mut arguments = std::env::args().skip(1);
    let (Some(out), Some(date), None) = (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err(usage.into());
    };
    let out = PathBuf::from(out);
    nodescope_packaging::write(&nodescope::command(), &date, &out)
        .map_err(|error| format!("cannot write to {}: {error}", out.display()))?;
    let licences = out.join("THIRD-PARTY.md");
    let text = nodescope_packaging::third_party(&nodescope_packaging::libraries("nodescope")?)?;
    std::fs::write(&licences, text)
        .map_err(|error| format!("cannot write {}: {error}", licences.display()))?;
    Ok(())
}
