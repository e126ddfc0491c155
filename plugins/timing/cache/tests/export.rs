//! The cache state that a model exports to engines that serve misses themselves, and when a model exports it. The portable engine's test
//! `caches_agree` checks that results are the same.

use nodescope_plugin_api::exported::{ExportedCaches, ExportedShape, SetCount};
use nodescope_plugin_api::{
    Access, Context, Hits, MemRef, MemoryModel, MemoryTiming, MemoryTimingModel, MissRef,
    Privilege, VcpuPlace,
};
use nodescope_plugin_cache::{CacheConfig, CacheModel, FlatMemory, LevelConfig};
use nodescope_plugin_numa::{Numa, NumaConfig};

fn model(config: &CacheConfig, sockets: u16) -> CacheModel {
    let memory = Numa::new(&NumaConfig::contiguous(sockets, 1 << 30)).unwrap();
    CacheModel::new(config, &VcpuPlace::grid(sockets, 1, 1), Box::new(memory)).unwrap()
}

fn read(model: &mut CacheModel, vcpu: u16, context: u32, physical: u64) {
    let reference = MemRef {
        vcpu,
        privilege: Privilege::User,
        access: Access::Read,
        context: Context(context),
        physical,
        linear: physical,
        size: 8,
        now: 0,
    };
    model.reference(Hits::default(), &reference, &mut Vec::new());
}

fn shape(config: &CacheConfig) -> Option<ExportedShape> {
    Some(*model(config, 2).export_state(0)?.shape())
}

#[test]
fn exports_follow_the_accounts() {
    let mut model = model(&CacheConfig::xeon_e5_2690(), 2);
    let export = model
        .export_state(0)
        .expect("three such levels are exported");
    let caches = export.caches();
    // SAFETY: the model is alive, and none of its functions runs.
    let look = || unsafe { caches.as_ref() };
    let tallies = |caches: &ExportedCaches| caches.tallies;
    assert_eq!(look().line_limit, 0, "nothing can be counted yet");
    read(&mut model, 0, 7, 0x1000);
    let first = tallies(look());
    assert!(look().line_limit > 1 << 20);
    assert_eq!(look().context, 7);
    // SAFETY: the model is alive, and none of its functions runs. Tally 3 is `L1D.read_miss`.
    let misses = unsafe { (*first[0].add(3)).count };
    assert_eq!(misses, 1, "L1D.read_miss of the user");
    read(&mut model, 0, 8, 0x2000);
    assert_eq!(look().context, 8);
    assert_ne!(tallies(look()), first);
    // New accounts of another vCPU may move the tallies of this vCPU in memory.
    for context in 0..100 {
        read(&mut model, 1, context, 0x10_0000 + 64 * u64::from(context));
    }
    assert_eq!(look().context, 8);
    // SAFETY: the model is alive, and none of its functions runs.
    assert_eq!(unsafe { (*look().tallies[0].add(3)).count }, 1);
    read(&mut model, 0, 7, 0x3000);
    // SAFETY: the model is alive, and none of its functions runs.
    assert_eq!(unsafe { (*look().tallies[0].add(3)).count }, 2);
    model.reset_statistics();
    assert_eq!(look().line_limit, 0, "its tallies are gone");
    read(&mut model, 0, 7, 0x4000);
    let limit = look().line_limit;
    assert!(limit > 0);
    // A line whose tag does not fit into the model's narrow tag words makes the words wide; the exported shape describes narrow words.
    read(&mut model, 1, 7, limit * 64);
    assert_eq!(look().line_limit, 0);
    read(&mut model, 0, 7, 0x5000);
    assert_eq!(look().line_limit, 0);
    assert!(model.export_state(0).is_none());
}

#[test]
fn only_described_caches_are_exported() {
    let whole = CacheConfig::xeon_e5_2690();
    let exported = shape(&whole).expect("three such levels are exported");
    assert_eq!(exported.levels.map(|level| level.ways), [8, 8, 20]);
    assert_eq!(exported.levels[2].sets, SetCount::Power(14));
    assert_eq!((exported.data_holder_mask, exported.peers), (1 << 3, 1));
    let third = shape(&CacheConfig::xeon_x5680()).unwrap().levels[2];
    assert!(matches!(third.sets, SetCount::Other { sets: 12_288, .. }));
    assert_eq!(
        shape(&CacheConfig {
            instruction: None,
            ..whole.clone()
        })
        .unwrap()
        .instruction,
        None
    );
    let refused = |change: &dyn Fn(&mut CacheConfig)| {
        let mut config = whole.clone();
        change(&mut config);
        shape(&config).is_none()
    };
    assert!(refused(&|c| c.levels.truncate(2)), "two levels");
    assert!(refused(&|c| c.levels[0].latency.read_hit = 1), "timed hits");
    assert!(refused(&|c| c.levels[0].latency.write_hit = 1));
    let odd = LevelConfig::new(96 << 10, 8);
    assert!(refused(&|c| c.levels[1] = odd), "192 sets");
    assert!(refused(&|c| {
        let mut levels = vec![c.levels[0], c.levels[1], c.levels[1], c.levels[2]];
        levels[2].size *= 2;
        c.levels = levels;
    }));
}

/// A model exports its caches even if its memory exports nothing. The recent home is then an empty range, so the model serves lines from
/// memory.
#[test]
fn memory_need_not_export() {
    let places = VcpuPlace::grid(1, 1, 1);
    let config = CacheConfig::xeon_e5_2690();
    for exports in [false, true] {
        let memory: Box<dyn MemoryTimingModel> = match exports {
            true => Box::new(FlatMemory::default()),
            false => Box::new(Silent),
        };
        let mut model = CacheModel::new(&config, &places, memory).unwrap();
        let export = model.export_state(0).expect("the caches are exported");
        let caches = export.caches();
        // SAFETY: the model is alive, and none of its functions runs. The target of `recent_home` lives as long as the model.
        let recent_home = unsafe { *caches.as_ref().recent_home };
        assert_eq!(recent_home.start <= recent_home.last, exports);
    }
}

struct Silent;

impl MemoryTimingModel for Silent {
    fn request(&mut self, _: &MissRef) -> MemoryTiming {
        MemoryTiming {
            latency: 1,
            local: true,
        }
    }

    fn home(&self, _: u64) -> u16 {
        0
    }
}
