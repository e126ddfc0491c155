//! Homes, latencies and counts of main memory.

use nodescope_plugin_api::{
    Access, Context, Hits, L0Geometry, MemRef, MemoryModel, MemoryTimingModel, MissRef, Outcome,
    Permission, Privilege, Site, Term, VcpuPlace,
};
use nodescope_plugin_numa::{HomeRange, Latencies, Numa, NumaConfig, NumaConfigError, Uncached};

fn request(numa: &mut Numa, socket: u16, line: u64, write_back: bool) -> (u32, bool) {
    let timing = numa.request(&MissRef {
        socket,
        vcpu: 0,
        line,
        write_back,
        now: 0,
    });
    (timing.latency, timing.local)
}

#[test]
fn own_range_is_local_and_the_rest_remote() {
    let mut numa = Numa::new(&NumaConfig::contiguous(2, 0x1000)).unwrap();
    for (socket, line, expected) in [
        (0, 0, (100, true)),
        (0, 0xfc0, (100, true)),
        (0, 0x1000, (220, false)),
        (1, 0xfc0, (220, false)),
        (1, 0x1000, (100, true)),
        (1, 0x1fc0, (100, true)),
        (0, 0x2000, (220, false)),
        (1, 0x2000, (220, false)),
        (1, u64::MAX, (220, false)),
    ] {
        assert_eq!(
            request(&mut numa, socket, line, false),
            expected,
            "socket {socket}, line {line:#x}"
        );
        assert_eq!(
            request(&mut numa, socket, line, true),
            (0, expected.1),
            "posted write-back"
        );
    }
    assert_eq!(numa.home(0xfff), 0);
    assert_eq!(numa.home(0x1000), 1);
    assert_eq!(numa.home(0x2000), Numa::NO_HOME);
}

#[test]
fn several_ranges_a_socket_in_any_order() {
    let range = |start, length, socket| HomeRange {
        start,
        length,
        socket,
    };
    let config = NumaConfig {
        ranges: vec![
            range(0x8000, 0x1000, 0),
            range(0x0, 0x1000, 0),
            range(0x4000, 0x1000, 1),
            range(u64::MAX - 0xfff, 0x1000, 1),
        ],
        ..NumaConfig::contiguous(2, 1)
    };
    let numa = Numa::new(&config).unwrap();
    let homes = [
        0x0,
        0xfff,
        0x1000,
        0x3fff,
        0x4000,
        0x4fff,
        0x5000,
        0x8000,
        0x9000,
        u64::MAX,
    ]
    .map(|a| numa.home(a));
    let none = Numa::NO_HOME;
    assert_eq!(homes, [0, 0, none, none, 1, 1, none, 0, none, 1]);
}

#[test]
fn a_matrix_gives_each_pair_of_sockets_its_latency() {
    let rows = vec![
        vec![100, 200, 300],
        vec![210, 110, 310],
        vec![320, 330, 120],
    ];
    let config = NumaConfig {
        latency: Latencies::Matrix(rows.clone()),
        write_back: Latencies::Uniform {
            local: 5,
            remote: 9,
        },
        ..NumaConfig::contiguous(3, 0x1000)
    };
    let mut numa = Numa::new(&config).unwrap();
    for from in 0..3u16 {
        for home in 0..3u16 {
            let line = u64::from(home) * 0x1000 + 0x40;
            let local = from == home;
            assert_eq!(
                request(&mut numa, from, line, false),
                (rows[usize::from(from)][usize::from(home)], local)
            );
            assert_eq!(
                request(&mut numa, from, line, true),
                (if local { 5 } else { 9 }, local)
            );
        }
    }
    assert_eq!(
        request(&mut numa, 1, 0x9000, false),
        (310, false),
        "no home: the row's maximum"
    );
}

#[test]
fn faults_name_the_field() {
    let range = |start, length, socket| HomeRange {
        start,
        length,
        socket,
    };
    let config = NumaConfig {
        sockets: 2,
        ranges: vec![
            range(0x1000, 0x1000, 0),
            range(0, 0x3001, 1),
            range(0x8000, 0, 0),
            range(0x9000, 1, 2),
            range(u64::MAX, 2, 0),
            range(0x3000, 1, 0),
        ],
        latency: Latencies::Matrix(vec![vec![1, 2], vec![3]]),
        write_back: Latencies::Matrix(vec![vec![2_000_000]]),
    };
    let texts: Vec<String> = config.faults().iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "ranges[2].length: is 0; give the bytes of memory of that range",
            "ranges[3].socket: is 2, but there are 2 sockets, counted from 0",
            "ranges[4].length: 0xffffffffffffffff + 0x2 is beyond 2^64",
            "ranges[0]: overlaps ranges[1] at 0x1000; an address has one home",
            "ranges[5]: overlaps ranges[1] at 0x3000; an address has one home",
            "latency[1]: has 1 columns; 2 sockets need 2",
            "write_back: has a latency of 2000000 cycles; at most 1000000 are modelled",
            "write_back: has 1 rows; 2 sockets need 2",
            "write_back[0]: has 1 columns; 2 sockets need 2",
        ]
    );
    assert_eq!(
        Numa::new(&config).unwrap_err(),
        NumaConfigError::EmptyRange { index: 2 }
    );
    let none = NumaConfig::contiguous(0, 1);
    assert_eq!(
        Numa::new(&none).unwrap_err().to_string(),
        "sockets: is 0; a node has at least one socket"
    );
}

#[test]
fn a_description_is_read_from_text() {
    let config: NumaConfig = toml::from_str(
        "sockets = 2\nranges = [{ start = 0, length = 4096, socket = 0 }]\nlatency = [[100, 220], [220, 100]]\n",
    )
    .unwrap();
    assert_eq!(
        config.latency,
        Latencies::Matrix(vec![vec![100, 220], vec![220, 100]])
    );
    assert_eq!(
        config.write_back,
        Latencies::Uniform {
            local: 0,
            remote: 0
        }
    );
    assert!(toml::from_str::<NumaConfig>("sockets = 2\nranges = []\nlatncy = 3\n").is_err());
}

#[test]
fn without_caches_every_reference_is_timed() {
    let numa = Numa::new(&NumaConfig::contiguous(2, 0x1000)).unwrap();
    let mut model = Uncached::new(numa, &VcpuPlace::grid(2, 1, 1), 64).unwrap();
    let geometry = model.l0_geometry();
    assert_eq!(
        geometry,
        L0Geometry {
            line_shift: 6,
            data_slots: 0,
            instruction_slots: 0,
            data_ways: 1,
            instruction_ways: 1,
            page_sizes: false,
        }
    );
    let mut updates = Vec::new();
    let mut total = 0;
    for step in 0..30u64 {
        let reference = MemRef {
            vcpu: (step % 2) as u16,
            privilege: if step < 20 {
                Privilege::User
            } else {
                Privilege::Kernel
            },
            access: [Access::Read, Access::Write, Access::Fetch][step as usize % 3],
            context: Context(1),
            physical: step / 15 * 0x1000 + step,
            linear: 0,
            size: 1,
            now: 0,
            site: Site::default(),
            non_temporal: false,
            locked: false,
            large_page: false,
        };
        let local = reference.physical / 0x1000 == step % 2;
        let expected = Outcome::new(if local { 100 } else { 220 }, Permission::None, None);
        assert_eq!(
            model.reference(Hits::default(), &reference, &mut updates),
            expected
        );
        total += u64::from(expected.stall());
    }
    assert!(updates.is_empty());
    let rows: Vec<(u16, Privilege, String, u64, u64, u64)> = model
        .statistics(&[])
        .into_iter()
        .inspect(|row| assert_eq!((row.term, row.context), (Term::Memory, Context(1))))
        .map(|row| {
            (
                row.vcpu,
                row.privilege,
                row.event,
                row.count,
                row.latency,
                row.cycles,
            )
        })
        .collect();
    // Steps 0..=14 are at home 0, 15..=29 at home 1; even steps on vCPU 0; the kernel from 20 on.
    let row = |vcpu, privilege, event: &str, count, latency| {
        (
            vcpu,
            privilege,
            event.to_owned(),
            count,
            latency,
            count * latency,
        )
    };
    assert_eq!(
        rows,
        [
            row(0, Privilege::User, "memory.local", 8, 100),
            row(0, Privilege::User, "memory.remote", 2, 220),
            row(0, Privilege::Kernel, "memory.remote", 5, 220),
            row(1, Privilege::User, "memory.local", 3, 100),
            row(1, Privilege::User, "memory.remote", 7, 220),
            row(1, Privilege::Kernel, "memory.local", 5, 100),
        ]
    );
    assert_eq!(rows.iter().map(|row| row.5).sum::<u64>(), total);
    model.reset_statistics();
    assert!(model.statistics(&[]).is_empty());
}

#[test]
fn a_vcpu_on_an_unknown_socket_is_refused() {
    let numa = Numa::new(&NumaConfig::contiguous(1, 0x1000)).unwrap();
    assert_eq!(
        Uncached::new(numa.clone(), &VcpuPlace::grid(2, 1, 1), 64)
            .unwrap_err()
            .to_string(),
        "vcpus[1].socket: is 1, but memory has 1 sockets, counted from 0"
    );
    assert!(matches!(
        Uncached::new(numa, &VcpuPlace::grid(1, 1, 1), 48),
        Err(NumaConfigError::Line { line: 48 })
    ));
}
