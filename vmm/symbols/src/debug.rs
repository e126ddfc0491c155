//! Debug information of a file (DWARF): source lines and inlined functions.

use std::sync::Arc;

use addr2line::Context;
use gimli::{DebugAbbrevOffset, Dwarf, SectionId};

use crate::elf::{Elf, Section, Unpacked};
use crate::files::Files;
use crate::kernel::FileId;
use crate::limits::{AllSteps, Limit, Meter, NAME, NESTING, SYMBOL, all_steps, cut};
use crate::process::is_debug;
use crate::reader::Reader;
use crate::symbolizer::SourceLine;

/// Maximum number of frames of one address, inlined functions included.
pub(crate) const INLINED: usize = 64;
/// Folder in which Debian's packages put debug information.
pub(crate) const DEBUG: &str = "/usr/lib/debug";
/// Sections that name functions and lines. Others are not read.
const SECTIONS: [SectionId; 11] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTypes,
];

/// Name of a function as the debug information has it, and source line.
pub(crate) type DebugFrame = (Option<String>, Option<SourceLine>);

/// Debug information of a file.
pub(crate) struct DebugInfo {
    context: Context<Reader>,
    meter: Arc<Meter>,
}

impl DebugInfo {
    /// Finds the debug information of a file: its own, or that of a separate file, whose symbols are added. Returns the file, the debug
    /// information, and the number of bytes that both keep in memory. `left` is the most that they may keep beside the file itself.
    pub fn of(
        files: &dyn Files,
        file: &FileId,
        mut elf: Elf,
        left: u64,
        all: &AllSteps,
    ) -> Result<(Elf, Option<Self>, u64), Limit> {
        let own = elf.len();
        let mut unpacked = Unpacked::new(left);
        if let Some(debug) = Self::load(files, &elf, &mut unpacked, all)? {
            return Ok((elf, Some(debug), own + unpacked.taken(left)));
        }
        let Some(separate) = separate(files, file, &elf)? else {
            return Ok((elf, None, own + unpacked.taken(left)));
        };
        let left = left.checked_sub(separate.len()).ok_or(Limit::Kept)?;
        let mut unpacked = Unpacked::new(left);
        let debug = Self::load(files, &separate, &mut unpacked, all)?;
        elf.add_symbols(&separate);
        Ok((elf, debug, own + separate.len() + unpacked.taken(left)))
    }

    /// Reads the debug information in a file, and the part that the file shares with other files. Returns `None` without debug information,
    /// and for debug information that is damaged.
    fn load(
        files: &dyn Files,
        elf: &Elf,
        unpacked: &mut Unpacked,
        all: &AllSteps,
    ) -> Result<Option<Self>, Limit> {
        let sections = Sections::of(elf, unpacked)?;
        if sections.get(SectionId::DebugInfo).is_empty() {
            return Ok(None);
        }
        let shared = elf.shared_debug.as_deref().filter(|path| is_debug(path));
        let shared = match shared.and_then(|path| files.read_path(path)) {
            Some(shared) => match Elf::new(shared)? {
                Some(shared) => {
                    unpacked.keep(&shared)?;
                    Some(Sections::of(&shared, unpacked)?)
                }
                None => None,
            },
            None => None,
        };
        let bytes = sections.bytes() + shared.as_ref().map_or(0, Sections::bytes);
        // The check keeps nothing, and has steps of its own.
        let meter = Arc::new(Meter::new(bytes, &all_steps()));
        for sections in [Some(&sections), shared.as_ref()].into_iter().flatten() {
            check_nesting(&sections.dwarf(&meter), &meter)?;
        }
        let meter = Arc::new(Meter::new(bytes, all));
        let mut dwarf = sections.dwarf(&meter);
        if let Some(shared) = shared {
            dwarf.set_sup(shared.dwarf(&meter));
        }
        let context = Context::from_dwarf(dwarf).ok();
        match meter.exceeded() {
            Some(limit) => Err(limit),
            None => Ok(context.map(|context| Self { context, meter })),
        }
    }

    /// Finds the functions and source lines of a link-time address, the innermost first.
    pub fn frames(&self, address: u64) -> Result<Vec<DebugFrame>, Limit> {
        let mut frames = Vec::new();
        let found = self.context.find_frames(address).skip_all_loads();
        if let Ok(mut found) = found {
            while let Ok(Some(frame)) = found.next() {
                if frames.len() == INLINED {
                    break;
                }
                let name = frame.function.map(|function| {
                    let bytes = function.name.bytes();
                    let bytes = &bytes[..bytes.len().min(SYMBOL + 1)];
                    cut(String::from_utf8_lossy(bytes).into_owned(), SYMBOL)
                });
                let line = frame.location.and_then(|location| {
                    Some(SourceLine {
                        file: short(location.file?),
                        line: location.line?,
                    })
                });
                frames.push((name, line));
            }
        }
        match self.meter.exceeded() {
            Some(limit) => Err(limit),
            None => Ok(frames),
        }
    }
}

/// Returns a path, cut to [`NAME`] bytes.
fn short(path: &str) -> String {
    match path.len() <= NAME {
        true => path.into(),
        false => cut(path.chars().take(NAME + 1).collect(), NAME),
    }
}

/// The sections of a file that name functions and lines.
struct Sections(Vec<(SectionId, Section)>);

impl Sections {
    fn of(elf: &Elf, unpacked: &mut Unpacked) -> Result<Self, Limit> {
        let sections = SECTIONS.iter();
        let sections = sections.map(|id| Ok((*id, elf.section(id.name(), unpacked)?)));
        sections.collect::<Result<_, _>>().map(Self)
    }

    fn get(&self, id: SectionId) -> Section {
        let found = self.0.iter().find(|(known, _)| *known == id);
        found
            .map(|(_, section)| section.clone())
            .unwrap_or_default()
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, section)| section.len() as u64).sum()
    }

    fn dwarf(&self, meter: &Arc<Meter>) -> Dwarf<Reader> {
        let section = |id| -> Result<Reader, std::convert::Infallible> {
            Ok(Reader::new(self.get(id), meter))
        };
        let Ok(dwarf) = Dwarf::load(section);
        dwarf
    }
}

/// Checks that entries of debug information are not nested too deep: `addr2line` calls itself for nested entries.
fn check_nesting(dwarf: &Dwarf<Reader>, meter: &Meter) -> Result<(), Limit> {
    let check = |header: &gimli::UnitHeader<Reader>, abbreviations: &gimli::Abbreviations| {
        let mut entries = header.entries_raw(abbreviations, None)?;
        while !entries.is_empty() {
            if entries.next_depth() > NESTING {
                return Ok(false);
            }
            if let Some(abbreviation) = entries.read_abbreviation()? {
                entries.skip_attributes(abbreviation.attributes())?;
            }
        }
        Ok::<bool, gimli::Error>(true)
    };
    // Units of one compilation often share their abbreviations.
    let mut known: Option<(DebugAbbrevOffset, gimli::Abbreviations)> = None;
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let offset = header.debug_abbrev_offset();
        if known.as_ref().is_none_or(|(of, _)| *of != offset) {
            let read = header.abbreviations(&dwarf.debug_abbrev);
            known = read.ok().map(|read| (offset, read));
        }
        let Some((_, abbreviations)) = &known else {
            continue;
        };
        // Where an entry is damaged, `addr2line` reads no further either.
        if check(&header, abbreviations) == Ok(false) {
            return Err(Limit::Nesting);
        }
    }
    meter.exceeded().map_or(Ok(()), Err)
}

/// Finds the separate file with the debug information of `elf`: by the build id, or by the name and the checksum that the file has
/// (`.gnu_debuglink`), beside the file and in its folder `.debug`, as GDB does.
fn separate(files: &dyn Files, file: &FileId, elf: &Elf) -> Result<Option<Elf>, Limit> {
    if let Some(id) = elf.build_id.as_deref()
        && let Some((folder, name)) = id.split_at_checked(2)
        && let Some(debug) = files.read_path(&format!("{DEBUG}/.build-id/{folder}/{name}.debug"))
        && let Some(debug) = Elf::new(debug)?
        && debug.build_id == elf.build_id
    {
        return Ok(Some(debug));
    }
    let Some((name, crc)) = &elf.debug_link else {
        return Ok(None);
    };
    if !may_link(name) {
        return Ok(None);
    }
    for name in [name.clone(), format!(".debug/{name}")] {
        if let Some(debug) = files.read_beside(file, &name)
            && let Some(debug) = Elf::new(debug)?
            && debug.crc() == *crc
        {
            return Ok(Some(debug));
        }
    }
    Ok(None)
}

/// Returns whether a name may be that of a file beside another file.
pub(crate) fn may_link(name: &str) -> bool {
    !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']) && name != ".."
}
