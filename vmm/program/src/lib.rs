//! Checks the programs of a study before anything boots: whether they are in the guest, whether they are of the guest's architecture, whether
//! the dynamic linker finds their libraries, of which MPI they are, and whether the guest's processor has their instructions.
//!
//! Programs and images are files of other people: every table is read with bounds, and a damaged file gives a message.
//!
//! - `command`: the programs that a shell command or a script starts.
//! - `files`: the files of a guest, of the job and of the image's root disk.
//! - `elf`: an ELF file: its architecture, and what it needs of the dynamic linker.
//! - `libraries`: how the dynamic linker looks for libraries.
//! - `code`: instructions of a program that the guest's processor lacks.
//! - `check`: from a study to its problems.

mod check;
mod code;
mod command;
mod elf;
mod files;
mod libraries;

pub use check::{fuzz, problems};
