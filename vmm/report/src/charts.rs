//! Charts of a report as SVG text.

use nodescope_page::Page;
use nodescope_page::chart::{FAINT, INK, css, font};
use plotters::prelude::*;

use crate::breakdown::{CYCLE, ScopeKind, WindowReport};
use crate::explain::meaning;
use crate::input::ReportError;
use crate::mpi::{COLUMNS, GROUPS, MpiReport, ProgramReport, Timeline};
use crate::spinning;
use crate::units::{bytes, time};
use crate::window_tables::{column_cycles, columns};

/// Maximum number of lanes in a timeline; each lane is a rank.
pub(crate) const MOST_LANES: usize = 64;
/// Maximum number of cells on a side of the matrix; with more ranks, a cell represents several ranks.
const MOST_CELLS: u32 = 64;
/// Maximum number of bars in a CPI stack chart.
const MOST_BARS: usize = 24;
/// Maximum side, in ranks, of a matrix whose cells show their numbers.
const LABELLED: u32 = 10;

const WIDTH: u32 = 1080;

/// Markup of a chart (empty if there is nothing to draw) and its legend: name, colour and meaning of each entry.
pub(crate) type Drawn = (String, Vec<(String, String, &'static str)>);

/// The charts of a report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charts {
    /// CPI stack of each window.
    pub(crate) stacks: Vec<Drawn>,
    /// Charts of the MPI programs that a page shows.
    pub(crate) programs: Vec<ProgramCharts>,
}

/// The charts of an MPI program.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramCharts {
    pub(crate) matrix: Option<String>,
    pub(crate) timeline: Option<Drawn>,
    /// Number of ranks of the program.
    pub(crate) ranks: usize,
}

const PALETTE: [RGBColor; 9] = [
    RGBColor(0x3b, 0x6f, 0xb6),
    RGBColor(0x8f, 0xc3, 0xea),
    RGBColor(0x4f, 0xae, 0x9b),
    RGBColor(0x2b, 0x7a, 0x5d),
    RGBColor(0xb7, 0xd3, 0x6b),
    RGBColor(0xf2, 0xb1, 0x34),
    RGBColor(0xe0, 0x7b, 0x39),
    RGBColor(0xb0, 0x3a, 0x5b),
    RGBColor(0x8a, 0x8a, 0x8a),
];
/// Colours of the groups, as the style sheet `page.css` names them for a light page.
const GROUP_COLOURS: [RGBColor; GROUPS.len()] = [
    RGBColor(0x3b, 0x6f, 0xb6),
    RGBColor(0xe0, 0xa0, 0x20),
    RGBColor(0x7d, 0x55, 0xb0),
    RGBColor(0x93, 0xa0, 0xae),
    RGBColor(0x3f, 0x94, 0x69),
];

fn colour(name: &str, index: usize) -> RGBColor {
    match name {
        "core" => PALETTE[0],
        "mem loc" => PALETTE[5],
        "mem rem" => PALETTE[6],
        "MPI" => PALETTE[7],
        "mem other" | "unattrib." | spinning::TERM => PALETTE[8],
        _ => PALETTE[1 + (index + 3) % 4],
    }
}

/// Returns the colour of a part of the cycles of code, by the part's place among the others.
pub(crate) fn part_colour(index: usize) -> String {
    css(PALETTE[index % PALETTE.len()])
}

fn long_name(column: &str) -> String {
    match column {
        "mem loc" => "local memory".into(),
        "mem rem" => "remote memory".into(),
        "mem other" => "other memory".into(),
        "unattrib." => "unattributed".into(),
        level if level.starts_with('L') => format!("{level} misses"),
        other => other.into(),
    }
}

pub(crate) fn failed<E: std::fmt::Display>(chart: &'static str) -> impl Fn(E) -> ReportError {
    move |cause| ReportError::Drawing {
        chart,
        cause: cause.to_string(),
    }
}

pub(crate) fn draw(
    windows: &[WindowReport],
    mpi: Option<(&MpiReport, &[Timeline])>,
) -> Result<Charts, ReportError> {
    let mut charts = Charts::default();
    for window in windows {
        charts.stacks.push(stack(window));
    }
    if let Some((mpi, timelines)) = mpi {
        for (program, timeline) in mpi.programs.iter().zip(timelines) {
            charts.programs.push(ProgramCharts {
                matrix: matrix(program)?,
                timeline: draw_timeline(timeline, windows)?,
                ranks: program.ranks.len(),
            });
        }
    }
    Ok(charts)
}

/// Draws the CPI stack of a window: a bar for each rank, node and sum.
fn stack(window: &WindowReport) -> Drawn {
    let columns = columns(window);
    let ranks = window
        .scopes
        .iter()
        .filter(|scope| scope.kind == ScopeKind::Rank)
        .count();
    let scopes: Vec<_> = window
        .scopes
        .iter()
        .filter(|scope| scope.instructions != 0)
        .filter(|scope| scope.kind != ScopeKind::Rank || ranks <= MOST_BARS / 2)
        .filter(|scope| scope.kind != ScopeKind::Others)
        .take(MOST_BARS)
        .collect();
    let of = |cycles: i128, instructions: u128| {
        (cycles as f64 / CYCLE as f64 / instructions as f64).max(0.0)
    };
    let highest = scopes
        .iter()
        .map(|scope| {
            columns
                .iter()
                .map(|(_, terms)| of(column_cycles(scope, terms), scope.instructions))
                .sum::<f64>()
        })
        .fold(0.0, f64::max);
    let legend = columns
        .iter()
        .enumerate()
        .map(|(index, (name, _))| {
            let meaning = meaning("", name).unwrap_or_default();
            (long_name(name), css(colour(name, index)), meaning)
        })
        .collect();
    if scopes.is_empty() || highest <= 0.0 {
        return (String::new(), legend);
    }
    let mut page = Page::default();
    page.raw("<div class=\"stack\">\n");
    for scope in scopes {
        let values: Vec<f64> = (columns.iter())
            .map(|(_, terms)| of(column_cycles(scope, terms), scope.instructions))
            .collect();
        let sum: f64 = values.iter().sum();
        page.element("span", "", &scope.name);
        page.raw("<div>");
        for (value, (name, colour, _)) in values.into_iter().zip(&legend) {
            let meaning = format!(
                "{}, {name}: {value:.3} cycles per instruction, {:.1} %",
                scope.name,
                100.0 * value / sum
            );
            let width = 100.0 * value / highest;
            page.raw(&format!(
                "<i style=\"background: {colour}; width: {width:.3}%\" title=\""
            ));
            page.text(&meaning);
            page.raw("\"></i>");
        }
        page.raw(&format!("<em>{sum:.3}</em></div>\n"));
    }
    page.raw("</div>");
    (page.markup(), legend)
}

/// Returns a colour between nearly white (share 0) and dark blue (share 1).
fn shade(share: f64) -> RGBColor {
    let mix = |from: u8, to: u8| {
        (f64::from(from) + (f64::from(to) - f64::from(from)) * share.clamp(0.0, 1.0)) as u8
    };
    RGBColor(mix(0xe4, 0x12), mix(0xef, 0x3c), mix(0xf9, 0x69))
}

fn matrix(mpi: &ProgramReport) -> Result<Option<String>, ReportError> {
    let ranks = mpi
        .matrix
        .iter()
        .map(|cell| cell.from.max(cell.to).saturating_add(1))
        .chain(mpi.ranks.iter().map(|row| row.rank.saturating_add(1)))
        .max()
        .unwrap_or(0);
    if mpi.matrix.is_empty() || ranks == 0 {
        return Ok(None);
    }
    // With many ranks, a cell represents a block of ranks on both axes.
    let block = ranks.div_ceil(MOST_CELLS).max(1);
    let side = ranks.div_ceil(block);
    let mut cells = std::collections::BTreeMap::<(u32, u32), u64>::new();
    for cell in &mpi.matrix {
        let sum = cells
            .entry((cell.from / block, cell.to / block))
            .or_default();
        *sum = sum.saturating_add(cell.bytes);
    }
    let most = cells.values().copied().max().unwrap_or(0).max(1);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (660, 560)).into_drawing_area();
        let failed = failed("matrix");
        let edge = f64::from(side);
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .margin_right(104)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(-0.5..edge - 0.5, edge - 0.5..-0.5)
            .map_err(&failed)?;
        let label = |value: &f64| {
            let whole = value.round();
            if (value - whole).abs() < 1e-6 && whole >= 0.0 && whole < edge {
                format!("{}", whole as u32 * block)
            } else {
                String::new()
            }
        };
        let labels = (side as usize).min(16) + 1;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc("receiving rank")
            .y_desc("sending rank")
            .x_labels(labels)
            .y_labels(labels)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .label_style(font(13))
            .axis_desc_style(font(13))
            .axis_style(FAINT)
            .draw()
            .map_err(&failed)?;
        let plane = chart.plotting_area().clone();
        for (&(from, to), &sum) in &cells {
            let (x, y) = (f64::from(to), f64::from(from));
            let share = sum as f64 / most as f64;
            plane
                .draw(&Rectangle::new(
                    [(x - 0.48, y - 0.48), (x + 0.48, y + 0.48)],
                    shade(share).filled(),
                ))
                .map_err(&failed)?;
            if side <= LABELLED {
                let ink = if share > 0.45 { WHITE } else { INK };
                let (x, y) = plane.map_coordinate(&(x, y));
                let text = bytes(sum);
                area.draw(&Text::new(
                    text,
                    (x, y),
                    TextStyle::from(("sans-serif", 12).into_font())
                        .color(&ink)
                        .pos(plotters::style::text_anchor::Pos::new(
                            plotters::style::text_anchor::HPos::Center,
                            plotters::style::text_anchor::VPos::Center,
                        )),
                ))
                .map_err(&failed)?;
            }
        }
        // The colour scale is linear, so that colours differ as much as values; dark is the largest cell.
        for step in 0..40 {
            let top = 40 + step * 5;
            area.draw(&Rectangle::new(
                [(574, top), (590, top + 5)],
                shade(1.0 - f64::from(step) / 39.0).filled(),
            ))
            .map_err(&failed)?;
        }
        for (amount, at) in [(most, 20), (most / 2, 136), (0, 244)] {
            let left = if amount == most / 2 { 594 } else { 568 };
            area.draw(&Text::new(bytes(amount), (left, at), font(12)))
                .map_err(&failed)?;
        }
        area.present().map_err(&failed)?;
    }
    Ok(Some(svg))
}

fn draw_timeline(
    timeline: &Timeline,
    windows: &[WindowReport],
) -> Result<Option<Drawn>, ReportError> {
    if timeline.lanes.is_empty() {
        return Ok(None);
    }
    // The page's style sheet has colours for light and for dark pages.
    let mut names: Vec<(&str, String)> = (GROUPS.into_iter().enumerate())
        .map(|(group, name)| (name, format!("var(--g{group})")))
        .collect();
    if !windows.is_empty() {
        names.push(("measured by a window", "var(--ink)".into()));
    }
    let legend = names
        .into_iter()
        .map(|(name, colour)| {
            let meaning = meaning("timeline", name).unwrap_or_default();
            (name.to_owned(), colour, meaning)
        })
        .collect();
    let lanes = timeline.lanes.len();
    let lane_height = if lanes <= 16 { 30 } else { 12 };
    let mut svg = String::new();
    {
        let height = 60 + lane_height * lanes as u32;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let failed = failed("timeline");
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(40)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..COLUMNS as f64, 0.0..lanes as f64 + 0.4)
            .map_err(&failed)?;
        let (from, to) = (timeline.from_ps as f64, timeline.to_ps as f64);
        let label = |column: &f64| time(from + (to - from) * column / COLUMNS as f64);
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .x_desc("virtual time since power-on")
            .x_labels(8)
            .x_label_formatter(&label)
            .x_label_style(font(13))
            .axis_desc_style(font(13))
            .axis_style(FAINT)
            .draw()
            .map_err(&failed)?;
        let plane = chart.plotting_area().clone();
        for window in windows {
            let column = |ps: u64| {
                ((ps as f64 - from) / (to - from) * COLUMNS as f64).clamp(0.0, COLUMNS as f64)
            };
            let (start, end) = (column(window.measured_from_ps), column(window.closed_ps));
            let top = lanes as f64;
            if start < end {
                plane
                    .draw(&Rectangle::new(
                        [(start, top + 0.1), (end, top + 0.3)],
                        INK.filled(),
                    ))
                    .map_err(&failed)?;
            }
        }
        for (row, (rank, cells)) in timeline.lanes.iter().enumerate() {
            let bottom = (lanes - 1 - row) as f64;
            plane
                .draw(&Rectangle::new(
                    [(0.0, bottom + 0.1), (COLUMNS as f64, bottom + 0.9)],
                    RGBColor(0xf3, 0xf5, 0xf8).filled(),
                ))
                .map_err(&failed)?;
            let levels: Vec<[u8; GROUPS.len()]> = cells.iter().map(quantised).collect();
            let mut start = 0;
            while start < COLUMNS {
                let mut end = start + 1;
                while end < COLUMNS && levels[end] == levels[start] {
                    end += 1;
                }
                let mut level = bottom + 0.1;
                for (group, &share) in levels[start].iter().enumerate() {
                    if share > 0 {
                        let top = level + 0.8 * f64::from(share) / STEPS;
                        plane
                            .draw(&Rectangle::new(
                                [(start as f64, level), (end as f64, top)],
                                GROUP_COLOURS[group].filled(),
                            ))
                            .map_err(&failed)?;
                        level = top;
                    }
                }
                start = end;
            }
            if lane_height >= 30 || row % 4 == 0 {
                let (_, y) = plane.map_coordinate(&(0.0, bottom + 0.5));
                area.draw(&Text::new(format!("rank {rank}"), (10, y - 6), font(13)))
                    .map_err(&failed)?;
            }
        }
        area.present().map_err(&failed)?;
    }
    Ok(Some((svg, legend)))
}

/// Number of steps to which the shares of a timeline's column are rounded; a share that is not 0 gets at least one step, if one is left.
const STEPS: f64 = 12.0;

fn quantised(shares: &[f32; GROUPS.len()]) -> [u8; GROUPS.len()] {
    let mut left = STEPS as u8;
    shares.map(|share| {
        let steps = (f64::from(share) * STEPS).round() as u8;
        let steps = steps.max(u8::from(share > 0.0)).min(left);
        left -= steps;
        steps
    })
}
