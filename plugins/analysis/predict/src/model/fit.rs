//! Functions of the number of ranks p and the problem size n.
//!
//! The form is the performance model normal form (Calotoiu, Hoefler, Poke and Wolf, SC 2013) with two parameters. The search is that of
//! Calotoiu et al., "Fast multi-parameter performance modeling" (CLUSTER 2016): first each parameter alone, on lines of runs that differ in
//! this parameter only, then sums and products of the terms that were found. The term of a parameter alone is that of
//! [`Fit`]. Coefficients have the least sum of squared relative errors. The function that best predicts each run from
//! the others is taken; one with fewer coefficients, unless another is clearly better.

use linfa_linalg::qr::LeastSquaresQrInto;
use ndarray::Array2;
use serde::Serialize;

use crate::scale::{CLEARLY, Fit, NOTABLY, Term, relative};

/// A value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Number of ranks.
    pub ranks: f64,
    /// Problem size.
    pub size: f64,
    /// Value of the metric.
    pub value: f64,
}

/// A product of a term of p and a term of n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Product {
    /// Term of p; `None` for 1.
    pub ranks: Option<Term>,
    /// Term of n; `None` for 1.
    pub size: Option<Term>,
}

impl Product {
    fn at(&self, ranks: f64, size: f64) -> f64 {
        let of = |term: Option<Term>, value: f64| term.map_or(1.0, |term| term.at(value));
        of(self.ranks, ranks) * of(self.size, size)
    }
}

/// A function of p and n: a sum of products with coefficients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit2 {
    /// Coefficients and products; a product without terms is the constant.
    pub terms: Vec<(f64, Product)>,
    /// Mean of |predicted - observed| / observed over the runs, each predicted from the others.
    pub error: f64,
}

/// Values of a parameter and of the metric.
type Points = [(f64, f64)];

const ONE: Product = Product {
    ranks: None,
    size: None,
};

impl Fit2 {
    /// Fits samples of at least three values of each parameter that varies.
    ///
    /// # Errors
    ///
    /// Returns true if p varies without three runs that differ in p alone, and false if n does.
    pub fn new(samples: &[Sample]) -> Result<Fit2, bool> {
        let ranks = found(samples, |of| (of.size, of.ranks), &|points| {
            Fit::new(points, &[])
        });
        let sizes = found(samples, |of| (of.ranks, of.size), &Fit::of_size);
        let (ranks, sizes) = (ranks.ok_or(true)?, sizes.ok_or(false)?);
        let mut forms: Vec<Vec<Product>> = vec![vec![ONE]];
        let alone = |form: &mut Vec<Vec<Product>>, product: Product| {
            form.push(vec![product]);
            form.push(vec![ONE, product]);
        };
        let of_ranks = |term| Product {
            ranks: Some(term),
            size: None,
        };
        let of_size = |term| Product {
            ranks: None,
            size: Some(term),
        };
        (ranks.iter()).for_each(|&term| alone(&mut forms, of_ranks(term)));
        (sizes.iter()).for_each(|&term| alone(&mut forms, of_size(term)));
        for &p in &ranks {
            for &n in &sizes {
                let both = Product {
                    ranks: Some(p),
                    size: Some(n),
                };
                alone(&mut forms, both);
                let (p, n) = (of_ranks(p), of_size(n));
                forms.push(vec![p, n]);
                forms.push(vec![ONE, p, n]);
                forms.push(vec![p, both]);
                forms.push(vec![n, both]);
                forms.push(vec![ONE, p, both]);
                forms.push(vec![ONE, n, both]);
                forms.push(vec![ONE, p, n, both]);
            }
        }
        forms.sort_by_key(Vec::len);
        let mut best: Option<Fit2> = None;
        for form in forms {
            let Some(fit) = Fit2::with(&form, samples) else {
                continue;
            };
            let better = best
                .as_ref()
                .is_none_or(|best| match form.len() > best.terms.len() {
                    true => fit.error < best.error * CLEARLY && fit.error < best.error - NOTABLY,
                    false => fit.error < best.error * (1.0 - 1e-9),
                });
            if better {
                best = Some(fit);
            }
        }
        Ok(best.unwrap_or(Fit2 {
            terms: vec![(0.0, ONE)],
            error: 0.0,
        }))
    }

    /// Fits one form; `None` if the samples do not determine its coefficients, or it is negative at one of them.
    fn with(form: &[Product], samples: &[Sample]) -> Option<Fit2> {
        let all: Vec<&Sample> = samples.iter().collect();
        let coefficients = solve(form, &all)?;
        let mut fit = Fit2 {
            terms: coefficients.into_iter().zip(form.iter().copied()).collect(),
            error: 0.0,
        };
        if (samples.iter()).any(|of| fit.at(of.ranks, of.size) < 0.0) {
            return None;
        }
        for left_out in samples {
            // Runs of equal parameters are left out together: one would predict the other.
            let is_other = |of: &&Sample| (of.ranks, of.size) != (left_out.ranks, left_out.size);
            let others: Vec<&Sample> = samples.iter().filter(is_other).collect();
            let other = Fit2 {
                terms: solve(form, &others)?
                    .into_iter()
                    .zip(form.iter().copied())
                    .collect(),
                error: 0.0,
            };
            let predicted = other.at(left_out.ranks, left_out.size);
            fit.error += relative(predicted, left_out.value) / samples.len() as f64;
        }
        Some(fit)
    }

    /// Returns the value at a number of ranks and a problem size.
    pub fn at(&self, ranks: f64, size: f64) -> f64 {
        let terms = self.terms.iter();
        terms.map(|(by, of)| by * of.at(ranks, size)).sum()
    }

    /// Returns the function as text; `name` is the name of the problem size.
    pub fn text(&self, name: &str) -> String {
        let mut out = String::new();
        for (index, (by, of)) in self.terms.iter().enumerate() {
            let sign = match (index, *by < 0.0) {
                (0, false) => "",
                (0, true) => "-",
                (_, false) => " + ",
                (_, true) => " - ",
            };
            let parts = [
                of.size.map(|term| term.text(name)),
                of.ranks.map(|term| term.text("p")),
            ];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            out.push_str(sign);
            out.push_str(&digits(by.abs()));
            for part in parts {
                out.push(' ');
                out.push_str(&part);
            }
        }
        out
    }
}

/// Returns a number with four significant digits.
fn digits(value: f64) -> String {
    let exponent = if value > 0.0 {
        value.log10().floor() as i32
    } else {
        0
    };
    match exponent {
        -3..=3 => format!("{value:.*}", (3 - exponent).max(0) as usize),
        4..=6 => format!("{value:.0}"),
        _ => format!("{value:.3e}"),
    }
}

/// Returns the terms that describe the lines of samples that differ in one parameter only; no term if that parameter does not vary.
/// `parameters` returns the other parameter and this one. `None` if the parameter varies on no line of three values.
fn found(
    samples: &[Sample],
    parameters: impl Fn(&Sample) -> (f64, f64),
    fit: &dyn Fn(&Points) -> Fit,
) -> Option<Vec<Term>> {
    let mut sorted: Vec<(f64, f64, f64)> = samples
        .iter()
        .map(|of| {
            let (other, own) = parameters(of);
            (other, own, of.value)
        })
        .collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let varies = sorted.iter().any(|of| of.1 != sorted[0].1);
    let (mut terms, mut lines) = (Vec::new(), 0);
    for line in sorted.chunk_by(|a, b| a.0 == b.0) {
        // Runs of equal parameters count with their mean.
        let means = line.chunk_by(|a, b| a.1 == b.1);
        let mean = |of: &[(f64, f64, f64)]| {
            let sum: f64 = of.iter().map(|of| of.2).sum();
            (of[0].1, sum / of.len() as f64)
        };
        let points: Vec<(f64, f64)> = means.map(mean).collect();
        if points.len() < 3 {
            continue;
        }
        lines += 1;
        if let Some(term) = fit(&points).form.term
            && !terms.contains(&term)
        {
            terms.push(term);
        }
    }
    (lines > 0 || !varies).then_some(terms)
}

/// Returns the coefficients of products with the least sum of squared relative errors; `None` if the samples do not determine them.
fn solve(form: &[Product], samples: &[&Sample]) -> Option<Vec<f64>> {
    let (rows, columns) = (samples.len(), form.len());
    if rows < columns {
        return None;
    }
    // Rows are divided by the values, columns by their greatest numbers, so that the parameters' magnitudes do not matter.
    let weight = |of: &Sample| match of.value == 0.0 {
        true => 1.0,
        false => 1.0 / of.value.abs(),
    };
    let mut matrix = Array2::from_shape_fn((rows, columns), |(row, column)| {
        let of = samples[row];
        form[column].at(of.ranks, of.size) * weight(of)
    });
    let mut scales = Vec::with_capacity(columns);
    for mut column in matrix.columns_mut() {
        let greatest = column.iter().fold(0.0f64, |most, of| most.max(of.abs()));
        if greatest <= 0.0 || !greatest.is_finite() {
            return None;
        }
        column.mapv_inplace(|of| of / greatest);
        scales.push(greatest);
    }
    let values = Array2::from_shape_fn((rows, 1), |(row, _)| {
        samples[row].value * weight(samples[row])
    });
    let solved = matrix.least_squares_into(values).ok()?;
    let found: Vec<f64> = solved
        .iter()
        .zip(scales)
        .map(|(of, scale)| of / scale)
        .collect();
    found.iter().all(|of| of.is_finite()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: [f64; 4] = [2.0, 4.0, 8.0, 16.0];
    const SIZES: [f64; 4] = [128.0, 256.0, 512.0, 1024.0];

    fn samples(value: impl Fn(f64, f64) -> f64) -> Vec<Sample> {
        let pairs = RANKS.into_iter().flat_map(|p| SIZES.map(|n| (p, n)));
        let sample = |(ranks, size)| Sample {
            ranks,
            size,
            value: value(ranks, size),
        };
        pairs.map(sample).collect()
    }

    #[test]
    fn known_functions_are_found_and_extrapolate() {
        type Function = fn(f64, f64) -> f64;
        let cases: [(Function, &str); 7] = [
            (|_, _| 7.0, "7.000"),
            (|p, _| 4.0 * p, "4.000 p"),
            (|_, n| 3e4 + 0.5 * n * n, "30000 + 0.5000 n^2"),
            (|p, n| 2.0 * n * n * n / p, "2.000 n^3 p^-1"),
            (|p, n| 100.0 + 2.0 * n * n / p, "100.0 + 2.000 n^2 p^-1"),
            (|p, n| 5.0 * p.log2() + 3.0 * n, "5.000 log2(p) + 3.000 n"),
            (|p, n| 9.0 + 5.0 * p + 3.0 * n, "9.000 + 5.000 p + 3.000 n"),
        ];
        for (value, text) in cases {
            let fit = Fit2::new(&samples(value)).unwrap();
            assert_eq!(fit.text("n"), text);
            assert!(fit.error < 1e-6, "{fit:?}");
            let far = (512.0, 8192.0);
            assert!(
                relative(fit.at(far.0, far.1), value(far.0, far.1)) < 1e-5,
                "{text}"
            );
        }
    }

    #[test]
    fn one_parameter_alone_is_enough() {
        let alone: Vec<Sample> = samples(|p, n| 6.0 * n / p)
            .into_iter()
            .filter(|of| of.size == 128.0)
            .collect();
        assert_eq!(Fit2::new(&alone).unwrap().text("n"), "768.0 p^-1");
        let crossed: Vec<Sample> = samples(|p, n| 6.0 * n / p)
            .into_iter()
            .filter(|of| of.size == 128.0 || of.ranks == 2.0)
            .collect();
        assert_eq!(Fit2::new(&crossed).unwrap().text("n"), "6.000 n p^-1");
        let diagonal: Vec<Sample> = samples(|p, n| 6.0 * n / p)
            .into_iter()
            .filter(|of| of.size == 64.0 * of.ranks)
            .collect();
        assert_eq!(Fit2::new(&diagonal), Err(true));
    }

    #[test]
    fn noise_makes_no_law_and_is_stated() {
        let noise = |p: f64, n: f64| 1.0 + 0.03 * (p * 12.9898 + n * 78.233).sin();
        let fit = Fit2::new(&samples(|p, n| 50.0 * noise(p, n))).unwrap();
        assert_eq!(fit.terms.len(), 1, "{fit:?}");
        assert!(fit.error > 0.005 && fit.error < 0.05, "{fit:?}");
        let grows = Fit2::new(&samples(|p, n| n * n / p * noise(p, n))).unwrap();
        let expected = 8192.0f64.powi(2) / 64.0;
        assert!(
            relative(grows.at(64.0, 8192.0), expected) < 0.2,
            "{grows:?}"
        );
    }
}
