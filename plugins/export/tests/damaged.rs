//! Exports of traces with impossible numbers of vCPUs, and imports of wrong lists of files: memory and output must stay in proportion to
//! the input.

mod common;

use common::every_kind;
use nodescope_export::{ExportError, Format, ImportError, Options, export, import};
use nodescope_trace::{Body, Event, Header, NodeEntry, TraceWriter};

fn exported(vcpus: u32, events: &[Event]) -> Result<Vec<u64>, ExportError> {
    let folder = tempfile::tempdir().unwrap();
    let node = |name: &str| NodeEntry {
        name: name.into(),
        vcpus,
        frequency_hz: 1_000_000_000,
    };
    let header = Header::new("test", "0", vec![node("node0"), node("node1")]);
    let path = folder.path().join("trace.nst");
    let mut writer = TraceWriter::create(&path, &header).unwrap();
    events.iter().for_each(|event| writer.write(event).unwrap());
    writer.finish().unwrap();
    let out = folder.path().join("out");
    let summary = export(&path, Format::Paraver, &out, &Options::default())?;
    let sizes = summary
        .files
        .iter()
        .map(|file| file.metadata().unwrap().len());
    Ok(sizes.collect())
}

#[test]
fn a_header_of_four_thousand_million_vcpus_has_no_lines_for_them() {
    let told = exported(u32::MAX, &every_kind()).unwrap_err();
    assert!(matches!(told, ExportError::TooManyCpus { .. }), "{told}");
}

#[test]
fn a_vcpu_beyond_its_node_is_its_last() {
    let mut events = every_kind();
    for event in &mut events {
        if let Body::Mpi(call) = &mut event.body {
            (call.entry.vcpu, call.exit.vcpu) = (u32::MAX, u32::MAX);
        }
    }
    let sizes = exported(2, &events).unwrap();
    assert!(sizes.iter().all(|&size| size < 1 << 20), "{sizes:?}");
}

#[test]
fn a_list_of_files_names_regular_files_once() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list.ti");
    std::fs::write(folder.path().join("0.ti"), "0 init\n0 finalize\n").unwrap();
    let told = |names: &str| {
        std::fs::write(&list, names).unwrap();
        let imported = import(&list, &folder.path().join("trace.nst"));
        imported.unwrap_err().to_string()
    };
    assert!(
        told("0.ti\n/dev/zero\n").contains("list.ti:2: names /dev/zero, which is no regular file")
    );
    assert!(told("0.ti\n0.ti\n").ends_with("0.ti, which is named before"));
    let endless = import("/dev/zero".as_ref(), &folder.path().join("trace.nst"));
    assert!(matches!(endless, Err(ImportError::Unknown { .. })));
}
