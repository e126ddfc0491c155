//! How far the true time may lie from a predicted time: parts by cause, and their sum.
//!
//! Causes are independent, so their distances add up in squares (Joint Committee for Guides in Metrology, "Guide to the expression of
//! uncertainty in measurement", 2008, section 5.1). The distance of bursts comes from interpretations with bursts drawn anew. The other
//! distances come from interpretations with an input as far off as its uncertainty allows.

use serde::Serialize;

use crate::cluster::{Cluster, FitError, Speed, Uncertainty};
use crate::code::Code;
use crate::interpreter::{Options, interpret};
use crate::predict::Request;
use crate::result::Outcome;

/// Standard deviations of a normal distribution that hold 95 % of its values, to either side.
const WIDE: f64 = 1.96;

/// Cause of a distance between the predicted and the true time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The variation of bursts, and of the times at which ranks begin.
    Bursts,
    /// The uncertainty of what messages cost (`network.uncertainty`).
    Messages,
    /// The uncertainty of the speed of computation (`nodes.uncertainty`).
    Computation,
    /// The order in which receives from any source take messages.
    Matching,
    /// The extrapolation to a number of ranks that was not traced.
    Extrapolation,
}

impl Source {
    /// Returns the words for a reader.
    pub fn words(self) -> &'static str {
        match self {
            Source::Bursts => "varying bursts",
            Source::Messages => "costs of messages",
            Source::Computation => "speed of computation",
            Source::Matching => "order of messages from any source",
            Source::Extrapolation => "extrapolation to other numbers of ranks",
        }
    }
}

/// Part of an interval that has one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Cause of the distances.
    pub source: Source,
    /// Distance of the interval's lower end from the predicted time, picoseconds.
    pub below: u64,
    /// Distance of the interval's upper end from the predicted time, picoseconds.
    pub above: u64,
}

/// Interval around a predicted time that holds the true time in 95 % of cases, as far as the causes are known. Bursts are drawn anew, each
/// from all bursts between the same two calls on its rank, and ranks begin apart. Draws are independent, so ranks tend to wait longer for
/// one another than with the bursts as traced, and the median is greater. The replicas' spread around their median is therefore laid around
/// the predicted time (a basic bootstrap interval without its reflection).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Lower end, picoseconds.
    pub low: u64,
    /// Median of the replicas' times, picoseconds.
    pub median: u64,
    /// Upper end, picoseconds.
    pub high: u64,
    /// Number of replicas.
    pub replicas: u32,
    /// Seed of the first replica.
    pub seed: u64,
    /// Greatest delay of a rank's beginning in the replicas, picoseconds.
    pub stagger: u64,
    /// Distances by cause; causes without a distance are left out.
    pub parts: Vec<Part>,
}

/// Intervals of the time and of the section between the first two marks.
pub struct Intervals {
    /// Interval of the whole time.
    pub time: Interval,
    /// Interval of the section; `None` without a section.
    pub section: Option<Interval>,
}

/// Times of one interpretation, picoseconds: of the whole run, and of the section.
#[derive(Clone, Copy)]
struct Times {
    time: u64,
    section: Option<u64>,
}

impl Times {
    fn of(outcome: &Outcome) -> Times {
        let section = match outcome.marks[..] {
            [from, to] => Some(to.1.saturating_sub(from.0)),
            _ => None,
        };
        Times {
            time: outcome.time,
            section,
        }
    }
}

/// Interpretations of one program on one cluster, with other inputs than those of the prediction.
struct Variants<'a> {
    code: &'a Code<'a>,
    cluster: &'a Cluster,
    options: &'a Options,
}

impl Variants<'_> {
    fn times(&self, cluster: &Cluster, options: &Options) -> Result<Times, FitError> {
        Ok(Times::of(&interpret(self.code, cluster, options)?))
    }

    /// Returns the times of all replicas.
    fn replicas(&self, request: &Request) -> Result<Vec<Times>, FitError> {
        let replica = |number: u32| {
            let options = Options {
                resample: Some(request.seed.wrapping_add(u64::from(number))),
                stagger: request.stagger,
                ..self.options.clone()
            };
            self.times(self.cluster, &options)
        };
        (0..request.replicas).map(replica).collect()
    }

    /// Returns the times with the inputs of a source a standard deviation lower and higher; `None` if they are certain.
    fn around(&self, source: Source) -> Result<Option<[Times; 2]>, FitError> {
        let Uncertainty {
            messages,
            computation,
        } = self.cluster.uncertainty;
        let with = |cluster: Cluster| self.times(&cluster, self.options);
        Ok(match source {
            Source::Messages if messages > 0.0 => Some([
                with(self.cluster.with_costs(1.0 / (1.0 + messages)))?,
                with(self.cluster.with_costs(1.0 + messages))?,
            ]),
            Source::Computation if computation > 0.0 => Some([
                with(self.cluster.with_bursts(1.0 / (1.0 + computation)))?,
                with(self.cluster.with_bursts(1.0 + computation))?,
            ]),
            Source::Matching if self.code.any_source => {
                let options = Options {
                    matched: !self.options.matched,
                    ..self.options.clone()
                };
                let outcome = interpret(self.code, self.cluster, &options)?;
                outcome.complete().then(|| [Times::of(&outcome); 2])
            }
            _ => None,
        })
    }
}

/// Returns the intervals around the times of `outcome`; `None` if nothing varies and nothing is uncertain.
pub fn intervals(
    code: &Code<'_>,
    cluster: &Cluster,
    options: &Options,
    outcome: &Outcome,
    request: &Request,
) -> Result<Option<Intervals>, FitError> {
    let variants = Variants {
        code,
        cluster,
        options,
    };
    let varies = (code.program.bursts.iter())
        .any(|bursts| bursts.columns.iter().any(|column| column.length > 1));
    let replicas = match varies || request.stagger > 0 {
        true => variants.replicas(request)?,
        false => Vec::new(),
    };
    let mut others = Vec::new();
    for source in [Source::Messages, Source::Computation, Source::Matching] {
        if let Some(times) = variants.around(source)? {
            others.push((source, times));
        }
    }
    if request.replicas == 0 || (replicas.is_empty() && others.is_empty()) {
        return Ok(None);
    }
    let around = |predicted: u64, of: &dyn Fn(&Times) -> u64| {
        let replicas = replicas.iter().map(of).collect();
        let others = others
            .iter()
            .map(|(source, times)| (*source, times.each_ref().map(of)));
        interval(predicted, replicas, others, request)
    };
    let predicted = Times::of(outcome);
    Ok(Some(Intervals {
        time: around(predicted.time, &|times| times.time),
        section: (predicted.section)
            .map(|section| around(section, &|times| times.section.unwrap_or(section))),
    }))
}

fn interval(
    predicted: u64,
    mut replicas: Vec<u64>,
    others: impl Iterator<Item = (Source, [u64; 2])>,
    request: &Request,
) -> Interval {
    replicas.sort_unstable();
    let median = match replicas.is_empty() {
        true => predicted,
        false => quantile(&replicas, 0.5),
    };
    let mut parts = Vec::new();
    if !replicas.is_empty() {
        parts.push(Part {
            source: Source::Bursts,
            below: median - quantile(&replicas, 0.025),
            above: quantile(&replicas, 0.975) - median,
        });
    }
    for (source, times) in others {
        let distance = times.map(|time| time.abs_diff(predicted));
        let most = distance[0].max(distance[1]);
        // A matching is one of several that may occur, of which the distance is known as a whole.
        let distance = match source {
            Source::Matching => most,
            _ => (WIDE * most as f64).round() as u64,
        };
        parts.push(Part {
            source,
            below: distance.min(predicted),
            above: distance,
        });
    }
    let mut interval = Interval {
        low: predicted,
        median,
        high: predicted,
        replicas: replicas.len() as u32,
        seed: request.seed,
        stagger: request.stagger,
        parts,
    };
    interval.add_up(predicted);
    interval
}

impl Interval {
    /// Adds the uncertainty of an extrapolation, as a relative standard deviation of the time that it gave.
    pub(crate) fn extrapolated(
        known: Option<Interval>,
        time: u64,
        deviation: f64,
        request: &Request,
    ) -> Interval {
        let mut interval =
            known.unwrap_or_else(|| interval(time, Vec::new(), std::iter::empty(), request));
        let distance = (WIDE * deviation * time as f64).round() as u64;
        interval.parts.push(Part {
            source: Source::Extrapolation,
            below: distance.min(time),
            above: distance,
        });
        interval.add_up(time);
        interval
    }

    /// Sets the ends around a predicted time from the parts.
    fn add_up(&mut self, predicted: u64) {
        self.parts.retain(|part| part.below > 0 || part.above > 0);
        let sum = |of: fn(&Part) -> u64| {
            let squares = self.parts.iter().map(|part| (of(part) as f64).powi(2));
            squares.sum::<f64>().sqrt().round() as u64
        };
        let (below, above) = (sum(|part| part.below), sum(|part| part.above));
        self.low = predicted.saturating_sub(below);
        self.high = predicted.saturating_add(above);
    }
}

impl Cluster {
    /// Returns the cluster with `factor` times the cost of each message, on all paths.
    fn with_costs(&self, factor: f64) -> Cluster {
        let scaled =
            |time: u64| ((time as f64 * factor).round() as u64).min(crate::network::MOST_COST);
        Cluster {
            network: self.network.scaled(factor),
            memory: self.memory.scaled(factor),
            hop_latency: scaled(self.hop_latency),
            link_per_byte: self.link_per_byte.map(|time| time * factor),
            reduce_per_byte: self.reduce_per_byte * factor,
            datatype_overhead: scaled(self.datatype_overhead),
            ..self.clone()
        }
    }

    /// Returns the cluster with bursts that last `factor` times as long.
    fn with_bursts(&self, factor: f64) -> Cluster {
        let speed = match self.speed {
            Speed::Factor(speed) => Speed::Factor(speed / factor),
            Speed::Cpi { cpi, frequency } => Speed::Cpi {
                cpi: cpi * factor,
                frequency,
            },
        };
        Cluster {
            speed,
            ..self.clone()
        }
    }
}

/// Returns a quantile of sorted values, interpolated between the two values around it; 0 without values.
fn quantile(sorted: &[u64], part: f64) -> u64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0;
    };
    let place = part * last as f64;
    let low = (place.floor() as usize).min(last);
    let high = (low + 1).min(last);
    let fraction = place - low as f64;
    (sorted[low] as f64 + (sorted[high] as f64 - sorted[low] as f64) * fraction).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        assert_eq!(quantile(&[], 0.5), 0);
        assert_eq!(quantile(&[7], 0.975), 7);
        assert_eq!(quantile(&[10, 20, 30], 0.5), 20);
        assert_eq!(quantile(&[0, 100], 0.025), 3);
    }

    #[test]
    fn distances_of_independent_causes_add_up_in_squares() {
        let others = [
            (Source::Matching, [700, 1300]),
            (Source::Messages, [800, 1200]),
            (Source::Computation, [1000, 1000]),
        ];
        let request = Request::default();
        let interval = interval(1000, vec![900, 900, 900], others.into_iter(), &request);
        let distance = (300.0_f64.powi(2) + 392.0_f64.powi(2)).sqrt().round() as u64;
        assert_eq!(
            (interval.low, interval.high),
            (1000 - distance, 1000 + distance)
        );
        let sources: Vec<Source> = interval.parts.iter().map(|part| part.source).collect();
        assert_eq!(sources, [Source::Matching, Source::Messages]);
        assert_eq!(interval.median, 900);
    }
}
