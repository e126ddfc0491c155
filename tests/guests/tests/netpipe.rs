//! Test that NetPIPE between two nodes measures the link's latency and bandwidth, plus the cost of the guests' TCP.

use std::path::Path;

use nodescope_fabric::LinkConfig;
use nodescope_guest_tests::{cluster, image, program, run_well, small_node};

/// Bytes of a frame that are not payload: headers of Ethernet, IPv4 and TCP with time stamps, then checksum, preamble and gap.
const HEADERS: f64 = 14.0 + 20.0 + 32.0 + 24.0;
/// Bytes of payload in a full frame: MTU less IPv4 and TCP headers.
const PAYLOAD: f64 = 1500.0 - 20.0 - 32.0;

/// Returns the least time of a message from node to node in seconds: all its frames one after the other on the link, and one latency.
fn wire(bytes: f64, latency: f64, bandwidth: f64) -> f64 {
    let frames = (bytes / PAYLOAD).ceil();
    latency + (bytes + frames * HEADERS) * 8.0 / bandwidth
}

#[test]
fn netpipe_shows_the_links_latency_and_bandwidth() {
    let Some(image) = image() else { return };
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/jobs/netpipe/run");
    let job = [program("run", std::fs::read(job).unwrap())];
    let mut config = cluster(image, 2, small_node(192), &job);
    let (latency, bandwidth) = (50e-6, 1e9);
    config.link = LinkConfig {
        bandwidth: 1_000_000_000,
        latency_ps: 50_000_000,
    };
    config.host_threads = 2;
    config.kernel_parameters = [
        "nodescope.env.NETPIPE_MPI=openmpi",
        "nodescope.env.NETPIPE_MAX=262144",
        "nodescope.env.NETPIPE_REPEATS=4",
    ]
    .map(String::from)
    .into();
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());

    // Columns: bytes, Mbit/s, and seconds in one direction.
    let file = finished.file("np-openmpi.out");
    let rows: Vec<[f64; 3]> = file
        .lines()
        .map(|line| {
            let numbers: Vec<f64> = line
                .split_whitespace()
                .map(|w| w.parse().unwrap())
                .collect();
            numbers.try_into().unwrap()
        })
        .collect();
    println!("{file}");
    for [bytes, megabits, seconds] in &rows {
        let wire = wire(*bytes, latency, bandwidth);
        assert!(
            *seconds >= wire,
            "{bytes} bytes in {seconds} s, the link alone takes {wire} s"
        );
        assert!(megabits * 1e6 <= bandwidth * PAYLOAD / (PAYLOAD + HEADERS));
    }
    // Limits of the cost of TCP and MPI: two system calls, an interrupt and a wake-up, some 10,000 instructions on each side at 2.9 GHz.
    let [bytes, _, seconds] = rows[0];
    assert!(bytes <= 8.0, "{file}");
    let alone = wire(bytes, latency, bandwidth);
    println!(
        "small message: {:.2} us, of which {:.2} us the link and {:.2} us both TCP stacks and MPI",
        seconds * 1e6,
        alone * 1e6,
        (seconds - alone) * 1e6
    );
    assert!(seconds - alone >= 1e-6, "TCP costs nothing?");
    assert!(seconds - alone <= 20e-6, "{seconds} s: where does it go?");
    // The handshake of a long message takes one round trip, which NetPIPE spreads over one direction, and copies take time.
    let [bytes, megabits, seconds] = *rows.last().unwrap();
    assert!(bytes >= 200_000.0, "{file}");
    let alone = wire(bytes, latency, bandwidth);
    println!(
        "{bytes} bytes: {megabits:.0} Mbit/s of {:.0}; {:.1} % of what the link allows at this size",
        bandwidth / 1e6,
        100.0 * alone / seconds
    );
    assert!(seconds <= 1.15 * alone, "{seconds} s instead of {alone} s");
}
