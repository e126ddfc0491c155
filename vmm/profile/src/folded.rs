//! Folded stacks: for each call path a line with its frames, joined by `;`, and its cycles (github.com/brendangregg/FlameGraph).

use std::fmt::Write;

use crate::paths::Stacks;
use crate::record::WindowProfile;

/// Returns the folded stacks as text. Names of inlined functions end in `_[i]`, those of kernel functions in `_[k]`, as
/// `stackcollapse-perf.pl` marks them.
pub fn folded(profile: &WindowProfile, stacks: &Stacks) -> String {
    let mut out = String::new();
    for (stack, cycles) in stacks.stacks.iter().zip(stacks.whole_cycles()) {
        if cycles == 0 {
            continue;
        }
        let owner = &stacks.labels[stack.label as usize];
        let outer = owner.frames.iter().map(|name| clean(name));
        let inner = stack.frames.iter().map(|&frame| {
            let name = clean(stacks.name(profile, frame));
            name + profile.mark(frame)
        });
        let frames: Vec<String> = outer.chain(inner).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{} {cycles}", frames.join(";"));
    }
    out
}

/// Returns a name in which `;` and control characters are replaced, since these separate frames and lines.
fn clean(name: &str) -> String {
    let clean = |c: char| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c => c,
    };
    name.chars().map(clean).collect()
}
