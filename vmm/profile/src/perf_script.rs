//! Text in the format of `perf script` (perf-script(1)), for tools that read this format.
//!
//! Each call path is one event whose period is the path's cycles. The time is 0, because a profile has no order. The process id is 1 plus
//! the index of the path's owner. The address of a frame is the beginning of its function.

use std::fmt::Write;

use crate::paths::{Frame, Stacks};
use crate::record::WindowProfile;

/// Returns the call paths as events in the text format of `perf script`.
pub fn perf_script(profile: &WindowProfile, stacks: &Stacks) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    for (stack, cycles) in stacks.stacks.iter().zip(stacks.whole_cycles()) {
        if cycles == 0 {
            continue;
        }
        let owner = &stacks.labels[stack.label as usize];
        let root = owner.frames.first().map_or("others", String::as_str);
        let command = match &owner.program {
            Some(program) => word(&format!("{program}/{root}")),
            None => word(root),
        };
        let pid = stack.label + 1;
        let _ = writeln!(
            out,
            "{command} {pid}/{pid} [{:03}] 0.000000: {cycles} cycles:",
            owner.node
        );
        let mut lines = Vec::new();
        let mut within = None;
        for &frame in &stack.frames {
            if let Frame::Function(function) = frame {
                within = Some(function);
            }
            let Some(function) = within.map(|index: u32| &profile.functions[index as usize]) else {
                continue;
            };
            let module = &profile.modules[function.module as usize];
            let mark = match frame {
                Frame::Function(_) => "+0x0",
                Frame::Inlined(_) => " (inlined)",
            };
            lines.push(format!(
                "\t{:16x} {}{mark} ({})",
                function.start,
                line(stacks.name(profile, frame)),
                line(&module.name)
            ));
        }
        for line in lines.iter().rev() {
            let _ = writeln!(out, "{line}");
        }
        for frame in owner.frames.iter().skip(1).rev() {
            let _ = writeln!(out, "\t{:16x} {}+0x0 ([nodescope])", 0, line(frame));
        }
        out.push('\n');
    }
    out
}

fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    text.chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

fn line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
