//! Costs by call path: the exact costs of functions, divided among sampled call paths.
//!
//! The costs of a function in a context are exact, while its call paths are samples. The costs are therefore divided among the paths that
//! end in the function, in proportion to their samples. A function without samples in a context has one path, which consists of the
//! function alone. The shares are integers whose sum is the cost, so that all paths together have exactly the window's total.

use std::collections::BTreeMap;

use crate::record::{Block, ModuleKind, WindowProfile};
use crate::totals::{CYCLE, CoreCycles, Costs, Scope};

/// Owner of a context, which gives the outermost frames of the context's paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextLabel {
    /// Outermost frames: `rank 3`, or `others node0` and a program; then the MPI function that the thread is inside.
    pub frames: Vec<String>,
    /// Number of the node.
    pub node: u32,
    /// Rank of the process in `MPI_COMM_WORLD`; `None` for other processes.
    pub rank: Option<u32>,
    /// Short name of the program; `None` if it is not known.
    pub program: Option<String>,
    /// Name of the MPI function that the thread is inside; `None` outside MPI.
    pub mpi: Option<String>,
}

impl ContextLabel {
    /// Returns a sort key that puts ranks first, in order, then all other owners.
    fn order(&self) -> impl Ord + '_ {
        (self.rank.is_none(), self.rank, self.node, &self.frames)
    }
}

/// Owners of contexts, by number of the node and index of the context.
pub type Labels = BTreeMap<(u32, u32), ContextLabel>;

/// A level of a call path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Frame {
    /// Index of a function in [`WindowProfile::functions`].
    Function(u32),
    /// Index in [`Stacks::inlined`] of a function that the compiler has inlined in the frame before.
    Inlined(u32),
}

/// Costs of a call path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Index of the owner in [`Stacks::labels`].
    pub label: u32,
    /// Functions, outermost first. The last one is the one that executed.
    pub frames: Vec<Frame>,
    /// Index in [`WindowProfile::lines`] of the source line that executed; `None` unless [`Detail::Lines`] was requested and the line has
    /// at least 1/10000 of the window's cycles.
    pub line: Option<u32>,
    /// Share of the last function's costs that belongs to the path.
    pub costs: Costs,
}

/// Costs of a window by call path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// Owners of the contexts, each once: ranks first, then others.
    pub labels: Vec<ContextLabel>,
    /// Names of inlined functions, each once.
    pub inlined: Vec<String>,
    /// Paths, sorted by owner, then frames, then line.
    pub stacks: Vec<Stack>,
}

/// Detail by which call paths are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Functions only; paths have no lines.
    Functions,
    /// Functions and source lines with at least 1/10000 of the window's cycles. Other lines are left out, which keeps exports small.
    Lines,
}

/// Maximum of a path's samples that count, so that sums of damaged files do not overflow.
const MOST_SAMPLES: u64 = 1 << 32;

impl Stacks {
    /// Divides a window's costs among its call paths.
    pub fn new(
        profile: &WindowProfile,
        core: &dyn CoreCycles,
        labels: &Labels,
        detail: Detail,
    ) -> Stacks {
        let owners = Owners::new(profile, labels);
        let mut names = Names::default();
        let hot = match detail {
            Detail::Functions => Vec::new(),
            Detail::Lines => hot_lines(profile, core),
        };
        let parts: Vec<Vec<Part>> = (profile.blocks.iter())
            .map(|block| parts(block, &mut names, &hot))
            .collect();

        let mut leaves: BTreeMap<(u32, u32, &Part), Costs> = BTreeMap::new();
        for count in &profile.counts {
            let block = &profile.blocks[count.block as usize];
            let costs = Costs::of(block, count, core.block(count.block));
            let parts = &parts[count.block as usize];
            let whole = parts.iter().map(|part| u128::from(part.instructions)).sum();
            let label = owners.of(count.node, count.context);
            let mut before = 0;
            for part in parts {
                let after = before + u128::from(part.instructions);
                let leaf = leaves.entry((label, block.function, part)).or_default();
                leaf.add(&costs.part(before, after, whole));
                before = after;
            }
        }

        let mut sampled: BTreeMap<(u32, u32), BTreeMap<&[u32], u128>> = BTreeMap::new();
        for path in &profile.paths {
            let Some(&leaf) = path.functions.last() else {
                continue;
            };
            let label = owners.of(path.node, path.context);
            let paths = sampled.entry((label, leaf)).or_default();
            *paths.entry(&path.functions).or_default() +=
                u128::from(path.samples.min(MOST_SAMPLES));
        }

        let mut sums: BTreeMap<(u32, Vec<Frame>, Option<u32>), Costs> = BTreeMap::new();
        for ((label, function, part), costs) in leaves {
            let itself = [function];
            let alone = BTreeMap::from([(&itself[..], 1)]);
            let paths = match sampled.get(&(label, function)) {
                Some(paths) if paths.values().any(|&samples| samples > 0) => paths,
                _ => &alone,
            };
            let whole = paths.values().sum();
            let mut before = 0;
            for (path, samples) in paths {
                let after = before + samples;
                let share = costs.part(before, after, whole);
                before = after;
                if share == Costs::default() {
                    continue;
                }
                let functions = path.iter().copied().map(Frame::Function);
                let frames = functions.chain(part.inlined.iter().copied().map(Frame::Inlined));
                sums.entry((label, frames.collect(), part.line))
                    .or_default()
                    .add(&share);
            }
        }
        Stacks {
            labels: owners.labels,
            inlined: names.names,
            stacks: (sums.into_iter())
                .map(|((label, frames, line), costs)| Stack {
                    label,
                    frames,
                    line,
                    costs,
                })
                .collect(),
        }
    }

    /// Returns the name of a frame's function.
    pub fn name<'a>(&'a self, profile: &'a WindowProfile, frame: Frame) -> &'a str {
        match frame {
            Frame::Function(function) => &profile.functions[function as usize].name,
            Frame::Inlined(name) => &self.inlined[name as usize],
        }
    }

    /// Returns the core's cycles of each stack, long instructions included, as whole numbers. The sum is the total, rounded down.
    pub fn whole_core_cycles(&self) -> impl Iterator<Item = i128> + '_ {
        let mut before = 0;
        self.stacks.iter().map(move |stack| {
            let after = before + stack.costs.core_65536;
            let whole = after.div_euclid(CYCLE) - before.div_euclid(CYCLE);
            before = after;
            whole + stack.costs.long_cycles as i128
        })
    }

    /// Returns the cycles of each stack, stalls included, as whole numbers. The sum is the total, rounded down.
    pub fn whole_cycles(&self) -> impl Iterator<Item = i128> + '_ {
        let stalls = self
            .stacks
            .iter()
            .map(|stack| stack.costs.stalls.iter().sum::<u128>() as i128);
        self.whole_core_cycles()
            .zip(stalls)
            .map(|(core, stalls)| core + stalls)
    }
}

impl WindowProfile {
    /// Returns whether a function is code of the kernel or of a kernel module.
    pub(crate) fn in_kernel(&self, function: u32) -> bool {
        let module = self.functions[function as usize].module;
        matches!(
            self.modules[module as usize].kind,
            ModuleKind::Kernel | ModuleKind::KernelModule
        )
    }

    /// Returns the suffix by which tools for stacks recognise the kind of a frame.
    pub(crate) fn mark(&self, frame: Frame) -> &'static str {
        match frame {
            Frame::Inlined(_) => "_[i]",
            Frame::Function(function) if self.in_kernel(function) => "_[k]",
            Frame::Function(_) => "",
        }
    }
}

/// Owners of contexts, each once, with the index of each context's owner.
struct Owners {
    labels: Vec<ContextLabel>,
    of: BTreeMap<(u32, u32), u32>,
}

impl Owners {
    fn new(profile: &WindowProfile, known: &Labels) -> Owners {
        let counted = profile.counts.iter().map(|c| (c.node, c.context));
        let contexts: std::collections::BTreeSet<_> = counted
            .chain(profile.paths.iter().map(|p| (p.node, p.context)))
            .collect();
        let label = |(node, context)| {
            known
                .get(&(node, context))
                .cloned()
                .unwrap_or_else(|| ContextLabel {
                    frames: vec![format!("others node {node}")],
                    node,
                    ..ContextLabel::default()
                })
        };
        let of_context: Vec<_> = contexts.into_iter().map(|key| (key, label(key))).collect();
        let mut labels: Vec<_> = of_context.iter().map(|(_, label)| label.clone()).collect();
        labels.sort_by(|a, b| a.order().cmp(&b.order()));
        labels.dedup_by(|a, b| a.order() == b.order());
        let index = |label: &ContextLabel| {
            let found = labels.binary_search_by(|known| known.order().cmp(&label.order()));
            found.unwrap_or(0) as u32
        };
        let of = (of_context.iter())
            .map(|(key, label)| (*key, index(label)))
            .collect();
        Owners { labels, of }
    }

    fn of(&self, node: u32, context: u32) -> u32 {
        self.of.get(&(node, context)).copied().unwrap_or(0)
    }
}

/// Names, each once, with their indices.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    known: BTreeMap<String, u32>,
}

impl Names {
    fn index(&mut self, name: &str) -> u32 {
        if let Some(&index) = self.known.get(name) {
            return index;
        }
        let index = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.known.insert(name.to_owned(), index);
        index
    }
}

/// Instructions of a block with the same inlined functions and source line.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// Indices of the inlined functions that contain the instructions, outermost first.
    inlined: Vec<u32>,
    line: Option<u32>,
    instructions: u32,
}

fn parts(block: &Block, names: &mut Names, hot: &[bool]) -> Vec<Part> {
    let mut sums: BTreeMap<(Vec<u32>, Option<u32>), u32> = BTreeMap::new();
    for (n, range) in block.source_ranges.iter().enumerate() {
        let next = block.source_ranges.get(n + 1).map(|next| next.first);
        let end = next.unwrap_or(block.instructions).min(block.instructions);
        let inlined = range.inlined.iter().rev();
        let inlined = inlined.map(|i| names.index(&i.function)).collect();
        let line = range
            .line
            .filter(|&line| hot.get(line as usize) == Some(&true));
        *sums.entry((inlined, line)).or_default() += end.saturating_sub(range.first);
    }
    sums.retain(|_, instructions| *instructions > 0);
    if sums.is_empty() {
        sums.insert((Vec::new(), None), 1);
    }
    sums.into_iter()
        .map(|((inlined, line), instructions)| Part {
            inlined,
            line,
            instructions,
        })
        .collect()
}

fn hot_lines(profile: &WindowProfile, core: &dyn CoreCycles) -> Vec<bool> {
    let mut hot = vec![false; profile.lines.len()];
    let lines = profile.by_line(Scope::Total, core);
    let total: i128 = lines.values().map(Costs::cycles_65536).sum();
    for (line, costs) in lines {
        if let Some(line) = line {
            hot[line as usize] = costs.cycles_65536() >= (total / 10_000).max(1);
        }
    }
    hot
}
