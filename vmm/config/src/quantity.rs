//! Quantities with units, such as "512 MiB", "2.9 GHz" or "1.3 us" in a study file.
//!
//! Values are whole numbers of a base unit. A text is converted exactly, without floating point. A value that is not a whole number of base
//! units is refused.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Returns a number of things in words: "1 rank", "4 ranks".
pub fn counted(count: impl Into<u64>, thing: &str) -> String {
    match count.into() {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

/// A number with a unit.
pub trait Quantity: Sized {
    /// Name of the quantity, for messages: "a size".
    const WHAT: &'static str;
    /// Base unit of the quantity, for messages: "bytes".
    const BASE: &'static str;
    /// Valid value, for messages: "512 MiB".
    const EXAMPLE: &'static str;
    /// Units, each with the number of base units in it. Of several units with the same factor, the first one is displayed.
    const UNITS: &'static [(&'static str, u128)];

    /// Returns the quantity of so many base units.
    fn from_base(value: u64) -> Self;
}

/// Reason for which a text is no quantity. The message quotes the text and ends with a valid example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; write e.g. {example:?}")]
pub struct QuantityError {
    problem: String,
    example: &'static str,
}

/// Reads `text` as a quantity: a decimal number, optional blanks, and a unit.
///
/// # Errors
///
/// A number that is missing, negative or malformed; a unit that is missing or of another quantity; a value that is too large or no whole
/// number of base units.
pub fn parse<Q: Quantity>(text: &str) -> Result<Q, QuantityError> {
    let fail = |problem: String| {
        Err(QuantityError {
            problem,
            example: Q::EXAMPLE,
        })
    };
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_' | '-' | '+')))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim();
    if number.is_empty() {
        return fail(format!("{text:?} does not begin with a number"));
    }
    if number.starts_with('-') {
        return fail(format!("{text:?} is negative"));
    }
    let Some(decimal) = Decimal::parse(number) else {
        return fail(format!("{number:?} in {text:?} is not a decimal number"));
    };
    if unit.is_empty() {
        return fail(format!("{text:?} has no unit"));
    }
    let Some(&(_, factor)) = Q::UNITS.iter().find(|(name, _)| *name == unit) else {
        let close = Q::UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit));
        return fail(match close {
            Some((name, _)) => format!("{unit:?} in {text:?} is spelt {name:?}"),
            None => format!(
                "{text:?} is not {}: {unit:?} is none of the units {}",
                Q::WHAT,
                unit_list::<Q>()
            ),
        });
    };
    match decimal.scaled(factor) {
        Ok(value) => Ok(Q::from_base(value)),
        Err(ScaleError::Fraction) => fail(format!(
            "{text:?} is not a whole number of {base}",
            base = Q::BASE
        )),
        Err(ScaleError::TooLarge) => fail(format!(
            "{text:?} is more than the {} {} that can be represented",
            u64::MAX,
            Q::BASE
        )),
    }
}

fn unit_list<Q: Quantity>() -> String {
    let names: Vec<_> = Q::UNITS.iter().rev().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// A non-negative decimal number: `digits` / 10^`decimals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: u128,
    decimals: u32,
}

/// Reason for which a scaled number cannot be represented.
pub enum ScaleError {
    /// The scaled number is no whole number.
    Fraction,
    /// The scaled number exceeds 64 bits.
    TooLarge,
}

impl Decimal {
    /// Reads digits with at most one decimal point and with underscores between digits; `None` if the text is anything else, or has too
    /// many digits.
    pub fn parse(text: &str) -> Option<Decimal> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let plain = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_digit())
                && part.ends_with(|c: char| c.is_ascii_digit())
                && part.chars().all(|c| c.is_ascii_digit() || c == '_')
        };
        if !plain(whole) || !plain(fraction) {
            return None;
        }
        let fraction: String = fraction.chars().filter(|c| *c != '_').collect();
        let fraction = fraction.trim_end_matches('0');
        let decimals = u32::try_from(fraction.len()).ok().filter(|&n| n <= 24)?;
        let whole = whole.chars().filter(|c| *c != '_');
        let mut digits: u128 = 0;
        for c in whole.chain(fraction.chars()) {
            digits = digits
                .checked_mul(10)?
                .checked_add(u128::from(c.to_digit(10)?))?;
        }
        Some(Decimal { digits, decimals })
    }

    /// Returns the number times `factor`. Fails if the product is not a whole number or exceeds 64 bits.
    pub fn scaled(self, factor: u128) -> Result<u64, ScaleError> {
        let product = self
            .digits
            .checked_mul(factor)
            .ok_or(ScaleError::TooLarge)?;
        let divisor = 10_u128.pow(self.decimals);
        if product % divisor != 0 {
            return Err(ScaleError::Fraction);
        }
        u64::try_from(product / divisor).map_err(|_| ScaleError::TooLarge)
    }
}

/// Writes `value`, a number of base units, in the largest unit in which it has at most three decimals; in units of powers of two, none.
fn show<Q: Quantity>(f: &mut fmt::Formatter<'_>, value: u64) -> fmt::Result {
    let value = u128::from(value);
    let mut units: Vec<_> = Q::UNITS.to_vec();
    units.sort_by_key(|(_, factor)| std::cmp::Reverse(*factor));
    // A binary size with decimals is harder to read than a smaller unit.
    let decimals = |factor: u128| if factor.is_power_of_two() { 1 } else { 1000 };
    let fits = |(_, factor): &&(&str, u128)| {
        value >= *factor && (value * decimals(*factor)).is_multiple_of(*factor)
    };
    let Some((unit, factor)) = units.iter().find(fits).or(units.last()) else {
        return write!(f, "{value}");
    };
    let (whole, rest) = (value / factor, value % factor);
    if rest == 0 {
        return write!(f, "{whole} {unit}");
    }
    let fraction = format!("{:03}", rest * 1000 / factor);
    write!(f, "{whole}.{} {unit}", fraction.trim_end_matches('0'))
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $what:literal, $base:literal, $example:literal, [$(($unit:literal, $factor:expr)),* $(,)?]) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl Quantity for $name {
            const WHAT: &'static str = $what;
            const BASE: &'static str = $base;
            const EXAMPLE: &'static str = $example;
            const UNITS: &'static [(&'static str, u128)] = &[$(($unit, $factor)),*];

            fn from_base(value: u64) -> Self {
                $name(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                show::<Self>(f, self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = QuantityError;

            fn from_str(text: &str) -> Result<Self, QuantityError> {
                parse(text)
            }
        }
    };
}

const K: u128 = 1000;
const M: u128 = 1000 * K;
const G: u128 = 1000 * M;
const T: u128 = 1000 * G;

quantity! {
    /// Size in bytes.
    Bytes, "a size", "bytes", "512 MiB",
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("TB", T), ("GB", G), ("MB", M), ("kB", K), ("B", 1)]
}
quantity! {
    /// Frequency in hertz.
    Frequency, "a frequency", "hertz", "2.9 GHz",
    [("GHz", G), ("MHz", M), ("kHz", K), ("Hz", 1)]
}
quantity! {
    /// Virtual time in picoseconds.
    Time, "a time", "picoseconds", "1.3 us",
    [("h", 3600 * T), ("min", 60 * T), ("s", T), ("ms", G), ("us", M), ("µs", M), ("μs", M), ("ns", K), ("ps", 1)]
}
impl Time {
    /// Returns a measured or predicted time for people: in ns, us, ms or s by its size, and with so many decimals.
    pub fn rounded(self, decimals: usize) -> String {
        let (unit, factor) = match self.0 {
            0..1_000_000 => ("ns", 1e3),
            1_000_000..1_000_000_000 => ("us", 1e6),
            1_000_000_000..1_000_000_000_000 => ("ms", 1e9),
            _ => ("s", 1e12),
        };
        format!("{:.decimals$} {unit}", self.0 as f64 / factor)
    }
}

quantity! {
    /// Bit rate in bits per second.
    BitRate, "a bit rate", "bit/s", "10 Gbit/s",
    [("Tbit/s", T), ("Gbit/s", G), ("Mbit/s", M), ("kbit/s", K), ("bit/s", 1)]
}
quantity! {
    /// Byte rate in bytes per second.
    ByteRate, "a byte rate", "bytes/s", "51.2 GB/s",
    [("TB/s", T), ("GB/s", G), ("MB/s", M), ("kB/s", K), ("B/s", 1)]
}
quantity! {
    /// Number of instructions.
    Instructions, "a number of instructions", "instructions", "50 M instructions",
    [("G instructions", G), ("M instructions", M), ("k instructions", K), ("instructions", 1), ("instruction", 1)]
}
quantity! {
    /// Number of processor cycles.
    Cycles, "a number of cycles", "cycles", "12 cycles",
    [("cycles", 1), ("cycle", 1)]
}

/// Latency of an operation in the processor or in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Latency {
    /// Cycles of the node's clock.
    Cycles(Cycles),
    /// Time, converted to cycles at the node's frequency.
    Time(Time),
}

impl Latency {
    /// Returns the number of cycles at `frequency`, rounded to the nearest.
    pub fn cycles(self, frequency: Frequency) -> u64 {
        match self {
            Latency::Cycles(cycles) => cycles.0,
            Latency::Time(time) => {
                let product = u128::from(time.0) * u128::from(frequency.0);
                u64::try_from((product + T / 2) / T).unwrap_or(u64::MAX)
            }
        }
    }
}

impl std::str::FromStr for Latency {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match parse::<Cycles>(text) {
            Ok(cycles) => Ok(Latency::Cycles(cycles)),
            Err(mut error) => match parse::<Time>(text) {
                Ok(time) => Ok(Latency::Time(time)),
                Err(_) => {
                    if error.problem.contains("none of the units") {
                        error.problem = format!("{text:?} is neither cycles nor a time");
                    }
                    Err(error)
                }
            },
        }
    }
}

/// Cycles per instruction, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cpi(pub u64);

impl Cpi {
    /// The value of exactly one cycle per instruction.
    pub const ONE: Cpi = Cpi(1_000_000);

    /// Returns the value in units of 1/65536 cycle, the unit of the virtual clock, rounded to the nearest.
    pub fn per_65536(self) -> u32 {
        u32::try_from((self.0 * 65_536 + 500_000) / 1_000_000).unwrap_or(u32::MAX)
    }

    /// Returns the value as a floating-point number, for display and equations.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for Cpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message<Q: Quantity + fmt::Debug>(text: &str) -> String {
        parse::<Q>(text).unwrap_err().to_string()
    }

    #[test]
    fn one_thing_is_no_plural() {
        let told = [0u32, 1, 2].map(|count| counted(count, "rank"));
        assert_eq!(told, ["0 ranks", "1 rank", "2 ranks"]);
    }

    #[test]
    fn quantities_are_exact() {
        assert_eq!("512 MiB".parse(), Ok(Bytes(512 << 20)));
        assert_eq!("1.5GiB".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("2.9 GHz".parse(), Ok(Frequency(2_900_000_000)));
        assert_eq!("1.3 us".parse(), Ok(Time(1_300_000)));
        assert_eq!("1.3 µs".parse(), Ok(Time(1_300_000)));
        assert_eq!("0.1 s".parse(), Ok(Time(100_000_000_000)));
        assert_eq!("10 Gbit/s".parse(), Ok(BitRate(10_000_000_000)));
        assert_eq!("10 M instructions".parse(), Ok(Instructions(10_000_000)));
        assert_eq!("1_000 instructions".parse(), Ok(Instructions(1000)));
        assert_eq!("18446744073709551615 B".parse(), Ok(Bytes(u64::MAX)));
    }

    #[test]
    fn times_are_rounded_in_a_unit_that_suits_them() {
        assert_eq!(Time(0).rounded(3), "0.000 ns");
        assert_eq!(Time(1_234_567).rounded(3), "1.235 us");
        assert_eq!(Time(1_234_567_890).rounded(1), "1.2 ms");
        assert_eq!(Time(u64::MAX).rounded(4), "18446744.0737 s");
    }

    #[test]
    fn mistakes_are_named_with_a_right_example() {
        assert_eq!(
            message::<Time>("1.3"),
            r#""1.3" has no unit; write e.g. "1.3 us""#
        );
        assert_eq!(
            message::<Time>("1.3 GHz"),
            r#""1.3 GHz" is not a time: "GHz" is none of the units ps, ns, μs, µs, us, ms, s, min, h; write e.g. "1.3 us""#
        );
        assert_eq!(
            message::<Frequency>("2.9 ghz"),
            r#""ghz" in "2.9 ghz" is spelt "GHz"; write e.g. "2.9 GHz""#
        );
        assert_eq!(
            message::<Bytes>("0.3 B"),
            r#""0.3 B" is not a whole number of bytes; write e.g. "512 MiB""#
        );
        assert_eq!(
            message::<Bytes>("-1 B"),
            r#""-1 B" is negative; write e.g. "512 MiB""#
        );
        assert_eq!(
            message::<Bytes>("MiB"),
            r#""MiB" does not begin with a number; write e.g. "512 MiB""#
        );
        assert_eq!(
            message::<Bytes>("1.2.3 B"),
            r#""1.2.3" in "1.2.3 B" is not a decimal number; write e.g. "512 MiB""#
        );
        assert!(message::<Bytes>("99999999999 TiB").contains("is more than the"));
        assert!(
            "3 GB"
                .parse::<Latency>()
                .unwrap_err()
                .to_string()
                .contains("neither cycles nor a time")
        );
    }

    #[test]
    fn cpis_become_the_clocks_unit() {
        assert_eq!(Cpi::ONE.per_65536(), 65_536);
        assert_eq!(Cpi(850_000).per_65536(), 55_706);
        assert_eq!(Cpi(1_000_000_000).per_65536(), 65_536_000);
    }

    #[test]
    fn latencies_become_cycles_at_the_nodes_clock() {
        let clock = Frequency(2_900_000_000);
        assert_eq!("100 cycles".parse::<Latency>().unwrap().cycles(clock), 100);
        assert_eq!("10 ns".parse::<Latency>().unwrap().cycles(clock), 29);
        assert_eq!("0.5 ns".parse::<Latency>().unwrap().cycles(clock), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Latency>();
        }

        #[test]
        fn what_is_shown_reads_back(value: u64) {
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            prop_assert_eq!(Time(value).to_string().parse(), Ok(Time(value)));
            prop_assert_eq!(Instructions(value).to_string().parse(), Ok(Instructions(value)));
        }
    }
}
