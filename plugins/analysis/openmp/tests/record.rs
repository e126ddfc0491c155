//! Records that are empty, cut, damaged or of another version.

use std::path::Path;

use nodescope_openmp::{Record, RecordError};
use proptest::prelude::*;

const WHOLE: &str = "nodescope-openmp\t1
process\t7\t1\t2\t4\t2\tlibgomp
host\tnode0
clock\t0\t0\t1000\t2000
interval\t0\t0\t1\t0\t1000\t1000\twhole program
interval\t1\t0\t2\t10\t500\t300\tsolve\tall
thread\t0\t7\t0\t1\t0
times\t0\t0\t1\t10ab\t3\t4\t0\t0\t100\t0\t300\t0\t20\t0\t0\t0\t5\t0\t0
event\t0\t1\t1\t10ab\t2\t1\t10ff\t2\t4\t3\t50\t60\t40\t1\t2\t100\t25
module\t1\tabcd\t/job/program
end\texit
";

fn parse(text: &str) -> Result<Record, RecordError> {
    Record::parse(Path::new("r.openmp"), text)
}

fn message(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_whole_record_is_read() {
    let record = parse(WHOLE).unwrap();
    assert_eq!(
        (record.pid, record.rank, record.ranks, record.peak),
        (7, Some(1), Some(2), 2)
    );
    assert_eq!(record.interval_path(1), "solve all");
    assert_eq!(record.threads[0].events[0].iterations, 100);
    assert_eq!(record.threads[0].cells[0].region.address, 0x10ab);
    assert_eq!(record.clock.nanoseconds(3), 6);
    assert!(record.notes.is_empty());
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    assert!(message("").contains("r.openmp is empty"));
    assert!(message("hello\n").contains("does not begin like one"));
    assert!(message("nodescope-openmp\t9\n").contains("version 9"));
    assert!(message("nodescope-openmp\t1\n").contains("cut before the first interval"));
    let changed = |from: &str, to: &str| message(&WHOLE.replacen(from, to, 1));
    assert_eq!(
        changed("event\t0\t1", "event\t0\t9"),
        "r.openmp is damaged in line 9: interval 9 is unknown"
    );
    assert_eq!(
        changed("times\t0", "times\t3"),
        "r.openmp is damaged in line 8: thread 3 is unknown"
    );
    assert!(changed("\t2\t1\t10ff", "\t99\t1\t10ff").contains("there is no construct 99"));
    assert!(changed("10ff", "zz").contains("site is no address: \"zz\""));
    assert!(changed("interval\t1\t0", "interval\t1\t1").contains("out of order"));
    assert!(changed("host\t", "ghost\t").contains("unknown type \"ghost\""));
    assert!(message(&format!("{WHOLE}host\tx\n")).contains("follows the line that ends"));
}

#[test]
fn a_cut_record_is_read_up_to_the_cut() {
    let cut = &WHOLE[..WHOLE.find("event").unwrap() + 9];
    let record = parse(cut).unwrap();
    assert_eq!(record.threads[0].cells.len(), 1);
    assert!(
        record.notes[0].contains("the record is cut"),
        "{:?}",
        record.notes
    );
}

#[test]
fn a_record_of_a_running_process_says_so() {
    let record = parse(&WHOLE.replace("end\texit", "end\trunning")).unwrap();
    assert!(record.notes[0].contains("killed or still runs"));
}

proptest! {
    #[test]
    fn no_damage_makes_the_reader_panic(at in 0..WHOLE.len(), byte in 0u8..128, cut in 0..WHOLE.len()) {
        let mut bytes = WHOLE.as_bytes().to_vec();
        bytes[at] = byte;
        bytes.truncate(cut.max(1));
        if let Ok(record) = parse(&String::from_utf8_lossy(&bytes)) {
            let analysis = nodescope_openmp::Analysis::new(
                vec![record],
                &nodescope_openmp::Options::default(),
                &mut nodescope_openmp::CodeLocator::new(&[]),
            );
            prop_assert!(!analysis.text().is_empty() && !analysis.json().is_empty());
        }
    }
}
