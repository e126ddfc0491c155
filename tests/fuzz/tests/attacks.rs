//! Test that files made to end or exhaust their reader cost it little, and say which limit they exceed.

use nodescope_fuzz::dwarf::{ATTACKS, compressed};
use nodescope_fuzz::meter;
use nodescope_fuzz::targets::debug::read;
use nodescope_symbols::Limit;

/// Bytes of memory that a reader may take for each byte of a file.
const PER_BYTE: usize = 16;

/// Returns the limits that a file exceeds, and the memory that its reader takes, in bytes.
fn cost(file: &[u8]) -> (Vec<String>, usize) {
    let before = meter::begin();
    let lost = read(file);
    let most = meter::most().saturating_sub(before);
    let limits = lost.iter().map(|lost| format!("{:?}", lost.limit));
    (limits.collect(), most)
}

// One test, since memory is counted for the whole process.
#[test]
fn attacks_cost_little_and_are_named() {
    for attack in ATTACKS {
        let file = (attack.file)();
        let (limits, most) = cost(&file);
        let len = file.len();
        println!("{}: {len} bytes take {most}, {limits:?}", attack.what);
        assert_eq!(limits, attack.limits, "{}", attack.what);
        let allowed = attack.memory + PER_BYTE * len;
        assert!(most <= allowed, "{}: {most} bytes of memory", attack.what);
    }
    // Sections with a stream each may unpack to the limit, of which a growing buffer has its half more.
    let (limits, most) = cost(&compressed(false).build());
    assert_eq!(limits, [format!("{:?}", Limit::Unpacked)]);
    assert!(most < 1 << 30, "{most} bytes of memory");
}
