//! Limits of what the names of one file, or of all files together, may cost. Files of guests are not trusted: a few bytes can ask for
//! gigabytes of memory or for hours. Each limit counts something in the file, so that equal files always end the same way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum sum of the unpacked bytes of a file's compressed sections.
pub(crate) const UNPACKED: u64 = 512 << 20;
/// Maximum sum of the bytes of the files and of their unpacked sections that a `Symbolizer` or an `Unwinder` keeps.
pub(crate) const KEPT: u64 = 2 << 30;
/// Steps of reading debug information that each file may take, and further steps for each byte of its debug information. A compiler's
/// file takes two or three steps a byte if every unit is looked at. A step costs about 60 bytes of memory at most.
pub(crate) const STEPS: u64 = 2 << 20;
pub(crate) const STEPS_PER_BYTE: u64 = 4;
/// Steps that all files together may take.
pub(crate) const ALL_STEPS: u64 = 256 << 20;
/// Maximum depth of nested entries of debug information (DIEs). Compilers stay below a hundred.
pub(crate) const NESTING: isize = 256;
/// Maximum length of a name in a file's symbols, bytes. Longer names are cut.
pub(crate) const SYMBOL: usize = 4096;
/// Maximum length of a name or of a path of a source file that a look-up returns, bytes. Longer ones are cut.
pub(crate) const NAME: usize = 2048;
/// Maximum sum of the names that are kept demangled for one file, bytes.
pub(crate) const NAMES: usize = 64 << 20;
/// Maximum length of a mangled name that is demangled, and maximum nesting of its grammar. The longest name of 220,000 in LLVM and
/// Trilinos has 639 bytes; all that can be demangled at all need at most 64 levels, up to some twenty names.
pub(crate) const MANGLED: usize = 2048;
pub(crate) const MANGLED_NESTING: u32 = 64;
/// Maximum length of an entry of `.eh_frame` (CIE or FDE) and of an expression in one, bytes.
pub(crate) const FRAME_ENTRY: usize = 64 << 10;
pub(crate) const COMMON_ENTRY: usize = 1024;
pub(crate) const EXPRESSION: usize = 256;

/// Limit that a file has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error, Serialize, Deserialize)]
pub enum Limit {
    /// Headers of sections and segments.
    #[error("its ELF headers are too many, or its sections overlap")]
    Headers,
    /// Unpacked bytes of compressed sections.
    #[error("its compressed sections have more than {} MiB", UNPACKED >> 20)]
    Unpacked,
    /// Bytes of all files together.
    #[error("the files with names have more than {} GiB together", KEPT >> 30)]
    Kept,
    /// Nesting of debug information.
    #[error("its debug information is nested more than {NESTING} deep")]
    Nesting,
    /// Steps of reading the file's debug information.
    #[error("its debug information takes too many steps for its size")]
    Steps,
    /// Steps of reading the debug information of all files.
    #[error("the debug information of all files takes too many steps")]
    AllSteps,
    /// Bytes of the file's names.
    #[error("its names have more than {} MiB", NAMES >> 20)]
    Names,
    /// Descriptions for unwinding with an expression that jumps back or is too long, or with an entry that is too long.
    #[error("its .eh_frame has an expression that jumps back, or an entry that is too long")]
    Frames,
    /// Memory of the process that makes names.
    #[error("its names need too much memory")]
    Memory,
    /// Processor time of the process that makes names.
    #[error("its names take too long")]
    Time,
    /// The process that makes names ended for another reason.
    #[error("the process that reads it ended")]
    Ended,
}

/// File that has lost its names or its call paths, because it exceeded a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lost {
    /// Path of the file in the guest.
    pub module: String,
    /// Limit that the file exceeded.
    pub limit: Limit,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.limit {
            Limit::Frames => "call paths",
            _ => "functions and lines",
        };
        write!(f, "{}: no {what}, since {}", self.module, self.limit)
    }
}

/// Steps that are left to all files together.
pub(crate) type AllSteps = Arc<AtomicU64>;

/// Returns a full budget for all files together.
pub(crate) fn all_steps() -> AllSteps {
    Arc::new(AtomicU64::new(ALL_STEPS))
}

/// Counter of the steps that are left to a file.
#[derive(Debug)]
pub(crate) struct Meter {
    left: AtomicU64,
    all: AllSteps,
}

impl Meter {
    /// Returns the meter of a file whose debug information has so many bytes.
    pub fn new(bytes: u64, all: &AllSteps) -> Self {
        let steps = STEPS.saturating_add(bytes.saturating_mul(STEPS_PER_BYTE));
        Self {
            left: AtomicU64::new(steps),
            all: all.clone(),
        }
    }

    /// Takes steps. Returns false if too few are left; from then on none is.
    pub fn take(&self, steps: u64) -> bool {
        // Each file is read by one thread at a time, so a plain load and store do.
        let take = |from: &AtomicU64| {
            let left = from.load(Ordering::Relaxed).checked_sub(steps);
            from.store(left.unwrap_or(0), Ordering::Relaxed);
            left.is_some()
        };
        take(&self.left) && take(&self.all)
    }

    /// Returns the limit that was exceeded; `None` if steps are left.
    pub fn exceeded(&self) -> Option<Limit> {
        if self.all.load(Ordering::Relaxed) == 0 {
            return Some(Limit::AllSteps);
        }
        (self.left.load(Ordering::Relaxed) == 0).then_some(Limit::Steps)
    }
}

/// Cuts a text to at most so many bytes, and says so by three dots.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    const DOTS: &str = "...";
    if text.len() > most {
        let mut at = most - DOTS.len();
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text.truncate(at);
        text.push_str(DOTS);
        text.shrink_to_fit();
    }
    text
}
