//! The kernels: which there are, how long they run, and the program that holds them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// A kernel and its repeats.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name, as the program knows it.
    pub name: &'static str,
    /// Repeats: some 50 to 100 million instructions.
    pub repeats: u32,
}

/// The seven shapes.
pub const KERNELS: [Kernel; 7] = [
    kernel("integer", 25),
    kernel("chase", 40),
    kernel("daxpy_memory", 30),
    kernel("daxpy_l1", 40),
    kernel("dgemm_scalar", 16),
    kernel("dgemm_vector", 20),
    kernel("quicksort", 30),
];

/// A hypercall for every few thousand instructions.
pub const TRACED: Kernel = kernel("traced", 16);

const fn kernel(name: &'static str, repeats: u32) -> Kernel {
    Kernel { name, repeats }
}

/// What a kernel program says when it begins and ends: `bench:begin:LABEL:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Beginning or end.
    pub begin: bool,
    /// Kernel.
    pub kernel: String,
}

impl Mark {
    /// Read a marker's text or a console line.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(':');
        if parts.next() != Some("bench") {
            return None;
        }
        let begin = match parts.next() {
            Some("begin") => true,
            Some("end") => false,
            _ => return None,
        };
        let kernel = parts.nth(1)?.to_owned();
        Some(Self { begin, kernel })
    }
}

/// Compile the kernels to a static program.
pub fn compile(folder: &Path) -> Result<PathBuf, Failure> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("kernels");
    let output = Command::new("gcc")
        .args(["-O2", "-static", "-I"])
        .arg(source.join("../../guest-images/tracer"))
        .arg("-o")
        .arg(&program)
        .arg(source.join("kernels/kernels.c"))
        .output()
        .map_err(|e| Failure::Compile(format!("cannot run gcc: {e}; install gcc and libc6-dev")))?;
    if !output.status.success() {
        return Err(Failure::Compile(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ));
    }
    Ok(program)
}

/// Arguments of the program for these kernels, `1 / divisor` of the repeats each.
pub fn arguments(kernels: &[Kernel], divisor: u32) -> Vec<String> {
    kernels
        .iter()
        .map(|k| format!("run:{}:{}", k.name, (k.repeats / divisor).max(1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_from_console_lines_and_nothing_else_is() {
        let mark = |begin| {
            Some(Mark {
                begin,
                kernel: "chase".into(),
            })
        };
        assert_eq!(Mark::parse("bench:begin:run:chase\r"), mark(true));
        assert_eq!(Mark::parse("bench:end:run:chase"), mark(false));
        for other in ["bench:time:run:chase:0.5", "bench:begin", "chase", ""] {
            assert_eq!(Mark::parse(other), None, "{other}");
        }
    }

    #[test]
    fn every_kernel_runs_on_the_host_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(folder.path()).unwrap();
        let all: Vec<Kernel> = KERNELS.into_iter().chain([TRACED]).collect();
        let output = Command::new(program)
            .args(arguments(&all, u32::MAX))
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let marks: Vec<Mark> = text.lines().filter_map(Mark::parse).collect();
        let expected: Vec<Mark> = all
            .iter()
            .flat_map(|k| {
                [true, false].map(|begin| Mark {
                    begin,
                    kernel: k.name.into(),
                })
            })
            .collect();
        assert_eq!(marks, expected);
    }
}
