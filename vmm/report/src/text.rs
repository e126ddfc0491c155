//! The report as text, and the tables that text and HTML share.

use nodescope_trace::Standing;

use crate::breakdown::{CYCLE, Scope, ScopeKind, WindowReport};
use crate::code;
use crate::cores;
use crate::mpi::{FunctionRow, MpiReport};
use crate::table::{Table, wrap};
use crate::units::{bytes, cpi, flops, grouped, si, time};
use crate::{CoreCpi, NetworkCounts, Report};

/// Widest line.
pub(crate) const WIDTH: usize = 100;
/// Most rows of a table in the terminal.
const ROWS: usize = 40;

pub(crate) fn write(report: &Report) -> String {
    let mut out = String::new();
    let title = wrap(&title(report), WIDTH).join("\n");
    out.push_str(&format!(
        "{title}\n{}\n",
        "=".repeat(title.chars().count().min(WIDTH))
    ));
    for (label, value) in &report.study.description {
        for (index, line) in wrap(value, WIDTH - 17).iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            out.push_str(&format!("{label:<16} {line}\n"));
        }
    }
    for (index, line) in wrap(&core(&report.core), WIDTH - 17).iter().enumerate() {
        let label = if index == 0 { "CPI_core" } else { "" };
        out.push_str(&format!("{label:<16} {line}\n"));
    }
    for note in &report.notes {
        for (index, line) in wrap(note, WIDTH - 6).iter().enumerate() {
            let mark = if index == 0 { "note: " } else { "      " };
            out.push_str(&format!("{mark}{line}\n"));
        }
    }
    for window in &report.windows {
        let head = wrap(&window_title(window), WIDTH).join("\n");
        out.push_str(&format!(
            "\n{head}\n{}\n",
            "-".repeat(head.chars().count().min(WIDTH))
        ));
        for line in window_lines(window) {
            for line in wrap(&line, WIDTH) {
                out.push_str(&format!("{line}\n"));
            }
        }
        for table in window_tables(window) {
            out.push_str(&format!("\n{}", limited(table, ROWS).text(WIDTH)));
        }
        if let Some(code) = &window.code {
            let head = format!("Code of window \"{}\"", window.name);
            let head = wrap(&head, WIDTH).join("\n");
            out.push_str(&format!(
                "\n{head}\n{}\n",
                "-".repeat(head.chars().count().min(WIDTH))
            ));
            out.push_str(&code::text(code, WIDTH));
        }
    }
    if let Some(mpi) = &report.mpi {
        out.push_str("\nMPI profile of the whole run\n----------------------------\n");
        for (index, table) in mpi_tables(mpi).into_iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n" };
            out.push_str(&format!("{gap}{}", limited(table, ROWS).text(WIDTH)));
        }
        out.push_str(&format!("\n{}", matrix_table(mpi).text(WIDTH)));
    }
    if !report.network.is_empty() {
        out.push_str(&format!("\n{}", network_table(&report.network).text(WIDTH)));
    }
    out
}

pub(crate) fn title(report: &Report) -> String {
    format!("nodescope report: {}", report.study.name)
}

pub(crate) fn core(core: &CoreCpi) -> String {
    match core {
        CoreCpi::Nominal { source } => format!("nominal CPI and long instructions ({source})"),
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
    if let Some(check) = window.scopes.iter().find_map(|scope| {
        (scope.kind == ScopeKind::Total).then_some(scope.clock.map(|clock| (scope, clock)))?
    }) {
        let (scope, clock) = check;
        let substituted = if clock.substituted_65536 == 0 {
            String::new()
        } else {
            format!(" + {} replaced core cycles", fixed(clock.substituted_65536))
        };
        lines.push(format!(
            "Check: terms {} + idle {}{substituted} = vCPU clocks {} cycles; difference {}{}.",
            fixed(scope.cycles_65536),
            grouped(clock.idle_cycles),
            grouped(clock.clock_cycles),
            fixed(clock.difference_65536),
            if clock.consistent {
                ""
            } else {
                " (NOT consistent)"
            },
        ));
    }
    lines
}

/// 1/65536 cycles as cycles, with a fraction where there is one.
fn fixed(value: i128) -> String {
    let sign = if value < 0 { "-" } else { "" };
    let whole = grouped(value.unsigned_abs() / CYCLE as u128);
    match value.unsigned_abs() % CYCLE as u128 {
        0 => format!("{sign}{whole}"),
        rest => {
            let rest = format!("{:.4}", rest as f64 / CYCLE as f64);
            // A fraction that rounds to 1 stays below it.
            let rest = rest.strip_prefix("0.").unwrap_or("9999");
            format!("{sign}{whole}.{rest}")
        }
    }
}

fn term(scope: &Scope, name: &str) -> Option<i128> {
    let mut terms = scope.terms.iter().filter(|term| term.term == name);
    terms.next().map(|term| term.cycles_65536)
}

/// Terms in the columns of a table: at most four cache levels, further ones together.
pub(crate) fn columns(window: &WindowReport) -> Vec<(String, Vec<String>)> {
    let mut names: Vec<&str> = Vec::new();
    for scope in &window.scopes {
        for term in &scope.terms {
            if !names.contains(&term.term.as_str()) {
                names.push(&term.term);
            }
        }
    }
    let levels: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| name.starts_with('L'))
        .collect();
    let mut columns = vec![("core".to_owned(), vec!["core".to_owned()])];
    let apart = if levels.len() > 4 { 3 } else { levels.len() };
    for level in &levels[..apart] {
        columns.push(((*level).to_owned(), vec![(*level).to_owned()]));
    }
    if levels.len() > apart {
        columns.push((
            format!("L{}+", apart + 1),
            levels[apart..].iter().map(|&l| l.to_owned()).collect(),
        ));
    }
    for (head, name) in [
        ("mem loc", "memory_local"),
        ("mem rem", "memory_remote"),
        ("mem other", "memory_other"),
        ("MPI", "mpi"),
        ("unattrib.", "unattributed"),
    ] {
        if names.contains(&name) {
            columns.push((head.to_owned(), vec![name.to_owned()]));
        }
    }
    columns
}

pub(crate) fn column_cycles(scope: &Scope, terms: &[String]) -> i128 {
    terms.iter().filter_map(|name| term(scope, name)).sum()
}

pub(crate) fn window_tables(window: &WindowReport) -> Vec<Table> {
    let columns = columns(window);
    let per = |scope: &Scope, cycles: i128| {
        (scope.instructions != 0).then(|| cycles as f64 / CYCLE as f64 / scope.instructions as f64)
    };
    let mut head = vec!["", "instr.", "CPI"];
    head.extend(columns.iter().map(|(name, _)| name.as_str()));
    let mut stack = Table::new(
        "CPI breakdown, cycles per instruction outside MPI (1)-(5). Instructions counted; core as above; rest modelled",
        1,
        &head,
    );
    for scope in &window.scopes {
        let mut row = vec![
            scope.name.clone(),
            si(scope.instructions as f64),
            cpi(scope.cpi),
        ];
        row.extend(
            columns
                .iter()
                .map(|(_, terms)| cpi(per(scope, column_cycles(scope, terms)))),
        );
        stack.row(row);
    }

    let mut head = vec!["", "sum"];
    head.extend(columns.iter().map(|(name, _)| name.as_str()));
    head.extend(["idle", "clocks"]);
    let mut cycles = Table::new(
        "The same in cycles, modelled. Idle (HLT outside MPI) belongs to the node, not to CPI",
        1,
        &head,
    );
    for scope in &window.scopes {
        let of = |cycles: i128| si(cycles as f64 / CYCLE as f64);
        let mut row = vec![scope.name.clone(), of(scope.cycles_65536)];
        row.extend(
            columns
                .iter()
                .map(|(_, terms)| of(column_cycles(scope, terms))),
        );
        row.push(
            scope
                .clock
                .map_or(String::new(), |c| si(c.idle_cycles as f64)),
        );
        row.push(
            scope
                .clock
                .map_or(String::new(), |c| si(c.clock_cycles as f64)),
        );
        cycles.row(row);
    }

    let mut tables = vec![stack, cycles];
    tables.extend(cores::tables(&window.cores));
    let sum = window
        .scopes
        .iter()
        .find(|scope| scope.kind == ScopeKind::Ranks)
        .or_else(|| window.scopes.last());
    if let Some(scope) = sum {
        if !scope.mpi.is_empty() {
            tables.push(mpi_terms(scope));
        }
        let mut events = Table::new(
            format!(
                "(3), (4) for {}, outside MPI: P x L by event. Events counted by the models; L stated",
                scope.name
            ),
            2,
            &["event", "term", "count", "P", "L, cycles", "CPI"],
        );
        for event in scope.events.iter().filter(|event| event.cycles != 0) {
            let value = per(scope, event.cycles as i128 * CYCLE);
            events.row(vec![
                event.event.clone(),
                event.term.clone().unwrap_or_default(),
                grouped(event.count),
                event
                    .per_instruction
                    .map_or_else(|| "-".into(), |p| format!("{p:.6}")),
                si(event.latency),
                cpi(value),
            ]);
        }
        if !events.rows.is_empty() {
            tables.push(events);
        }
    }

    let mut rates = Table::new(
        "FLOPS (6), as published, beside the direct figures. alpha: FLOPs per instruction, counted, outside MPI. (6): per core. Busy: counted FLOPs / \
         modelled busy time, per core. Window: counted FLOPs / virtual time, of all cores",
        1,
        &[
            "",
            "FLOPs",
            "in MPI",
            "alpha",
            "(6) published",
            "direct, busy",
            "direct, window",
        ],
    );
    for scope in &window.scopes {
        let f = &scope.flops;
        rates.row(vec![
            scope.name.clone(),
            si(f.total as f64),
            si(f.in_mpi as f64),
            cpi(f.alpha),
            flops(f.published_per_second),
            flops(f.direct_per_second),
            flops(f.window_per_second),
        ]);
    }
    tables.push(rates);

    let mut classes = Table::new(
        "FLOPs by width and type, counted (an FMA is 2, lanes counted)",
        1,
        &[
            "", "x87", "sc. f32", "sc. f64", "128 f32", "128 f64", "256 f32", "256 f64",
        ],
    );
    for scope in &window.scopes {
        let mut row = vec![scope.name.clone()];
        row.extend(scope.flops.by_class.iter().map(|c| si(c.count as f64)));
        classes.row(row);
    }
    tables.push(classes);

    let mut privileges = Table::new(
        "User and kernel apart, inside and outside MPI. Counted; cycles modelled, idle left out",
        2,
        &[
            "", "mode", "instr.", "cycles", "loads", "stores", "fetches", "FLOPs",
        ],
    );
    for scope in &window.scopes {
        for at in &scope.privileges {
            privileges.row(vec![
                scope.name.clone(),
                at.privilege.into(),
                si(at.instructions as f64),
                si(at.cycles_65536 as f64 / CYCLE as f64),
                si(at.loads as f64),
                si(at.stores as f64),
                si(at.fetches as f64),
                si(at.flops as f64),
            ]);
        }
    }
    tables.push(privileges);
    tables
}

fn mpi_terms(scope: &Scope) -> Table {
    let mut table = Table::new(
        format!(
            "(5) for {}: P x L by MPI function. Calls that ended in the window counted; cycles modelled",
            scope.name
        ),
        1,
        &[
            "function",
            "calls",
            "P",
            "L, cycles",
            "CPI",
            "executing",
            "stalled",
            "waiting",
        ],
    );
    for value in &scope.mpi {
        table.row(vec![
            value.function.into(),
            grouped(value.calls.into()),
            value
                .per_instruction
                .map_or_else(|| "-".into(), |p| format!("{p:.3e}")),
            value.latency.map_or_else(|| "-".into(), si),
            cpi(value.cpi),
            si(value.executing_65536 as f64 / CYCLE as f64),
            si(value.stalled as f64),
            si(value.waiting as f64),
        ]);
    }
    table.below.push(
        "Waiting: in HLT, or polling until the message or rank that the call needs began to come"
            .into(),
    );
    table
}

/// At most so many rows, and how many are left out.
pub(crate) fn limited(mut table: Table, rows: usize) -> Table {
    if table.rows.len() > rows {
        let more = table.rows.len() - rows;
        table.rows.truncate(rows);
        table.below.push(format!("{more} more rows in report.json"));
    }
    table
}

fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), si)
}

pub(crate) fn mpi_tables(mpi: &MpiReport) -> Vec<Table> {
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
            "By rank. Calls and bytes counted; times virtual. Rates and shares are of the {} between the first entry into MPI and the last exit",
            time(span as f64)
        ),
        3,
        &[
            "rank", "node", "program", "calls", "calls/s", "sent", "received", "in MPI", "share",
        ],
    );
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
    if mpi.ranks.is_empty() {
        by_rank.below.push("No MPI rank introduced itself.".into());
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
    let mut functions = Table::new("By function, all ranks, longest total first", 1, &head);
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
    let mut both = Table::new("By function and rank, longest total first", 2, &head);
    for row in by_time {
        let rank = row.rank.map(|rank| rank.to_string()).unwrap_or_default();
        let mut line = vec![row.function.to_owned(), rank];
        line.extend(cells(row, 1));
        both.row(line);
    }
    let mut tables = vec![by_rank];
    if !functions.rows.is_empty() {
        tables.extend([functions, both]);
    }
    if !mpi.standing.is_empty() {
        tables.insert(0, standing_table(&mpi.standing));
    }
    tables
}

/// Calls that never ended, who waits for whom in them, and what else is wrong with the program's communication.
fn standing_table(standing: &Standing) -> Table {
    let title = match standing.calls.len() {
        0 => "What is wrong with the program's communication",
        _ => {
            "Calls that had not ended when the trace did, and what is wrong with the communication"
        }
    };
    let mut table = Table::new(title, 0, &[]);
    table.below = standing.lines();
    table
}

/// Who sent how much to whom: a square for few ranks, the heaviest pairs for more.
pub(crate) fn matrix_table(mpi: &MpiReport) -> Table {
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
        let mut table = Table::new(title, 0, &["from", "to", "messages", "bytes"]);
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
        return limited(table, PAIRS);
    }
    let names: Vec<String> = (0..ranks).map(|to| format!("to {to}")).collect();
    let mut head = vec![""];
    head.extend(names.iter().map(String::as_str));
    let mut table = Table::new(format!("{title}: bytes, then messages"), 1, &head);
    for (what, of) in [("B", true), ("msg", false)] {
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

pub(crate) fn network_table(network: &[NetworkCounts]) -> Table {
    let mut table = Table::new(
        "Network of the whole run, counted by the fabric",
        1,
        &["node", "frames out", "out", "frames in", "in", "dropped"],
    );
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
