//! Predictions for several values of a parameter, or for several numbers of ranks.

use nodescope_config::document::Setting;
use nodescope_hypercall::printable_lines;
use nodescope_loop_tree::{Origin, Program};
use nodescope_predict::series::in_parallel;
use nodescope_predict::{
    Cluster, ClusterFile, Grid, Point, Request, ScaleRequest, Series, Sweep, Value, grid,
    predict as interpret, scale,
};

use super::args::Predict;
use crate::exit::{Exit, Failure};
use crate::results::write;
use crate::terminal::{print, print_json};

/// Predicts a program for each value of a sweep, or for all pairs of values of two sweeps, and prints the series or the grid.
pub fn sweep(
    args: &Predict,
    file: &ClusterFile,
    program: &Program,
    request: &Request,
) -> Result<Exit, Failure> {
    let sweeps = args.sweep.as_slice();
    check(sweeps, &args.settings()).map_err(|text| Failure::new(Exit::Study, text))?;
    let swept = points(sweeps);
    // Every value is checked before the first is interpreted.
    let clusters: Vec<Cluster> = (swept.iter())
        .map(|point| cluster_at(args, file, point))
        .collect::<Result<_, Failure>>()?;
    let name = clusters.first().map_or(String::new(), |c| c.name.clone());
    let predicted = in_parallel(swept.len(), |at| {
        let prediction = interpret(program, &clusters[at], request);
        let prediction = prediction.map_err(|error| error.to_string());
        let (_, value) = swept[at][swept[at].len() - 1];
        Point::new(value.clone(), &prediction)
    });
    let notes = program.notes.clone();
    match sweeps {
        [first, second] => {
            let grid = Grid::new(&name, [first, second], predicted, notes);
            print_grid(args, &grid)
        }
        _ => {
            let series = Series {
                format: 1,
                cluster: name,
                parameter: sweeps[0].field.clone(),
                unit: sweeps[0].unit,
                scale: sweeps[0].scale,
                points: predicted,
                notes,
            };
            print_result(args, &series)
        }
    }
}

/// Checks that sweeps are one or two, of different fields that are not set, and of not too many values.
fn check(sweeps: &[Sweep], settings: &[Setting]) -> Result<(), String> {
    for (at, sweep) in sweeps.iter().enumerate() {
        let set = settings
            .iter()
            .find(|setting| setting.field() == sweep.field);
        if let Some(twice) = set {
            return Err(format!(
                "{} is set to {} and swept; leave one out",
                sweep.field,
                twice.value()
            ));
        }
        if sweeps[..at].iter().any(|other| other.field == sweep.field) {
            return Err(format!(
                "{} is swept twice; give all of its values in one --sweep",
                sweep.field
            ));
        }
    }
    if sweeps.len() > 2 {
        return Err(format!(
            "{} fields are swept; give --sweep once, or twice for all pairs of values",
            sweeps.len()
        ));
    }
    let count: usize = sweeps.iter().map(|sweep| sweep.values.len()).product();
    match count > grid::MOST {
        true => Err(format!(
            "{count} pairs of values are more than {}; give fewer values",
            grid::MOST
        )),
        false => Ok(()),
    }
}

/// A value of each sweep.
type Swept<'a> = Vec<(&'a Sweep, &'a Value)>;

/// Returns all combinations of the values of sweeps; the values of the last one change first.
fn points(sweeps: &[Sweep]) -> Vec<Swept<'_>> {
    let mut points: Vec<Swept<'_>> = vec![Vec::new()];
    for sweep in sweeps {
        let longer = points.iter().flat_map(|point| {
            let values = sweep.values.iter();
            values.map(move |value| [point.as_slice(), &[(sweep, value)]].concat())
        });
        points = longer.collect();
    }
    points
}

/// Returns the cluster with these values of swept fields.
fn cluster_at(args: &Predict, file: &ClusterFile, point: &Swept<'_>) -> Result<Cluster, Failure> {
    let swept = point.iter().map(|(sweep, value)| sweep.setting(value));
    let all: Vec<Setting> = args.settings().into_iter().chain(swept).collect();
    let cluster = file.with(&all).map_err(|problems| {
        let told = point.iter();
        let told = told.map(|(sweep, value)| format!("{} = {}", sweep.field, value.text));
        let told: Vec<String> = told.collect();
        Failure {
            also: Some(format!("while sweeping {}", told.join(", "))),
            ..Failure::of(Exit::Study, &problems)
        }
    })?;
    Ok(if args.ideal_network {
        cluster.ideal_network()
    } else {
        cluster
    })
}

/// Prints a grid, and draws it if `--plot` asks for that.
fn print_grid(args: &Predict, grid: &Grid) -> Result<Exit, Failure> {
    if let Some(file) = &args.plot {
        let svg = grid.svg();
        let svg = svg.map_err(|error| Failure::of(Exit::Study, &error))?;
        write(file, &printable_lines(&svg))?;
    }
    match (args.json, args.csv) {
        (true, _) => print_json(&grid.json())?,
        (_, true) => print(&grid.csv())?,
        _ => print(&grid.text())?,
    }
    Ok(if grid.has_times() {
        Exit::Ok
    } else {
        Exit::JobFailed
    })
}

/// Predicts a program that was traced with several numbers of ranks for other numbers of ranks, and prints the series.
pub fn ranks(
    args: &Predict,
    cluster: &Cluster,
    programs: &[Program],
    request: &Request,
) -> Result<Exit, Failure> {
    // Every number of ranks is checked before the first is interpreted. Ranks fill nodes as in the largest traced program.
    let largest = programs.iter().max_by_key(|program| program.ranks.len());
    let origin = largest.map_or_else(Origin::default, |program| program.origin.clone());
    (args.ranks.iter())
        .try_for_each(|&target| cluster.place_ranks(target, &origin).map(drop))
        .map_err(|error| Failure::of(Exit::Study, &error))?;
    let request = ScaleRequest {
        targets: args.ranks.clone(),
        threshold: args.efficiency,
        request: request.clone(),
    };
    let (scaled, last) =
        scale(programs, cluster, &request).map_err(|error| Failure::of(Exit::Study, &error))?;
    if args.json {
        draw(args, &scaled.series)?;
        print_json(&scaled.json())?;
    } else if args.csv {
        return print_result(args, &scaled.series);
    } else {
        draw(args, &scaled.series)?;
        print(&scaled.text())?;
        // For a single number of ranks, the whole prediction is of interest.
        if let ([_], Some(last)) = (args.ranks.as_slice(), last) {
            print(&format!("\n{}", last.text()))?;
        }
    }
    Ok(
        if scaled
            .series
            .points
            .iter()
            .all(|point| point.result.is_some())
        {
            Exit::Ok
        } else {
            Exit::JobFailed
        },
    )
}

fn draw(args: &Predict, series: &Series) -> Result<(), Failure> {
    let Some(file) = &args.plot else {
        return Ok(());
    };
    let svg = series
        .svg()
        .map_err(|error| Failure::of(Exit::Study, &error))?;
    write(file, &printable_lines(&svg))
}

/// Prints a series, and draws it if `--plot` asks for that.
fn print_result(args: &Predict, series: &Series) -> Result<Exit, Failure> {
    draw(args, series)?;
    match (args.json, args.csv) {
        (true, _) => print_json(&series.json())?,
        (_, true) => print(&series.csv())?,
        _ => print(&series.text())?,
    }
    Ok(if series.times().next().is_some() {
        Exit::Ok
    } else {
        Exit::JobFailed
    })
}
