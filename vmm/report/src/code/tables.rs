//! Tables of a window's code, for both text and HTML.

use super::{CodeCosts, CodeReport, Listing, Rest};
use nodescope_plugin_api::Cause;

use crate::breakdown::CYCLE;
use crate::table::{Table, wrap};
use crate::timed;
use crate::units::{flops, grouped, si};
use crate::window_tables::counted;

/// Maximum number of rows of a table in the terminal.
const ROWS: usize = 15;
/// Maximum number of rows of code for a contended line.
const PLACES: usize = 4;
/// Maximum number of listings in the terminal.
const LISTINGS: usize = 3;

/// Terms of the CPI and the headings of their columns.
const TERMS: [(&str, &str); 7] = [
    ("core", "core"),
    ("L1", "L1"),
    ("L2", "L2"),
    ("L3", "L3"),
    ("memory_local", "mem loc"),
    ("memory_remote", "mem rem"),
    ("other", "other"),
];

/// Size limits of tables in a page, a terminal or a file.
pub(super) struct Shape {
    /// Maximum number of rows of a table, without sums.
    pub(super) rows: usize,
    /// Maximum number of characters of a function's name.
    pub(super) width: usize,
    /// Maximum number of characters of a module's name.
    pub(super) module: usize,
    /// True if columns that don't fit into a terminal are left out.
    pub(super) narrow: bool,
}

/// Returns the tables and listings as text.
pub(crate) fn text(code: &CodeReport, width: usize) -> String {
    let shape = Shape {
        rows: ROWS,
        width: 32,
        module: 14,
        narrow: true,
    };
    let mut tables = tables(code, &shape);
    tables.extend(code.blocks.iter().take(LISTINGS).map(listing));
    let mut out = String::new();
    for note in &code.notes {
        let lines = wrap(&format!("note: {note}"), width).join("\n      ");
        out.push_str(&format!("{lines}\n"));
    }
    for table in tables {
        out.push('\n');
        out.push_str(&table.text(width));
    }
    out
}

pub(super) fn tables(code: &CodeReport, shape: &Shape) -> Vec<Table> {
    let mut tables = Vec::new();
    let functions: Vec<(Vec<String>, &CodeCosts)> = (code.functions.iter())
        .map(|row| {
            let module = file_name(&row.module);
            (
                vec![cut(&row.function, shape.width), cut(module, shape.module)],
                &row.costs,
            )
        })
        .collect();
    let counted = counted(code.sampled);
    let title = format!(
        "Functions by cycles, without what they call. Events {counted}; cycles modelled, {} in all, on {}. FLOP/B: FLOP for each byte from memory",
        si(code.total.cycles_65536 as f64 / CYCLE as f64),
        code.cores.first().map_or("", String::as_str),
    );
    tables.push(costs(
        title,
        &["function", "module"],
        &functions,
        &code.other_functions,
        code,
        shape,
    ));
    let title =
        "CPI of these functions: cycles for each of their own instructions, modelled. Core: long instructions included"
            .into();
    tables.push(stack(
        title,
        "function",
        &functions,
        &code.other_functions,
        code,
        shape,
    ));

    if !code.total.causes.is_empty() {
        let title =
            "CPI of these functions by cause, modelled on the core of the pipeline model".into();
        tables.push(causes(
            title,
            "function",
            &functions,
            &code.other_functions,
            code,
            shape,
        ));
    }

    let lines: Vec<(Vec<String>, &CodeCosts)> = (code.lines.iter())
        .map(|row| {
            let name = match (&row.file, row.line) {
                (Some(file), Some(line)) => format!("{file}:{line}"),
                _ => "(no source line known)".into(),
            };
            (vec![cut_left(&name, shape.width + 14)], &row.costs)
        })
        .collect();
    if code.lines.iter().any(|row| row.file.is_some()) {
        let title =
            "Source lines by cycles. Estimated: the lines of a basic block share its costs by their instructions"
                .into();
        tables.push(costs(
            title,
            &["line"],
            &lines,
            &code.other_lines,
            code,
            shape,
        ));
        let title = "CPI of these lines, estimated".into();
        tables.push(stack(title, "line", &lines, &code.other_lines, code, shape));
        if !code.total.causes.is_empty() {
            let title = "CPI of these lines by cause, estimated".into();
            tables.push(causes(
                title,
                "line",
                &lines,
                &code.other_lines,
                code,
                shape,
            ));
        }
    }
    if !code.mpi.is_empty() {
        tables.push(mpi(code, shape));
        tables.extend(mpi_paths(code, shape));
    }
    tables.extend(contended(code, shape));
    if !code.roofline.functions.is_empty() {
        tables.push(roofline(code, shape));
    }
    tables
}

/// A row: its names, and the costs whose sum it shows.
type Row<'a> = (Vec<String>, Vec<&'a CodeCosts>);

/// Returns the rows of a table: the listed entries, the sum of all others, and the total. Also returns the number of names in a row, and
/// the number of rows at the end that are sums.
fn rows<'a>(
    entries: &'a [(Vec<String>, &'a CodeCosts)],
    rest: &'a Rest,
    code: &'a CodeReport,
    shape: &Shape,
) -> (Vec<Row<'a>>, usize, usize) {
    let shown = entries.len().min(shape.rows);
    let mut rows: Vec<Row<'_>> = (entries[..shown].iter())
        .map(|(names, costs)| (names.clone(), vec![*costs]))
        .collect();
    let names = entries.first().map_or(1, |(names, _)| names.len());
    let mut name = |text: String, costs: Vec<&'a CodeCosts>| {
        let mut cells = vec![text];
        cells.resize(names, String::new());
        rows.push((cells, costs));
    };
    let others = rest.count + entries.len() - shown;
    if others > 0 {
        let mut costs: Vec<&CodeCosts> = entries[shown..].iter().map(|(_, costs)| *costs).collect();
        costs.push(&rest.costs);
        name(
            match others {
                1 => "1 other".into(),
                _ => format!("{} others", grouped(others as u128)),
            },
            costs,
        );
    }
    name("all".into(), vec![&code.total]);
    (rows, names, 1 + usize::from(others > 0))
}

fn costs(
    title: String,
    names: &[&str],
    entries: &[(Vec<String>, &CodeCosts)],
    rest: &Rest,
    code: &CodeReport,
    shape: &Shape,
) -> Table {
    let (rows, count, sums) = rows(entries, rest, code, shape);
    let mut head = names.to_vec();
    let figures = [
        ("share", true),
        ("cycles", true),
        ("instr.", true),
        ("IPC", !shape.narrow),
        ("FLOP", true),
        ("FLOP/B", true),
        ("L2", !shape.narrow),
        ("L3", !shape.narrow),
        ("memory", true),
    ];
    head.extend((figures.iter()).filter_map(|(figure, shown)| shown.then_some(*figure)));
    let mut table = Table::new(title, count, &head).about("code");
    table.sums = sums;
    let total = code.total.cycles_65536;
    for (mut cells, costs) in rows {
        let sum = |value: &dyn Fn(&CodeCosts) -> u128| costs.iter().map(|c| value(c)).sum::<u128>();
        let cycles: i128 = costs.iter().map(|costs| costs.cycles_65536).sum();
        let instructions = sum(&|costs| costs.instructions);
        let operations = sum(&|costs| costs.flops);
        let answered = |names: &[&str]| {
            sum(&|costs| {
                let of = costs.answers.iter().filter(|a| names.contains(&a.source));
                of.map(|answer| answer.count).sum()
            })
        };
        let memory = answered(&["memory_local", "memory_remote"]);
        let values = [
            share(cycles, total),
            si(cycles as f64 / CYCLE as f64),
            si(instructions as f64),
            quotient(instructions as f64, cycles as f64 / CYCLE as f64),
            si(operations as f64),
            quotient(operations as f64, super::costs::LINE as f64 * memory as f64),
            si(answered(&["L2"]) as f64),
            si(answered(&["L3", "other_cache"]) as f64),
            si(memory as f64),
        ];
        let values = values.into_iter().zip(figures);
        cells.extend(values.filter_map(|(value, (_, shown))| shown.then_some(value)));
        table.row(cells);
    }
    table.below.push(
        if shape.narrow {
            "memory: references that memory answered"
        } else {
            "L2, L3, memory: references beyond the first level, by who answered; L3 with other caches"
        }
        .into(),
    );
    table
}

fn stack(
    title: String,
    name: &str,
    entries: &[(Vec<String>, &CodeCosts)],
    rest: &Rest,
    code: &CodeReport,
    shape: &Shape,
) -> Table {
    let (rows, _, sums) = rows(entries, rest, code, shape);
    let mut head = vec![name, "CPI"];
    // Terms that are 0 for all code need no column, except the core.
    let terms: Vec<_> = TERMS
        .into_iter()
        .filter(|(term, _)| *term == "core" || code.total.term(term) != 0)
        .collect();
    head.extend(terms.iter().map(|(_, head)| *head));
    let further: Vec<String> = code
        .cores
        .iter()
        .skip(1)
        .map(|core| format!("core: {core}"))
        .collect();
    head.extend(further.iter().map(String::as_str));
    let mut table = Table::new(title, 1, &head).about("code stack");
    table.sums = sums;
    for (mut cells, costs) in rows {
        cells.truncate(1);
        let instructions: u128 = costs.iter().map(|costs| costs.instructions).sum();
        let per = |cycles: i128| quotient(cycles as f64 / CYCLE as f64, instructions as f64);
        cells.push(per(costs.iter().map(|costs| costs.cycles_65536).sum()));
        for (term, _) in &terms {
            cells.push(per(costs.iter().map(|costs| costs.term(term)).sum()));
        }
        for n in 0..further.len() {
            let of = costs.iter().filter_map(|costs| costs.further_cores.get(n));
            cells.push(per(of.map(|core| core.cycles_65536).sum()));
        }
        table.row(cells);
    }
    table
}

/// Returns the table of the CPI by cause, with each entry's share of the core's cycles.
fn causes(
    title: String,
    name: &str,
    entries: &[(Vec<String>, &CodeCosts)],
    rest: &Rest,
    code: &CodeReport,
    shape: &Shape,
) -> Table {
    let (rows, _, sums) = rows(entries, rest, code, shape);
    let used = |cause: &str| cause == Cause::Core.name() || code.total.cause(cause) != 0;
    let columns: Vec<&str> = (Cause::ALL.iter().map(|cause| cause.name()))
        .filter(|name| used(name))
        .collect();
    let mut head = vec![name, "share", "CPI"];
    head.extend(columns.iter().map(|cause| timed::head(cause)));
    let mut table = Table::new(title, 1, &head).about("causes");
    table.sums = sums;
    let whole: i128 = code.total.causes.iter().map(|c| c.cycles_65536).sum();
    for (mut cells, costs) in rows {
        cells.truncate(1);
        let instructions: u128 = costs.iter().map(|costs| costs.instructions).sum();
        let per = |cycles: i128| quotient(cycles as f64 / CYCLE as f64, instructions as f64);
        let all = costs.iter().flat_map(|costs| &costs.causes);
        let sum: i128 = all.map(|cause| cause.cycles_65536).sum();
        cells.push(format!("{:.1} %", sum as f64 / whole.max(1) as f64 * 100.0));
        cells.push(per(sum));
        for cause in &columns {
            cells.push(per(costs.iter().map(|costs| costs.cause(cause)).sum()));
        }
        table.row(cells);
    }
    table
}

fn mpi(code: &CodeReport, shape: &Shape) -> Table {
    let mut table = Table::new(
        format!(
            "Code inside MPI calls, by MPI function. Instructions {}; cycles modelled, without sleeping",
            counted(code.sampled)
        ),
        1,
        &["", "share", "cycles", "instr.", "core", "stalled"],
    )
    .about("code");
    // The row of an MPI function is followed by rows of the functions executed inside it.
    table.ordered = true;
    let total = code.total.cycles_65536;
    let mut row = |name: String, costs: &CodeCosts| {
        let core = costs.term("core");
        let cycles = |cycles: i128| si(cycles as f64 / CYCLE as f64);
        table.row(vec![
            name,
            share(costs.cycles_65536, total),
            cycles(costs.cycles_65536),
            si(costs.instructions as f64),
            cycles(core),
            cycles(costs.cycles_65536 - core),
        ]);
    };
    for mpi in code.mpi.iter().take(shape.rows) {
        row(mpi.function.clone(), &mpi.costs);
        for function in mpi.functions.iter().take(5) {
            let name = format!("    {}", cut(&function.function, shape.width));
            row(name, &function.costs);
        }
    }
    row("outside MPI".into(), &code.outside_mpi);
    if let Some(more @ 1..) = code.mpi.len().checked_sub(shape.rows) {
        table
            .below
            .push(format!("{more} more MPI functions in report.json"));
    }
    table
}

/// Returns a call path as text, without the parameters of C++ functions and templates.
fn way(frames: &[String]) -> String {
    let frames = frames.iter().map(|frame| without_parameters(frame));
    frames.collect::<Vec<_>>().join(" > ")
}

/// Returns the name of a C++ function without its parameters, and without those of templates.
fn without_parameters(name: &str) -> String {
    if name.contains("operator") || name.starts_with(['(', '<']) {
        return name.to_owned();
    }
    let mut depth = 0;
    let mut short = String::new();
    for character in name.chars() {
        match character {
            '(' if depth == 0 => break,
            '<' => depth += 1,
            '>' if depth > 0 => depth -= 1,
            _ if depth == 0 => short.push(character),
            _ => {}
        }
    }
    short
}

/// Returns the table of call paths to MPI functions; `None` without samples inside MPI.
fn mpi_paths(code: &CodeReport, shape: &Shape) -> Option<Table> {
    let mut paths: Vec<_> = (code.mpi.iter())
        .flat_map(|mpi| mpi.paths.iter().map(|path| (mpi.function.as_str(), path)))
        .collect();
    let known = paths.iter().filter(|(_, path)| path.samples > 0);
    let first = known.clone().next()?.1;
    // The frames before `main` are the same in all paths.
    let all = |depth: usize| {
        let frame = first.frames.get(depth);
        frame.is_some()
            && known
                .clone()
                .all(|(_, path)| path.frames.get(depth) == frame)
    };
    let common = (0..).take_while(|&depth| all(depth)).count();
    let common = common.min(first.frames.len().saturating_sub(1));
    paths.sort_by_key(|(_, path)| std::cmp::Reverse(path.cycles_65536));
    let head = ["by way of", "function", "share", "cycles", "samples"];
    let mut table = Table::new(
        "Code inside MPI calls, by call path. Estimated: the cycles of a rank inside a function are divided by samples",
        2,
        &head,
    )
    .about("code");
    for (function, path) in paths {
        let frames = match path.frames.get(common..) {
            _ if path.samples == 0 => "(no sample)".into(),
            Some(frames @ [_, ..]) => way(frames),
            _ if path.frames.is_empty() => "(not known)".into(),
            _ => way(&path.frames),
        };
        table.row(vec![
            cut_left(&frames, shape.width + 14),
            function.into(),
            share(path.cycles_65536, code.total.cycles_65536),
            si(path.cycles_65536 as f64 / CYCLE as f64),
            grouped(path.samples.into()),
        ]);
    }
    Some(table.limited(shape.rows))
}

/// Minimum share of a contended line in the cycles of the code, for a row of the table.
const CONTENDED: f64 = 0.001;

/// Returns the table of contended lines; `None` if no line is worth a row.
fn contended(code: &CodeReport, shape: &Shape) -> Option<Table> {
    let mut table = Table::new(
        "Contended lines: vCPUs of a node took them from each other. Modelled; taken: from another vCPU; cycles: waiting for the line",
        6,
        &[
            "data", "sharing", "code", "access", "bytes", "vCPUs", "taken", "cycles", "share",
        ],
    )
    .about("contended");
    table.ordered = true;
    let worth = code.contended_lines.iter();
    let worth = worth.filter(|line| line.share >= CONTENDED);
    for line in worth.take(shape.rows) {
        table.group();
        table.row(vec![
            cut(&line.data(), shape.width),
            line.sharing().into(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            grouped(line.taken.into()),
            si(line.cycles as f64),
            format!("{:.1} %", 100.0 * line.share),
        ]);
        for place in line.places.iter().take(PLACES) {
            let code = [place.function.clone(), place.source()];
            let code: Vec<String> = code.into_iter().filter(|part| !part.is_empty()).collect();
            table.row(vec![
                String::new(),
                String::new(),
                cut(&code.join(" "), shape.width + 8),
                place.access().into(),
                place.byte_list(),
                place.vcpu_list(),
                grouped(place.taken.into()),
                si(place.cycles as f64),
                String::new(),
            ]);
        }
    }
    table.below.push(
        "sharing: true if a vCPU touched bytes that another one wrote; false sharing ends if the data get lines of their own"
            .into(),
    );
    (!table.rows.is_empty()).then_some(table)
}

fn roofline(code: &CodeReport, shape: &Shape) -> Table {
    let roofline = &code.roofline;
    let mut table = Table::new(
        format!(
            "Roofline: FLOP for each byte that a level answered, and FLOP/s of one core. FLOPs {}; times modelled. Peak {}: an FMA of the widest class counted ({}) each cycle",
            counted(code.sampled),
            flops(Some(roofline.peak_flops)),
            roofline.widest.unwrap_or("none"),
        ),
        1,
        &[
            "function", "L1", "L2", "L3", "memory", "FLOP/s", "limit", "of limit",
        ],
    )
    .about("roofline");
    for (n, row) in roofline.functions.iter().enumerate() {
        let mut cells = vec![format!(
            "{:>2} {}",
            n + 1,
            cut(&row.function, shape.width.min(60))
        )];
        cells.extend(
            (row.levels.iter())
                .map(|point| point.flops_per_byte.map_or_else(|| "-".into(), decimal)),
        );
        cells.extend([
            si(row.flops_per_second),
            row.limit.into(),
            format!("{:.1} %", 100.0 * row.flops_per_second / row.limit_flops),
        ]);
        table.row(cells);
    }
    let ceilings = roofline.ceilings.iter().map(|ceiling| {
        let bandwidth = ceiling
            .bytes_per_second
            .map_or_else(|| "no limit".into(), |value| format!("{}B/s", si(value)));
        format!("{} {} cycles, {bandwidth}", ceiling.level, ceiling.latency)
    });
    let ceilings: Vec<String> = ceilings.collect();
    table.below.push(format!(
        "Latency-bound ceilings, one miss of a core at a time as in the models: {}.",
        ceilings.join("; ")
    ));
    let stated = roofline.ceilings.iter().filter_map(|ceiling| {
        let (socket, core) = (ceiling.stated_bytes_per_second?, ceiling.stated_share?);
        Some(format!(
            "{} {}B/s of a socket, {}B/s for each core while all work",
            ceiling.level,
            si(socket as f64),
            si(core)
        ))
    });
    let stated: Vec<String> = stated.collect();
    table.below.push(match stated.is_empty() {
        true => "The study states no bandwidth of memory (memory.local_bandwidth); bandwidths of caches cannot be stated.".into(),
        false => format!(
            "Stated bandwidths, which are the ceilings there, and which no model of time uses: {}. Bandwidths of caches cannot be stated.",
            stated.join("; ")
        ),
    });
    table.below.push(
        "Bytes of L1 are data accesses x 8, of other levels the lines that they answered x 64."
            .into(),
    );
    table
}

/// Returns a block's machine code as a table for the terminal.
fn listing(listing: &Listing) -> Table {
    let mut table = Table::new(
        listing_title(listing),
        3,
        &["address", "instruction", "source"],
    );
    for row in listing_rows(listing) {
        let [address, text, source] = row;
        table.row(vec![address, cut(&text, 42), cut(&source, 34)]);
    }
    for sentence in listing_lines(listing) {
        table.below.push(sentence);
    }
    table
}

pub(super) fn listing_title(listing: &Listing) -> String {
    format!(
        "{} of the cycles: {:#x} in {}",
        shown_share(&listing.costs),
        listing.address,
        cut(&listing.function, 60),
    )
}

pub(super) fn listing_lines(listing: &Listing) -> Vec<String> {
    vec![format!(
        "{} executions of {} instructions; {} cycles each, modelled: core {}, stalls {}. Module {}",
        grouped(listing.costs.executions),
        listing.instructions.len(),
        decimal(listing.core_per_execution + listing.stalls_per_execution),
        decimal(listing.core_per_execution),
        decimal(listing.stalls_per_execution),
        listing.module,
    )]
}

/// Returns the address, text and source of each instruction. A source equal to that of the row before is left out.
pub(super) fn listing_rows(listing: &Listing) -> Vec<[String; 3]> {
    let mut rows = Vec::new();
    let mut before = None;
    for row in &listing.instructions {
        let mut source = row
            .source
            .as_deref()
            .map(file_name)
            .unwrap_or_default()
            .to_owned();
        if let Some(inlined) = row.inlined.first() {
            source.push_str(&format!(" ({})", cut(inlined, 60)));
        }
        let shown = if before.as_ref() == Some(&source) {
            String::new()
        } else {
            source.clone()
        };
        before = Some(source);
        rows.push([format!("{:x}", row.address), row.text.clone(), shown]);
    }
    rows
}

/// Returns costs' share of the window's cycles as text.
pub(super) fn shown_share(costs: &CodeCosts) -> String {
    let share = costs.share;
    share.map_or_else(|| "-".into(), |share| format!("{:.1} %", 100.0 * share))
}

/// Formats cycles that are given in 1/65536.
pub(super) fn si_cycles(cycles_65536: i128) -> String {
    si(cycles_65536 as f64 / CYCLE as f64)
}

fn share(cycles: i128, total: i128) -> String {
    if total == 0 {
        return "-".into();
    }
    format!("{:.1} %", 100.0 * cycles as f64 / total as f64)
}

fn quotient(value: f64, by: f64) -> String {
    if by == 0.0 {
        "-".into()
    } else {
        decimal(value / by)
    }
}

/// Formats a value: with three decimals below 10, two below 100, one below 1000, and an SI prefix from 1000 on.
fn decimal(value: f64) -> String {
    match value.abs() {
        small if small >= 1000.0 => si(value),
        small if small >= 100.0 => format!("{value:.1}"),
        small if small >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Returns the last component of a path.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/')
        .next()
        .filter(|name| !name.is_empty())
        .unwrap_or(path)
}

/// Returns the first characters of a text, at most `most`; a cut text ends in `~`.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    let mut out: String = text.chars().take(most.saturating_sub(1)).collect();
    out.push('~');
    out
}

/// Returns the last characters of a text, at most `most`; a cut text begins with `~`.
fn cut_left(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.into();
    }
    let kept = text.chars().skip(count - most.saturating_sub(1));
    std::iter::once('~').chain(kept).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_of_cpp_functions_lose_their_parameters() {
        let short = super::without_parameters;
        assert_eq!(short("exchange"), "exchange");
        assert_eq!(
            short("dd_move_x(gmx_domdec_t*, gmx::ArrayRef<gmx::BasicVector<float> >)"),
            "dd_move_x"
        );
        assert_eq!(
            short("grid::Field<double, 3ul>::at(unsigned long) const"),
            "grid::Field::at"
        );
        assert_eq!(short("sum::operator()(int)"), "sum::operator()(int)");
        assert_eq!(
            short("(anonymous namespace)::solve(int)"),
            "(anonymous namespace)::solve(int)"
        );
    }
}
