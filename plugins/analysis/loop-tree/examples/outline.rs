//! Prints the loop trees of a trace: their size, and each different tree with the first rank that has it.
//! `cargo run --example outline -- results/trace.nst`

use std::collections::BTreeSet;

use nodescope_loop_tree::Program;
use nodescope_loop_tree::sequence::SequenceBuilder;
use nodescope_trace::TraceReader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which trace?")?;
    let mut builder = SequenceBuilder::default();
    for event in TraceReader::open(std::path::Path::new(&path))?.events() {
        builder.add(&event?);
    }
    let sequences = builder.finish()?;
    let program = Program::new(&sequences);
    for (rank, sequence) in sequences.ranks.iter().enumerate() {
        assert_eq!(program.unfold(rank as u32), *sequence, "rank {rank}");
    }
    println!("{:#?}", program.size());
    println!("trace: {} bytes", std::fs::metadata(&path)?.len());
    let mut trees = BTreeSet::new();
    for (rank, of) in program.ranks.iter().enumerate() {
        if trees.insert(of.tree) {
            println!("rank {rank}:\n{}", program.outline(rank as u32));
        }
    }
    for note in &program.notes {
        println!("note: {note}");
    }
    Ok(())
}
