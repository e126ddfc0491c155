//! `nodescope compare`.

use nodescope_report::compare::{self, Figure, Unit};

use crate::args;
use crate::exit::{Exit, Failure};
use crate::results::{RunFile, report};
use crate::terminal::{print, print_json};
use crate::verdict::add_verdict;

/// Prints the results of two runs side by side, with the differences.
pub fn compare(args: &args::Compare) -> Result<Exit, Failure> {
    let (a, b) = (RunFile::read(&args.a)?, RunFile::read(&args.b)?);
    let figure = |name: &str, unit, value: fn(&RunFile) -> f64| {
        Figure::new(name, unit, Some(value(&a)), Some(value(&b)))
    };
    let run = vec![
        figure("virtual time", Unit::Ps, |run| run.virtual_ps as f64),
        figure("nodes", Unit::Count, |run| run.instructions.len() as f64),
        figure("instructions", Unit::Count, |run| {
            run.instructions.iter().sum::<u64>() as f64
        }),
    ];
    let sides = [&args.a, &args.b].map(|folder| folder.display().to_string());
    let (mut one, mut other) = (report(&args.a, None, &[])?, report(&args.b, None, &[])?);
    let comparison = compare::compare(sides, &one, &other, run);
    if args.json {
        print_json(&comparison.json())?;
    } else if args.html {
        add_verdict(&mut one, &args.a);
        add_verdict(&mut other, &args.b);
        print(&comparison.html([&one, &other]))?;
    } else {
        print(&comparison.text())?;
    }
    Ok(Exit::Ok)
}
