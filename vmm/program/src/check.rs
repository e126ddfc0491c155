//! From a study to the problems of its programs.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use nodescope_config::problem::{Position, Problem, Severity};
use nodescope_engine_soft::Features;
use nodescope_machine::cpuid::Template;
use nodescope_study::{ImageSource, Mpi, Program, Study};

use crate::code;
use crate::command::{Invocation, changes_folder, invocations};
use crate::elf::{Elf, Other};
use crate::files::{Files, JOB, normal};
use crate::libraries::{Libraries, Needed, Search};

/// Folders in which a guest looks for commands (guest-images/debian/root/opt/nodescope/init).
const PATH: &str =
    "/opt/nodescope/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Maximum length of a script that is read, bytes.
const MOST_SCRIPT: u64 = 1 << 20;

/// Returns the problems of the programs that a study's job starts. `root` is the image's root disk; without it, what the image has is not
/// looked at.
pub fn problems(study: &Study, root: Option<&Path>) -> Vec<Problem> {
    let files = Files::new(&study.job.files, root);
    let (field, text) = match &study.job.program {
        Program::Command(command) => ("job.command", command.clone()),
        Program::Script(path) => {
            let length = std::fs::metadata(path).map_or(0, |data| data.len());
            let text = (length <= MOST_SCRIPT).then(|| std::fs::read(path).ok());
            let text = text.flatten().unwrap_or_default();
            ("job.script", String::from_utf8_lossy(&text).into_owned())
        }
    };
    let template = Template::new(&study.cpuid).and_then(|mut template| {
        template.intersect_host()?;
        Ok(template)
    });
    let mut check = Check {
        study,
        files: &files,
        features: template
            .ok()
            .map(|t| Features::new(&t.table(&study.topology, 0))),
        path: study
            .job
            .environment
            .get("PATH")
            .cloned()
            .unwrap_or_else(|| PATH.to_owned()),
        is_script: field == "job.script",
        moves: changes_folder(&text),
        exports_libraries: text.contains("export LD_LIBRARY_PATH")
            || text.contains("export \"LD_LIBRARY_PATH"),
        checked: BTreeSet::new(),
        found: Vec::new(),
    };
    if check.is_script {
        check.script(&text);
    }
    // The rest of a script of another interpreter is no shell.
    if !check.is_script || is_shell(&text) {
        for invocation in invocations(&text) {
            check.invocation(&invocation);
        }
    }
    let position = study
        .position_of(field)
        .or_else(|| study.position_of("job"));
    let position = position.or(Some(Position { line: 1, column: 1 }));
    let problem = |(severity, message)| Problem {
        severity,
        position,
        field: field.to_owned(),
        message,
    };
    check.found.into_iter().map(problem).collect()
}

/// Returns whether a script's first line names a shell, or nothing.
fn is_shell(text: &str) -> bool {
    let Some(line) = text.strip_prefix("#!").and_then(|rest| rest.lines().next()) else {
        return true;
    };
    let mut words = line
        .split_whitespace()
        .map(|word| word.rsplit('/').next().unwrap_or_default());
    words.any(|word| matches!(word, "sh" | "bash" | "dash" | "ksh" | "zsh"))
}

struct Check<'a> {
    study: &'a Study,
    files: &'a Files,
    /// Features of the guests' processor; `None` where the study hides what a kernel needs.
    features: Option<Features>,
    /// Folders in which the shell looks for commands.
    path: String,
    is_script: bool,
    /// True if the text changes the working folder.
    moves: bool,
    /// True if the text sets the folders of libraries for all that follows.
    exports_libraries: bool,
    /// Programs already checked, by path.
    checked: BTreeSet<String>,
    found: Vec<(Severity, String)>,
}

impl Check<'_> {
    fn error(&mut self, message: String) {
        self.found.push((Severity::Error, message));
    }

    fn warning(&mut self, message: String) {
        self.found.push((Severity::Warning, message));
    }

    /// Checks the interpreter of the job's script.
    fn script(&mut self, text: &str) {
        if let Some(rest) = text.strip_prefix("#!") {
            let line = rest.split('\n').next().unwrap_or_default();
            self.interpreter_of_script("the script", line);
        }
    }

    /// Checks a program that a command names.
    fn invocation(&mut self, invocation: &Invocation) {
        let word = &invocation.word;
        // A script's line helps; a command has one line.
        let name = match self.is_script {
            true => format!("line {}: {word}", invocation.line),
            false => word.clone(),
        };
        let is_path = word.contains('/');
        if is_path && !word.starts_with('/') && self.moves {
            return;
        }
        let path = match is_path {
            true if word.starts_with('/') => Some(word.clone()),
            true => Some(normal(&format!("{JOB}/{word}"))),
            false => self.in_path(word),
        };
        let found = path
            .as_ref()
            .and_then(|path| Some((path.clone(), self.files.find(path)?)));
        let Some((path, file)) = found else {
            if invocation.first {
                self.not_found(&name, word, path.as_deref());
            }
            return;
        };
        // Arguments of launchers are options, numbers and files, too.
        if invocation.argument && (file.host.is_none() || !is_path) {
            return;
        }
        if !self.checked.insert(path.clone()) {
            return;
        }
        if file.folder {
            if !invocation.argument {
                self.error(format!("{name} is a folder of the guest; name a program"));
            }
            return;
        }
        let Some(bytes) = self.files.read(&path) else {
            return;
        };
        let parsed = Elf::parse(&bytes);
        if invocation.argument
            && !matches!(parsed, Ok(_) | Err(Other::Foreign(_) | Other::Damaged(_)))
        {
            return;
        }
        if let (false, Some(host)) = (file.executable, &file.host) {
            self.error(format!(
                "{name}: {} is not executable, so the guest refuses to start it; run chmod +x {0}",
                host.display()
            ));
        }
        match parsed {
            Ok(elf) => self.program(&name, &path, &elf, invocation),
            Err(Other::Script(line)) => self.interpreter_of_script(&name, &line),
            Err(Other::Foreign(what)) => self.error(format!(
                "{name} is {what}, and the guests are x86-64 Linux with 64 bits; build it for x86-64"
            )),
            Err(Other::Damaged(how)) => {
                self.error(format!("{name} is a damaged ELF file: {how}; copy or build it again"));
            }
            Err(Other::Unknown) => {}
        }
    }

    /// Finds a command in the folders of `PATH`.
    fn in_path(&self, word: &str) -> Option<String> {
        let folders = self
            .path
            .split(':')
            .filter(|folder| folder.starts_with('/'));
        let mut paths = folders.map(|folder| format!("{folder}/{word}"));
        paths.find(|path| self.files.find(path).is_some_and(|file| !file.folder))
    }

    /// Reports a program that the guest does not have, if that is certain.
    fn not_found(&mut self, name: &str, word: &str, path: Option<&str>) {
        let base = word.rsplit('/').next().unwrap_or_default();
        let same_name = self
            .files
            .of_job()
            .find(|(path, _)| path.rsplit('/').next() == Some(base));
        let same_name = same_name.map(|(path, _)| path.to_owned());
        if let Some(path) = path {
            if self.files.lacks(path) {
                self.error(match (path.starts_with("/job/"), same_name) {
                    (_, Some(other)) => format!("{name}: the guest has no file {path}; job.files puts {other} there, so write {other}"),
                    (true, None) => format!(
                        "{name}: no entry of job.files puts the program to {path}; add it to job.files, as files = [\"{base}\"]"
                    ),
                    (false, None) => format!(
                        "{name}: the image has no file {path}; add the program's Debian package to image.packages, or the program to job.files"
                    ),
                });
            }
            return;
        }
        let folders: Vec<&str> = self.path.split(':').collect();
        let certain = folders.iter().all(|folder| {
            folder.starts_with('/')
                && !folder.contains('$')
                && self.files.lacks(&format!("{folder}/{word}"))
        });
        if certain {
            let message = match same_name {
                Some(path) => format!(
                    "{name}: the shell looks for commands in the folders of PATH alone, and {path} is in none of them; write ./{}",
                    path.strip_prefix("/job/").unwrap_or(&path)
                ),
                None => format!(
                    "{name}: the image has no such command in {}; add its Debian package to image.packages, or the program to job.files and write ./{word}",
                    self.path
                ),
            };
            // Another image may look in other folders.
            match self.study.image {
                ImageSource::Debian(_) => self.error(message),
                ImageSource::Files { .. } => self.warning(message),
            }
        }
    }

    /// Checks the interpreter of a script: the text after `#!`.
    fn interpreter_of_script(&mut self, name: &str, line: &str) {
        let path = line.trim_start_matches([' ', '\t']);
        let path = path.split([' ', '\t']).next().unwrap_or_default();
        if path.ends_with('\r') || line.ends_with('\r') && path.is_empty() {
            self.error(format!(
                "{name}: its lines end as on Windows, so the guest looks for an interpreter {:?}; run dos2unix, or sed -i 's/\\r$//'",
                path
            ));
        } else if path.starts_with('/') && self.files.lacks(path) {
            self.error(format!(
                "{name}: its interpreter {path} is not in the image; add its Debian package to image.packages, or correct the first line"
            ));
        }
    }

    /// Checks a program of the guest's architecture.
    fn program(&mut self, name: &str, path: &str, elf: &Elf, invocation: &Invocation) {
        if let Some(interpreter) = &elf.interpreter
            && self.files.lacks(if interpreter.starts_with('/') {
                interpreter
            } else {
                "/"
            })
        {
            let musl = if interpreter.contains("musl") {
                ", which belongs to musl, while the image has glibc"
            } else {
                ""
            };
            self.error(format!(
                "{name} asks for the dynamic linker {interpreter}{musl}; the image does not have it, so that the guest says \"not found\": link the program statically (-static), or build it against Debian's glibc"
            ));
            return;
        }
        self.instructions(name, elf);
        let environment = &self.study.job.environment;
        let library_path = invocation.library_path.clone();
        let library_path = library_path.or_else(|| environment.get("LD_LIBRARY_PATH").cloned());
        let libraries = Libraries::new(self.files, library_path);
        let needed = libraries.of_program(path, elf);
        for library in &needed {
            if library.search == Search::Missing {
                self.missing(name, path, library);
            }
        }
        let all = std::iter::once((path.to_owned(), elf.clone()));
        let own = needed.iter().filter_map(|library| match &library.search {
            Search::At(at) if self.files.find(at)?.host.is_some() => {
                Some((at.clone(), Elf::parse(&self.files.read(at)?).ok()?))
            }
            _ => None,
        });
        let all: Vec<(String, Elf)> = all.chain(own).collect();
        for (of, elf) in &all {
            if let Some((file, at, version)) = libraries.missing_version(elf, &needed) {
                let whose = if of == path {
                    String::new()
                } else {
                    format!(" (by way of {of})")
                };
                self.error(format!(
                    "{name}{whose} needs {version} of {file}, and {at} of the guest is older; build it on Debian 12 or an older system, or link it statically"
                ));
            }
        }
        self.mpi(name, &needed);
    }

    fn missing(&mut self, name: &str, program: &str, library: &Needed) {
        let file = &library.name;
        let by = match library.by == program {
            true => String::new(),
            false => format!(" (by way of {})", library.by),
        };
        let mut there = self.files.of_job().map(|(path, _)| path);
        let there = there
            .find(|path| path.rsplit('/').next() == Some(file))
            .map(str::to_owned);
        let message = match there {
            Some(path) => {
                let folder = path.rsplit_once('/').map_or(JOB, |(folder, _)| folder);
                format!(
                    "{name}{by} needs the library {file}; job.files puts it to {path}, where the dynamic linker does not look: set LD_LIBRARY_PATH = \"{folder}\" below [job.environment]"
                )
            }
            None => format!(
                "{name}{by} needs the library {file}, which neither the image nor job.files has; add its Debian package to image.packages, or the file (ldd shows its path) to job.files with LD_LIBRARY_PATH = \"{JOB}\" below [job.environment]"
            ),
        };
        match self.exports_libraries {
            true => self.warning(message),
            false => self.error(message),
        }
    }

    /// Compares the MPI of a program with that of the launcher.
    fn mpi(&mut self, name: &str, needed: &[Needed]) {
        let of = needed
            .iter()
            .find_map(|library| Some((mpi_of(&library.name)?, &library.name)));
        let Some((mpi, library)) = of else { return };
        let (launcher, ours) = match self.study.job.mpi {
            Mpi::Openmpi => (Mpi::Openmpi, "openmpi"),
            Mpi::Mpich => (Mpi::Mpich, "mpich"),
            Mpi::None => return,
        };
        // A script may start its ranks by another launcher than the one whose host file it gets.
        if mpi == launcher || self.is_script {
            return;
        }
        let theirs = if mpi == Mpi::Mpich {
            "mpich"
        } else {
            "openmpi"
        };
        self.error(format!(
            "{name} is linked with {library}, and job.mpi = \"{ours}\" starts the ranks with another MPI's launcher, so that each would be alone; set job.mpi = \"{theirs}\", or build the program with mpicc.{ours}"
        ));
    }

    /// Checks whether the guests' processor has the program's instructions.
    fn instructions(&mut self, name: &str, elf: &Elf) {
        let Some(features) = &self.features else {
            return;
        };
        const REMEDY: &str = "build it for x86-64-v3 (gcc -march=x86-64-v3; node.core may be any core, and only names the model)";
        if elf.level >= 4 {
            self.error(format!(
                "{name} states that it needs x86-64-v4, that is AVX-512, which the guests' processor does not have; {REMEDY}"
            ));
            return;
        }
        let Some(lacking) = code::lacking(elf, features) else {
            return;
        };
        let code::Lacking {
            feature,
            address,
            text,
            certain,
        } = lacking;
        if certain {
            self.error(format!(
                "{name} has the instruction {text} at {address:#x}, which needs {feature}; the guests' processor does not have {feature}, so that the program would end by SIGILL: {REMEDY}"
            ));
        } else {
            self.warning(format!(
                "{name} has the instruction {text} at {address:#x}, which needs {feature}; the guests' processor does not have {feature}. The program asks for the processor's features, and should not execute it; if it ends by SIGILL, {REMEDY}"
            ));
        }
    }
}

/// Returns the launcher's MPI for a library of MPI; `None` for another library, and for the standard ABI, which both can start.
fn mpi_of(library: &str) -> Option<Mpi> {
    let is = |names: &[&str]| names.iter().any(|name| library.starts_with(name));
    // Open MPI's library was libmpi.so.12 until version 1.10, and has been libmpi.so.40 since version 3.
    if is(&[
        "libmpi.so.40",
        "libmpi.so.20",
        "libmpi_mpifh.so",
        "libmpi_usempif08.so",
        "libmpi_cxx.so.40",
    ]) {
        Some(Mpi::Openmpi)
    } else if is(&["libmpich", "libmpi.so.12", "libmpifort.so.12"]) {
        Some(Mpi::Mpich)
    } else {
        None
    }
}

/// Reads any bytes as a program, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8], features: &Features) {
    let bytes: Arc<[u8]> = bytes.into();
    if let Ok(elf) = Elf::parse(&bytes) {
        code::lacking(&elf, features);
        let files = Files::new(&[], None);
        let libraries = Libraries::new(&files, None);
        let needed = libraries.of_program("/job/app", &elf);
        libraries.missing_version(&elf, &needed);
    }
    invocations(&String::from_utf8_lossy(&bytes));
}
