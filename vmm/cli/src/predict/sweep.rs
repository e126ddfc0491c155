//! Predictions for several values of a parameter, or for several numbers of ranks.

use nodescope_config::document::Setting;
use nodescope_hypercall::printable_lines;
use nodescope_loop_tree::{Origin, Program};
use nodescope_predict::series::in_parallel;
use nodescope_predict::{
    Cluster, ClusterFile, Point, Request, ScaleRequest, Series, Sweep, predict as interpret, scale,
};

use super::args::Predict;
use crate::exit::{Exit, Failure};
use crate::results::write;
use crate::terminal::{print, print_json};

/// Predicts a program for each value of a sweep, and prints the series.
pub fn sweep(
    args: &Predict,
    sweep: &Sweep,
    file: &ClusterFile,
    program: &Program,
    request: &Request,
) -> Result<Exit, Failure> {
    let settings = args.settings();
    if let Some(twice) = settings
        .iter()
        .find(|setting| setting.field() == sweep.field)
    {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{} is set to {} and swept; leave one out",
                sweep.field,
                twice.value()
            ),
        ));
    }
    // Every value is checked before the first is interpreted.
    let clusters: Vec<Cluster> = (sweep.values.iter())
        .map(|value| {
            let own = [sweep.setting(value)];
            let all: Vec<Setting> = settings.iter().chain(&own).cloned().collect();
            let cluster = file.with(&all).map_err(|problems| {
                let failure = Failure::of(Exit::Study, &problems);
                Failure {
                    also: Some(format!("while sweeping {} = {}", sweep.field, value.text)),
                    ..failure
                }
            })?;
            Ok(if args.ideal_network {
                cluster.ideal_network()
            } else {
                cluster
            })
        })
        .collect::<Result<_, Failure>>()?;
    let name = clusters.first().map_or(String::new(), |c| c.name.clone());
    let points = in_parallel(clusters.len(), |index| {
        let prediction = interpret(program, &clusters[index], request);
        let prediction = prediction.map_err(|error| error.to_string());
        Point::new(sweep.values[index].clone(), &prediction)
    });
    let series = Series {
        format: 1,
        cluster: name,
        parameter: sweep.field.clone(),
        unit: sweep.unit,
        scale: sweep.scale,
        points,
        notes: program.notes.clone(),
    };
    print_result(args, &series)
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
