//! Fits of a quantity as a function of the number of ranks.
//!
//! Candidates are c, c1 p^i log2(p)^j and c0 + c1 p^i log2(p)^j: the performance model normal form with one term (Calotoiu, Hoefler,
//! Poke and Wolf, "Using automated performance modeling to find scalability bugs in complex codes", SC 2013), with negative
//! exponents for work that is divided. Coefficients have the least sum of squared relative errors. The candidate that best predicts
//! each size from the others (leave-one-out cross-validation) is taken; a simpler one, unless another is clearly better.

use serde::Serialize;

/// Exponents of p, in sixths.
const EXPONENTS: [i32; 15] = [-12, -9, -8, -6, -4, -3, -2, 0, 2, 3, 4, 6, 8, 9, 12];
/// Exponents of log2(p).
const LOGARITHMS: [u32; 3] = [0, 1, 2];
/// Number of sizes below which only the plainest exponents are candidates: among many candidates, some fit a few points by chance.
const MANY: usize = 5;
const PLAIN_EXPONENTS: [i32; 5] = [-6, -3, 0, 3, 6];
const PLAIN_LOGARITHMS: [u32; 2] = [0, 1];
/// Exponents of a problem's size: work may grow with its third power.
const SIZE_EXPONENTS: [i32; 17] = [-12, -6, -3, 0, 2, 3, 4, 6, 8, 9, 10, 12, 14, 15, 16, 18, 24];
const PLAIN_SIZE_EXPONENTS: [i32; 8] = [-6, -3, 0, 3, 6, 9, 12, 18];
/// A candidate with more coefficients is taken only if its error is smaller than the simpler one's error times this factor.
pub(crate) const CLEARLY: f64 = 0.9;
/// A candidate with more coefficients is taken only if its relative error is smaller than the simpler one's by more than this difference.
pub(crate) const NOTABLY: f64 = 1e-3;

/// p^(sixths/6) log2(p)^logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Term {
    /// Exponent of p times 6.
    pub sixths: i32,
    /// Exponent of log2(p).
    pub logarithm: u32,
}

impl Term {
    /// Returns the value at `p`.
    pub fn at(self, p: f64) -> f64 {
        p.powf(f64::from(self.sixths) / 6.0) * p.log2().powi(self.logarithm as i32)
    }

    /// Returns the term as text, with a name for p.
    pub fn text(self, name: &str) -> String {
        let power = match (self.sixths, self.sixths % 6) {
            (0, _) => String::new(),
            (6, _) => name.to_owned(),
            (sixths, 0) => format!("{name}^{}", sixths / 6),
            (sixths, rest) if rest % 3 == 0 => format!("{name}^({}/2)", sixths / 3),
            (sixths, _) => format!("{name}^({}/3)", sixths / 2),
        };
        let logarithm = match self.logarithm {
            0 => String::new(),
            1 => format!("log2({name})"),
            n => format!("log2({name})^{n}"),
        };
        let space = if power.is_empty() || logarithm.is_empty() {
            ""
        } else {
            " "
        };
        format!("{power}{space}{logarithm}")
    }
}

/// The form of a candidate function, without its coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Form {
    /// True if the function has a constant summand.
    pub constant: bool,
    /// Term of the function; `None` for a constant function.
    pub term: Option<Term>,
}

/// A function of the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Form of the function.
    pub form: Form,
    /// Constant c0.
    pub constant: f64,
    /// Coefficient c1 of the term.
    pub coefficient: f64,
    /// Mean of |predicted - observed| / observed over the sizes, each predicted from the others where they determine the form.
    pub error: f64,
}

impl Fit {
    /// Returns the value at `p` ranks.
    pub fn at(&self, p: f64) -> f64 {
        self.constant
            + self
                .form
                .term
                .map_or(0.0, |term| self.coefficient * term.at(p))
    }

    /// Fits points of ranks and values. A candidate with a term must not be negative at any of the points, nor at any of `also`.
    pub fn new(points: &[(f64, f64)], also: &[f64]) -> Fit {
        match points.len() {
            0..MANY => Fit::search(points, also, &PLAIN_EXPONENTS, &PLAIN_LOGARITHMS),
            _ => Fit::search(points, also, &EXPONENTS, &LOGARITHMS),
        }
    }

    /// Fits points of a problem's sizes and values, as [`Fit::new`] with higher exponents.
    pub fn of_size(points: &[(f64, f64)]) -> Fit {
        match points.len() {
            0..MANY => Fit::search(points, &[], &PLAIN_SIZE_EXPONENTS, &PLAIN_LOGARITHMS),
            _ => Fit::search(points, &[], &SIZE_EXPONENTS, &LOGARITHMS),
        }
    }

    fn search(points: &[(f64, f64)], also: &[f64], exponents: &[i32], logarithms: &[u32]) -> Fit {
        let mut best = Fit::with(CONSTANT, points).unwrap_or(NOTHING);
        for constant in [false, true] {
            let mut round: Option<Fit> = None;
            for &sixths in exponents {
                for &logarithm in logarithms {
                    let term = Term { sixths, logarithm };
                    // The logarithm of one rank is 0: a term with that factor cannot be fitted.
                    let useless = (sixths, logarithm) == (0, 0)
                        || (logarithm > 0 && points.iter().any(|&(p, _)| p < 2.0));
                    let form = Form {
                        constant,
                        term: Some(term),
                    };
                    let Some(fit) = Fit::with(form, points).filter(|_| !useless) else {
                        continue;
                    };
                    let places = points.iter().map(|&(p, _)| p).chain(also.iter().copied());
                    let sound = places
                        .clone()
                        .all(|p| fit.at(p).is_finite() && fit.at(p) >= 0.0);
                    // Among equally good candidates, the first is taken: the lowest exponent, then the lowest power of the logarithm.
                    let better = round.is_none_or(|known| fit.error < known.error * (1.0 - 1e-9));
                    if sound && better {
                        round = Some(fit);
                    }
                }
            }
            if let Some(fit) = round
                && fit.error < best.error * CLEARLY
                && fit.error < best.error - NOTABLY
            {
                best = fit;
            }
        }
        best
    }

    /// Fits one form; `None` if the points do not determine its coefficients.
    pub fn with(form: Form, points: &[(f64, f64)]) -> Option<Fit> {
        let (constant, coefficient) = solve(form, points)?;
        let mut fit = Fit {
            form,
            constant,
            coefficient,
            error: 0.0,
        };
        let mut error = 0.0;
        for (left_out, &(p, value)) in points.iter().enumerate() {
            let others: Vec<_> = (points.iter().enumerate())
                .filter(|(index, _)| *index != left_out)
                .map(|(_, point)| *point)
                .collect();
            let Some((constant, coefficient)) = solve(form, &others) else {
                // The other points do not determine the form: the error of the fit to all points counts.
                error += relative(fit.at(p), value);
                continue;
            };
            let other = Fit {
                constant,
                coefficient,
                ..fit
            };
            error += relative(other.at(p), value);
        }
        fit.error = error / points.len().max(1) as f64;
        Some(fit)
    }
}

const CONSTANT: Form = Form {
    constant: true,
    term: None,
};

const NOTHING: Fit = Fit {
    form: CONSTANT,
    constant: 0.0,
    coefficient: 0.0,
    error: 0.0,
};

/// Returns |predicted - observed| / observed. For observed 0 the error is 0 if the prediction is 0 too, and 1 otherwise.
pub fn relative(predicted: f64, observed: f64) -> f64 {
    if observed == 0.0 {
        return if predicted == 0.0 { 0.0 } else { 1.0 };
    }
    (predicted - observed).abs() / observed.abs()
}

/// Returns the coefficients c0 and c1 with the least sum of squared relative errors; `None` if the points do not determine them.
fn solve(form: Form, points: &[(f64, f64)]) -> Option<(f64, f64)> {
    // Rows a c0 + b c1 = y, divided by y where it is not 0.
    let rows = points.iter().map(|&(p, value)| {
        let weight = if value == 0.0 { 1.0 } else { 1.0 / value };
        let term = form.term.map_or(0.0, |term| term.at(p));
        let constant = f64::from(u8::from(form.constant));
        (constant * weight, term * weight, value * weight)
    });
    let (mut aa, mut ab, mut bb, mut ay, mut by) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (a, b, y) in rows {
        aa += a * a;
        ab += a * b;
        bb += b * b;
        ay += a * y;
        by += b * y;
    }
    let solved = match (form.constant, form.term.is_some()) {
        (true, false) => (ay / aa, 0.0),
        (false, true) => (0.0, by / bb),
        (false, false) => return None,
        (true, true) => {
            let determinant = aa * bb - ab * ab;
            if points.len() < 2 || determinant.abs() <= 1e-12 * aa * bb {
                return None;
            }
            (
                (ay * bb - by * ab) / determinant,
                (by * aa - ay * ab) / determinant,
            )
        }
    };
    (solved.0.is_finite() && solved.1.is_finite()).then_some(solved)
}

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text("p"))
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.constant, self.term) {
            (_, None) => f.write_str("constant"),
            (false, Some(term)) => write!(f, "c {term}"),
            (true, Some(term)) => write!(f, "a + b {term}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(sizes: &[f64], value: impl Fn(f64) -> f64) -> Fit {
        let points: Vec<_> = sizes.iter().map(|&p| (p, value(p))).collect();
        Fit::new(&points, &[1024.0])
    }

    #[test]
    fn known_functions_are_found_and_extrapolate() {
        type Function = fn(f64) -> f64;
        let cases: [(Function, &str); 6] = [
            (|_| 7.0, "constant"),
            (|p| 3e9 / p, "c p^-1"),
            (|p| 5.0 * p, "c p"),
            (|p| 4.0 * p.log2(), "c log2(p)"),
            (|p| 100.0 + 1e5 / p, "a + b p^-1"),
            (|p| 8e3 / p.sqrt(), "c p^(-1/2)"),
        ];
        for (value, form) in cases {
            for sizes in [&[4.0, 8.0, 16.0][..], &[2.0, 4.0, 8.0, 16.0, 32.0]] {
                let fit = fit(sizes, value);
                assert_eq!(fit.form.to_string(), form, "{sizes:?}");
                assert!(fit.error < 1e-9);
                assert!(relative(fit.at(1024.0), value(1024.0)) < 1e-6);
            }
        }
    }

    #[test]
    fn steep_laws_take_many_sizes() {
        let cube = |p: f64| 2.0 * p * p;
        assert_eq!(
            fit(&[2.0, 4.0, 8.0, 16.0, 32.0], cube).form.to_string(),
            "c p^2"
        );
        let few = fit(&[4.0, 8.0, 16.0], cube);
        assert!(
            few.form.term.is_some_and(|term| term.sixths <= 6),
            "{few:?}"
        );
        assert!(few.error > 0.01, "{few:?}");
    }

    #[test]
    fn noise_makes_no_law_and_is_stated() {
        let noisy = [(4.0, 100.0), (8.0, 103.0), (16.0, 99.0), (32.0, 101.0)];
        let fit = Fit::new(&noisy, &[1024.0]);
        assert_eq!(fit.form, CONSTANT);
        assert!(fit.error > 0.01 && fit.error < 0.05, "{fit:?}");
    }

    #[test]
    fn values_never_become_negative() {
        // A straight line through these is below 0 at 1024.
        let falling = [(4.0, 120.0), (8.0, 80.0), (16.0, 10.0)];
        assert!(Fit::new(&falling, &[1024.0]).at(1024.0) >= 0.0);
        let zero = Fit::new(&[(4.0, 0.0), (8.0, 0.0), (16.0, 0.0)], &[64.0]);
        assert_eq!(zero.at(64.0), 0.0);
    }
}
