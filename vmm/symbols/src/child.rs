//! The process that makes names for another process, on its standard input and output.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::{Arc, Weak};

use nodescope_sandbox::Cell;

use crate::files::Files;
use crate::kernel::{FileId, FilePage};
use crate::memory::PAGE;
use crate::symbolizer::{Location, Symbolizer};
use crate::unwind::{Sample, Unwinder};
use crate::wire::{Ask, Resolved, Say, Want, get, get_file, put};

/// Address space of the process, in bytes: the program, the files that it reads, and what it keeps of them.
const MEMORY: u64 = 4 << 30;
/// Processor time of the process, in seconds, for all its work.
const SECONDS: u64 = 3600;

/// Makes names until the standard input ends: the work of the process that [`Names::in_process`](crate::Names::in_process) starts. A
/// program calls this function first in its `main`, while it has one thread.
///
/// The process gives up everything but its open files, memory and time (`nodescope-sandbox`) before it reads the first byte.
pub fn serve_names() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        // The other process sees that this one has ended, and starts another.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Ends of the pipes to the other process.
struct Pipes {
    from: BufReader<File>,
    to: BufWriter<File>,
}

impl Pipes {
    fn say(&mut self, message: &Say) -> io::Result<()> {
        put(&mut self.to, message)?;
        self.to.flush()
    }
}

fn serve() -> io::Result<()> {
    let from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let to = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let restricted = Cell {
        memory: MEMORY,
        processor_seconds: SECONDS,
    }
    .enter();
    let mut pipes = Pipes {
        from: BufReader::new(from),
        to: BufWriter::new(to),
    };
    pipes.say(&Say::Ready(restricted.gaps()))?;
    let remote = Remote {
        pipes: RefCell::new(pipes),
        files: RefCell::default(),
        pages: RefCell::default(),
    };
    let mut symbolizer = Symbolizer::new();
    let mut unwinder = Unwinder::new();
    loop {
        let ask = get(&mut remote.pipes.borrow_mut().from);
        let answer = match ask {
            Ok(Ask::Offsets(file, at)) => {
                let at = at.iter();
                let found = at.map(|(at, code)| symbolizer.locate(&remote, &file, *at, code));
                Say::Locations(without_repeats(found), symbolizer.take_lost())
            }
            Ok(Ask::Addresses(file, at)) => {
                let at = at.iter();
                let found = at.map(|at| symbolizer.locate_address(&remote, &file, *at));
                Say::Locations(without_repeats(found), symbolizer.take_lost())
            }
            Ok(Ask::Data(file, at)) => {
                let at = at.iter();
                let found = at.map(|(code, to)| symbolizer.locate_data(&remote, &file, *code, *to));
                Say::Locations(without_repeats(found), symbolizer.take_lost())
            }
            Ok(Ask::Paths(stacks, first)) => {
                if first {
                    remote.pages.borrow_mut().clear();
                }
                let mut paths = Vec::new();
                for (space, registers, stack) in stacks {
                    let sample = Sample {
                        registers,
                        stack: &stack,
                    };
                    let mut resolve = |address| remote.resolve(space, address);
                    paths.push(unwinder.unwind(&remote, &sample, &mut resolve));
                }
                Say::Paths(paths, unwinder.take_lost())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        remote.pipes.borrow_mut().say(&answer)?;
    }
}

/// Replaces each location that equals the one before by `None`. Most instructions are on the line of the instruction before.
fn without_repeats(found: impl Iterator<Item = Location>) -> Vec<Option<Location>> {
    let mut before = None;
    let mut all = Vec::new();
    for location in found {
        let same = before.as_ref() == Some(&location);
        if !same {
            before = Some(location.clone());
        }
        all.push((!same).then_some(location));
    }
    all
}

/// Files and pages of the other process.
struct Remote {
    pipes: RefCell<Pipes>,
    /// Contents of files that are in use, so that a file that both symbolizer and unwinder read is here once.
    files: RefCell<BTreeMap<FileId, Weak<[u8]>>>,
    /// Origins of pages, by address space and address.
    pages: RefCell<BTreeMap<(u64, u64), Option<FilePage>>>,
}

impl Remote {
    /// Asks for a file. Ends this process if the other one has ended.
    fn want(&self, want: Want) -> Option<Arc<[u8]>> {
        let mut pipes = self.pipes.borrow_mut();
        let said = pipes.say(&Say::Want(want));
        match said.and_then(|()| get_file(&mut pipes.from)) {
            Ok(bytes) => bytes.map(Arc::from),
            Err(_) => std::process::exit(1),
        }
    }

    fn resolve(&self, space: u64, address: u64) -> Option<FilePage> {
        let (page, within) = (address / PAGE * PAGE, address % PAGE);
        let known = self.pages.borrow().get(&(space, page)).cloned();
        let found = known.unwrap_or_else(|| {
            let mut pipes = self.pipes.borrow_mut();
            let said = pipes.say(&Say::Resolve(space, page));
            let Ok(Resolved(found)) = said.and_then(|()| get(&mut pipes.from)) else {
                std::process::exit(1);
            };
            let mut pages = self.pages.borrow_mut();
            pages.insert((space, page), found.clone());
            found
        });
        found.map(|page| page.behind(within))
    }
}

impl Files for Remote {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        let known = self.files.borrow().get(file).and_then(Weak::upgrade);
        let found = known.or_else(|| self.want(Want::File(file.clone())));
        if let Some(bytes) = &found {
            let mut files = self.files.borrow_mut();
            files.insert(file.clone(), Arc::downgrade(bytes));
        }
        found
    }

    fn read_path(&self, path: &str) -> Option<Arc<[u8]>> {
        self.want(Want::Debug(path.into()))
    }

    fn read_beside(&self, file: &FileId, name: &str) -> Option<Arc<[u8]>> {
        self.want(Want::Beside(file.clone(), name.into()))
    }
}
