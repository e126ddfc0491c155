//! Parameter of the cluster file with a set of values, such as `network.latency=1us:100us:log10`.

use std::fmt::Debug;
use std::str::FromStr;

use nodescope_config::document::Setting;
use nodescope_config::quantity::{ByteRate, Bytes, Decimal, Frequency, Quantity, Time, parse};
use serde::Serialize;

/// Largest number of values of a range.
const MOST: u32 = 1000;

/// Distribution of the values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Numbers, shown on a linear axis.
    Linear,
    /// Numbers, shown on a logarithmic axis.
    Logarithmic,
    /// Names, a single value, or numbers that do not ascend.
    Names,
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// Text of the value, as written in the cluster file.
    pub text: String,
    /// The number in seconds, bytes, bytes per second or hertz, or the plain number; `None` for a name, or for a number with a
    /// unit in a list whose values do not all have this unit.
    pub number: Option<f64>,
}

/// A parameter and its values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sweep {
    /// The field of the cluster file, such as `network.latency`.
    pub field: String,
    /// Unit of the numbers; empty for plain numbers and names.
    pub unit: &'static str,
    /// Distribution of the values.
    pub scale: Scale,
    /// The values without repetitions, in the order given.
    pub values: Vec<Value>,
}

/// Reason for which a text is not a sweep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; write e.g. {example}")]
pub struct SweepError {
    problem: String,
    example: &'static str,
}

const EXAMPLE: &str =
    "network.latency=1us,2us,5us or network.latency=1us:100us:log10 (10 values, logarithmic)";

fn fail<T>(problem: impl Into<String>) -> Result<T, SweepError> {
    Err(SweepError {
        problem: problem.into(),
        example: EXAMPLE,
    })
}

impl Sweep {
    /// Returns the setting of the field to one of the sweep's values.
    pub fn setting(&self, value: &Value) -> Setting {
        Setting::new(&self.field, &value.text)
    }
}

impl FromStr for Sweep {
    type Err = SweepError;

    fn from_str(text: &str) -> Result<Sweep, SweepError> {
        let Some((field, values)) = text.split_once('=') else {
            return fail(format!(
                "{text:?} has no \"=\" between the field and its values"
            ));
        };
        let field = field.trim();
        if field.is_empty() {
            return fail(format!("{text:?} names no field"));
        }
        let parts = split(values);
        if parts.iter().any(String::is_empty) {
            return fail(format!("{values:?} has an empty value"));
        }
        let mut sweep = match parts.as_slice() {
            [only] if !only.starts_with(['[', '{', '"']) && only.contains(':') => {
                range(field, only)?
            }
            _ => list(field, parts),
        };
        let mut seen = std::collections::BTreeSet::new();
        sweep.values.retain(|value| seen.insert(value.text.clone()));
        Ok(sweep)
    }
}

/// Splits a text at the commas outside brackets and quotes.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth -= 1,
            ',' if depth == 0 && !quoted => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

/// Kind of quantity with a unit, such as a time or a byte rate.
#[derive(Clone, Copy)]
struct Kind {
    what: &'static str,
    /// Number of base units, such as picoseconds, in one `unit`.
    base: f64,
    unit: &'static str,
    show: fn(u64) -> String,
}

const KINDS: [Kind; 4] = [
    Kind {
        what: Time::WHAT,
        base: 1e12,
        unit: "s",
        show: |value| Time(value).to_string(),
    },
    Kind {
        what: ByteRate::WHAT,
        base: 1.0,
        unit: "B/s",
        show: |value| ByteRate(value).to_string(),
    },
    Kind {
        what: Bytes::WHAT,
        base: 1.0,
        unit: "B",
        show: |value| Bytes(value).to_string(),
    },
    Kind {
        what: Frequency::WHAT,
        base: 1.0,
        unit: "Hz",
        show: |value| Frequency(value).to_string(),
    },
];

fn quantity(text: &str) -> Option<(Kind, u64)> {
    let values = [
        parse::<Time>(text).map(|value| value.0),
        parse::<ByteRate>(text).map(|value| value.0),
        parse::<Bytes>(text).map(|value| value.0),
        parse::<Frequency>(text).map(|value| value.0),
    ];
    let mut both = KINDS.into_iter().zip(values);
    both.find_map(|(kind, value)| value.ok().map(|value| (kind, value)))
}

/// Returns a plain number, and true if the text has a decimal point; `None` if the text is not a number.
fn plain(text: &str) -> Option<(f64, bool)> {
    Decimal::parse(text)?;
    let number: f64 = text.replace('_', "").parse().ok()?;
    Some((number, text.contains('.')))
}

fn list(field: &str, parts: Vec<String>) -> Sweep {
    let units: Vec<_> = parts.iter().map(|part| quantity(part)).collect();
    let numbers: Vec<_> = parts.iter().map(|part| plain(part)).collect();
    let unit = units
        .first()
        .copied()
        .flatten()
        .map_or("", |(kind, _)| kind.unit);
    let same = units
        .iter()
        .all(|one| one.is_some_and(|(kind, _)| kind.unit == unit));
    let values: Vec<Value> = (parts.into_iter().zip(&units).zip(&numbers))
        .map(|((text, unit), number)| Value {
            number: match (same, unit, number) {
                (true, Some((kind, value)), _) => Some(*value as f64 / kind.base),
                (false, None, Some((number, _))) => Some(*number),
                _ => None,
            },
            text,
        })
        .collect();
    let all = values.len() > 1 && values.iter().all(|value| value.number.is_some());
    let ascends = values
        .windows(2)
        .all(|pair| pair[0].number < pair[1].number);
    Sweep {
        field: field.to_owned(),
        unit: if same { unit } else { "" },
        scale: match (all && ascends, spread(&values)) {
            (true, true) => Scale::Logarithmic,
            (true, false) => Scale::Linear,
            (false, _) => Scale::Names,
        },
        values,
    }
}

/// Returns true if ascending numbers are better shown on a logarithmic axis: they span more than a decade, and none is 0.
fn spread(values: &[Value]) -> bool {
    let number = |value: Option<&Value>| value.and_then(|value| value.number).unwrap_or(0.0);
    let (first, last) = (number(values.first()), number(values.last()));
    first > 0.0 && last / first > 10.0
}

fn range(field: &str, text: &str) -> Result<Sweep, SweepError> {
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    let [from, to, count] = parts.as_slice() else {
        return fail(format!(
            "the range {text:?} is not FROM:TO:N, FROM:TO:linN or FROM:TO:logN"
        ));
    };
    let (logarithmic, digits) = match (count.strip_prefix("log"), count.strip_prefix("lin")) {
        (Some(digits), _) => (true, digits),
        (None, Some(digits)) => (false, digits),
        (None, None) => (false, *count),
    };
    let Some(count) = digits
        .parse::<u32>()
        .ok()
        .filter(|n| (2..=MOST).contains(n))
    else {
        return fail(format!(
            "the number of values {count:?} in {text:?} is none from 2 to {MOST}, alone or after \"log\" or \"lin\""
        ));
    };
    let (unit, ends, show): (_, _, Box<dyn Fn(f64) -> Value>) = match (
        (quantity(from), quantity(to)),
        (plain(from), plain(to)),
    ) {
        ((Some((kind, low)), Some((other, high))), _) => {
            if kind.unit != other.unit {
                return fail(format!(
                    "{from:?} is {} and {to:?} is {}",
                    kind.what, other.what
                ));
            }
            let show = move |value: f64| Value {
                text: (kind.show)(value.round() as u64),
                number: Some(value / kind.base),
            };
            (kind.unit, (low as f64, high as f64), Box::new(show))
        }
        (_, (Some((low, one)), Some((high, two)))) => {
            // Whole numbers yield whole numbers: most fields without a unit are counts.
            let step = if one || two { 1e-6 } else { 1.0 };
            let show = move |value: f64| {
                let value = (value / step).round() * step;
                let text = format!("{value:.6}");
                let text = text.trim_end_matches('0').trim_end_matches('.');
                Value {
                    text: text.to_owned(),
                    number: text.parse().ok(),
                }
            };
            ("", (low, high), Box::new(show))
        }
        ((first, _), (number, _)) => {
            let known = first.is_some() || number.is_some();
            let wrong = if known { to } else { from };
            return fail(format!(
                "{wrong:?} in {text:?} is neither a number nor one with a unit of time (s, ms, us, ns), size (B, KiB, MB), rate (MB/s, GB/s) or frequency (GHz)"
            ));
        }
    };
    let (low, high) = ends;
    if low >= high {
        return fail(format!("the range {text:?} does not ascend"));
    }
    if logarithmic && low <= 0.0 {
        return fail(format!("the logarithmic range {text:?} begins at 0"));
    }
    let at = |index: u32| {
        let part = f64::from(index) / f64::from(count - 1);
        let value = match (index, logarithmic) {
            (0, _) => return low,
            (index, _) if index == count - 1 => return high,
            (_, true) => low * (high / low).powf(part),
            (_, false) => low + (high - low) * part,
        };
        four_digits(value)
    };
    Ok(Sweep {
        field: field.to_owned(),
        unit,
        scale: if logarithmic {
            Scale::Logarithmic
        } else {
            Scale::Linear
        },
        values: (0..count).map(|index| show(at(index))).collect(),
    })
}

/// Rounds to four significant digits, so that the values are short to read and to type.
fn four_digits(value: f64) -> f64 {
    let step = 10f64.powf(value.abs().log10().floor() - 3.0);
    let rounded = (value / step).round() * step;
    // A step of 10^-n is not a binary fraction: whole numbers are made whole again.
    if step >= 1.0 {
        rounded.round()
    } else {
        rounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let sweep: Sweep = text.parse().unwrap();
        sweep.values.into_iter().map(|value| value.text).collect()
    }

    fn error(text: &str) -> String {
        text.parse::<Sweep>().unwrap_err().to_string()
    }

    #[test]
    fn ranges_have_their_ends_and_steps() {
        assert_eq!(
            texts("network.latency=1us:100us:log5"),
            ["1 us", "3.162 us", "10 us", "31.62 us", "100 us"]
        );
        assert_eq!(
            texts("network.latency=0us:10us:3"),
            ["0 ps", "5 us", "10 us"]
        );
        assert_eq!(texts("nodes.ranks_per_node=1:4:lin4"), ["1", "2", "3", "4"]);
        // Whole numbers that coincide are one value.
        assert_eq!(texts("nodes.cores=1:4:log8"), ["1", "2", "3", "4"]);
        assert_eq!(texts("nodes.speed=1.0:2.0:3"), ["1", "1.5", "2"]);
        assert_eq!(
            texts("network.bandwidth=1GB/s:100GB/s:log3"),
            ["1 GB/s", "10 GB/s", "100 GB/s"]
        );
    }

    #[test]
    fn lists_are_taken_as_they_are() {
        let sweep: Sweep = "nodes.placement=block,cyclic,[0, 0, 1, 1]".parse().unwrap();
        assert_eq!(sweep.scale, Scale::Names);
        assert_eq!(sweep.values.len(), 3);
        assert_eq!(sweep.values[2].text, "[0, 0, 1, 1]");
        let sweep: Sweep = "network.latency=1us,2us,4us".parse().unwrap();
        assert_eq!((sweep.scale, sweep.unit), (Scale::Linear, "s"));
        assert_eq!(sweep.values[2].number, Some(4e-6));
        let sweep: Sweep = "nodes.speed=1,10,100".parse().unwrap();
        assert_eq!(sweep.scale, Scale::Logarithmic);
        // A list of different kinds of quantities counts as names; the cluster file's check reports the error later.
        let sweep: Sweep = "network.latency=1us,2".parse().unwrap();
        assert_eq!(sweep.scale, Scale::Names);
    }

    #[test]
    fn mistakes_are_told_with_a_right_example() {
        assert!(error("network.latency").contains("has no \"=\""));
        assert!(error("=1,2").contains("names no field"));
        assert!(error("a=1,,2").contains("empty value"));
        assert!(error("a=1us:2us").contains("is not FROM:TO:N"));
        assert!(error("a=1us:2us:1").contains("none from 2 to 1000"));
        assert!(error("a=1us:2us:ln5").contains("none from 2 to 1000"));
        assert!(error("a=1us:2GB/s:5").contains("is a time and \"2GB/s\" is a byte rate"));
        assert!(error("a=2us:1us:5").contains("does not ascend"));
        assert!(error("a=0us:1us:log5").contains("begins at 0"));
        assert!(error("a=1us:2parsec:5").contains("\"2parsec\" in"));
        assert!(error("a=1:2us:5").contains("neither a number"));
        assert!(error("a=1us:2us:1").ends_with("(10 values, logarithmic)"));
    }
}
