//! Tables of a window's measurements, for text and HTML alike.

use crate::breakdown::{CYCLE, EventValue, PrivilegeValue, Scope, ScopeKind, WindowReport};
use crate::table::Table;
use crate::text::CORE;
use crate::units::{cpi, flops, grouped, si};
use crate::{cores, spinning, timed};

/// Returns how counts of a window are known.
pub(crate) fn counted(sampled: bool) -> &'static str {
    match sampled {
        true => "sampled",
        false => "counted",
    }
}

fn term(scope: &Scope, name: &str) -> Option<i128> {
    let mut terms = scope.terms.iter().filter(|term| term.term == name);
    terms.next().map(|term| term.cycles_65536)
}

/// Returns the columns of a window's tables: each column's head and the terms that the column sums up. If there are more than four cache
/// levels, those from the fourth on share a column.
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
    let own = window.registered_models.iter();
    let own = own.map(|name| (name.as_str(), name.as_str()));
    let memory = [
        ("mem loc", "memory_local"),
        ("mem rem", "memory_remote"),
        ("mem other", "memory_other"),
    ];
    let rest = [
        ("MPI", "mpi"),
        (spinning::TERM, spinning::TERM),
        ("unattrib.", "unattributed"),
    ];
    for (head, name) in memory.into_iter().chain(own).chain(rest) {
        if names.contains(&name) {
            columns.push((head.to_owned(), vec![name.to_owned()]));
        }
    }
    columns
}

pub(crate) fn column_cycles(scope: &Scope, terms: &[String]) -> i128 {
    terms.iter().filter_map(|name| term(scope, name)).sum()
}

/// Returns whether a scope is the `Others` of a node and has no instruction, inside or outside MPI. Tables leave out such scopes.
pub(crate) fn is_empty(scope: &Scope) -> bool {
    scope.kind == ScopeKind::Others && scope.instructions + scope.instructions_in_mpi == 0
}

/// Adds the rows of each scope to a table, except for empty scopes ([`is_empty`]). Ranks, other scopes and sums form three groups.
fn by_scope(
    mut table: Table,
    window: &WindowReport,
    rows: impl Fn(&Scope) -> Vec<Vec<String>>,
) -> Table {
    let mut before = None;
    for scope in window.scopes.iter().filter(|scope| !is_empty(scope)) {
        let of = match scope.kind {
            ScopeKind::Rank => 0,
            ScopeKind::Others | ScopeKind::Node => 1,
            ScopeKind::Ranks | ScopeKind::Total => 2,
        };
        if before.is_some_and(|before| before < of) {
            table.group();
        }
        before = Some(of);
        for row in rows(scope) {
            table.sums += usize::from(of == 2);
            table.row(row);
        }
    }
    table
}

/// Returns a sentence on the nodes where nothing but ranks ran; `None` if there are none.
fn left_out(window: &WindowReport) -> Option<String> {
    match window.scopes.iter().filter(|scope| is_empty(scope)).count() {
        0 => None,
        1 => Some("Nothing but ranks ran on 1 node: that node has no row \"others\".".into()),
        count => Some(format!(
            "Nothing but ranks ran on {count} nodes: these have no row \"others\"."
        )),
    }
}

pub(crate) fn window_tables(window: &WindowReport) -> Vec<Table> {
    let columns = columns(window);
    let per = |scope: &Scope, cycles: i128| {
        (scope.instructions != 0).then(|| cycles as f64 / CYCLE as f64 / scope.instructions as f64)
    };
    let mut head = vec!["", "instr.", "CPI"];
    head.extend(columns.iter().map(|(name, _)| name.as_str()));
    let counted = counted(window.sampled.is_some());
    let title = format!(
        "CPI breakdown: cycles per instruction outside MPI. Instructions {counted}; cycles modelled, those of the core as {CORE} says"
    );
    let stack = Table::new(title, 1, &head);
    let mut stack = by_scope(stack, window, |scope| {
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
        vec![row]
    });
    stack.below.extend(left_out(window));

    let mut head = vec!["", "sum"];
    head.extend(columns.iter().map(|(name, _)| name.as_str()));
    head.extend(["idle", "clocks"]);
    let cycles = Table::new(
        "Cycles of the terms, modelled. Idle: asleep outside MPI; idle cycles belong to the node, and to no CPI",
        1,
        &head,
    );
    let cycles = by_scope(cycles, window, |scope| {
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
        vec![row]
    });

    let mut tables = vec![stack, cycles];
    let empty = window.scopes.iter().filter(|scope| is_empty(scope));
    let empty: Vec<&str> = empty.map(|scope| scope.name.as_str()).collect();
    if let Some(timed) = &window.timed {
        tables.push(timed::table(timed, &window.scopes, &empty));
    }
    tables.extend(cores::tables(&window.cores, &empty));
    let sum = window
        .scopes
        .iter()
        .find(|scope| scope.kind == ScopeKind::Ranks)
        .or_else(|| window.scopes.last());
    if let Some(scope) = sum {
        if !scope.mpi.is_empty() {
            tables.push(mpi_terms(scope, counted));
        }
        let mut events = Table::new(
            format!(
                "Misses by event, {}, outside MPI: CPI = P x L. Events {counted} by the models; latencies stated. P: events per instruction; L: cycles per event",
                scope.name
            ),
            2,
            &["event", "term", "count", "P", "L, cycles", "CPI"],
        )
        .about("events");
        // Lines that cores take from each other show sharing, whatever they cost.
        let between_cores = |name: &str| name.contains("_other_");
        let shown = |event: &&EventValue| {
            event.cycles != 0 || event.count != 0 && between_cores(&event.event)
        };
        for event in scope.events.iter().filter(shown) {
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
        tables.extend(counts_of_models(window, scope, counted));
    }

    let title = format!(
        "FLOPS: floating-point operations per second. FLOPs {counted}; times modelled. Formula: as published, per core. Busy: FLOPs / busy time, \
         per core. Window: FLOPs / virtual time, of all cores. alpha: FLOPs per instruction outside MPI"
    );
    let rates = Table::new(
        title,
        1,
        &[
            "",
            "FLOPs",
            "in MPI",
            "alpha",
            "formula",
            "direct, busy",
            "direct, window",
        ],
    )
    .about("rates");
    tables.push(by_scope(rates, window, |scope| {
        let f = &scope.flops;
        vec![vec![
            scope.name.clone(),
            si(f.total as f64),
            si(f.in_mpi as f64),
            cpi(f.alpha),
            flops(f.published_per_second),
            flops(f.direct_per_second),
            flops(f.window_per_second),
        ]]
    }));
    tables.extend(classes(window, counted));

    let title = format!(
        "User and kernel apart, inside and outside MPI. Events {counted}; cycles modelled, without idle. A mode without instructions has no row"
    );
    let privileges = Table::new(
        title,
        2,
        &[
            "", "mode", "instr.", "cycles", "loads", "stores", "fetches", "FLOPs",
        ],
    )
    .about("privileges");
    tables.push(by_scope(privileges, window, |scope| {
        let row = |at: &PrivilegeValue| {
            vec![
                scope.name.clone(),
                at.privilege.into(),
                si(at.instructions as f64),
                si(at.cycles_65536 as f64 / CYCLE as f64),
                si(at.loads as f64),
                si(at.stores as f64),
                si(at.fetches as f64),
                si(at.flops as f64),
            ]
        };
        let ran = scope.privileges.iter().filter(|at| at.instructions > 0);
        ran.map(row).collect()
    }));
    tables
}

/// Returns the table of what registered models counted; `None` without counts.
fn counts_of_models(window: &WindowReport, scope: &Scope, counted: &str) -> Option<Table> {
    let title = format!(
        "Events of registered models, {}, outside MPI, {counted}. P: events per instruction",
        scope.name
    );
    let mut table = Table::new(title, 1, &["event", "count", "P"]).about("model events");
    let of_model = |event: &&EventValue| {
        let model = event.event.split('.').next();
        let mut names = window.registered_models.iter();
        names.any(|name| Some(name.as_str()) == model)
    };
    for event in scope.events.iter().filter(of_model) {
        let p = event.per_instruction;
        table.row(vec![
            event.event.clone(),
            grouped(event.count),
            p.map_or_else(|| "-".into(), |p| format!("{p:.6}")),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns the table of FLOPs by class, without classes that have no FLOPs; `None` without FLOPs.
fn classes(window: &WindowReport, counted: &str) -> Option<Table> {
    const NAMES: [&str; 7] = [
        "x87", "sc. f32", "sc. f64", "128 f32", "128 f64", "256 f32", "256 f64",
    ];
    let used = |class: usize| {
        let mut scopes = window.scopes.iter();
        scopes.any(|scope| {
            scope
                .flops
                .by_class
                .get(class)
                .is_some_and(|of| of.count > 0)
        })
    };
    let shown: Vec<usize> = (0..NAMES.len()).filter(|&class| used(class)).collect();
    if shown.is_empty() {
        return None;
    }
    let mut head = vec![""];
    head.extend(shown.iter().map(|&class| NAMES[class]));
    let title = format!(
        "FLOPs by width and type, {counted}: an FMA is 2, and each lane counts. Classes without operations are left out"
    );
    let table = Table::new(title, 1, &head).about("classes");
    Some(by_scope(table, window, |scope| {
        let mut row = vec![scope.name.clone()];
        let counts = shown
            .iter()
            .filter_map(|&class| scope.flops.by_class.get(class));
        row.extend(counts.map(|of| si(of.count as f64)));
        vec![row]
    }))
}

fn mpi_terms(scope: &Scope, counted: &str) -> Table {
    let mut table = Table::new(
        format!(
            "MPI by function, {}: CPI = P x L. Calls {counted} if they ended in the window; cycles modelled. P: calls per instruction; L: cycles per call",
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
    )
    .about("mpi terms");
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
    table
        .below
        .push("Waiting: asleep or polling, because a message or another rank had not come".into());
    table
}
