//! Workloads of the benchmarks: the kernels, or Debian's hpcc.

use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_image::JobFile;

use crate::guest::{Guest, Marks, executable};
use crate::{Failure, micro};

/// Group of rows; means are made over groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The seven basic kernels, built for SSE2.
    Original,
    /// Basic kernels in their builds for AVX2 and FMA.
    Avx2,
    /// Sections of complete programs.
    Programs,
    /// Rows that count in no mean.
    Separate,
}

/// Length of the kernels' runs, relative to the usual numbers of repeats.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// The usual repeats multiplied by this number.
    Times(u32),
    /// The usual repeats divided by this number, at least one.
    OneIn(u32),
}

impl Length {
    fn of(self, repeats: u32) -> u32 {
        match self {
            Length::Times(factor) => repeats * factor,
            Length::OneIn(divisor) => (repeats / divisor).max(1),
        }
    }
}

/// A part of a workload that is measured.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name, as the program reports it.
    pub name: String,
    /// Group in whose mean the row counts.
    pub group: Group,
}

/// Kernels: name, group, and number of repeats. They take 10 to 700 ms natively.
const KERNELS: [(&str, Group, u32); 16] = [
    ("integer", Group::Original, 40),
    ("chase", Group::Original, 20),
    ("daxpy_memory_sse2", Group::Original, 20),
    ("daxpy_l1_sse2", Group::Original, 40),
    ("dgemm_scalar_sse2", Group::Original, 32),
    ("dgemm_vector_sse2", Group::Original, 16),
    ("quicksort", Group::Original, 40),
    ("daxpy_memory_avx2", Group::Avx2, 20),
    ("daxpy_l1_avx2", Group::Avx2, 60),
    ("dgemm_scalar_avx2", Group::Avx2, 32),
    ("dgemm_vector_avx2", Group::Avx2, 40),
    // A pointer chase over data that fit into the host's third level; a load takes longer in a model than in nodescope without one.
    ("chase_l3", Group::Separate, 20),
    // One hypercall in every few thousand instructions, as a program that calls MPI continuously makes under the MPI tracer.
    ("traced", Group::Separate, 16),
    // AVX2 on memory that is aligned to 16 bytes, as malloc aligns: half of the vectors are split between two cache lines.
    ("daxpy_memory_misaligned_avx2", Group::Separate, 20),
    ("daxpy_l1_misaligned_avx2", Group::Separate, 60),
    ("dgemm_vector_misaligned_avx2", Group::Separate, 40),
];

/// Sections of hpcc that are measured.
const SECTIONS: [&str; 3] = ["HPL", "StarSTREAM", "StarFFT"];
/// Order of HPL's matrix, and size of its blocks.
const HPL: (u32, u32) = (800, 80);

/// A program, how it runs on the host and in a guest, and the parts that are measured.
pub struct Workload {
    /// Parts of the program that are measured.
    pub rows: Vec<Row>,
    /// Path of the program on the host.
    pub host_program: PathBuf,
    /// Path of the program in the guest, relative to `/job`.
    guest_program: &'static str,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Environment variables of the program.
    pub environment: Vec<(&'static str, String)>,
    /// Folder in which the program is run on the host.
    pub folder: PathBuf,
    files: Vec<JobFile>,
    /// Repeats of each kernel; empty for other programs.
    repeats: Vec<u32>,
}

impl Workload {
    /// Makes the workload of the kernels named in `only` (all kernels if `only` is empty), compiled into `folder`.
    pub fn kernels(folder: &Path, only: &[String], length: Length) -> Result<Self, Failure> {
        if let Some(unknown) = only.iter().find(|o| KERNELS.iter().all(|k| k.0 != *o)) {
            let names: Vec<_> = KERNELS.iter().map(|k| k.0).collect();
            return Err(Failure::Kernel(unknown.clone(), names.join(", ")));
        }
        let wide = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        if !wide {
            eprintln!("the builds for AVX2 are skipped: this host has no AVX2 and FMA");
        }
        let chosen: Vec<_> = KERNELS
            .into_iter()
            .filter(|k| wide || !k.0.ends_with("avx2"))
            .filter(|k| only.is_empty() || only.iter().any(|o| o == k.0))
            .collect();
        let rows = chosen.iter().map(|(n, g, _)| row(n, *g)).collect();
        let repeats = chosen.iter().map(|k| length.of(k.2)).collect();
        Self::compiled(compile_kernels(folder)?, folder, rows, repeats)
    }

    /// Makes the workload of the micro-kernels named in `only` (all if `only` is empty), compiled into `folder`.
    pub fn micro(folder: &Path, only: &[String]) -> Result<Self, Failure> {
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
            return Err(Failure::Host(
                "the micro-kernels need AVX2 and FMA, which this host does not have".into(),
            ));
        }
        let rows: Vec<Row> = micro::all()
            .filter(|micro| only.is_empty() || only.iter().any(|o| o == micro.name))
            .map(|micro| row(micro.name, Group::Separate))
            .collect();
        let repeats = vec![micro::REPEATS; rows.len()];
        let mut workload = Self::compiled(compile_micro(folder)?, folder, rows, repeats)?;
        let (variable, value) = micro::ENVIRONMENT;
        workload.environment.push((variable, value.into()));
        Ok(workload)
    }

    /// Makes the workload of a compiled program of kernels.
    fn compiled(
        program: PathBuf,
        folder: &Path,
        rows: Vec<Row>,
        repeats: Vec<u32>,
    ) -> Result<Self, Failure> {
        let arguments = rows.iter().zip(&repeats);
        Ok(Self {
            guest_program: "./kernels",
            arguments: arguments.map(|(r, n)| argument(&r.name, *n)).collect(),
            rows,
            repeats,
            environment: Vec::new(),
            folder: folder.into(),
            files: vec![executable(
                "kernels",
                std::fs::read(&program).map_err(Failure::Files)?,
            )],
            host_program: program,
        })
    }

    /// Makes the workload of Debian's hpcc with one rank. A preloaded library, which is compiled into `folder`, announces the parts.
    pub fn hpcc(folder: &Path) -> Result<Self, Failure> {
        let library = "hpcc-marks.so";
        gcc(
            folder,
            &["-O2", "-shared", "-fPIC", "-o", library],
            &["hpcc-marks.c"],
        )?;
        let (n, block) = HPL;
        let input = include_str!("../../../guest-images/jobs/hpcc/hpccinf.txt")
            .lines()
            .enumerate()
            .map(|(number, line)| match number {
                5 => format!("{n} N\n"),
                7 => format!("{block} NB\n"),
                10 => "1 P\n".into(),
                11 => "1 Q\n".into(),
                _ => format!("{line}\n"),
            })
            .collect::<String>();
        std::fs::write(folder.join("hpccinf.txt"), &input).map_err(Failure::Files)?;
        let read = |name: &str| std::fs::read(folder.join(name)).map_err(Failure::Files);
        Ok(Self {
            rows: SECTIONS.iter().map(|n| row(n, Group::Programs)).collect(),
            host_program: "hpcc".into(),
            guest_program: "hpcc",
            arguments: Vec::new(),
            environment: vec![("LD_PRELOAD", format!("./{library}"))],
            folder: folder.into(),
            files: vec![
                executable(library, read(library)?),
                executable("hpccinf.txt", read("hpccinf.txt")?),
            ],
            repeats: Vec::new(),
        })
    }

    /// Returns a workload of the kernels' program with only the part at `index` in `rows`, from 0, and `times` its repeats. Panics if there
    /// is no such part.
    pub fn part(&self, index: usize, times: u32) -> Self {
        let repeats = self.repeats[index] * times;
        Self {
            rows: vec![self.rows[index].clone()],
            repeats: vec![repeats],
            host_program: self.host_program.clone(),
            guest_program: self.guest_program,
            arguments: vec![argument(&self.rows[index].name, repeats)],
            environment: self.environment.clone(),
            folder: self.folder.clone(),
            files: self.files.clone(),
        }
    }

    /// Returns the workload without one kernel.
    pub fn without(mut self, name: &str) -> Self {
        if let Some(index) = self.rows.iter().position(|r| r.name == name) {
            self.rows.remove(index);
            self.arguments.remove(index);
            self.repeats.remove(index);
        }
        self
    }

    /// Returns the names of the parts.
    pub fn names(&self) -> Vec<String> {
        self.rows.iter().map(|r| r.name.clone()).collect()
    }

    /// Returns the command line that runs the workload in a guest.
    pub fn command_line(&self) -> String {
        let environment: String = self
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value} "))
            .collect();
        format!(
            "env {environment}{} {}",
            self.guest_program,
            self.arguments.join(" ")
        )
    }

    /// Returns a guest that runs the workload, behind `launcher` (`mpirun` with its options, or nothing).
    pub fn guest(&self, image: &Path, launcher: &str, marks: Marks) -> Result<Guest, Failure> {
        let script = format!("#!/bin/sh\nexec {launcher} {}\n", self.command_line());
        Guest::new(image, script, self.files.clone(), self.names(), marks)
    }
}

fn argument(name: &str, repeats: u32) -> String {
    format!("run:{name}:{repeats}")
}

fn row(name: &str, group: Group) -> Row {
    Row {
        name: name.into(),
        group,
    }
}

/// Compiles the kernels to a static program; `floating.c` is compiled for SSE2 and for AVX2.
fn compile_kernels(folder: &Path) -> Result<PathBuf, Failure> {
    for (object, options, source) in [
        ("main.o", &["-O2"][..], "main.c"),
        ("integer.o", &["-O2"], "integer.c"),
        ("sse2.o", &["-O3", "-msse2", "-mno-sse3"], "floating.c"),
        ("avx2.o", &["-O3", "-mavx2", "-mfma"], "floating.c"),
    ] {
        let options = [options, &["-c", "-o", object]].concat();
        gcc(folder, &options, &[source])?;
    }
    let objects = ["main.o", "integer.o", "sse2.o", "avx2.o"];
    gcc(
        folder,
        &[&["-static", "-o", "kernels"][..], &objects].concat(),
        &[],
    )?;
    Ok(folder.join("kernels"))
}

/// Compiles the micro-kernels to a static program.
fn compile_micro(folder: &Path) -> Result<PathBuf, Failure> {
    let options = ["-O2", "-mavx2", "-mfma", "-DSET_MICRO", "-static"];
    gcc(
        folder,
        &[&options[..], &["-o", "kernels"]].concat(),
        &[&["main.c"][..], &micro::SOURCES].concat(),
    )?;
    Ok(folder.join("kernels"))
}

/// Runs the compiler in a folder; `sources` are files in this crate's folder `kernels`.
pub fn gcc(folder: &Path, options: &[&str], sources: &[&str]) -> Result<(), Failure> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("gcc")
        .current_dir(folder)
        .args(["-Wall", "-Wextra", "-I"])
        .arg(here.join("../../guest-images/tracer"))
        .args(options)
        .args(sources.iter().map(|s| here.join("kernels").join(s)))
        .output()
        .map_err(|e| Failure::Compile(format!("cannot run gcc: {e}; install gcc and libc6-dev")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::Compile(
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Mark, What};

    #[test]
    fn every_kernel_runs_on_the_host_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let workload = Workload::kernels(folder.path(), &[], Length::OneIn(u32::MAX)).unwrap();
        runs(&workload);
    }

    #[test]
    fn every_micro_kernel_runs_on_the_host() {
        let folder = tempfile::tempdir().unwrap();
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let mut workload = Workload::micro(folder.path(), &[]).unwrap();
            for argument in &mut workload.arguments {
                *argument = argument.replace(&format!(":{}", micro::REPEATS), ":1");
            }
            runs(&workload);
            let two = ["chain_add", "nest_5"].map(String::from);
            let workload = Workload::micro(folder.path(), &two).unwrap();
            assert_eq!(workload.part(1, 3).arguments, ["run:nest_5:12"]);
        }
    }

    fn runs(workload: &Workload) {
        let output = Command::new(&workload.host_program)
            .args(&workload.arguments)
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let marks: Vec<Mark> = text.lines().filter_map(Mark::parse).collect();
        assert_eq!(marks.len(), 3 * workload.rows.len());
        for (three, row) in marks.chunks_exact(3).zip(&workload.rows) {
            assert!(three.iter().all(|m| m.name == row.name), "{three:?}");
            assert_eq!(three[0].what, What::Begin);
            assert_eq!(three[1].what, What::End);
            assert!(matches!(three[2].what, What::Time(t) if t > 0.0));
        }
    }

    #[test]
    fn a_kernel_that_does_not_exist_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = Workload::kernels(folder.path(), &["chess".into()], Length::Times(1));
        assert!(matches!(refused, Err(Failure::Kernel(name, _)) if name == "chess"));
    }

    #[test]
    fn sections_of_hpcc_announce_themselves() {
        let folder = tempfile::tempdir().unwrap();
        let workload = Workload::hpcc(folder.path()).unwrap();
        let input = std::fs::read_to_string(folder.path().join("hpccinf.txt")).unwrap();
        let number = |line: usize| input.lines().nth(line).unwrap().split(' ').next().unwrap();
        assert_eq!([number(5), number(7)], ["800", "80"]);
        assert_eq!([number(10), number(11)], ["1", "1"]);
        if !nodescope_test_needs::have(nodescope_test_needs::Need::Hpcc, &["hpcc"]) {
            return;
        }
        let session = crate::host::run(&workload, &[]).unwrap();
        for row in &workload.rows {
            assert!(session[&row.name].spent.cpu > 0.0, "{row:?}");
        }
    }
}
