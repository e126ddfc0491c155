//! Imports and exports of other formats do not load libotf2: where it is missing, they work. This test has a process of its own, since a
//! loaded library stays in the process.

mod common;

use common::every_kind;
use nodescope_export::{Format, Options, export, import};

#[test]
fn other_formats_do_not_load_libotf2() {
    let dir = tempfile::tempdir().unwrap();
    let trace = common::write(dir.path(), &every_kind());
    for format in Format::ALL
        .into_iter()
        .filter(|format| *format != Format::Otf2)
    {
        let out = dir.path().join(format.name());
        export(&trace, format, &out, &Options::default()).unwrap();
    }
    let liballprof = dir.path().join("liballprof");
    std::fs::create_dir(&liballprof).unwrap();
    let text = "MPI_Init:-:1:2:100\nMPI_Barrier:200:0,0,1:300\nMPI_Finalize:400:-\n";
    std::fs::write(liballprof.join("rank-0.txt"), text).unwrap();
    for (input, calls) in [("simgrid/trace.ti", 100), ("goal", 100), ("liballprof", 3)] {
        let imported = import(&dir.path().join(input), &dir.path().join("back.nst")).unwrap();
        assert!(imported.calls >= calls, "{input}: {}", imported.calls);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("libotf2") && !maps.contains("libopen-trace-format"));
}
