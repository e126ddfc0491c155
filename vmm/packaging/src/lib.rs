//! Contents of a package besides the program: manual pages, shell completions, and the licences of the libraries that the program contains.
//! Manual pages and completions are made from the program's command line. `scripts/package` runs this crate's program.

mod licences;

use std::fs::{self, File};
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

pub use licences::{Library, libraries, third_party};

/// Shells that get completions, each with the file name under which the shell looks for them.
pub const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "nodescope"),
    (Shell::Zsh, "_nodescope"),
    (Shell::Fish, "nodescope.fish"),
];

/// Returns the names of the manual pages, without section: that of the command first, then those of its subcommands at any depth, such as
/// `nodescope-image-build`.
pub fn page_names(command: &Command) -> Vec<String> {
    fn add(command: &Command, name: String, names: &mut Vec<String>) {
        names.push(name.clone());
        for inner in command.get_subcommands() {
            add(inner, format!("{name}-{}", inner.get_name()), names);
        }
    }
    let mut names = Vec::new();
    add(command, command.get_name().to_owned(), &mut names);
    names
}

/// Writes one file for each manual page to the folder `out/man`, such as `nodescope-run.1`. Writes the completions of each shell to the
/// folder `out/completions`, under the names of [`COMPLETIONS`]. `date` is printed in the pages, such as `2026-01-31`.
///
/// # Errors
///
/// A folder or file cannot be written.
pub fn write(command: &Command, date: &str, out: &Path) -> io::Result<()> {
    let (manual, completions) = (out.join("man"), out.join("completions"));
    fs::create_dir_all(&manual)?;
    fs::create_dir_all(&completions)?;
    let mut built = command.clone().disable_help_subcommand(true);
    built.build();
    let version = command.get_version().unwrap_or_default();
    let source = format!("{} {version}", command.get_name());
    write_pages(&built, &source, date, &manual)?;
    for (shell, name) in COMPLETIONS {
        let mut file = File::create(completions.join(name))?;
        clap_complete::generate(shell, &mut command.clone(), command.get_name(), &mut file);
    }
    Ok(())
}

/// Writes the manual pages of a command and of all its subcommands to a folder.
fn write_pages(command: &Command, source: &str, date: &str, folder: &Path) -> io::Result<()> {
    for inner in command.get_subcommands() {
        write_pages(inner, source, date, folder)?;
    }
    Man::new(command.clone())
        .source(source)
        .date(date)
        .generate_to(folder)?;
    Ok(())
}
