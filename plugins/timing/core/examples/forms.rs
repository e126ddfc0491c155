//! Prints the instruction forms of a file of raw machine code that the core model cannot time, by reason: `forms CORE FILE`.
//!
//! `objcopy -O binary --only-section=.text PROGRAM FILE` makes such a file. Every instruction form becomes a block of its own.

use std::collections::BTreeMap;
use std::process::ExitCode;

use iced_x86::{Decoder, DecoderOptions};
use nodescope_plugin_core::{Block, Core, Reason, Tool};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(core), Some(file)) = (arguments.next(), arguments.next()) else {
        eprintln!("forms CORE FILE");
        return ExitCode::from(2);
    };
    match forms(&core, &file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forms: {error}");
            ExitCode::FAILURE
        }
    }
}

fn forms(core: &str, file: &str) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = std::fs::read(file)?;
    let core = Core::of(&Tool::installed()?, core)?;
    let mut decoder = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE);
    // One instruction of each form. Instructions of a form have the same iced-x86 code, prefixes, first register, address registers and
    // displacement size.
    let mut forms = BTreeMap::new();
    let mut instructions = 0_u64;
    while decoder.can_decode() {
        let at = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            continue;
        }
        instructions += 1;
        let form = (
            format!("{:?}", instruction.code()),
            instruction.memory_base() as u32,
            instruction.memory_index() as u32,
            instruction.segment_prefix() as u32,
            instruction.op0_register() as u32,
            instruction.has_lock_prefix(),
            (
                instruction.has_rep_prefix(),
                instruction.has_repne_prefix(),
                instruction.memory_displ_size(),
            ),
        );
        forms.entry(form).or_insert_with(|| Block {
            address: instruction.ip(),
            bytes: bytes[at..decoder.position()].to_vec(),
            executions: 1,
            instructions: 1,
        });
    }
    let blocks: Vec<Block> = forms.into_values().collect();
    let mut refused = BTreeMap::new();
    for reason in core.refusals(&blocks, None)?.into_iter().flatten() {
        let kind = match &reason {
            Reason::Refused {
                instruction,
                message,
            } => {
                let name = instruction.split_whitespace().next().unwrap_or_default();
                format!("{name}: {message}")
            }
            other => other.to_string(),
        };
        refused.entry(kind).or_insert_with(|| (0, reason)).0 += 1;
    }
    println!("{instructions} instructions, {} forms", blocks.len());
    for (kind, (count, example)) in refused {
        println!("{count:6}  {kind}   {example}");
    }
    Ok(())
}
