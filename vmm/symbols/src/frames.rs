//! Descriptions of functions' frames in `.eh_frame` (System V ABI, AMD64, 3.7): where functions begin and end, and whether an unwinder may
//! follow the descriptions.

use std::collections::{BTreeMap, BTreeSet};

use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice,
    Expression, LittleEndian, Operation, UnwindExpression, UnwindOffset, UnwindSection,
};

use crate::elf::Section;
use crate::limits::{COMMON_ENTRY, EXPRESSION, FRAME_ENTRY, Limit};

/// Link-time address and length in bytes of a function.
pub(crate) type Extent = (u64, u64);

type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Cie<'a> = CommonInformationEntry<Bytes<'a>>;

fn parts(section: &Section) -> (EhFrame<Bytes<'_>>, BaseAddresses) {
    let mut frames = EhFrame::new(section, LittleEndian);
    frames.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(section.address);
    (frames, bases)
}

/// Common entries (CIEs) that were read, by their offset in the section. Many functions share one.
struct Known<'a> {
    cies: BTreeMap<usize, Option<Cie<'a>>>,
    /// Bytes of common entries that may still be read. Entries of a damaged section may overlap.
    left: usize,
}

impl<'a> Known<'a> {
    fn new(section: &'a Section) -> Self {
        Self {
            cies: BTreeMap::new(),
            left: 4 * section.len() + COMMON_ENTRY,
        }
    }

    fn cie(
        &mut self,
        frames: &EhFrame<Bytes<'a>>,
        bases: &BaseAddresses,
        offset: gimli::EhFrameOffset,
    ) -> gimli::Result<Cie<'a>> {
        let missing = gimli::Error::NoEntryAtGivenOffset(offset.0 as u64);
        if let Some(known) = self.cies.get(&offset.0) {
            return known.clone().ok_or(missing);
        }
        let bytes = gimli::Section::reader(frames).slice();
        let len = bytes.get(offset.0..).and_then(|rest| rest.first_chunk());
        let len = len.map_or(usize::MAX, |len| u32::from_le_bytes(*len) as usize);
        let left = self.left.checked_sub(len.min(bytes.len()));
        self.left = left.ok_or(missing)?;
        let cie = frames.cie_from_offset(bases, offset);
        self.cies.insert(offset.0, cie.clone().ok());
        cie
    }
}

/// Returns the functions that have a description, sorted by address.
pub(crate) fn extents(section: &Section) -> Vec<Extent> {
    let (frames, bases) = parts(section);
    let mut known = Known::new(section);
    let mut found = Vec::new();
    let mut entries = frames.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Fde(partial) = entry
            && let Ok(fde) = partial.parse(|frames, bases, offset| known.cie(frames, bases, offset))
        {
            found.push((fde.initial_address(), fde.len()));
        }
    }
    found.sort_unstable();
    found
}

/// Checks that an unwinder may follow the descriptions: each is short, and no expression jumps. An expression that jumps back may never
/// end. Compilers and linkers write no jumps.
pub(crate) fn check(section: &Section) -> Result<(), Limit> {
    let (frames, bases) = parts(section);
    let mut known = Known::new(section);
    // Only entries that were checked may be used.
    let mut checked = BTreeSet::new();
    let mut used = BTreeSet::new();
    let mut entries = frames.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        match entry {
            CieOrFde::Cie(cie) => {
                if cie.entry_len() > COMMON_ENTRY {
                    return Err(Limit::Frames);
                }
                checked.insert(cie.offset());
                instructions(&frames, cie.instructions(&frames, &bases), cie.encoding())?;
            }
            CieOrFde::Fde(partial) => {
                used.insert(UnwindOffset::into(partial.cie_offset()));
                let Ok(fde) =
                    partial.parse(|frames, bases, offset| known.cie(frames, bases, offset))
                else {
                    continue;
                };
                if fde.entry_len() > FRAME_ENTRY {
                    return Err(Limit::Frames);
                }
                let encoding = fde.cie().encoding();
                instructions(&frames, fde.instructions(&frames, &bases), encoding)?;
            }
        }
    }
    match used.is_subset(&checked) {
        true => Ok(()),
        false => Err(Limit::Frames),
    }
}

fn instructions(
    frames: &EhFrame<Bytes<'_>>,
    mut list: gimli::CallFrameInstructionIter<'_, Bytes<'_>>,
    encoding: gimli::Encoding,
) -> Result<(), Limit> {
    // An unwinder, too, stops at an instruction that it cannot read.
    while let Ok(Some(instruction)) = list.next() {
        let of: UnwindExpression<usize> = match instruction {
            CallFrameInstruction::DefCfaExpression { expression }
            | CallFrameInstruction::Expression { expression, .. }
            | CallFrameInstruction::ValExpression { expression, .. } => expression,
            _ => continue,
        };
        if let Ok(of) = of.get(frames) {
            expression(of, encoding)?;
        }
    }
    Ok(())
}

fn expression(of: Expression<Bytes<'_>>, encoding: gimli::Encoding) -> Result<(), Limit> {
    if of.0.len() > EXPRESSION {
        return Err(Limit::Frames);
    }
    let mut operations = of.operations(encoding);
    while let Ok(Some(operation)) = operations.next() {
        if matches!(operation, Operation::Bra { .. } | Operation::Skip { .. }) {
            return Err(Limit::Frames);
        }
    }
    Ok(())
}
