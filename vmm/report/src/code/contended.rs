//! Lines of memory that vCPUs of a node took from each other, with the code that used them.

use std::collections::BTreeMap;

use nodescope_profile::{LineUse, WindowProfile};
use serde::Serialize;

/// Line of memory that vCPUs of a node took from each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContendedLine {
    /// Number of the node.
    pub node: u32,
    /// Linear address of the line in one of the processes that use it.
    pub address: u64,
    /// Variable that has the line's first used byte, and the line's offset from the variable; `None` on heaps and stacks.
    pub variable: Option<LineVariable>,
    /// False: no vCPU touched bytes that another one wrote, so that data in lines of their own would cost nothing.
    pub true_sharing: bool,
    /// Number of times that the line came from another vCPU.
    pub taken: u64,
    /// Cycles in which vCPUs waited for the line.
    pub cycles: u64,
    /// Share of these cycles in all cycles of the window's code.
    pub share: f64,
    /// Code that used the line, with most cycles first.
    pub places: Vec<ContendedPlace>,
}

/// Variable in a contended line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineVariable {
    /// Path of the variable's module in the guest.
    pub module: String,
    /// Name of the variable, demangled; `module+0xaddress` if no symbol is known.
    pub name: String,
    /// Offset of the line's first byte from the variable's; negative if the variable begins within the line.
    pub offset: i64,
}

/// Code on one source line, or in one function without known lines, that used a contended line. vCPUs that touched other bytes have an entry
/// of their own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContendedPlace {
    /// Name of the function, which may be inlined.
    pub function: String,
    /// Path of the source file; `None` if unknown.
    pub file: Option<String>,
    /// Number of the source line, from 1; `None` if unknown.
    pub line: Option<u32>,
    /// True if the code reads the line.
    pub reads: bool,
    /// True if the code writes the line.
    pub writes: bool,
    /// True if an instruction of the code is locked.
    pub locked: bool,
    /// First and last byte of each part of the line that the code touches.
    pub bytes: Vec<(u32, u32)>,
    /// Uses by vCPU.
    pub vcpus: Vec<VcpuUse>,
    /// Number of times that the line came from another vCPU.
    pub taken: u64,
    /// Cycles in which vCPUs waited for the line.
    pub cycles: u64,
}

/// Use of a contended line by one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VcpuUse {
    /// Number of the vCPU within its node.
    pub vcpu: u16,
    /// Number of times that the line came from another vCPU.
    pub taken: u64,
    /// Cycles in which the vCPU waited for the line.
    pub cycles: u64,
}

/// Returns the contended lines of all nodes, with most cycles first. `total` is the number of cycles of the window's code.
pub(super) fn lines(profile: &WindowProfile, total: f64) -> Vec<ContendedLine> {
    let lines = profile.contended.iter().map(|line| {
        // Sums saturate, since files may be damaged.
        let sum = |of: &dyn Fn(&LineUse) -> u64| {
            let values = line.uses.iter().map(of);
            values.fold(0, u64::saturating_add)
        };
        let cycles = sum(&|of| of.cycles);
        ContendedLine {
            node: line.node,
            address: line.address,
            variable: line.variable.as_ref().map(|variable| LineVariable {
                module: variable.module.clone(),
                name: variable.name.clone(),
                offset: variable.offset,
            }),
            true_sharing: is_true_sharing(&line.uses),
            taken: sum(&|of| of.taken),
            cycles,
            share: cycles as f64 / total,
            places: places(profile, &line.uses, line.size),
        }
    });
    let mut lines: Vec<ContendedLine> = lines.filter(|line| line.taken > 0).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.cycles));
    lines
}

/// Returns whether a vCPU touched bytes that another vCPU wrote.
fn is_true_sharing(uses: &[LineUse]) -> bool {
    let mut written: BTreeMap<u16, u64> = BTreeMap::new();
    for of in uses.iter().filter(|of| of.write) {
        *written.entry(of.vcpu).or_default() |= of.touched;
    }
    uses.iter().any(|of| {
        let by_others = written.iter().filter(|(vcpu, _)| **vcpu != of.vcpu);
        by_others
            .into_iter()
            .any(|(_, bytes)| bytes & of.touched != 0)
    })
}

fn places(profile: &WindowProfile, uses: &[LineUse], size: u32) -> Vec<ContendedPlace> {
    // What each vCPU did at each place, with the bytes that it touched.
    let mut by_vcpu: BTreeMap<(String, Option<u32>, u16), (ContendedPlace, u64)> = BTreeMap::new();
    for of in uses {
        let (function, line) = place(profile, of);
        let key = (function.clone(), line, of.vcpu);
        let (place, touched) = by_vcpu.entry(key).or_insert_with(|| {
            let source = line.map(|line| &profile.lines[line as usize]);
            let place = ContendedPlace {
                function,
                file: source.map(|source| source.file.clone()),
                line: source.map(|source| source.line),
                reads: false,
                writes: false,
                locked: false,
                bytes: Vec::new(),
                vcpus: Vec::new(),
                taken: 0,
                cycles: 0,
            };
            (place, 0)
        });
        *touched |= of.touched;
        place.reads |= !of.write;
        place.writes |= of.write;
        place.locked |= of.locked;
        place.taken = place.taken.saturating_add(of.taken);
        place.cycles = place.cycles.saturating_add(of.cycles);
    }
    let mut places: Vec<ContendedPlace> = Vec::new();
    for ((.., vcpu), (mut place, touched)) in by_vcpu {
        place.bytes = parts(touched, size);
        let of_vcpu = VcpuUse {
            vcpu,
            taken: place.taken,
            cycles: place.cycles,
        };
        let same = |other: &&mut ContendedPlace| {
            let key = |place: &ContendedPlace| (place.reads, place.writes, place.locked);
            (&other.function, &other.file, other.line) == (&place.function, &place.file, place.line)
                && key(other) == key(&place)
                && other.bytes == place.bytes
        };
        match places.iter_mut().find(same) {
            Some(other) => {
                other.taken = other.taken.saturating_add(place.taken);
                other.cycles = other.cycles.saturating_add(place.cycles);
                other.vcpus.push(of_vcpu);
            }
            None => {
                place.vcpus.push(of_vcpu);
                places.push(place);
            }
        }
    }
    places.sort_by_key(|place| std::cmp::Reverse(place.cycles));
    places
}

/// Returns the innermost function of an instruction, and the index of its source line.
fn place(profile: &WindowProfile, of: &LineUse) -> (String, Option<u32>) {
    let block = &profile.blocks[of.block as usize];
    let range = block.source_range(of.instruction);
    let inlined = range.and_then(|range| range.inlined.first());
    let function = match inlined {
        Some(inlined) => &inlined.function,
        None => &profile.functions[block.function as usize].name,
    };
    (function.clone(), range.and_then(|range| range.line))
}

/// Returns the first and last byte of each run of touched bytes, of which each bit stands for 1/64 of the line.
fn parts(touched: u64, size: u32) -> Vec<(u32, u32)> {
    let piece = (size / 64).max(1);
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for bit in (0..64).filter(|bit| touched >> bit & 1 != 0) {
        let (first, last) = (bit * piece, (bit + 1) * piece - 1);
        match parts.last_mut() {
            Some(part) if part.1 + 1 == first => part.1 = last,
            _ => parts.push((first, last)),
        }
    }
    parts
}

impl ContendedLine {
    /// Returns the line's variable and the part of it, or else the line's address.
    pub fn data(&self) -> String {
        match &self.variable {
            Some(LineVariable { name, offset, .. }) => match offset {
                ..=0 => name.clone(),
                _ => format!("{name}+{offset}"),
            },
            None => format!("{:#x}", self.address),
        }
    }

    /// Returns the kind of sharing in words.
    pub(crate) fn sharing(&self) -> &'static str {
        match self.true_sharing {
            true => "true",
            false => "false",
        }
    }
}

impl ContendedPlace {
    /// Returns the source line, or else nothing.
    pub fn source(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => {
                let file = file.rsplit('/').next().unwrap_or(file);
                format!("{file}:{line}")
            }
            _ => String::new(),
        }
    }

    /// Returns the kinds of access in one word.
    pub(crate) fn access(&self) -> &'static str {
        match (self.locked, self.reads, self.writes) {
            (true, ..) => "locked",
            (_, true, true) => "r/w",
            (_, true, false) => "read",
            _ => "write",
        }
    }

    /// Returns the touched bytes as a text such as `0-7, 16-23`.
    pub(crate) fn byte_list(&self) -> String {
        let parts = self
            .bytes
            .iter()
            .map(|(first, last)| format!("{first}-{last}"));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Returns the vCPUs as a text such as `0-3, 5`.
    pub(crate) fn vcpu_list(&self) -> String {
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for VcpuUse { vcpu, .. } in &self.vcpus {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == *vcpu => run.1 = *vcpu,
                _ => runs.push((*vcpu, *vcpu)),
            }
        }
        let run = |(first, last): (u16, u16)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        runs.into_iter().map(run).collect::<Vec<_>>().join(", ")
    }
}
