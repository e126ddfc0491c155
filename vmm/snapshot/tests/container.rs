//! Tests that a snapshot returns the contents that were written, and that damage is found and reported with an offset in the file.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nodescope_memory::Ram;
use nodescope_snapshot::{Kind, Snapshot, SnapshotError, SnapshotWriter, Verify};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Value {
    number: u64,
    text: String,
    list: Vec<(u16, Option<bool>)>,
}

fn value() -> Value {
    Value {
        number: 7,
        text: "seven".repeat(1000),
        list: vec![(1, None), (2, Some(true))],
    }
}

const MIB: usize = 1 << 20;
const SIZES: [u64; 2] = [4 << 20, 2 << 20];

/// Returns RAM with some pages that are not zero: at both ends, isolated, across chunks.
fn filled() -> Ram {
    let ram = Ram::new(&SIZES).unwrap();
    for (at, len, byte) in [
        (0, 1, 1),
        (5 * 4096 + 17, 10_000, 2),
        (256 * 1024 - 1, 2, 3),
        (2 * MIB, MIB / 2, 4),
        (6 * MIB - 1, 1, 5),
    ] {
        assert!(ram.write(at as u64, &vec![byte; len]));
    }
    ram
}

fn contents(ram: &Ram) -> Vec<u8> {
    let mut bytes = vec![0; ram.size() as usize];
    assert!(ram.read(0, &mut bytes));
    bytes
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn write(path: &Path, ram: &Ram, file: &Path) -> u64 {
    let mut w = SnapshotWriter::create(path).unwrap();
    w.state("state", &value()).unwrap();
    w.json("json", &value()).unwrap();
    w.ram("ram", ram).unwrap();
    w.bytes("bytes", b"some bytes").unwrap();
    w.file("file", file).unwrap();
    w.bytes("nothing", b"").unwrap();
    w.finish().unwrap()
}

/// Writes a snapshot, and returns its path, the RAM in it, and the bytes of the file in it.
fn snapshot(folder: &Folder) -> (PathBuf, Ram, Vec<u8>) {
    let ram = filled();
    let file = folder.path("file");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7 % 251) as u8).collect();
    std::fs::write(&file, &bytes).unwrap();
    let path = folder.path("a.nss");
    write(&path, &ram, &file);
    std::fs::remove_file(file).unwrap();
    (path, ram, bytes)
}

#[test]
fn what_goes_in_comes_out() {
    let folder = Folder::new();
    let (path, ram, file) = snapshot(&folder);
    assert_eq!(folder.names(), ["a.nss"], "no temporary file is left");
    let s = Snapshot::open(&path).unwrap();
    let names: Vec<_> = s.names().collect();
    assert_eq!(names, ["state", "json", "ram", "bytes", "file", "nothing"]);
    assert_eq!(s.state::<Value>("state").unwrap(), value());
    assert_eq!(s.json::<Value>("json").unwrap(), value());
    assert_eq!(s.bytes("bytes").unwrap(), b"some bytes");
    assert_eq!(s.bytes("nothing").unwrap(), b"");
    assert_eq!(s.bytes("file").unwrap(), file);
    let to = folder.path("extracted");
    assert_eq!(s.extract("file", &to).unwrap(), file.len() as u64);
    assert_eq!(std::fs::read(&to).unwrap(), file);
    let error = s.extract("file", &to).unwrap_err().to_string();
    assert!(error.contains("cannot create"), "{error}");
    assert_eq!(contents(&s.ram("ram", &SIZES).unwrap()), contents(&ram));
    let copied = Ram::new(&SIZES).unwrap();
    // Reading replaces all earlier contents of the RAM, also where the snapshot's pages are zero.
    assert!(copied.write(0, &vec![9; 6 * MIB]));
    s.read_ram("ram", &copied).unwrap();
    assert_eq!(contents(&copied), contents(&ram));
}

#[test]
fn zero_pages_take_no_space() {
    let folder = Folder::new();
    let (path, ..) = snapshot(&folder);
    let s = Snapshot::open_with(&path, Verify::Table).unwrap();
    assert!(s.info().bytes > 6 << 20);
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(s.info().stored, metadata.blocks() * 512);
    // The file has half a MiB and some pages of RAM, and the other sections.
    assert!(s.info().stored < 900 << 10, "{}", s.info().stored);
    let ram = &s.info().sections[2];
    assert_eq!(
        (ram.kind, ram.length, ram.offset % 4096),
        (Kind::Ram, 6 << 20, 0)
    );
}

#[test]
fn mapped_ram_is_each_nodes_own() {
    let folder = Folder::new();
    let (path, ram, _) = snapshot(&folder);
    let s = Snapshot::open_with(&path, Verify::State).unwrap();
    let before = std::fs::read(&path).unwrap();
    let nodes: Vec<Ram> = (0..8).map(|_| s.ram("ram", &SIZES).unwrap()).collect();
    for (n, node) in (0_u8..).zip(&nodes) {
        let region = node.region(0x3000).unwrap();
        region.code.mark(0x3000, 16);
        assert!(node.write(0x3000, &[n; 8192]));
    }
    // The mapping remains valid after the snapshot's name is removed, because the file is still open.
    std::fs::remove_file(&path).unwrap();
    let mut expected = contents(&ram);
    for (n, node) in (0_u8..).zip(&nodes) {
        expected[0x3000..0x5000].fill(n);
        assert!(contents(node) == expected, "node {n}");
    }
    std::fs::write(&path, before).unwrap();
    Snapshot::open(&path).unwrap();
    // A second mapping discards what the node has written, and invalidates code that was decoded from the RAM.
    let generation = nodes[0].regions()[0].code.generation(0x3000);
    nodes[0].regions()[0].code.mark(0x3000, 16);
    s.map_ram("ram", &nodes[0]).unwrap();
    assert!(contents(&nodes[0]) == contents(&ram));
    assert_eq!(
        nodes[0].regions()[0].code.generation(0x3000),
        generation + 1
    );
}

#[test]
fn the_same_contents_give_the_same_bytes() {
    let folder = Folder::new();
    let (path, ram, bytes) = snapshot(&folder);
    let again = folder.path("b.nss");
    std::fs::write(folder.path("file"), bytes).unwrap();
    write(&again, &ram, &folder.path("file"));
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap());
    // RAM that is mapped from a snapshot gives the same bytes, too.
    let mapped = Snapshot::open(&path).unwrap().ram("ram", &SIZES).unwrap();
    write(&again, &mapped, &folder.path("file"));
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap());
}

#[test]
fn questions_that_have_no_answer_are_refused() {
    let folder = Folder::new();
    let (path, ..) = snapshot(&folder);
    let s = Snapshot::open(&path).unwrap();
    let errors = [
        s.bytes("byte").unwrap_err(),
        s.bytes("state").unwrap_err(),
        s.state::<(u8, u8)>("state").unwrap_err(),
        s.state::<bool>("state").unwrap_err(),
        s.json::<u8>("json").unwrap_err(),
        s.ram("ram", &[6 << 20, 2 << 20]).map(|_| ()).unwrap_err(),
        s.ram("bytes", &SIZES).map(|_| ()).unwrap_err(),
    ];
    for (error, expected) in errors.iter().zip([
        "no section \"byte\"",
        "holds a state, not bytes",
        "bytes are left",
        "cannot be read",
        "cannot be read",
        "6291456 bytes at 0x0, and this node has 8388608",
        "holds bytes, not RAM",
    ]) {
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("a.nss"), "{text}");
    }
    let mut w = SnapshotWriter::create(&path).unwrap();
    w.bytes("a", b"").unwrap();
    for name in ["", "a", "b\n", &"x".repeat(256)] {
        let error = w.bytes(name, b"").unwrap_err();
        assert!(matches!(error, SnapshotError::Name { .. }), "{error}");
    }
    drop(w);
    assert_eq!(folder.names(), ["a.nss"]);
    Snapshot::open(&path).unwrap();
}

#[test]
fn other_files_and_versions_are_refused() {
    let folder = Folder::new();
    let (path, ..) = snapshot(&folder);
    let bytes = std::fs::read(&path).unwrap();
    let refuse = |name: &str, bytes: &[u8], expected: &str| {
        let path = folder.path(name);
        std::fs::write(&path, bytes).unwrap();
        let error = Snapshot::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(name), "{error}");
    };
    refuse("empty", b"", "not a snapshot");
    refuse("text", b"[study]\nname = \"demo\"\n", "not a snapshot");
    refuse("magic", &bytes[..8], "offset 0: damaged: the header");
    refuse("page", &bytes[..4096], "damaged");
    // This header has a newer format version and a correct checksum.
    let mut newer = bytes.clone();
    newer[8] += 1;
    let end = 8 + 4 + 32 + 3 * 8 + 32;
    let crc = crc32fast::hash(&newer[..end]);
    newer[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    refuse(
        "newer",
        &newer,
        &format!(
            "offset 8: written by nodescope 0.1.0 in format {}",
            nodescope_snapshot::FORMAT + 1
        ),
    );
    let error = Snapshot::open(folder.0.path()).unwrap_err().to_string();
    assert!(error.contains("not a snapshot"), "{error}");
    let error = Snapshot::open(&folder.path("none"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot open"), "{error}");
}

/// Returns all contents of a snapshot, or the error.
fn read(path: &Path, verify: Verify) -> Result<Vec<Vec<u8>>, SnapshotError> {
    let s = Snapshot::open_with(path, verify)?;
    let ram = Ram::new(&SIZES)?;
    s.read_ram("ram", &ram)?;
    Ok(vec![
        format!("{:?}", s.state::<Value>("state")?).into(),
        format!("{:?}", s.json::<Value>("json")?).into(),
        s.bytes("bytes")?,
        s.bytes("file")?,
        s.bytes("nothing")?,
        contents(&ram),
    ])
}

#[test]
fn damage_is_found_wherever_it_is_or_changes_nothing() {
    let folder = Folder::new();
    let (path, ..) = snapshot(&folder);
    let bytes = std::fs::read(&path).unwrap();
    let whole = read(&path, Verify::Everything).unwrap();
    let (mut refused, mut identical) = (0, 0);
    let mut check = |damaged: &[u8], what: &str| {
        std::fs::write(&path, damaged).unwrap();
        for verify in [Verify::Everything, Verify::State, Verify::Table] {
            match read(&path, verify) {
                Ok(found) => {
                    assert!(found == whole, "{what}: other contents");
                    identical += 1;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("a.nss: offset "), "{what}: {text}");
                    refused += 1;
                }
            }
        }
    };
    // The test damages each byte of the header's used part, and bytes all over the file, holes included.
    let places = (0..120).chain((120..bytes.len()).step_by(33_331));
    let last = (bytes.len() - 400..bytes.len()).step_by(7);
    // The byte before the first page of RAM is padding, so that damage to it changes nothing.
    let gap = Snapshot::open(&path).unwrap().info().sections[2].offset as usize - 1;
    for (n, at) in places.chain(last).chain([gap]).enumerate() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (n % 8);
        check(&damaged, &format!("byte {at}"));
    }
    for cut in (0..bytes.len()).step_by(bytes.len() / 40) {
        check(&bytes[..cut], &format!("cut at {cut}"));
    }
    let longer = [&bytes[..], &[0]].concat();
    check(&longer, "longer");
    println!("{refused} refused, {identical} identical");
    assert!(refused > 1000 && identical == 3, "{refused}, {identical}");
}

/// Checks that a table with a correct checksum but inconsistent contents, as in a hostile file, is rejected.
#[test]
fn tables_that_lie_are_refused() {
    // These tuples are encoded like `Section` and `Region` in src/format.rs.
    type Region = (u64, u64, u64, Vec<Option<[u8; 32]>>);
    type Section = (String, Kind, u64, u64, u64, [u8; 32], Vec<Region>);
    let folder = Folder::new();
    let path = folder.path("a.nss");
    let none = || vec![None; 8];
    let region = |start, len, offset, chunks| -> Region { (start, len, offset, chunks) };
    let ram = |offset, stored, length, regions| -> Section {
        (
            "ram".into(),
            Kind::Ram,
            offset,
            stored,
            length,
            [0; 32],
            regions,
        )
    };
    let bytes = |name: &str, offset, stored, length| -> Section {
        (
            name.into(),
            Kind::Bytes,
            offset,
            stored,
            length,
            [0; 32],
            Vec::new(),
        )
    };
    const R: u64 = 2 << 20;
    let cases: Vec<(Vec<Section>, bool)> = vec![
        (vec![], true),
        (
            vec![ram(4096, R, R, vec![region(0, R, 4096, none())])],
            true,
        ),
        (vec![bytes("", 4096, 0, 0)], false),
        (vec![bytes("a", 0, 10, 0)], false),
        (vec![bytes("a", 4096, u64::MAX, 0)], false),
        (vec![bytes("a", u64::MAX, 10, 0)], false),
        (vec![bytes("a", 4096, 5, 0), bytes("a", 4101, 5, 0)], false),
        (vec![bytes("a", 4096, 5, 0), bytes("b", 4100, 5, 0)], false),
        (vec![ram(4096, R, R, vec![])], false),
        (
            vec![ram(4096, R, R, vec![region(0, R, 4097, none())])],
            false,
        ),
        (vec![ram(4096, R, R, vec![region(0, R, 0, none())])], false),
        (
            vec![ram(4096, R, R, vec![region(0, R, 8192, none())])],
            false,
        ),
        (
            vec![ram(4096, R, R, vec![region(0, 0, 4096, vec![])])],
            false,
        ),
        (
            vec![ram(4096, R, R, vec![region(0, R, 4096, vec![None; 7])])],
            false,
        ),
        (
            vec![ram(4096, R, 1, vec![region(0, R, 4096, none())])],
            false,
        ),
        (
            vec![ram(4096, R, R, vec![region(u64::MAX, R, 4096, none())])],
            false,
        ),
        (
            vec![ram(
                4096,
                R,
                R,
                vec![
                    region(0, R / 2, 4096, vec![None; 4]),
                    region(R, R / 2, 4096, vec![None; 4]),
                ],
            )],
            false,
        ),
    ];
    for (n, (sections, good)) in cases.into_iter().enumerate() {
        let table = postcard::to_stdvec(&sections).unwrap();
        let packed = zstd::encode_all(&table[..], 1).unwrap();
        let at = 4096 + R;
        let mut file = header(at, packed.len() as u64, table.len() as u64, &packed);
        file.resize(at as usize, 0);
        file.extend(packed);
        std::fs::write(&path, &file).unwrap();
        match Snapshot::open_with(&path, Verify::Table) {
            Ok(_) => assert!(good, "case {n}"),
            Err(error) => {
                let text = error.to_string();
                assert!(!good && text.contains("a.nss: offset "), "case {n}: {text}");
            }
        }
    }
}

/// Checks that sections that decompress to more or fewer bytes than the table states are rejected.
#[test]
fn sections_that_unpack_to_more_are_refused() {
    let folder = Folder::new();
    let path = folder.path("a.nss");
    let packed = zstd::encode_all(&vec![0; 100 << 20][..], 1).unwrap();
    for length in [0, 10, (100 << 20) - 1, (100 << 20) + 1, u64::MAX] {
        let hash = *blake3::hash(&packed).as_bytes();
        let none: Vec<u8> = Vec::new();
        let section = (
            "a",
            Kind::Bytes,
            4096_u64,
            packed.len() as u64,
            length,
            hash,
            none,
        );
        let table = postcard::to_stdvec(&vec![section]).unwrap();
        let packed_table = zstd::encode_all(&table[..], 1).unwrap();
        let at = 4096 + packed.len() as u64;
        let mut file = header(
            at,
            packed_table.len() as u64,
            table.len() as u64,
            &packed_table,
        );
        file.extend(&packed);
        file.extend(packed_table);
        std::fs::write(&path, &file).unwrap();
        let s = Snapshot::open(&path).unwrap();
        for error in [
            s.bytes("a").unwrap_err(),
            s.extract("a", &folder.path(&length.to_string()))
                .map(|_| ())
                .unwrap_err(),
        ] {
            assert!(
                error.to_string().contains("section \"a\""),
                "{length}: {error}"
            );
        }
    }
}

fn header(at: u64, stored: u64, unpacked: u64, table: &[u8]) -> Vec<u8> {
    let mut h = b"\x89NSS\r\n\x1a\n".to_vec();
    h.extend(nodescope_snapshot::FORMAT.to_le_bytes());
    let mut name = env!("CARGO_PKG_VERSION").as_bytes().to_vec();
    name.resize(32, 0);
    h.extend(name);
    for number in [at, stored, unpacked] {
        h.extend(number.to_le_bytes());
    }
    h.extend(blake3::hash(table).as_bytes());
    h.extend(crc32fast::hash(&h).to_le_bytes());
    h.resize(4096, 0);
    h
}
