//! Tests of the models that specifications build. The cost of a few references identifies a model.

use nodescope_plugin_api::{
    Access, Context, Counters, Hits, MemRef, MemoryModel, Permission, Privilege, Registry, Site,
    VcpuPlace,
};
use nodescope_window::{
    CacheConfig, HomeRange, Latencies, MemorySpec, ModelError, ModelSpec, NodeDescription,
    build_model,
};

const RANGES: [HomeRange; 2] = [
    HomeRange {
        start: 0,
        length: 1 << 20,
        socket: 0,
    },
    HomeRange {
        start: 1 << 20,
        length: 1 << 20,
        socket: 1,
    },
];

fn read(model: &mut dyn MemoryModel, vcpu: u16, physical: u64) -> u32 {
    let reference = MemRef {
        vcpu,
        privilege: Privilege::User,
        access: Access::Read,
        context: Context(0),
        physical,
        linear: physical,
        size: 8,
        now: 0,
        site: Site::default(),
        non_temporal: false,
        locked: false,
        large_page: false,
    };
    model
        .reference(Hits::default(), &reference, &mut Vec::new())
        .stall()
}

/// Returns the stalls, in cycles, of a first read of local memory, a second read of the same address, and a first read of remote memory.
fn costs(caches: bool, memory: Option<MemorySpec>) -> [u32; 3] {
    let spec = ModelSpec {
        caches: caches.then(CacheConfig::xeon_e5_2690),
        memory,
        core: None,
        registered: Vec::new(),
    };
    let mut model = build(&spec, &VcpuPlace::grid(2, 1, 1)).unwrap();
    [0x1000, 0x1000, 0x10_1000].map(|physical| read(&mut *model, 0, physical))
}

fn build(spec: &ModelSpec, places: &[VcpuPlace]) -> Result<Box<dyn MemoryModel>, ModelError> {
    let node = NodeDescription {
        places,
        ranges: &RANGES,
        hertz: 1_000_000_000,
    };
    build_model(spec, &node, &Registry::default())
}

#[test]
fn caches_and_memory_combine() {
    let flat = Some(MemorySpec::Flat { latency: 70 });
    assert_eq!(costs(true, Some(MemorySpec::numa())), [150, 0, 270]);
    assert_eq!(costs(true, flat.clone()), [120, 0, 120]);
    assert_eq!(costs(true, None), [150, 0, 150]);
    assert_eq!(costs(false, Some(MemorySpec::numa())), [100, 100, 220]);
    assert_eq!(costs(false, flat), [70, 70, 70]);
    assert_eq!(costs(false, None), [0, 0, 0]);
}

#[test]
fn flat_memory_without_caches_is_local_to_all() {
    let spec = ModelSpec {
        caches: None,
        memory: Some(MemorySpec::flat()),
        core: None,
        registered: Vec::new(),
    };
    let mut model = build(&spec, &VcpuPlace::grid(2, 1, 1)).unwrap();
    for vcpu in [0, 1] {
        read(&mut *model, vcpu, 0x1000);
    }
    let statistics = model.statistics(&[]);
    assert!(!statistics.is_empty());
    assert!(statistics.iter().all(|s| s.event == "memory.local"));
}

#[test]
fn without_a_model_everything_is_counted_and_nothing_timed() {
    let mut model = build(&ModelSpec::default(), &VcpuPlace::grid(1, 1, 1)).unwrap();
    let reference = MemRef {
        vcpu: 0,
        privilege: Privilege::User,
        access: Access::Write,
        context: Context(0),
        physical: 64,
        linear: 64,
        size: 8,
        now: 0,
        site: Site::default(),
        non_temporal: false,
        locked: false,
        large_page: false,
    };
    let outcome = model.reference(Hits::default(), &reference, &mut Vec::new());
    assert_eq!(
        (outcome.stall(), outcome.permission()),
        (0, Permission::ReadWrite)
    );
    let counted = [(0, Context(0), Privilege::User, Counters::default())];
    assert_eq!(model.statistics(&counted), []);
}

#[test]
fn faults_name_the_field() {
    let mut caches = CacheConfig::xeon_e5_2690();
    caches.levels[1].ways = 0;
    let spec = ModelSpec {
        caches: Some(caches),
        memory: None,
        core: None,
        registered: Vec::new(),
    };
    let fault = build(&spec, &VcpuPlace::grid(1, 1, 1))
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(fault, ModelError::Caches(_)));
    assert!(
        fault.to_string().starts_with("caches.levels[1].ways"),
        "{fault}"
    );
    let spec = ModelSpec {
        caches: None,
        memory: Some(MemorySpec::Numa {
            latency: Latencies::Matrix(vec![vec![1]]),
            write_back: Latencies::Uniform {
                local: 0,
                remote: 0,
            },
            bandwidth: None,
        }),
        core: None,
        registered: Vec::new(),
    };
    let fault = build(&spec, &VcpuPlace::grid(2, 1, 1))
        .map(|_| ())
        .unwrap_err();
    assert!(fault.to_string().starts_with("memory.latency"), "{fault}");
}
