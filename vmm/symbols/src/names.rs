//! Names of code in files that are not trusted: made in this process within limits, or in a process of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::files::Files;
use crate::kernel::{FileId, FilePage, GuestKernel};
use crate::limits::{Limit, Lost};
use crate::memory::PhysicalMemory;
use crate::process::Process;
use crate::symbolizer::{Location, Symbolizer};
use crate::unwind::{Call, Sample, Unwinder};
use crate::wire::{Ask, LOOKUPS, STACKS};

/// Argument with which a program is started that is to call [`serve_names`](crate::serve_names) at once.
pub const SERVE_ARGUMENT: &str = "--serve-names-of-guest-code";

/// Processor time that the names of one file may take, and that the call paths of a run may take. What files may cost is counted; these are
/// the last resort.
const FILE_TIME: Duration = Duration::from_secs(300);
const PATHS_TIME: Duration = Duration::from_secs(600);

/// Maker of names.
///
/// In this process, files cost no more than the limits that `README.md` states. A process of its own holds these limits as well. In
/// addition it has only the memory and the processor time that it is given, and opens nothing. If a file ends that process, the file alone
/// loses its names, and a new process goes on.
pub struct Names {
    how: How,
    lost: Vec<String>,
}

/// Look-up in a file: its number in the request, offset, and executed bytes.
type Lookup<'a> = (usize, u64, &'a [u8]);

enum How {
    Here((Symbolizer, Unwinder)),
    Process {
        program: PathBuf,
        process: Option<Process>,
        /// Files that have ended a process or taken too long, and have no names any more.
        refused: BTreeSet<FileId>,
        /// Processor time that the names of each file have taken, and that all call paths have taken.
        spent: BTreeMap<FileId, Duration>,
        unwinding: Duration,
        /// True once no process could be started.
        broken: bool,
        gaps: Option<String>,
    },
}

impl Names {
    /// Makes names in this process.
    pub fn here() -> Self {
        Self {
            how: How::Here(Default::default()),
            lost: Vec::new(),
        }
    }

    /// Makes names in a process of `program`, such as `/proc/self/exe`. The program must call [`serve_names`](crate::serve_names) if its
    /// argument is [`SERVE_ARGUMENT`]. The process starts when the first name is needed.
    pub fn in_process(program: &Path) -> Self {
        Self {
            how: How::Process {
                program: program.into(),
                process: None,
                refused: BTreeSet::new(),
                spent: BTreeMap::new(),
                unwinding: Duration::ZERO,
                broken: false,
                gaps: None,
            },
            lost: Vec::new(),
        }
    }

    /// Returns a sentence for each file that has lost names since the last call, and for a process that could not be started.
    pub fn take_lost(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lost)
    }

    /// Returns which restrictions the host does not hold for the process that makes names, after it has begun; `None` if it holds all.
    pub fn gaps(&self) -> Option<&str> {
        match &self.how {
            How::Here(_) => None,
            How::Process { gaps, .. } => gaps.as_deref(),
        }
    }

    /// Names offsets in a file, as [`Symbolizer::locate`] does.
    pub fn locate(
        &mut self,
        files: &dyn Files,
        file: &FileId,
        at: &[(u64, &[u8])],
    ) -> Vec<Location> {
        if let How::Here(here) = &mut self.how {
            let at = at.iter();
            let found = at.map(|(offset, code)| here.0.locate(files, file, *offset, code));
            let found = found.collect();
            let lost = here_lost(here);
            self.say(lost);
            return found;
        }
        let mut found = Vec::new();
        for part in at.chunks(LOOKUPS) {
            let owned = part.iter().map(|(offset, code)| (*offset, code.to_vec()));
            let ask = Ask::Offsets(file.clone(), owned.collect());
            found.extend(
                self.locations(files, file, &ask, part.len())
                    .unwrap_or_else(|| {
                        let name = file.guest_path();
                        let unnamed =
                            |(offset, _): &(u64, &[u8])| Location::unnamed(&name, *offset, false);
                        part.iter().map(unnamed).collect()
                    }),
            );
        }
        found
    }

    /// Names a link-time address of a file, as [`Symbolizer::locate_address`] does.
    pub fn locate_address(&mut self, files: &dyn Files, file: &FileId, address: u64) -> Location {
        if let How::Here(here) = &mut self.how {
            let found = here.0.locate_address(files, file, address);
            let lost = here_lost(here);
            self.say(lost);
            return found;
        }
        let ask = Ask::Addresses(file.clone(), vec![address]);
        let found = self
            .locations(files, file, &ask, 1)
            .and_then(|found| found.into_iter().next());
        found.unwrap_or_else(|| Location::unnamed(&file.guest_path(), address, false))
    }

    /// Names data of a file, as [`Symbolizer::locate_data`] does, each at a distance from an offset of code.
    pub fn locate_data(
        &mut self,
        files: &dyn Files,
        file: &FileId,
        at: &[(u64, i64)],
    ) -> Vec<Option<Location>> {
        let mut found = Vec::new();
        if let How::Here(here) = &mut self.how {
            let at = at.iter();
            found.extend(at.map(|(code, to)| here.0.locate_data(files, file, *code, *to)));
            let lost = here_lost(here);
            self.say(lost);
        } else {
            for part in at.chunks(LOOKUPS) {
                let ask = Ask::Data(file.clone(), part.to_vec());
                match self.locations(files, file, &ask, part.len()) {
                    Some(named) => found.extend(named),
                    None => return vec![None; at.len()],
                }
            }
        }
        let named = found.into_iter();
        named
            .map(|found| (!found.function.is_empty()).then_some(found))
            .collect()
    }

    /// Names code in pages, as [`Symbolizer::locate_page`] does. Each page comes with the executed bytes.
    pub fn locate_pages(
        &mut self,
        files: &dyn Files,
        kernel: &GuestKernel,
        memory: &dyn PhysicalMemory,
        pages: &[(&FilePage, &[u8])],
    ) -> Vec<Location> {
        let mut found: Vec<Option<Location>> = Vec::new();
        // Look-ups in files are gathered by file.
        let mut in_files: BTreeMap<&FileId, Vec<Lookup<'_>>> = BTreeMap::new();
        for (n, (page, code)) in pages.iter().enumerate() {
            found.push(match page {
                FilePage::File { file, offset } => {
                    in_files.entry(file).or_default().push((n, *offset, code));
                    None
                }
                other => Some(Location::outside_files(kernel, memory, other)),
            });
        }
        for (file, at) in in_files {
            let list: Vec<(u64, &[u8])> = at.iter().map(|(_, at, code)| (*at, *code)).collect();
            for ((n, ..), location) in at.iter().zip(self.locate(files, file, &list)) {
                found[*n] = Some(location);
            }
        }
        found.into_iter().flatten().collect()
    }

    /// Finds the call paths of stacks, each with its address space, as [`Unwinder::unwind`] does. The guest's memory must stay as it is
    /// meanwhile. `resolve` returns the origin of the code at an address of an address space.
    pub fn unwind(
        &mut self,
        files: &dyn Files,
        stacks: &[(u64, Sample<'_>)],
        resolve: &mut dyn FnMut(u64, u64) -> Option<FilePage>,
    ) -> Vec<Vec<Call>> {
        if let How::Here(here) = &mut self.how {
            let paths = stacks.iter().map(|(space, sample)| {
                let mut resolve = |address| resolve(*space, address);
                here.1.unwind(files, sample, &mut resolve)
            });
            let paths = paths.collect();
            let lost = here_lost(here);
            self.say(lost);
            return paths;
        }
        let mut found = Vec::new();
        let mut first = true;
        for part in stacks.chunks(STACKS) {
            let owned = part
                .iter()
                .map(|(space, sample)| (*space, sample.registers, sample.stack.to_vec()));
            let owned: Vec<_> = owned.collect();
            found.extend(self.paths(files, owned, &mut first, resolve));
        }
        found
    }

    fn say(&mut self, lost: Vec<Lost>) {
        self.lost.extend(lost.iter().map(Lost::to_string));
    }

    /// Asks for names in a file. Returns `None` if the file has none any more.
    fn locations(
        &mut self,
        files: &dyn Files,
        file: &FileId,
        ask: &Ask,
        len: usize,
    ) -> Option<Vec<Location>> {
        // A process that has other files in memory may end because of them. Then a new process reads the file alone.
        let mut again = true;
        loop {
            let process = self.process(Some(file))?;
            let fresh = process.is_fresh();
            match process.locations(files, ask, len) {
                Ok((found, lost)) => {
                    let took = process.took();
                    self.say(lost);
                    self.spend(file, took);
                    return Some(found);
                }
                Err(failed) => {
                    self.end();
                    if fresh || !again {
                        self.refuse(file, failed.limit);
                        return None;
                    }
                    again = false;
                }
            }
        }
    }

    /// Asks for call paths. Stacks whose files end the process have no path.
    fn paths(
        &mut self,
        files: &dyn Files,
        stacks: Vec<(u64, crate::Registers, Vec<u8>)>,
        first: &mut bool,
        resolve: &mut dyn FnMut(u64, u64) -> Option<FilePage>,
    ) -> Vec<Vec<Call>> {
        let len = stacks.len();
        let mut ask = Ask::Paths(stacks, *first);
        while let How::Process {
            refused, unwinding, ..
        } = &self.how
        {
            if *unwinding > PATHS_TIME {
                break;
            }
            let refused = refused.clone();
            // A file that has ended a process is no file here, so that paths end in it.
            let mut resolve = |space, address| {
                let page = resolve(space, address);
                page.filter(
                    |page| !matches!(page, FilePage::File { file, .. } if refused.contains(file)),
                )
            };
            let Some(process) = self.process(None) else {
                break;
            };
            let fresh = process.is_fresh();
            match process.paths(files, &ask, len, &mut resolve) {
                Ok((found, lost)) => {
                    let took = process.took();
                    *first = false;
                    self.say(lost);
                    if let How::Process { unwinding, .. } = &mut self.how {
                        *unwinding += took;
                        if *unwinding > PATHS_TIME {
                            self.lost.push(
                                "further call paths are left out, since they take too long".into(),
                            );
                        }
                    }
                    return found;
                }
                Err(failed) => {
                    self.end();
                    if let Ask::Paths(_, first) = &mut ask {
                        *first = true;
                    }
                    match (fresh, failed.file) {
                        (true, Some(file)) => self.refuse(&file, failed.limit),
                        // Not even the first file was asked for: the stacks themselves end the process.
                        (true, None) => break,
                        (false, _) => {}
                    }
                }
            }
        }
        *first = true;
        vec![Vec::new(); len]
    }

    /// Returns the process, which is started if necessary; `None` for a file that is refused, and if no process can be started.
    fn process(&mut self, file: Option<&FileId>) -> Option<&mut Process> {
        let How::Process {
            program,
            process,
            refused,
            broken,
            gaps,
            ..
        } = &mut self.how
        else {
            return None;
        };
        if *broken || file.is_some_and(|file| refused.contains(file)) {
            return None;
        }
        if process.is_none() {
            match Process::start(program) {
                Ok((started, lacks)) => {
                    *gaps = lacks;
                    *process = Some(started);
                }
                Err(error) => {
                    *broken = true;
                    self.lost.push(format!(
                        "functions have no names, since {} cannot be started: {error}",
                        program.display()
                    ));
                }
            }
        }
        process.as_mut()
    }

    fn end(&mut self) {
        if let How::Process { process, .. } = &mut self.how {
            *process = None;
        }
    }

    /// Counts the processor time that names of a file have taken.
    fn spend(&mut self, file: &FileId, took: Duration) {
        let How::Process { spent, .. } = &mut self.how else {
            return;
        };
        let spent = spent.entry(file.clone()).or_default();
        *spent += took;
        if *spent > FILE_TIME {
            self.refuse(file, Limit::Time);
        }
    }

    fn refuse(&mut self, file: &FileId, limit: Limit) {
        if let How::Process { refused, .. } = &mut self.how {
            refused.insert(file.clone());
        }
        let module = file.guest_path();
        self.say(vec![Lost { module, limit }]);
    }
}

fn here_lost(here: &mut (Symbolizer, Unwinder)) -> Vec<Lost> {
    let mut lost = here.0.take_lost();
    lost.extend(here.1.take_lost());
    lost
}
