//! Boot benchmark: times from power-on to the first process, and to the job.

use std::io::Write as _;

use nodescope_image::job_disk;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::comparison::{Column, Comparison};
use crate::engine::{self, Attached};
use crate::guest::{Guest, Marks, executable};
use crate::workload::{Group, Row};
use crate::{Failure, Options, tcg};

/// Script that replaces the image's first process: it reports its start and then executes the image's `/init`.
const FIRST: &str = "#!/bin/busybox sh\necho bench:reach:boot:init\nexec /init\n";
const JOB: &str = "#!/bin/sh\necho bench:reach:boot:job\n";

/// Measures the boot of the image's guest with one vCPU in nodescope, and in QEMU if QEMU is installed and wanted.
pub fn boot(options: &Options) -> Result<Value, Failure> {
    let image = options.image()?;
    let rows = ["init", "job"].map(|name| Row {
        name: name.into(),
        group: Group::Separate,
    });
    let wanted = rows.iter().map(|r| r.name.clone()).collect();
    let mut guest = Guest::new(&image, JOB.into(), Vec::new(), wanted, Marks::Console)?;
    // The kernel unpacks archives that follow each other. A job disk is such an archive, with the padding that the kernel expects.
    let mut initramfs = NamedTempFile::new().map_err(Failure::Files)?;
    let first = job_disk(&[executable("bench-init", FIRST.into())])
        .map_err(|e| Failure::Guest(e.to_string()))?;
    let mut archive = std::fs::read(&guest.initramfs).map_err(Failure::Files)?;
    archive.resize(archive.len().next_multiple_of(512), 0);
    archive.extend(first);
    initramfs.write_all(&archive).map_err(Failure::Files)?;
    guest.initramfs = initramfs.path().into();
    guest.parameters = vec!["rdinit=/bench-init".into()];

    let version = options.peer(tcg::version);
    let engines = options.engines();
    let mut comparison = Comparison {
        name: "boot",
        rows: rows.into(),
        native: None,
        peer: version.is_some().then(|| Column::new("tcg")),
        engines: engines.iter().map(|e| Column::new(e.name())).collect(),
    };
    for round in 1..=options.rounds.max(1) {
        options.say(&format!("round {round} of {}", options.rounds.max(1)));
        if let Some(peer) = &mut comparison.peer {
            peer.add(tcg::run(&guest)?);
        }
        for (engine, column) in engines.iter().zip(&mut comparison.engines) {
            column.add(engine::run(&guest, *engine, Attached::Nothing)?);
        }
    }
    options.say(&comparison.table());
    let mut line = comparison.json();
    line.insert("peer".into(), version.into());
    line.insert("rounds".into(), options.rounds.max(1).into());
    Ok(line.into())
}
