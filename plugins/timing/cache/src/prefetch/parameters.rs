//! Text form of a prefetcher's parameters.

use std::fmt;

use nodescope_plugin_api::{Parameter, Unit};

use super::accurate::ACCURACY;

/// Makes the parameter of a prefetcher: a whole number from 1 on.
pub(super) const fn parameter(
    name: &'static str,
    line: &'static str,
    default: u64,
    most: u64,
) -> Parameter {
    Parameter {
        name,
        line,
        unit: Unit::Number,
        default,
        least: 1,
        most,
    }
}

/// Error of a text that is no prefetcher.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownPrefetcher {
    /// No prefetcher has this name.
    #[error("\"{0}\" is no prefetcher; write one of {names}", names = super::NAMES.join(", "))]
    Name(String),
    /// The prefetcher has no parameter of this name.
    #[error(
        "the prefetcher {prefetcher} has no parameter \"{parameter}\"; its parameters: {known}"
    )]
    Parameter {
        /// Name of the prefetcher.
        prefetcher: String,
        /// The name that the text has.
        parameter: String,
        /// The names of the prefetcher's parameters.
        known: String,
    },
    /// A parameter is given twice.
    #[error("the prefetcher {prefetcher} has its parameter {parameter} twice; leave one out")]
    Twice {
        /// Name of the prefetcher.
        prefetcher: String,
        /// Name of the parameter.
        parameter: &'static str,
    },
    /// The value of a parameter is no number, or out of range.
    #[error(
        "the prefetcher {prefetcher} has {parameter}=\"{value}\"; give a whole number from 1 to {most}"
    )]
    Value {
        /// Name of the prefetcher.
        prefetcher: String,
        /// Name of the parameter.
        parameter: &'static str,
        /// The value that the text has.
        value: String,
        /// Largest value of the parameter.
        most: u32,
    },
}

/// Takes the values of one parameter out of a text as [`read`] reads it. Returns them and the others; `None` where there are none.
pub(super) fn apart(text: &str, parameter: &str) -> (Option<String>, Option<String>) {
    let (of_it, others): (Vec<&str>, Vec<&str>) = text
        .split(',')
        .partition(|item| item.split('=').next() == Some(parameter));
    let join = |items: Vec<&str>| (!items.is_empty()).then(|| items.join(","));
    (join(of_it), join(others))
}

/// Reads the values of a prefetcher's parameters from a text as `name=value,name=value`. `None`: there is no text.
pub(super) fn read<const N: usize>(
    prefetcher: &str,
    parameters: &[Parameter; N],
    text: Option<&str>,
) -> Result<[u32; N], UnknownPrefetcher> {
    let mut given = [None; N];
    for item in text.into_iter().flat_map(|text| text.split(',')) {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let Some(number) = parameters.iter().position(|known| known.name == name) else {
            return Err(UnknownPrefetcher::Parameter {
                prefetcher: prefetcher.to_owned(),
                parameter: name.to_owned(),
                known: known(parameters),
            });
        };
        let Parameter { name, most, .. } = parameters[number];
        let most = most as u32;
        let value = value_up_to(most, value).ok_or_else(|| UnknownPrefetcher::Value {
            prefetcher: prefetcher.to_owned(),
            parameter: name,
            value: value.to_owned(),
            most,
        })?;
        if given[number].replace(value).is_some() {
            return Err(UnknownPrefetcher::Twice {
                prefetcher: prefetcher.to_owned(),
                parameter: name,
            });
        }
    }
    Ok(std::array::from_fn(|number| {
        given[number].unwrap_or(parameters[number].default as u32)
    }))
}

/// Returns the number that a text of digits stands for, if it is from 1 to `most`.
fn value_up_to(most: u32, text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse().ok().filter(|_| digits)?;
    (1..=most).contains(&value).then_some(value)
}

/// Returns the names of parameters as a list in a sentence.
fn known(parameters: &[Parameter]) -> String {
    let all = parameters.iter().chain([&ACCURACY]);
    let names: Vec<&str> = all.map(|parameter| parameter.name).collect();
    names.join(", ")
}

/// The parameter `pages`: the pages of 4 KiB that a prefetcher reaches, the accessed one included. The text form leaves its default out.
pub(super) const PAGES: Parameter = parameter("pages", "pages of 4 KiB that it reaches", 1, 512);

/// Writes a prefetcher with its parameters, as [`read`] reads them.
pub(super) fn write<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    prefetcher: &str,
    parameters: &[Parameter; N],
    values: [u32; N],
) -> fmt::Result {
    f.write_str(prefetcher)?;
    let values = parameters.iter().zip(values);
    let written = values
        .filter(|(parameter, value)| **parameter != PAGES || u64::from(*value) != PAGES.default);
    for (number, (parameter, value)) in written.enumerate() {
        let separator = if number == 0 { ':' } else { ',' };
        write!(f, "{separator}{}={value}", parameter.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{NAMES, Prefetch};

    /// Returns the reason for which a text is refused.
    fn refusal(text: &str) -> String {
        text.parse::<Prefetch>().unwrap_err().to_string()
    }

    #[test]
    fn texts_without_parameters_have_the_defaults() {
        let canonical = [
            "next-line",
            "adjacent-line",
            "up-down",
            "stride:entries=64,distance=1,degree=1",
            "stream:streams=32,distance=20,degree=2,train=2",
        ];
        for (name, canonical) in NAMES.into_iter().zip(canonical) {
            let prefetch: Prefetch = name.parse().unwrap();
            assert_eq!(prefetch.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(prefetch));
        }
    }

    #[test]
    fn parameters_may_be_left_out_and_come_in_any_order() {
        for (text, canonical) in [
            ("stride:degree=16", "stride:entries=64,distance=1,degree=16"),
            (
                "stride:distance=64,entries=1024",
                "stride:entries=1024,distance=64,degree=1",
            ),
            (
                "stream:train=16,streams=1",
                "stream:streams=1,distance=20,degree=2,train=16",
            ),
            (
                "stream:degree=08",
                "stream:streams=32,distance=20,degree=8,train=2",
            ),
        ] {
            assert_eq!(text.parse::<Prefetch>().unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn the_serialized_form_is_the_text() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Level {
            prefetch: Vec<Prefetch>,
        }
        let text = "prefetch = [\"next-line\", \"stride:entries=8,distance=2,degree=3\"]\n";
        let level: Level = toml::from_str(text).unwrap();
        assert_eq!(toml::to_string(&level).unwrap(), text);
        assert!(toml::from_str::<Level>("prefetch = [\"stride:entries=0\"]").is_err());
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        for text in ["", "nextline", "Stride", " stride", "stride ", "none"] {
            assert_eq!(
                refusal(text),
                format!(
                    "\"{text}\" is no prefetcher; write one of next-line, adjacent-line, up-down, stride, stream"
                )
            );
        }
        for (text, parameter) in [
            ("stride:", ""),
            ("stride:entries=8,", ""),
            ("stride:train=2", "train"),
            ("stride: entries=2", " entries"),
        ] {
            assert_eq!(
                refusal(text),
                format!(
                    "the prefetcher stride has no parameter \"{parameter}\"; its parameters: entries, distance, degree, pages, accuracy"
                )
            );
        }
        assert_eq!(
            refusal("next-line:degree=2"),
            "the prefetcher next-line has no parameter \"degree\"; its parameters: accuracy"
        );
        assert!(refusal("adjacent-line:").ends_with("its parameters: accuracy"));
        assert_eq!(
            refusal("stream:train=1,train=1"),
            "the prefetcher stream has its parameter train twice; leave one out"
        );
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (prefetcher, parameter, most) in [
            ("stride", "entries", 1024),
            ("stride", "distance", 64),
            ("stride", "degree", 16),
            ("stream", "streams", 1024),
            ("stream", "distance", 64),
            ("stream", "degree", 16),
            ("stream", "train", 16),
            ("stride", "pages", 512),
            ("stream", "pages", 512),
            ("stream", "accuracy", 100),
            ("up-down", "accuracy", 100),
        ] {
            let above = (most + 1).to_string();
            let wrong = [
                "0",
                &above,
                "4294967297",
                "+1",
                "-1",
                "1.0",
                " 1",
                "1=1",
                "x",
                "",
            ];
            for value in wrong {
                assert_eq!(
                    refusal(&format!("{prefetcher}:{parameter}={value}")),
                    format!(
                        "the prefetcher {prefetcher} has {parameter}=\"{value}\"; give a whole number from 1 to {most}"
                    )
                );
            }
            assert!(refusal(&format!("{prefetcher}:{parameter}")).contains(parameter));
            for value in [1, most] {
                let text = format!("{prefetcher}:{parameter}={value}");
                let canonical = text.parse::<Prefetch>().unwrap().to_string();
                let left_out = parameter == "pages" && value == 1;
                assert!(left_out || canonical.contains(&format!("{parameter}={value}")));
            }
        }
    }

    proptest! {
        #[test]
        fn texts_survive_a_round_trip(
            entries in 1u32..=1024, distance in 1u32..=64, degree in 1u32..=16, train in 1u32..=16, pages in 2u32..=512,
        ) {
            for text in [
                format!("stride:entries={entries},distance={distance},degree={degree}"),
                format!("stream:streams={entries},distance={distance},degree={degree},train={train}"),
                format!("stride:entries={entries},distance={distance},degree={degree},pages={pages}"),
                format!("stride:entries={entries},distance={distance},degree={degree},accuracy={degree}"),
                format!("next-line:accuracy={degree}"),
                format!("stream:streams={entries},distance={distance},degree={degree},train={train},pages={pages}"),
            ] {
                let prefetch: Prefetch = text.parse().unwrap();
                prop_assert_eq!(prefetch.to_string(), text);
            }
        }
    }
}
