//! A map of translated code for profilers. Each piece of code has a line: address and length in hexadecimal, and the name of its part.
//!
//! The format is that of `perf` for generated code (tools/perf/Documentation/jit-interface.txt of Linux). `perf` does not use such a map
//! for code in a file in memory, as this code is. Addresses of samples must be looked up in the map by another program.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The part of translated code that a piece belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The guest's instructions, and copies of registers for them.
    #[default]
    Operation,
    /// The fast path of accesses: addresses of operands, and the look-up in line.
    LookUp,
    /// The slow path of accesses, up to the model or a miss routine.
    SlowPath,
    /// Miss routines, which work on a model's exported state.
    Model,
    /// Stores, loads and rematerialisation of the guest's flags.
    Flags,
    /// Prologues of translation blocks: budget, counters, lines of instructions.
    Prologue,
    /// Branches, and look-ups of their targets.
    Branch,
    /// Calls of the interpreter, and the entry and exit of translated code.
    Call,
}

impl Part {
    /// Returns the part's name in the map.
    fn symbol(self) -> &'static str {
        match self {
            Part::Operation => "translated::operations",
            Part::LookUp => "translated::look_ups",
            Part::SlowPath => "translated::missed_look_ups",
            Part::Model => "translated::model",
            Part::Flags => "translated::flags",
            Part::Prologue => "translated::heads",
            Part::Branch => "translated::branches",
            Part::Call => "translated::calls",
        }
    }
}

/// A piece of code: its address, its length in bytes, and its part.
pub type Piece = (u64, usize, Part);

static MAP: OnceLock<Mutex<File>> = OnceLock::new();

/// Writes the map to a file from now on. The map has all translated code that this process makes after the call. Where memory of code was
/// used again, the last line of an address is right.
///
/// # Errors
///
/// The file cannot be made, or there is a map already.
pub fn write_code_map(path: &Path) -> io::Result<()> {
    let file = Mutex::new(File::create(path)?);
    MAP.set(file)
        .map_err(|_| io::Error::new(io::ErrorKind::AlreadyExists, "a map is being written"))
}

/// Writes pieces of code to the map, if there is one.
pub(super) fn note(pieces: impl Iterator<Item = Piece>) {
    if let Some(file) = MAP.get() {
        let written = file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(lines(pieces).as_bytes());
        if let Err(error) = written {
            tracing::warn!(%error, "the map of translated code is incomplete");
        }
    }
}

fn lines(pieces: impl Iterator<Item = Piece>) -> String {
    let mut text = String::new();
    for (address, bytes, part) in pieces {
        let symbol = part.symbol();
        writeln!(text, "{address:x} {bytes:x} {symbol}").expect("a string takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::assembler::Assembler;
    use super::*;

    #[test]
    fn every_byte_is_in_one_piece_and_pieces_end_where_their_part_or_the_code_in_line_does() {
        let mut a = Assembler::new(0x1000, 0x8000);
        let nops = |a: &mut Assembler, n| (0..n).for_each(|_| a.plain(iced_x86::Code::Nopd));
        nops(&mut a, 2);
        let was = a.part(Part::LookUp);
        assert_eq!(was, Part::Operation);
        nops(&mut a, 3);
        assert_eq!(a.part(was), Part::LookUp);
        // The part before has no code between these two calls.
        a.part(Part::Flags);
        nops(&mut a, 1);
        a.begin_out_of_line();
        nops(&mut a, 4);
        assert_eq!(
            lines(a.pieces()),
            "1000 2 translated::operations\n\
             1002 3 translated::look_ups\n\
             1005 1 translated::flags\n\
             8000 4 translated::flags\n"
        );
    }
}
