//! The command line of `nodescope model`.

use std::path::PathBuf;
use std::str::FromStr;

/// `nodescope model`.
#[derive(Debug, clap::Args)]
pub struct Model {
    /// Folders of results, or traces, of one program: at least three numbers of ranks, or three problem sizes, or both.
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// The problem size of each of the results, in their order, with a name, such as n=512,512,1024,1024. The number of ranks, p, is known.
    #[arg(long, value_name = "NAME=VALUE,...", default_value = "n=1")]
    pub parameter: Sizes,
    /// Print the functions' values, too, at a number of ranks and a problem size, such as p=64,n=4096; may be given several times.
    #[arg(long, value_name = "p=P,NAME=VALUE")]
    pub at: Vec<Place>,
    /// The program's time is that predicted on the cluster that this file describes (guide: The cluster file), in place of the traced one.
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// The MPI program, by its number in the report, in traces of several.
    #[arg(long, value_name = "N")]
    pub program: Option<usize>,
    /// Write the data for Extra-P, in its format JSON Lines.
    #[arg(long, value_name = "FILE")]
    pub extra_p: Option<PathBuf>,
    /// Replace a file that is already there.
    #[arg(long, requires = "extra_p")]
    pub force: bool,
    /// Print JSON in place of text.
    #[arg(long)]
    pub json: bool,
}

/// Problem sizes and their name.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Name of the problem size.
    pub name: String,
    /// Value for each of the results.
    pub values: Vec<f64>,
}

fn name_of(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = text.trim();
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic());
    match starts && name.chars().all(is_name) && name != "p" {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "\"{name}\" is no name of a problem size; give letters, such as n (p is the number of ranks)"
        )),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok();
    let possible = |of: &f64| of.is_finite() && *of > 0.0 && *of <= 1e15;
    number
        .filter(possible)
        .ok_or_else(|| format!("\"{text}\" is no number above 0"))
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let Some((name, values)) = text.split_once('=') else {
            return Err(format!(
                "\"{text}\" has no values; give e.g. n=512,512,1024"
            ));
        };
        Ok(Sizes {
            name: name_of(name)?,
            values: values.split(',').map(positive).collect::<Result<_, _>>()?,
        })
    }
}

/// A number of ranks and a problem size.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Number of ranks.
    pub ranks: f64,
    /// Name and value of the problem size; `None` if it is not given.
    pub size: Option<(String, f64)>,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let (mut ranks, mut size) = (None, None);
        for part in text.split(',') {
            match part.split_once('=') {
                Some(("p", value)) => ranks = Some(positive(value)?),
                Some((name, value)) => size = Some((name_of(name)?, positive(value)?)),
                None => {
                    return Err(format!(
                        "\"{part}\" is no NAME=VALUE; give e.g. p=64,n=4096"
                    ));
                }
            }
        }
        let ranks = ranks.ok_or("p is missing; give e.g. p=64,n=4096")?;
        Ok(Place { ranks, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_places_are_read_and_mistakes_told() {
        let sizes: Sizes = "n=512,1e3,2".parse().unwrap();
        assert_eq!(
            (sizes.name.as_str(), sizes.values),
            ("n", vec![512.0, 1000.0, 2.0])
        );
        for wrong in [
            "n", "p=1", "=1", "n=", "n=1,,2", "n=0", "n=-1", "n=inf", "a b=1",
        ] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
        let place: Place = "p=64,edge=4096".parse().unwrap();
        assert_eq!(place.size, Some(("edge".to_owned(), 4096.0)));
        assert!("n=3".parse::<Place>().unwrap_err().contains("p is missing"));
        assert!("p".parse::<Place>().is_err());
    }
}
