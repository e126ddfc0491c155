//! Map of translated code for profilers. Each piece of code has a line with its address and length in hexadecimal, and the name of its
//! part.
//!
//! The format is that of `perf` for generated code (tools/perf/Documentation/jit-interface.txt of Linux). `perf` does not use such a map
//! for code in a memory file, such as this code. Another program must look up the sampled addresses in the map.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Part of translated code: what a piece of code does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Guest instructions, and the copies of registers for them.
    #[default]
    Operation,
    /// Fast path of accesses: address computation of operands, and the in-line look-up.
    LookUp,
    /// Slow path of accesses, up to the model or a miss routine.
    SlowPath,
    /// Miss routines, without the model's function that they call.
    Miss,
    /// Stores, loads and rematerialisation of the guest's flags.
    Flags,
    /// Translation block prologues: budget, counters, instruction lines.
    Prologue,
    /// Branches, and look-ups of their targets.
    Branch,
    /// Calls of the interpreter, and entry and exit of translated code.
    Call,
}

impl Part {
    /// Returns the part's name in the map.
    fn symbol(self) -> &'static str {
        match self {
            Part::Operation => "translated::operations",
            Part::LookUp => "translated::look_ups",
            Part::SlowPath => "translated::slow_paths",
            Part::Miss => "translated::misses",
            Part::Flags => "translated::flags",
            Part::Prologue => "translated::prologues",
            Part::Branch => "translated::branches",
            Part::Call => "translated::calls",
        }
    }
}

/// A piece of code: address, length in bytes, and part.
pub type Piece = (u64, usize, Part);

static MAP: OnceLock<Mutex<File>> = OnceLock::new();

/// Starts to write the map to a file. The map has all code that this process translates after the call. If memory was reused, the last line
/// of an address is the valid one.
///
/// # Errors
///
/// A file that cannot be created, or a map that is being written already.
pub fn write_code_map(path: &Path) -> io::Result<()> {
    let file = Mutex::new(File::create(path)?);
    MAP.set(file)
        .map_err(|_| io::Error::new(io::ErrorKind::AlreadyExists, "a map is being written"))
}

/// Adds pieces of code to the map, if one is being written.
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
        // There is no code between these two calls, so the first part is dropped.
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
