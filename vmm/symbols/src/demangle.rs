//! Names of functions as their source has them.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions};

use crate::limits::{MANGLED, MANGLED_NESTING, NAME, cut};

/// Text of at most [`NAME`] bytes. Further writes fail.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match self.0.len() > NAME {
            true => Err(fmt::Error),
            // One piece may exceed the limit, which `cut` shows.
            false => self.0.write_str(text),
        }
    }
}

/// Demangles a name of C++ or Rust, and returns other names unchanged. A name is cut to [`NAME`] bytes.
///
/// Only a name with the prefix of a mangling is demangled: `f` is a function of C, and not `float`.
pub(crate) fn demangle(name: &str) -> String {
    // A symbol's version or `@plt` may follow the name.
    let (bare, rest) = name.split_at(name.find('@').unwrap_or(name.len()));
    let whole = match bare.len() <= MANGLED {
        true => demangled(bare).map_or_else(|| name.to_owned(), |found| found + rest),
        false => name.to_owned(),
    };
    cut(whole, NAME)
}

fn demangled(name: &str) -> Option<String> {
    // Mangled names have up to two more underscores on some platforms. Rust's legacy names are also names of C++ (`_ZN`), and go first.
    let plain = name.trim_start_matches('_');
    let underscores = name.len() - plain.len();
    let mangled =
        (1..=4).contains(&underscores) && (plain.starts_with('Z') || plain.starts_with('R'));
    if !mangled {
        return None;
    }
    let mut out = Bounded(String::new());
    if let Ok(found) = rustc_demangle::try_demangle(name) {
        // A text that is too long ends the writing; what was written is shown.
        let _ = write!(out, "{found:#}");
        return Some(out.0);
    }
    let options = ParseOptions::default().recursion_limit(MANGLED_NESTING);
    let found = cpp_demangle::Symbol::new_with_options(name, &options).ok()?;
    let options = DemangleOptions::default().recursion_limit(2 * MANGLED_NESTING);
    let done = found.structured_demangle(&mut out, &options);
    (done.is_ok() || out.0.len() > NAME).then_some(out.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_c_stay_as_they_are() {
        for name in [
            "f",
            "d",
            "g",
            "St",
            "i",
            "Sa",
            "N",
            "main",
            "_start",
            "__libc_start_main",
            "_Z",
            "_R",
            "R",
            "Z1f",
            "",
            "_",
        ] {
            assert_eq!(demangle(name), name);
        }
        assert_eq!(demangle("f@plt"), "f@plt");
    }

    #[test]
    fn names_of_cpp_and_rust_are_demangled() {
        for (mangled, plain) in [
            ("_Z1fv", "f()"),
            ("__Z1fv", "f()"),
            ("_Z1fv@plt", "f()@plt"),
            ("_ZN5space3BoxIlE3getEl", "space::Box<long>::get(long)"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_RNvC5crate4main", "crate::main"),
        ] {
            assert_eq!(demangle(mangled), plain);
        }
    }

    #[test]
    fn long_names_are_cut() {
        // Each argument doubles the one before.
        let mut bomb = String::from("_Z1fI1aE");
        for n in 0..30 {
            let of = match n {
                0 => "S_".into(),
                n => format!(
                    "S{}_",
                    char::from_digit(n - 1, 36).unwrap().to_ascii_uppercase()
                ),
            };
            bomb += &format!("1bI{of}{of}E");
        }
        let bomb = bomb.replacen("E1b", "1b", 1);
        for name in [
            bomb,
            "x".repeat(100_000),
            format!("_ZN{}E", "1a".repeat(900)),
            format!("_R{}", "NvC".repeat(500)),
        ] {
            assert!(demangle(&name).len() <= NAME, "{}", name.len());
        }
        assert!(demangle(&"x".repeat(NAME + 1)).ends_with("x..."));
        assert_eq!(demangle(&"x".repeat(NAME)).len(), NAME);
    }
}
