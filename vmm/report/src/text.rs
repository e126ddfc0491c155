//! Titles, lines and tables that text and HTML share.

use std::collections::BTreeSet;

use nodescope_trace::PendingCalls;
use nodescope_verdict::{NO_CAUSE, Verdict};

use crate::breakdown::{CYCLE, ScopeKind, WindowReport};
use crate::call_sites;
use crate::mpi::{FunctionRow, MOST_PROGRAMS, MpiReport, ProgramReport, RankRow};
use crate::sampled::SampledReport;
use crate::table::{Table, hanging, wrap};
use crate::units::{bytes, grouped, si, time};
use crate::{CoreCpi, NetworkCounts, Report};

/// Intended maximum width of a line, in characters.
pub(crate) const WIDTH: usize = 100;
/// Maximum number of rows of a table in the terminal, sums not counted.
pub(crate) const ROWS: usize = 40;

/// Returns words behind a beginning, in lines of 100 columns. Further lines are indented as far as the words.
pub fn wrapped(begin: &str, words: &str) -> String {
    hanging(begin, begin.chars().count(), words, WIDTH)
}

/// Returns a verdict as plain text, made for a terminal of 100 columns.
pub fn verdict_text(verdict: &Verdict) -> String {
    let mut out = String::from("Verdict\n");
    if verdict.causes.is_empty() {
        out.push_str(&wrapped("  ", NO_CAUSE));
    }
    for (number, cause) in (1..).zip(&verdict.causes) {
        out.push_str(&wrapped(&format!("  {number}. "), &cause.text(verdict)));
    }
    if !verdict.ruled_out.is_empty() {
        out.push_str(&wrapped("  ruled out: ", &verdict.ruled_out_text()));
    }
    for said in &verdict.quality {
        out.push_str(&wrapped("  data: ", said));
    }
    out
}

/// Returns a title with a line of a character below it.
pub(crate) fn underlined(title: &str, line: char) -> String {
    let title = wrap(title, WIDTH).join("\n");
    let line = line.to_string();
    let line = line.repeat(title.chars().count().min(WIDTH));
    format!("{title}\n{line}\n")
}

pub(crate) fn title(report: &Report) -> String {
    format!("nodescope report: {}", report.study.name)
}

/// Label of the line about the core's CPI.
pub(crate) const CORE: &str = "CPI_core";

pub(crate) fn core(core: &CoreCpi) -> String {
    match core {
        CoreCpi::Nominal { source } => format!(
            "the same nominal CPI for every instruction, and extra cycles of long instructions such as REP MOVS ({source})"
        ),
        CoreCpi::Modelled { source } => format!("modelled by basic block ({source})"),
        CoreCpi::Replaced { cpi, source } => format!("{cpi} ({source})"),
        CoreCpi::PerRank {
            whole,
            ranks,
            source,
        } => match ranks.is_empty() {
            true => format!("{whole} ({source})"),
            false => format!("{whole}, each rank its own ({source})"),
        },
    }
}

pub(crate) fn window_title(window: &WindowReport) -> String {
    let state = match (window.complete, window.warm_up_only) {
        (true, _) => "",
        (false, false) => " (cut)",
        (false, true) => " (cut in its warm-up)",
    };
    format!("Window \"{}\"{state}", window.name)
}

pub(crate) fn window_lines(window: &WindowReport) -> Vec<String> {
    let duration = window.closed_ps.saturating_sub(window.measured_from_ps);
    let late = window.opened_ps.saturating_sub(window.triggered_ps);
    let mut lines = vec![
        format!(
            "Trigger: {}, at {}; opened {} later; measured {} of virtual time, from {} to {}.",
            window.trigger,
            time(window.triggered_ps as f64),
            time(late as f64),
            time(duration as f64),
            time(window.measured_from_ps as f64),
            time(window.closed_ps as f64),
        ),
        format!("Models: {}.", window.models),
    ];
    lines.extend(window.sampled.iter().flat_map(SampledReport::lines));
    lines
}

/// Returns a sentence that says whether the terms and idle time account for all cycles of the vCPUs' clocks. Returns `None` if the window
/// has no total or no clocks.
pub(crate) fn window_check(window: &WindowReport) -> Option<String> {
    let mut scopes = window.scopes.iter();
    let total = scopes.find(|scope| scope.kind == ScopeKind::Total)?;
    let clock = total.clock?;
    let replaced = match clock.substituted_65536 {
        0 => "",
        _ => " (with the core's cycles before they were replaced)",
    };
    let clocks = grouped(clock.clock_cycles);
    let difference = clock.difference_65536.unsigned_abs() as f64 / CYCLE as f64;
    Some(match (clock.consistent, clock.difference_65536) {
        (true, 0) => format!(
            "Every cycle is accounted for: terms and idle time{replaced} add up to the {clocks} cycles of the vCPUs' clocks."
        ),
        (true, _) => format!(
            "Every cycle is accounted for: terms and idle time{replaced} add up to the {clocks} cycles of the vCPUs' clocks, but for {difference:.2} cycles: fractions of a cycle at the window's ends."
        ),
        (false, _) => format!(
            "NOT every cycle is accounted for: terms and idle time{replaced} differ by {} cycles from the {clocks} cycles of the vCPUs' clocks.",
            si(difference)
        ),
    })
}

/// Returns a table of the published equations, in words, behind the figures of windows. The title names the publication.
pub(crate) fn equations_table() -> Table {
    let mut table = Table::new(
        "Equations, with their numbers in Rechistov's full-platform simulation of supercomputers (2013)",
        3,
        &["number", "where", "equation"],
    )
    .about("equations");
    for (number, place, equation) in [
        (
            "(1)",
            "CPI",
            "core + caches + memory + MPI, each in cycles per instruction",
        ),
        ("(2)", "caches", "L1 + L2 + L3 + ..."),
        ("(3)", "L1, L2, ...", "the level's events: sum of P x L"),
        (
            "(4)",
            "mem loc, mem rem",
            "references to memory: sum of P x L",
        ),
        ("(5)", "MPI", "MPI functions: sum of P x L"),
        (
            "(6)",
            "FLOPS, formula",
            "frequency / (core / alpha + caches + memory + MPI)",
        ),
    ] {
        table.row(vec![number.into(), place.into(), equation.into()]);
    }
    table.ordered = true;
    table
        .below
        .push("P: how often, for each instruction outside MPI. L: cycles each time.".into());
    table
}

fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), si)
}

/// Returns the sections of the MPI profile for a terminal, each with its title and its tables.
pub(crate) fn mpi_sections(mpi: &MpiReport) -> Vec<(String, Vec<Table>)> {
    let mut sections: Vec<(String, Vec<Table>)> = (mpi.programs.iter().take(MOST_PROGRAMS))
        .map(|program| {
            let mut tables: Vec<Table> = (mpi_tables(program).into_iter())
                .map(|table| table.limited(ROWS))
                .collect();
            tables.push(matrix_table(program));
            tables.extend(sizes_table(program));
            (program_title(mpi, program), tables)
        })
        .collect();
    let general = general_tables(mpi);
    match sections.as_mut_slice() {
        // A single program's profile is that of the run.
        [(_, tables)] => {
            tables.splice(0..0, general);
        }
        _ => {
            let general = general.into_iter().map(|table| table.limited(ROWS));
            sections.insert(0, (WHOLE_RUN.into(), general.collect()));
        }
    }
    sections
}

const WHOLE_RUN: &str = "MPI profile of the whole run";

/// Returns the title of a program's profile.
pub(crate) fn program_title(mpi: &MpiReport, program: &ProgramReport) -> String {
    match mpi.label(program.number) {
        Some(label) => format!("MPI profile of {label}"),
        None => WHOLE_RUN.into(),
    }
}

/// Returns what concerns the whole run: the programs where there are several or none, and the calls that never ended.
pub(crate) fn general_tables(mpi: &MpiReport) -> Vec<Table> {
    let mut tables = Vec::new();
    if !mpi.pending.is_empty() {
        tables.push(pending_table(&mpi.pending));
    }
    if mpi.programs.len() != 1 {
        tables.push(programs_table(mpi));
    }
    tables
}

/// Returns a table of the MPI programs of the run.
fn programs_table(mpi: &MpiReport) -> Table {
    let title = "MPI programs, each with an MPI_COMM_WORLD of its own, in the order of the trace. Calls counted; times modelled";
    let head = [
        "program", "name", "ranks", "nodes", "from", "to", "calls", "in MPI",
    ];
    let mut table = Table::new(title, 2, &head).about("programs");
    for program in &mpi.programs {
        let nodes: BTreeSet<&String> = (program.ranks.iter())
            .filter_map(|row| row.node.as_ref())
            .collect();
        let sum = |value: fn(&RankRow) -> u64| -> u128 {
            program.ranks.iter().map(|row| u128::from(value(row))).sum()
        };
        table.row(vec![
            program.number.to_string(),
            program.name.clone(),
            program.world_size.to_string(),
            nodes.len().to_string(),
            time(program.from_ps as f64),
            time(program.to_ps as f64),
            grouped(sum(|row| row.calls)),
            time(sum(|row| row.time_ps) as f64),
        ]);
    }
    if mpi.programs.is_empty() {
        table.below.push("No MPI rank introduced itself.".into());
    }
    if mpi.programs.len() > MOST_PROGRAMS {
        table.below.push(format!(
            "The profiles of the first {MOST_PROGRAMS} programs follow; report.json has all."
        ));
    }
    table
}

/// Returns the tables of a program's profile by rank and function.
pub(crate) fn mpi_tables(mpi: &ProgramReport) -> Vec<Table> {
    let span = mpi.to_ps.saturating_sub(mpi.from_ps);
    let share = |time_ps: u64, ranks: usize| {
        if span == 0 || ranks == 0 {
            "-".into()
        } else {
            format!(
                "{:.1} %",
                100.0 * time_ps as f64 / (span as f64 * ranks as f64)
            )
        }
    };
    let mut by_rank = Table::new(
        format!(
            "By rank. Calls and bytes counted; times modelled. Rates and shares are of the {} between the first entry into MPI and the last exit",
            time(span as f64)
        ),
        3,
        &[
            "rank", "node", "program", "calls", "calls/s", "sent", "received", "in MPI", "share",
        ],
    )
    .about("run");
    for row in &mpi.ranks {
        by_rank.row(vec![
            row.rank.to_string(),
            row.node.clone().unwrap_or_else(|| "-".into()),
            row.program.clone().unwrap_or_else(|| "-".into()),
            grouped(row.calls.into()),
            rate(row.calls_per_second),
            bytes(row.send_bytes),
            bytes(row.receive_bytes),
            time(row.time_ps as f64),
            share(row.time_ps, 1),
        ]);
    }

    let cells = |row: &FunctionRow, ranks: usize| {
        vec![
            grouped(row.calls.into()),
            rate(row.calls_per_second),
            bytes(row.send_bytes),
            bytes(row.receive_bytes),
            time(row.mean_ps),
            time(row.max_ps as f64),
            time(row.time_ps as f64),
            share(row.time_ps, ranks),
        ]
    };
    const HEAD: [&str; 8] = [
        "calls", "calls/s", "sent", "received", "mean", "longest", "total", "share",
    ];
    let mut by_time: Vec<&FunctionRow> = mpi.functions.iter().collect();
    by_time.sort_by(|a, b| b.time_ps.cmp(&a.time_ps).then(a.function.cmp(b.function)));
    let mut head = vec!["function"];
    head.extend(HEAD);
    let mut functions = Table::new(
        "By function, all ranks, longest total first. Calls and bytes counted; times modelled",
        1,
        &head,
    )
    .about("run");
    for row in by_time {
        let mut line = vec![row.function.to_owned()];
        line.extend(cells(row, mpi.ranks.len()));
        functions.row(line);
    }
    let mut by_time: Vec<&FunctionRow> = mpi.rank_functions.iter().collect();
    by_time.sort_by(|a, b| {
        (b.time_ps.cmp(&a.time_ps))
            .then(a.rank.cmp(&b.rank))
            .then(a.function.cmp(b.function))
    });
    let mut head = vec!["function", "rank"];
    head.extend(HEAD);
    let mut both = Table::new(
        "By function and rank, longest total first. Calls and bytes counted; times modelled",
        2,
        &head,
    )
    .about("run");
    for row in by_time {
        let rank = row.rank.map(|rank| rank.to_string()).unwrap_or_default();
        let mut line = vec![row.function.to_owned(), rank];
        line.extend(cells(row, 1));
        both.row(line);
    }
    let mut tables = vec![by_rank];
    if !functions.rows.is_empty() {
        tables.push(functions);
        tables.extend(call_sites::table(&mpi.call_sites));
        tables.push(both);
    }
    tables
}

/// Returns a table of calls that never ended, the ranks for which they wait, and other errors of the program's communication.
fn pending_table(pending: &PendingCalls) -> Table {
    let title = match pending.calls.len() {
        0 => "What is wrong with the program's communication",
        _ => {
            "Calls that had not ended when the trace did, and what is wrong with the communication"
        }
    };
    let mut table = Table::new(title, 0, &[]);
    table.below = pending.lines();
    table
}

/// Returns the communication matrix: a square for at most 8 ranks, otherwise the 20 pairs of ranks with the most bytes.
pub(crate) fn matrix_table(mpi: &ProgramReport) -> Table {
    const SQUARE: u32 = 8;
    const PAIRS: usize = 20;
    let ranks = mpi
        .matrix
        .iter()
        .map(|cell| cell.from.max(cell.to).saturating_add(1))
        .chain(mpi.ranks.iter().map(|row| row.rank.saturating_add(1)))
        .max()
        .unwrap_or(0);
    let title = "Who sends to whom, point to point, counted";
    if mpi.matrix.is_empty() {
        let mut table = Table::new(title, 0, &[]);
        table.below.push("No point-to-point message.".into());
        return table;
    }
    if ranks > SQUARE {
        let mut table = Table::new(title, 0, &["from", "to", "messages", "bytes"]).about("run");
        let mut cells = mpi.matrix.clone();
        cells.sort_by(|a, b| {
            (b.bytes.cmp(&a.bytes))
                .then(a.from.cmp(&b.from))
                .then(a.to.cmp(&b.to))
        });
        for cell in &cells {
            table.row(vec![
                cell.from.to_string(),
                cell.to.to_string(),
                grouped(cell.messages.into()),
                bytes(cell.bytes),
            ]);
        }
        return table.limited(PAIRS);
    }
    let names: Vec<String> = (0..ranks).map(|to| format!("to {to}")).collect();
    let mut head = vec![""];
    head.extend(names.iter().map(String::as_str));
    let title = format!("{title}: bytes, then messages");
    let mut table = Table::new(title, 1, &head).about("run");
    for (what, of) in [("B", true), ("msg", false)] {
        if !of {
            table.group();
        }
        for from in 0..ranks {
            let mut row = vec![format!("{from} ({what})")];
            row.extend((0..ranks).map(|to| {
                let cell = mpi.matrix.iter().find(|c| (c.from, c.to) == (from, to));
                cell.map_or_else(
                    || "-".into(),
                    |cell| {
                        if of {
                            bytes(cell.bytes)
                        } else {
                            si(cell.messages as f64)
                        }
                    },
                )
            }));
            table.row(row);
        }
    }
    table
}

/// Returns a table of the sizes of point-to-point messages; `None` without messages.
pub(crate) fn sizes_table(mpi: &ProgramReport) -> Option<Table> {
    let mut table = Table::new(
        "Message sizes, point to point, counted",
        0,
        &["at most", "messages", "of messages", "bytes", "of bytes"],
    )
    .about("sizes");
    let sizes = &mpi.message_sizes;
    let messages: u64 = sizes.iter().map(|size| size.messages).sum();
    let all: u128 = sizes.iter().map(|size| u128::from(size.bytes)).sum();
    let share = |part: f64, whole: f64| match whole > 0.0 {
        true => format!("{:.1} %", 100.0 * part / whole),
        false => "-".into(),
    };
    for size in sizes {
        table.row(vec![
            bytes(size.up_to_bytes),
            grouped(size.messages.into()),
            share(size.messages as f64, messages as f64),
            bytes(size.bytes),
            share(size.bytes as f64, all as f64),
        ]);
    }
    (messages > 0).then_some(table)
}

pub(crate) fn network_table(network: &[NetworkCounts]) -> Table {
    let mut table = Table::new(
        "Network of the whole run, counted by the fabric",
        1,
        &["node", "frames out", "out", "frames in", "in", "dropped"],
    )
    .about("network");
    for node in network {
        table.row(vec![
            node.node.clone(),
            grouped(node.sent_frames.into()),
            bytes(node.sent_bytes),
            grouped(node.received_frames.into()),
            bytes(node.received_bytes),
            grouped(node.dropped_frames.into()),
        ]);
    }
    table
}
