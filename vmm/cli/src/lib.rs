//! The command `nodescope`: parses the command line and calls the crates that do the work.

mod args;
mod awaited;
mod calibrate;
mod check;
mod compare;
mod config;
mod console;
mod cores;
mod counters;
mod distributed;
mod exit;
mod export;
mod follow;
mod foreign;
mod host_limit;
mod host_times;
mod image;
mod interrupt;
mod known_costs;
mod logging;
mod measured;
mod memory;
mod model;
mod models;
mod mpi;
mod node;
mod openmp;
mod phases;
mod predict;
mod profile;
mod progress;
mod report;
mod represent;
mod results;
mod run;
mod sandbox;
mod scaling;
mod sections;
mod site_names;
mod slurm;
mod snapshot;
mod source_files;
mod stats;
mod terminal;
mod trace;
mod verdict;
mod what_if;
mod worker;

use clap::{CommandFactory, Parser};
use nodescope_plugin_api::{Model, Registry};
use nodescope_symbols::{SERVE_ARGUMENT, serve_names};

use crate::args::{Args, Command};
use crate::exit::Exit;

/// Returns the description of the command line: all subcommands, options and help texts.
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the command that the command line of this process asks for, and returns the exit code.
pub fn run() -> std::process::ExitCode {
    run_with([])
}

/// Runs the command line as [`run()`] does, with models that studies can name beside those of nodescope.
pub fn run_with(models: impl IntoIterator<Item = Model>) -> std::process::ExitCode {
    // A process that is to make names of guests' code does nothing else, and has one thread.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == SERVE_ARGUMENT)
    {
        return serve_names();
    }
    if let Err(problem) = Registry::link(models) {
        terminal::print_error_line(&format!("nodescope: {problem}"));
        return Exit::Host.into();
    }
    memory::report_out_of_memory();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return told(&error).into(),
    };
    interrupt::survive_file_limit();
    if args.quiet {
        terminal::set_quiet();
    }
    logging::start(&args);
    let result = match &args.command {
        Command::Run(run) => run::run(run, &args),
        Command::Slurm(slurm) => slurm::slurm(slurm, &args),
        Command::Worker(args) => worker::worker(args),
        Command::Report(report) => report::report(report),
        Command::Verdict(args) => verdict::verdict(args),
        Command::WhatIf(args) => what_if::what_if(args),
        Command::Compare(args) => compare::compare(args),
        Command::Profile(args) => profile::profile(args),
        Command::Predict(predict) => predict::predict(predict),
        Command::Phases(args) => phases::phases(args),
        Command::Represent(args) => represent::represent(args),
        Command::Scaling(args) => scaling::scaling(args),
        Command::Model(args) => model::model(args),
        Command::Calibrate(args) => calibrate::calibrate(args),
        Command::Counters(args) => counters::counters(args),
        Command::Trace(trace) => trace::trace(trace),
        Command::Openmp(args) => openmp::openmp(args),
        Command::Node(node) => node::node(node),
        Command::Models(args) => models::models(args),
        Command::Check(check) => check::check(check),
        Command::Image(image) => image::image(image),
        Command::Snapshot(args) => snapshot::snapshot(args),
        Command::Console(console) => console::console(console),
        Command::Export(args) => export::export(args),
        Command::Import(args) => export::import(args),
    };
    let exit = result.unwrap_or_else(|failure| {
        failure.print(args.log_format);
        failure.exit
    });
    exit.into()
}

/// Prints what the command line asks for in place of a command, such as the help, or what is wrong with it.
fn told(error: &clap::Error) -> Exit {
    let printed = error.print();
    if error.use_stderr() {
        return Exit::Study;
    }
    let printed = printed.and_then(|()| std::io::Write::flush(&mut std::io::stdout()));
    match terminal::printed(printed) {
        Ok(()) => Exit::Ok,
        Err(failure) => {
            failure.print(args::LogFormat::Text);
            failure.exit
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}
