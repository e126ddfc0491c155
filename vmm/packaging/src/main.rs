//! Writes manual pages, completions and the licences of libraries to a folder: `nodescope-packaging OUT`.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let out = std::env::args_os()
        .nth(1)
        .ok_or("usage: nodescope-packaging OUT")?;
    let out = PathBuf::from(out);
    nodescope_packaging::write(&nodescope::command(), &out)
        .map_err(|error| format!("cannot write to {}: {error}", out.display()))?;
    let licences = out.join("THIRD-PARTY.md");
    let text = nodescope_packaging::third_party(&nodescope_packaging::libraries("nodescope")?)?;
    std::fs::write(&licences, text)
        .map_err(|error| format!("cannot write {}: {error}", licences.display()))?;
    Ok(())
}
