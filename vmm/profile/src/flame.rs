//! Flame graphs: call paths as stacked frames, whose width is proportional to their cycles.
//!
//! The SVG contains its style and script and loads nothing. It can be a file of its own or a part of a page. Without a script engine, the
//! SVG shows the whole graph.

use std::collections::BTreeMap;
use std::fmt::Write;

use nodescope_hypercall::printable_lines;

use crate::paths::{Frame, Stacks};
use crate::record::{ModuleKind, WindowProfile};
use crate::totals::CYCLE;

/// Kind of a frame's code, which decides the frame's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The window, a rank, the other processes of a node, or one program among these processes.
    Owner,
    /// The MPI function that a rank is inside.
    Mpi,
    /// Code of a program.
    Program,
    /// Code of a shared library or of the vDSO.
    Library,
    /// Code of the kernel.
    Kernel,
    /// Code in memory without a file, or of unknown origin.
    Anonymous,
    /// A function that the compiler has inlined.
    Inlined,
}

impl Kind {
    const ALL: [(Kind, &'static str); 7] = [
        (Kind::Owner, "rank, node"),
        (Kind::Mpi, "MPI call"),
        (Kind::Program, "program"),
        (Kind::Library, "library"),
        (Kind::Kernel, "kernel"),
        (Kind::Anonymous, "no file"),
        (Kind::Inlined, "inlined"),
    ];

    /// Returns the kind's colour: hue in degrees, saturation and lightness in percent.
    fn colour(self) -> (u32, u32, u32) {
        match self {
            Kind::Owner => (214, 24, 84),
            Kind::Mpi => (282, 42, 80),
            Kind::Program => (24, 88, 70),
            Kind::Library => (46, 86, 66),
            Kind::Kernel => (204, 62, 72),
            Kind::Anonymous => (128, 38, 68),
            Kind::Inlined => (12, 66, 83),
        }
    }
}

/// Frame of a flame graph, with the frames that are drawn above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the owner or function that the frame represents.
    pub name: String,
    /// Name of the module that contains the function; empty for owners and MPI functions.
    pub module: String,
    /// Kind of code of the frame.
    pub kind: Kind,
    /// Cycles of the frame, including all frames above it, in 1/65536 of a cycle.
    pub cycles_65536: i128,
    /// Frames directly above this frame: owners in their order, others by name.
    pub children: Vec<Node>,
}

/// Maximum number of frames above each other, without the owner and the window. A deeper path's cycles count for its last frame that is
/// shown.
const MOST_DEPTH: usize = 200;
/// Limit of narrow frames: frames with less than 1/25000 of the window's cycles are not drawn.
const NARROWEST: i128 = 25_000;
/// Height of a frame in pixels.
const ROW: u32 = 18;
const TOP: u32 = 62;
const LEFT: u32 = 8;
/// Assumed width in pixels of a character in a frame's name, a little more than fonts have at this size.
const CHARACTER: f64 = 7.3;

#[derive(Default)]
struct Sum {
    cycles: i128,
    children: BTreeMap<(String, Kind, String), Sum>,
}

impl Sum {
    fn finish(self, name: String, kind: Kind, module: String) -> Node {
        Node {
            name,
            module,
            kind,
            cycles_65536: self.cycles,
            children: (self.children.into_iter())
                .map(|((name, kind, module), sum)| sum.finish(name, kind, module))
                .collect(),
        }
    }
}

/// Sums up call paths by their frames. Owners keep their order; other frames are sorted by name.
pub fn tree(profile: &WindowProfile, stacks: &Stacks) -> Node {
    let mut owners: BTreeMap<(u32, String), Sum> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let mut total = 0;
    for stack in &stacks.stacks {
        let label = &stacks.labels[stack.label as usize];
        let cycles = stack.costs.cycles_65536();
        total += cycles;
        let root = label.frames.first().map_or("others", String::as_str);
        // Stacks are ordered by owner: most have the same owner as the one before.
        if order.last() != Some(&root) && !order.contains(&root) {
            order.push(root);
        }
        let place = order.iter().rposition(|&name| name == root).unwrap_or(0);
        let mut sum = owners.entry((place as u32, root.to_owned())).or_default();
        sum.cycles += cycles;
        let outer = label.frames.iter().skip(1).map(|name| {
            let kind = match &label.mpi {
                Some(mpi) if mpi == name => Kind::Mpi,
                _ => Kind::Owner,
            };
            (name.clone(), kind, String::new())
        });
        let mut module = String::new();
        let inner = stack.frames.iter().map(|&frame| {
            let mut kind = Kind::Inlined;
            if let Frame::Function(function) = frame {
                let function = &profile.functions[function as usize];
                let of = &profile.modules[function.module as usize];
                module = of.name.clone();
                kind = match of.kind {
                    ModuleKind::File if is_library(&of.name) => Kind::Library,
                    ModuleKind::File => Kind::Program,
                    ModuleKind::Kernel | ModuleKind::KernelModule => Kind::Kernel,
                    ModuleKind::Vdso => Kind::Library,
                    ModuleKind::Anonymous | ModuleKind::Unknown => Kind::Anonymous,
                };
            }
            let name = stacks.name(profile, frame).to_owned();
            (name, kind, module.clone())
        });
        for key in outer.chain(inner).take(MOST_DEPTH) {
            sum = sum.children.entry(key).or_default();
            sum.cycles += cycles;
        }
    }
    Node {
        name: format!("window {}", profile.name),
        module: String::new(),
        kind: Kind::Owner,
        cycles_65536: total,
        children: (owners.into_iter())
            .map(|((_, name), sum)| sum.finish(name, Kind::Owner, String::new()))
            .collect(),
    }
}

fn is_library(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.ends_with(".so") || file.contains(".so.")
}

/// Draws a flame graph whose width is in pixels, and returns the SVG.
pub fn svg(tree: &Node, width: u32) -> String {
    let mut drawing = Drawing {
        out: String::new(),
        total: tree.cycles_65536.max(1),
        wide: f64::from(width.saturating_sub(2 * LEFT).max(1)),
        rows: depth(tree, tree.cycles_65536.max(1)),
        left_out: 0,
    };
    drawing.frame(tree, 0, 0);
    let Drawing {
        out: frames,
        rows,
        left_out,
        ..
    } = drawing;
    let bottom = TOP + rows * ROW;
    let height = bottom + 34;
    let title = format!("Flame graph of {}: width is cycles", tree.name);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"flame\" tabindex=\"0\" role=\"group\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" data-left=\"{LEFT}\" data-wide=\"{}\">\n",
        width.saturating_sub(2 * LEFT)
    );
    out.push_str("<style>");
    out.push_str(include_str!("flame.css"));
    out.push_str("</style>\n");
    let search = width.saturating_sub(LEFT + 200);
    let reset = search.saturating_sub(78);
    let most = (f64::from(reset.saturating_sub(LEFT + 110)) / 8.6) as usize;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<text class=\"title\" x=\"{LEFT}\" y=\"22\">{}</text>",
        escaped(&cut(&title, most))
    );
    let mut x = LEFT;
    for (kind, name) in Kind::ALL {
        let (hue, saturation, lightness) = kind.colour();
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"39\" width=\"11\" height=\"11\" fill=\"hsl({hue}, {saturation}%, {lightness}%)\" /><text class=\"soft\" x=\"{}\" y=\"49\">{name}</text>",
            x + 16
        );
        x += 34 + 7 * name.len() as u32;
    }
    let _ = writeln!(
        out,
        "\n<text class=\"soft tools\" x=\"{}\" y=\"49\" text-anchor=\"end\">click or Enter: zoom; arrows: move; / search; Esc: reset</text>",
        width.saturating_sub(LEFT)
    );
    let _ = writeln!(
        out,
        "<text class=\"soft matches\" x=\"{}\" y=\"22\" text-anchor=\"end\"></text>",
        reset.saturating_sub(8)
    );
    let _ = writeln!(
        out,
        "<g class=\"tools button reset off\" role=\"button\" tabindex=\"0\"><rect x=\"{reset}\" y=\"7\" width=\"70\" height=\"22\" rx=\"3\" /><text x=\"{}\" y=\"22\" text-anchor=\"middle\">reset</text></g>",
        reset + 35
    );
    let _ = writeln!(
        out,
        "<foreignObject class=\"tools\" x=\"{search}\" y=\"7\" width=\"200\" height=\"22\"><input xmlns=\"http://www.w3.org/1999/xhtml\" class=\"search\" type=\"search\" placeholder=\"search functions\" aria-label=\"search functions\" /></foreignObject>",
    );
    out.push_str(&frames);
    let _ = writeln!(
        out,
        "<text class=\"details\" x=\"{LEFT}\" y=\"{}\" role=\"status\"></text>",
        bottom + 20
    );
    if left_out > 0 {
        let _ = writeln!(
            out,
            "<desc>{left_out} frames narrower than 1/{NARROWEST} of the window are not drawn; their cycles are in the frames below them.</desc>"
        );
    }
    out.push_str("<script>");
    out.push_str(include_str!("flame.js"));
    out.push_str("</script>\n</svg>\n");
    out
}

struct Drawing {
    out: String,
    total: i128,
    wide: f64,
    rows: u32,
    left_out: u64,
}

impl Drawing {
    /// Draws a frame from position `start` on, in 1/65536 of a cycle, and the frames above it.
    fn frame(&mut self, node: &Node, start: i128, depth: u32) {
        let (x, w) = (
            start as f64 / self.total as f64,
            node.cycles_65536 as f64 / self.total as f64,
        );
        let y = TOP + (self.rows - 1 - depth) * ROW;
        let (left, pixels) = (f64::from(LEFT) + x * self.wide, w * self.wide);
        let label = cut(&node.name, ((pixels - 6.0) / CHARACTER).max(0.0) as usize);
        let mut title = node.name.replace('\n', " ");
        if !node.module.is_empty() {
            title.push_str(&format!("\nin {}", node.module.replace('\n', " ")));
        }
        let own: i128 = node.children.iter().map(|child| child.cycles_65536).sum();
        let own = node.cycles_65536 - own;
        title.push_str(&format!(
            "\n{} cycles, {:.2} %",
            cycles(node.cycles_65536),
            100.0 * w
        ));
        if own > 0 && !node.children.is_empty() {
            title.push_str(&format!("\n{} cycles of its own", cycles(own)));
        }
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.out,
            "<g class=\"f{}\" data-x=\"{x:.9}\" data-w=\"{w:.9}\" data-d=\"{depth}\"><title>{}</title><rect x=\"{left:.3}\" y=\"{y}\" width=\"{pixels:.3}\" height=\"{}\" rx=\"1.5\" fill=\"{}\" /><text x=\"{:.3}\" y=\"{}\">{}</text></g>",
            if pixels < 3.0 { " thin" } else { "" },
            escaped(&title),
            ROW - 1,
            shade(node.kind, &node.name),
            left + 3.0,
            y + 13,
            escaped(&label),
        );
        let mut at = start;
        for child in &node.children {
            if is_drawn(child, self.total) {
                self.frame(child, at, depth + 1);
            } else {
                self.left_out += 1;
            }
            at += child.cycles_65536;
        }
    }
}

fn is_drawn(node: &Node, total: i128) -> bool {
    node.cycles_65536 > 0 && node.cycles_65536.saturating_mul(NARROWEST) >= total
}

fn depth(node: &Node, total: i128) -> u32 {
    let drawn = node.children.iter().filter(|child| is_drawn(child, total));
    1 + drawn.map(|child| depth(child, total)).max().unwrap_or(0)
}

/// Formats cycles, rounded down to whole ones, with separators of thousands.
fn cycles(cycles_65536: i128) -> String {
    let digits = (cycles_65536 / CYCLE).to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns the kind's colour, slightly varied by the name.
fn shade(kind: Kind, name: &str) -> String {
    let (hue, saturation, lightness) = kind.colour();
    // The hash is FNV-1a, which gives the same colours on every machine.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let spread = match kind {
        Kind::Owner | Kind::Mpi => (0, 0),
        _ => (hash % 15, (hash >> 8) % 9),
    };
    format!(
        "hsl({}, {saturation}%, {}%)",
        (hue + spread.0 + 353) % 360,
        lightness + spread.1 - 4
    )
}

/// Returns a text, shortened with an ellipsis if it has more than `most` characters. Returns an empty text if the text would have to be
/// shortened to fewer than three.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    if most < 3 {
        return String::new();
    }
    let mut out: String = text.chars().take(most - 1).collect();
    out.push('\u{2026}');
    out
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    // XML allows all printable characters (XML 1.0, section 2.2).
    for character in printable_lines(text).chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(character),
        }
    }
    out
}
