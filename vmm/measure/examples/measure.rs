//! Measures this machine, and prints its description. Progress goes to standard error.

use std::time::Instant;

fn main() -> Result<(), nodescope_measure::MeasureError> {
    let start = Instant::now();
    let host = nodescope_measure::measure(&mut |line| {
        eprintln!("{:4} s  {line}", start.elapsed().as_secs())
    })?;
    eprintln!("{:4} s", start.elapsed().as_secs());
    if std::env::args().any(|argument| argument == "--debug") {
        eprintln!("{host:#?}");
    }
    print!("{}", host.to_toml());
    Ok(())
}
