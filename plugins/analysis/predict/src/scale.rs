//! Extrapolation to more ranks than were traced: the program of P ranks from programs of at least three smaller sizes.
//!
//! - [`shape`](self): ranks are arranged as a line, a balanced grid of two or three dimensions, or a hypercube. What a rank does must
//!   depend only on its role (at which ends of the arrangement the rank is). At every traced size, a partner must be at the same
//!   distance, be the same rank counted from the first or from the last rank, or differ in the same bits of the rank
//!   number. Other programs are refused, with the reason.
//! - [`fit`](self): durations of bursts and sizes of messages are functions of the number of ranks p in the performance model normal form
//!   with one term.
//! - Iterations of a loop are constant, a + b p, a + b log2(p) or a + b times a side of the grid.
//!
//! A rank takes the sequence of bursts of a traced rank of the same role, at the largest size that has this role. Each burst is scaled
//! by the ratio that the fit gives, so that the variability of the bursts remains.

mod extrapolate;
mod fit;
mod shape;
mod structure;

use serde::Serialize;

use crate::cluster::Cluster;
use crate::interval::Interval;
use crate::predict::{Prediction, Request, predict};
use crate::series::{Point, Series, in_parallel};
use crate::sweep::{Scale, Value};
use nodescope_loop_tree::{Program, Site};

pub use extrapolate::{Extrapolation, Quantity};
pub(crate) use fit::{CLEARLY, NOTABLY};
pub use fit::{Fit, Form, Term, relative};
pub use shape::Shape;

/// Reason for which a program cannot be scaled up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// Too few sizes to fit anything.
    #[error(
        "there are traces of {count} numbers of ranks ({sizes}); give results of at least three, such as of 4, 8 and 16 ranks, of the same program"
    )]
    Sizes {
        /// Number of traced sizes; sizes that are equal count once.
        count: usize,
        /// List of the sizes.
        sizes: String,
    },
    /// A communicator with neither all ranks nor a single rank.
    #[error(
        "rank {rank} of {ranks} communicates in a communicator of {members} ranks; only those of all ranks, or of one, can be scaled up"
    )]
    Communicator {
        /// World rank that uses the communicator.
        rank: u32,
        /// Number of ranks of the traced run.
        ranks: u32,
        /// Number of members of the communicator.
        members: usize,
    },
    /// Different numbers of bytes for different ranks in one collective.
    #[error(
        "{at} of rank {rank} of {ranks} exchanges different sizes with different ranks, for which no law is known"
    )]
    Lists {
        /// World rank that makes the call.
        rank: u32,
        /// Number of ranks of the traced run.
        ranks: u32,
        /// Call site of the collective.
        at: String,
    },
    /// No regular arrangement was recognised.
    #[error("the communication is not regular:{}", refusals_text(refused))]
    Irregular {
        /// Arrangements that were tried, each with the reason for which the traced programs do not fit it.
        refused: Vec<(Shape, String)>,
    },
    /// A number of ranks that the arrangement cannot have, or for which a loop's iterations cannot be computed.
    #[error(
        "{ranks} ranks cannot be arranged as {shape}, as the traced ones are, or a loop's count cannot be told for them"
    )]
    Arrangement {
        /// Number of ranks.
        ranks: u32,
        /// Arrangement of the traced ranks.
        shape: Shape,
    },
    /// A role that no traced rank has, or a partner that does not exist among the ranks.
    #[error(
        "rank {rank} of {ranks} has a place, in {shape}, that no rank of the traced runs has; trace a size with such a place too"
    )]
    UnknownRole {
        /// World rank without a traced counterpart or partner.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
        /// Arrangement of the traced ranks.
        shape: Shape,
    },
}

fn refusals_text(refused: &[(Shape, String)]) -> String {
    let plain = refused
        .iter()
        .filter(|(shape, _)| !shape.parity && !shape.ascending);
    let lines = plain.map(|(shape, reason)| format!("\n  as {shape}: {reason}"));
    lines.collect()
}

/// Check of the extrapolation: the largest traced size, predicted from the smaller sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeldOut {
    /// The largest traced size.
    pub ranks: u32,
    /// Time predicted from the size's own trace, picoseconds.
    pub from_its_trace: u64,
    /// Time predicted from the smaller sizes, picoseconds.
    pub from_the_others: u64,
    /// Relative error of the check: (`from_the_others` - `from_its_trace`) / `from_its_trace`.
    pub error: f64,
}

/// Dependence of the work on the number of ranks p. T(p) is the predicted time, and p0 the smallest predicted number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// About the same total work, divided among the ranks: the efficiency is p0 T(p0) / (p T(p)).
    Strong,
    /// Total work in proportion to the number of ranks: the efficiency is T(p0) / T(p).
    Weak,
}

/// Reason for which adding ranks stops paying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The time does not fall any more; only of strong scaling.
    Time,
    /// The efficiency is below the threshold.
    Efficiency,
}

/// Range of numbers of ranks in which adding ranks pays: the efficiency reaches the threshold and, in strong scaling, the time falls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// Largest number of ranks up to which adding ranks pays.
    pub up_to: u32,
    /// Next predicted number of ranks, and the reason for which adding ranks no longer pays; `None` if adding ranks pays throughout.
    pub beyond: Option<(u32, Limit)>,
    /// Least efficiency at which adding ranks still pays.
    pub threshold: f64,
}

/// Fitted quantity, for the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedFit {
    /// The fitted quantity in words, such as the work between two calls.
    pub what: String,
    /// The same with the places of call sites in the source, as far as they are known.
    pub named: String,
    /// Fitted function as text.
    pub form: String,
    /// Fitted values at the largest traced size and at the largest size of all, picoseconds for each execution.
    pub values: (f64, f64),
    /// Fraction of the time in bursts and uninterpreted calls that the quantity takes at the largest traced size.
    pub share: f64,
    /// Mean relative error of the fit by leave-one-out cross-validation.
    pub error: f64,
}

/// A program at more ranks than were traced.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scaled {
    /// Predictions of traced and target sizes, in ascending number of ranks.
    pub series: Series,
    /// Sizes of the traces.
    pub traced: Vec<u32>,
    /// Description of the recognised arrangement.
    pub arrangement: String,
    /// Fits of the most expensive bursts and uninterpreted calls, in descending order of their share.
    pub fits: Vec<NamedFit>,
    /// Mean error of the fits of all bursts and uninterpreted calls, weighted by share.
    pub fit_error: f64,
    /// Check on the largest traced size. `None` if that size could not be predicted; [`Scaled::notes`](Series::notes) has the reason.
    pub held_out: Option<HeldOut>,
    /// Strong or weak scaling.
    pub scaling: Scaling,
    /// Speedup over the smallest size, and efficiency, for each point of the series; `None` where the point has no time.
    pub efficiency: Vec<Option<(f64, f64)>>,
    /// Range of numbers of ranks in which adding ranks pays; `None` if no point has a time.
    pub range: Option<Range>,
}

/// Options of an extrapolation.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleRequest {
    /// Numbers of ranks to predict.
    pub targets: Vec<u32>,
    /// Least efficiency at which adding ranks still pays.
    pub threshold: f64,
    /// Options of each prediction.
    pub request: Request,
}

/// Largest number of fits in the report.
const FITS: usize = 12;

/// Predicts a program at other numbers of ranks from its traces at several sizes.
/// Also returns the full prediction of the largest size, traced or target; `None` if that size could not be predicted.
///
/// # Errors
///
/// Fails with fewer than three sizes, for a program whose communicators, collectives or partners are not regular, and for a target to
/// which the arrangement, a role or a loop's iterations do not extend.
pub fn scale(
    programs: &[Program],
    cluster: &Cluster,
    request: &ScaleRequest,
) -> Result<(Scaled, Option<Prediction>), ScaleError> {
    let mut by_size: Vec<&Program> = programs.iter().collect();
    by_size.sort_by_key(|program| program.ranks.len());
    by_size.dedup_by_key(|program| program.ranks.len());
    let traced: Vec<u32> = by_size.iter().map(|p| p.ranks.len() as u32).collect();
    if traced.len() < 3 {
        let sizes: Vec<String> = traced.iter().map(u32::to_string).collect();
        return Err(ScaleError::Sizes {
            count: traced.len(),
            sizes: sizes.join(", "),
        });
    }
    let largest = traced[traced.len() - 1];
    let mut targets = request.targets.clone();
    targets.sort_unstable();
    targets.dedup();
    let last = targets.last().copied().unwrap_or(largest).max(largest);
    let extrapolation = Extrapolation::new(&by_size, None, &targets)?;
    let asked: Result<Vec<Program>, ScaleError> = (targets.iter())
        .map(|&target| extrapolation.program(target))
        .collect();
    let asked = asked?;
    let mut sizes: Vec<(u32, &Program)> = traced
        .iter()
        .copied()
        .zip(by_size.iter().copied())
        .collect();
    let fresh = targets.iter().copied().zip(&asked);
    sizes.extend(fresh.filter(|(target, _)| !traced.contains(target)));
    sizes.sort_by_key(|(size, _)| *size);
    let run = |program: &Program, request: &Request| {
        predict(program, cluster, request).map_err(|error| error.to_string())
    };
    let mut predictions = in_parallel(sizes.len(), |index| run(sizes[index].1, &request.request));
    let mut notes = programs
        .last()
        .map_or(Vec::new(), |program| program.notes.clone());
    let held_out = match held_out(&by_size, &extrapolation, &run) {
        Ok(held_out) => Some(held_out),
        Err(reason) => {
            notes.push(format!(
                "no size could be held out to test the extrapolation: {reason}"
            ));
            None
        }
    };
    let (fits, fit_error) = named(&extrapolation, largest, last);
    for (&(size, _), prediction) in sizes.iter().zip(&mut predictions) {
        if let Ok(prediction) = prediction
            && request.request.replicas > 0
            && !traced.contains(&size)
        {
            let deviation = deviation(size, &traced, held_out.as_ref(), fit_error);
            let time = prediction.outcome.time;
            prediction.interval = Some(Interval::extrapolated(
                prediction.interval.take(),
                time,
                deviation,
                &request.request,
            ));
        }
    }
    let points: Vec<Point> = (sizes.iter().zip(&predictions))
        .map(|(&(size, _), prediction)| {
            let value = Value {
                text: size.to_string(),
                number: Some(size.into()),
            };
            Point::new(value, prediction)
        })
        .collect();
    let scaling = kind(&extrapolation.work());
    let efficiency = efficiencies(&points, scaling);
    let scaled = Scaled {
        range: range(&points, &efficiency, scaling, request.threshold),
        series: Series {
            format: 1,
            cluster: cluster.name.clone(),
            parameter: "ranks".into(),
            unit: "",
            scale: Scale::Logarithmic,
            points,
            notes,
        },
        traced,
        arrangement: extrapolation.shape().to_string(),
        fits,
        fit_error,
        held_out,
        scaling,
        efficiency,
    };
    let prediction = predictions.pop().and_then(Result::ok);
    Ok((scaled, prediction))
}

/// Returns the relative standard deviation of the time at a size that was not traced. The held-out size shows by how much an extrapolation
/// errs over one step between traced sizes; over several steps the error adds up. The fits' own errors come on top.
fn deviation(size: u32, traced: &[u32], held_out: Option<&HeldOut>, fit_error: f64) -> f64 {
    let [.., before, largest] = *traced else {
        return fit_error;
    };
    let octaves = |from: u32, to: u32| (f64::from(to) / f64::from(from)).log2();
    let steps = (octaves(largest, size) / octaves(before, largest)).max(1.0);
    let known = held_out.map_or(0.0, |held_out| held_out.error);
    known.hypot(fit_error) * steps
}

/// Predicts the largest traced size from the smaller ones. If these are only two, the forms of all fits stay and only their
/// coefficients are fitted anew.
fn held_out(
    by_size: &[&Program],
    all: &Extrapolation,
    run: &impl Fn(&Program, &Request) -> Result<Prediction, String>,
) -> Result<HeldOut, String> {
    let (largest, others) = by_size.split_last().ok_or("there are no traces")?;
    let ranks = largest.ranks.len() as u32;
    let forms = (others.len() < 3).then_some(&all.fits);
    let program = Extrapolation::new(others, forms, &[ranks])
        .and_then(|extrapolation| extrapolation.program(ranks))
        .map_err(|error| error.to_string())?;
    let plain = Request {
        replicas: 0,
        critical_path: false,
        ..Request::default()
    };
    let time = |program: &Program| {
        let outcome = run(program, &plain)?.outcome;
        match outcome.complete() {
            true => Ok(outcome.time),
            false => Err("the program does not come to its end".to_owned()),
        }
    };
    let (own, other) = (time(largest)?, time(&program)?);
    Ok(HeldOut {
        ranks,
        from_its_trace: own,
        from_the_others: other,
        error: (other as f64 - own as f64) / (own as f64).max(1.0),
    })
}

fn named(extrapolation: &Extrapolation, largest: u32, last: u32) -> (Vec<NamedFit>, f64) {
    let mut times = extrapolation.times();
    let all: f64 = times.iter().map(|(_, sum, _)| sum).sum::<f64>().max(1.0);
    let error = times
        .iter()
        .map(|(_, sum, fit)| fit.error * sum / all)
        .sum();
    times.sort_by(|a, b| b.1.total_cmp(&a.1));
    let names = extrapolation.names();
    let fits = times
        .into_iter()
        .take(FITS)
        .map(|(quantity, sum, fit)| NamedFit {
            what: what(quantity, &|site| names.address(site)),
            named: what(quantity, &|site| names.text(site)),
            form: fit.form.to_string(),
            values: (fit.at(largest.into()), fit.at(last.into())),
            share: sum / all,
            error: fit.error,
        });
    (fits.collect(), error)
}

/// Returns a quantity in words; `text` returns call sites as text.
fn what(quantity: Quantity, text: &dyn Fn(Site) -> String) -> String {
    let call = |(site, function)| format!("{function} at {}", text(site));
    match quantity {
        Quantity::Burst(None, to) => format!("work before the first call, {}", call(to)),
        Quantity::Burst(Some(from), to) => format!("work from {} to {}", call(from), call(to)),
        Quantity::Opaque(at) => call(at),
        Quantity::Sent(_) | Quantity::Room(_) => String::new(),
    }
}

/// Returns strong scaling if the total work of all ranks grows more slowly than the square root of the number of ranks, else weak.
fn kind(work: &[(f64, f64)]) -> Scaling {
    let (Some(first), Some(last)) = (work.first(), work.last()) else {
        return Scaling::Strong;
    };
    let grows = (last.1 / first.1.max(1.0)).ln() / (last.0 / first.0).ln();
    if grows >= 0.5 {
        Scaling::Weak
    } else {
        Scaling::Strong
    }
}

fn efficiencies(points: &[Point], scaling: Scaling) -> Vec<Option<(f64, f64)>> {
    let timed = |point: &Point| Some((point.value.number?, point.result?.time as f64));
    let Some((first, base)) = points.iter().find_map(timed) else {
        return vec![None; points.len()];
    };
    let efficiency = |point: &Point| {
        let (ranks, time) = timed(point)?;
        let speedup = base / time.max(1.0);
        Some(match scaling {
            Scaling::Strong => (speedup, speedup * first / ranks),
            Scaling::Weak => (speedup * ranks / first, speedup),
        })
    };
    points.iter().map(efficiency).collect()
}

fn range(
    points: &[Point],
    efficiency: &[Option<(f64, f64)>],
    scaling: Scaling,
    threshold: f64,
) -> Option<Range> {
    let mut up_to: Option<(u32, u64)> = None;
    for (point, efficiency) in points.iter().zip(efficiency) {
        let (Some(ranks), Some(result), Some((_, efficiency))) =
            (point.value.number, point.result, efficiency)
        else {
            continue;
        };
        let ranks = ranks as u32;
        let limit = match up_to {
            Some((_, time)) if scaling == Scaling::Strong && result.time >= time => {
                Some(Limit::Time)
            }
            _ if *efficiency < threshold => Some(Limit::Efficiency),
            _ => None,
        };
        if let (Some(limit), Some((up_to, _))) = (limit, up_to) {
            return Some(Range {
                up_to,
                beyond: Some((ranks, limit)),
                threshold,
            });
        }
        up_to = Some((ranks, result.time));
    }
    up_to.map(|(up_to, _)| Range {
        up_to,
        beyond: None,
        threshold,
    })
}

impl Scaled {
    /// Returns the contents as JSON; `SCHEMA.md` describes it.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Returns the contents as a table for a terminal.
    pub fn text(&self) -> String {
        let mut out = self.series.text();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        use std::fmt::Write;
        let sizes: Vec<String> = self.traced.iter().map(u32::to_string).collect();
        writeln!(
            out,
            "\nScaled up from traces of {} ranks, arranged as {}",
            sizes.join(", "),
            self.arrangement
        )?;
        let kind = match self.scaling {
            Scaling::Strong => "strong: the work of all ranks stays about the same",
            Scaling::Weak => "weak: the work of all ranks grows with their number",
        };
        writeln!(
            out,
            "Scaling is {kind}\n\n     ranks    speedup  efficiency"
        )?;
        for (point, efficiency) in self.series.points.iter().zip(&self.efficiency) {
            if let Some((speedup, efficiency)) = efficiency {
                let traced = point
                    .value
                    .number
                    .is_some_and(|n| self.traced.contains(&(n as u32)));
                let mark = if traced { "  traced" } else { "" };
                writeln!(
                    out,
                    "{:>10} {speedup:>10.2} {:>9.2} %{mark}",
                    point.value.text,
                    100.0 * efficiency
                )?;
            }
        }
        if let Some(range) = &self.range {
            let percent = 100.0 * range.threshold;
            match range.beyond {
                Some((ranks, Limit::Time)) => writeln!(
                    out,
                    "Adding ranks pays up to {}: with {ranks} the time does not fall any more",
                    range.up_to
                )?,
                Some((ranks, Limit::Efficiency)) => writeln!(
                    out,
                    "Adding ranks pays up to {}: with {ranks} the efficiency is below {percent:.0} %",
                    range.up_to
                )?,
                None => writeln!(
                    out,
                    "Adding ranks pays up to {} at least: the efficiency stays above {percent:.0} %",
                    range.up_to
                )?,
            }
        }
        if let Some(held) = &self.held_out {
            writeln!(
                out,
                "\nHeld out: {} ranks predicted from the smaller sizes {}, from their own trace {}: {:+.2} %",
                held.ranks,
                crate::text::time(held.from_the_others),
                crate::text::time(held.from_its_trace),
                100.0 * held.error
            )?;
        }
        writeln!(
            out,
            "Fits of the work between calls, each size predicted from the others: {:.2} % off in the mean",
            100.0 * self.fit_error
        )?;
        let last = self
            .series
            .points
            .last()
            .map_or("", |point| &point.value.text);
        for fit in &self.fits {
            writeln!(
                out,
                "  {:5.1} %  {:<18} {:>5.2} % off, {} at {last}: {}",
                100.0 * fit.share,
                fit.form,
                100.0 * fit.error,
                crate::text::time(fit.values.1.max(0.0) as u64),
                fit.named
            )?;
        }
        Ok(())
    }
}
