//! What translated code is made of, told to whoever samples it: a map in which every piece of code is named for its part, a line each
//! of address and bytes in hexadecimal and a symbol, as `perf` wants maps of code that is made while a program runs
//! (tools/perf/Documentation/jit-interface.txt of Linux). It does not look in them for code in a file in memory, as ours is, so that
//! addresses of samples are to be looked up by other means.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a piece of code is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// What the guest's instructions say: they themselves, and copies of registers that they need.
    #[default]
    Operation,
    /// Addresses of operands, and the look-up in line.
    LookUp,
    /// What a look-up that misses goes through before a model is asked, or its tables.
    SlowPath,
    /// A model's work done in its tables.
    Model,
    /// The guest's flags kept, and made again.
    Flags,
    /// Prologues of translation blocks: budget, counters, lines of instructions.
    Prologue,
    /// Branches, and where they lead.
    Branch,
    /// Ways to the interpreter, to the run loop and back.
    Call,
}

impl Part {
    /// Its symbol.
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

/// A piece of code: its address, its bytes, and what it is for.
pub type Piece = (u64, usize, Part);

static MAP: OnceLock<Mutex<File>> = OnceLock::new();

/// Write the map to a file from now on, for all translated code of this process but what was made before. It grows with all code that
/// is made; where code was thrown away and its memory used again, the last line of an address is right.
///
/// # Errors
///
/// The file cannot be made, or there is a map already.
pub fn write_code_map(path: &Path) -> io::Result<()> {
    let file = Mutex::new(File::create(path)?);
    MAP.set(file)
        .map_err(|_| io::Error::new(io::ErrorKind::AlreadyExists, "a map is being written"))
}

/// Write code's pieces to the map, if there is one.
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
        // Nothing of the first part lies between these.
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
