//! Target for files of guests with debug information: symbols, DWARF, descriptions for unwinding.

use std::path::Path;
use std::sync::Arc;

use nodescope_symbols::{
    DEPTH, FileId, FilePage, Files, Lost, Registers, Sample, Symbolizer, Unwinder,
};

use super::{Once, Target};
use crate::choices::Choices;
use crate::dwarf::{CODE, doubling_name, whole};
use crate::elf::{BASE, TEXT, TEXT_LEN, damage, text};

/// Target that names the code of an ELF file, and unwinds a stack by its descriptions.
pub const DEBUG: Target = Target {
    name: "debug",
    what: "ELF files with symbols, debug information (DWARF) and descriptions for unwinding",
    seeds: || SEED.get(|| vec![whole().build()]).clone(),
    mutate,
    run: |input, _: &Path| {
        read(input);
    },
    foreign: false,
};

static SEED: Once<Vec<Vec<u8>>> = Once::new();
/// Most bytes of a name or a path that a look-up may return.
const NAME: usize = 2048;
/// Most functions that may be inlined at one address.
const INLINED: usize = 64;
/// Largest file of a case, in bytes.
const LARGEST: usize = 32 << 20;

/// Damages the fields of a section or two of a well-formed file, its names, or bytes of the finished file.
fn mutate(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut file = whole();
    for _ in 0..1 + choices.below(3) {
        let at = 1 + choices.below(file.0.len() - 1);
        let damages = 1 + choices.below(4);
        let section = &mut file.0[at];
        for _ in 0..damages {
            if section.fields.len() < 100_000 {
                damage(&mut section.fields, choices);
            }
        }
        if choices.once_in(20) {
            section.shares = Some(choices.below(at));
        }
    }
    if choices.once_in(8)
        && let Some(section) = file.section(".debug_str")
    {
        section.fields = vec![text(&doubling_name()[..200])];
    }
    let mut bytes = file.build();
    if choices.once_in(8) {
        for _ in 0..1 + choices.below(4) {
            let at = choices.below(bytes.len());
            bytes[at] = choices.byte();
        }
    }
    bytes.truncate(LARGEST);
    bytes
}

/// Source that has one file, whatever its name.
struct One(Arc<[u8]>);

impl Files for One {
    fn read(&self, _: &FileId) -> Option<Arc<[u8]>> {
        Some(self.0.clone())
    }
}

/// Returns the identity of the file that is read.
fn program() -> FileId {
    FileId {
        file_system: "tmpfs".into(),
        device: "tmpfs".into(),
        mount: String::new(),
        path: "/program".into(),
        inode: 1,
        mapping: 0,
        deleted: false,
    }
}

/// Names code of a file, and unwinds a stack of return addresses into its code. Returns the limits that the file exceeded.
///
/// # Panics
///
/// If an answer is larger than the limits that answers have.
pub fn read(input: &[u8]) -> Vec<Lost> {
    let files = One(input.into());
    let file = program();
    let mut symbolizer = Symbolizer::new();
    for at in (TEXT..TEXT + TEXT_LEN).step_by(64).chain(0..9) {
        let code = input.get(at as usize..at as usize + 1).unwrap_or_default();
        let location = symbolizer.locate(&files, &file, at, code);
        let names = location.inlined.iter().map(|frame| &frame.function);
        for name in names.chain([&location.function]) {
            assert!(name.len() <= NAME, "a name of {} bytes", name.len());
        }
        let lines = location.inlined.iter().map(|frame| &frame.called_from);
        for line in lines.chain([&location.line]).flatten() {
            assert!(
                line.file.len() <= NAME,
                "a path of {} bytes",
                line.file.len()
            );
        }
        assert!(location.inlined.len() <= INLINED);
    }
    let stack: Vec<u8> = (0..512u64)
        .flat_map(|n| (CODE + 1 + 16 * n % TEXT_LEN).to_le_bytes())
        .collect();
    let registers = Registers {
        ip: CODE + 100,
        sp: 0x7000_0000_0000,
        bp: 0x7000_0000_0100,
    };
    let sample = Sample {
        registers,
        stack: &stack,
    };
    let mut unwinder = Unwinder::new();
    let mut resolve = |address: u64| {
        Some(FilePage::File {
            file: file.clone(),
            offset: address.checked_sub(BASE)?,
        })
    };
    let path = unwinder.unwind(&files, &sample, &mut resolve);
    assert!(path.len() <= DEPTH);
    let mut lost = symbolizer.take_lost();
    lost.extend(unwinder.take_lost());
    // Symbolizer and unwinder may say the same.
    lost.dedup();
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_has_names_lines_and_calls() {
        let bytes = whole().build();
        let files = One(bytes.clone().into());
        let file = program();
        let mut symbolizer = Symbolizer::new();
        let location = symbolizer.locate(&files, &file, TEXT + 4, &bytes[TEXT as usize + 4..][..4]);
        assert_eq!((&*location.function, location.inlined.len()), ("fn", 3));
        assert_eq!(
            location.line.map(|line| line.file),
            Some("fn/dir/f.c".into())
        );
        assert!(location.verified && read(&bytes).is_empty());
        let stack: Vec<u8> = (0..64u64)
            .flat_map(|n| (CODE + 16 + n).to_le_bytes())
            .collect();
        let sample = Sample {
            registers: Registers {
                ip: CODE,
                sp: 4096,
                bp: 0,
            },
            stack: &stack,
        };
        let mut resolve = |address: u64| {
            Some(FilePage::File {
                file: file.clone(),
                offset: address.checked_sub(BASE)?,
            })
        };
        let path = Unwinder::new().unwind(&files, &sample, &mut resolve);
        assert!(path.len() > 60, "{} calls", path.len());
    }
}
