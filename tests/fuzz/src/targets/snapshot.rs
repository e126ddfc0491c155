//! Target for snapshots. Checksums would refuse most random changes of a snapshot file. The input is therefore only the uncompressed table
//! of sections and the sections. A header with valid checksums is added before each case, as someone with bad intent could do.

use std::io;
use std::path::Path;

use nodescope_machine::state::NodeState;
use nodescope_snapshot::{FORMAT, Kind, Snapshot, SnapshotError, Verify};
use serde_json::Value;

use super::{Once, Target, mutated, put};

/// Target that reads snapshots, `*.nss`.
pub const SNAPSHOT: Target = Target {
    name: "snapshot",
    what: "snapshots (*.nss): the table of sections and the sections, with a header that fits, and as they are",
    seeds: || SEED.get(seeds).clone(),
    mutate: |choices| mutated(SEED.get(seeds), &["node", "\0", "\u{1}"], choices),
    run,
    foreign: false,
};

static SEED: Once<Vec<Vec<u8>>> = Once::new();

/// Offset of the first section in the file, in bytes: behind the header's page.
const BEGIN: u64 = 4096;

/// A section in the table of sections, field by field: name, kind, offset in the file, stored size, unpacked size, hash, regions of RAM. A
/// `Region` is: guest address, size, offset in the file, hash of each page (None: a page of zeros). Sizes are in bytes.
type Section = (String, Kind, u64, u64, u64, [u8; 32], Vec<Region>);
type Region = (u64, u64, u64, Vec<Option<[u8; 32]>>);

/// Returns the seed: sections with a number, JSON, bytes, a page of RAM that is not zero, and a page of zeros.
fn seeds() -> Vec<Vec<u8>> {
    let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
    let mut stored = Vec::new();
    let mut table: Vec<Section> = Vec::new();
    for (kind, contents) in [
        (Kind::State, &[7][..]),
        (Kind::Json, &b"{\"a\": [1, 2, null]}"[..]),
        (Kind::Bytes, &[b'x'; 300][..]),
    ] {
        let packed = zstd::encode_all(contents, 3).expect("memory for an archive");
        let (at, length) = (BEGIN + stored.len() as u64, contents.len() as u64);
        let name = format!("node-{}", table.len());
        let size = packed.len() as u64;
        table.push((name, kind, at, size, length, hash(&packed), Vec::new()));
        stored.extend(packed);
    }
    let at = 2 * BEGIN;
    stored.resize(BEGIN as usize, 0);
    stored.extend([5; 4096]);
    stored.extend([0; 4096]);
    let region = |start, offset, chunk| -> Region { (start, 4096, offset, vec![chunk]) };
    let regions = vec![
        region(0, at, Some(hash(&[5; 4096]))),
        region(1 << 32, at + 4096, None),
    ];
    table.push(("ram".into(), Kind::Ram, at, 8192, 8192, [0; 32], regions));
    let table = postcard::to_stdvec(&table).expect("a table");
    let mut input = (table.len() as u16).to_le_bytes().to_vec();
    input.extend(table);
    input.extend(stored);
    vec![input]
}

/// Returns the complete snapshot file of an input.
fn file(input: &[u8]) -> Vec<u8> {
    let (length, rest) = input.split_first_chunk().unwrap_or((&[0; 2], input));
    let (table, stored) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    let packed = zstd::encode_all(table, 1).expect("memory for an archive");
    let mut file = b"\x89NSS\r\n\x1a\n".to_vec();
    file.extend(FORMAT.to_le_bytes());
    let mut version = env!("CARGO_PKG_VERSION").as_bytes().to_vec();
    version.resize(32, 0);
    file.extend(version);
    for number in [
        BEGIN + stored.len() as u64,
        packed.len() as u64,
        table.len() as u64,
    ] {
        file.extend(number.to_le_bytes());
    }
    file.extend(blake3::hash(&packed).as_bytes());
    file.extend(crc32fast::hash(&file).to_le_bytes());
    file.resize(BEGIN as usize, 0);
    file.extend(stored);
    file.extend(packed);
    file
}

fn run(input: &[u8], folder: &Path) {
    // The input directly behind a snapshot's magic number has no valid header.
    let plain = [b"\x89NSS\r\n\x1a\n", input].concat();
    told(Snapshot::open(&put(folder, "plain.nss", &plain)).map(drop));
    let path = put(folder, "a.nss", &file(input));
    told(Snapshot::open(&path).map(drop));
    let snapshot = match Snapshot::open_with(&path, Verify::Table) {
        Ok(snapshot) => snapshot,
        Err(error) => return told(Err(error)),
    };
    let names: Vec<String> = snapshot.names().map(String::from).collect();
    for (n, name) in names.iter().enumerate() {
        told(snapshot.state::<NodeState>(name).map(drop));
        told(snapshot.state::<u64>(name).map(drop));
        told(snapshot.json::<Value>(name).map(drop));
        told(snapshot.bytes(name).map(drop));
        let extracted = snapshot.extract(name, &folder.join(n.to_string()));
        told(extracted.map(drop));
    }
}

/// Checks that an error names an offset in the file, is a failure of the host, or is about a request for a missing or too large section.
fn told(result: Result<(), SnapshotError>) {
    if let Err(error) = result {
        let text = error.to_string();
        let placed = text.contains(".nss: offset ");
        let host = matches!(
            &error,
            SnapshotError::Io { source, .. } if source.kind() != io::ErrorKind::UnexpectedEof
        );
        let asked = matches!(
            error,
            SnapshotError::NoSection { .. } | SnapshotError::TooLarge { .. }
        );
        assert!(placed || host || asked, "{text}");
    }
}
