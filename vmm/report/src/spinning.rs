//! Code in which threads wait for other threads without sleeping: the runtimes of OpenMP, and loops with PAUSE. Counters do not tell this
//! code from work; the window's profile does.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use nodescope_profile::{Block, CoreCycles, Costs, WindowProfile, is_openmp_runtime};

/// Name of the term.
pub(crate) const TERM: &str = "spinning";

/// Costs of code in which threads wait, by node and context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spinning(BTreeMap<(u32, u32), Costs>);

impl Spinning {
    pub(crate) fn new(profile: &WindowProfile, core: &dyn CoreCycles) -> Spinning {
        let waits = waits(profile);
        let mut sums: BTreeMap<(u32, u32), Costs> = BTreeMap::new();
        for count in &profile.counts {
            if waits[count.block as usize] {
                let block = &profile.blocks[count.block as usize];
                let costs = Costs::of(block, count, core.block(count.block));
                sums.entry((count.node, count.context))
                    .or_default()
                    .add(&costs);
            }
        }
        Spinning(sums)
    }

    /// Returns the costs of a node, by context.
    pub(crate) fn of(&self, node: u32) -> impl Iterator<Item = (u32, &Costs)> {
        let range = self.0.range((node, 0)..=(node, u32::MAX));
        range.map(|(&(_, context), costs)| (context, costs))
    }
}

/// Returns of each block of a profile whether threads wait in it for other threads.
pub(crate) fn waits(profile: &WindowProfile) -> Vec<bool> {
    let modules = profile.modules.iter();
    let runtimes: Vec<bool> = modules
        .map(|module| is_openmp_runtime(&module.name))
        .collect();
    let blocks = profile.blocks.iter();
    blocks
        .map(|block| runtimes[block.module as usize] || pauses(block))
        .collect()
}

/// Returns whether a block has a PAUSE, which tells the processor that a loop waits (SDM vol. 2B, PAUSE).
fn pauses(block: &Block) -> bool {
    // PAUSE is F3 90.
    let candidate = block.bytes.windows(2).any(|bytes| bytes == [0xf3, 0x90]);
    candidate && {
        let bits = u32::from(block.bits);
        let mut decoder = Decoder::with_ip(bits, &block.bytes, 0, DecoderOptions::NONE);
        decoder
            .iter()
            .any(|instruction| instruction.mnemonic() == Mnemonic::Pause)
    }
}
