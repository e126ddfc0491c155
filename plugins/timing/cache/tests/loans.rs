//! What a model lends to engines that serve misses themselves, and when. That they may is held by `caches_agree` of the portable engine.

use nodescope_plugin_api::exported::{SetCount, ExportedCaches, ExportedShape};
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
    Some(*model(config, 2).tables(0)?.shape())
}

#[test]
fn tables_follow_the_accounts() {
    let mut model = model(&CacheConfig::xeon_e5_2690(), 2);
    let offer = model.tables(0).expect("three such levels are lent");
    let tables = offer.tables();
    // SAFETY: the model lives, and none of its functions runs.
    let look = || unsafe { tables.as_ref() };
    let tallies = |tables: &ExportedCaches| tables.tallies;
    assert_eq!(look().limit, 0, "nothing can be counted yet");
    read(&mut model, 0, 7, 0x1000);
    let first = tallies(look());
    assert!(look().limit > 1 << 20);
    assert_eq!(look().context, 7);
    // SAFETY: as above; the first miss of the first level is counted there.
    let misses = unsafe { (*first[0].add(3)).count };
    assert_eq!(misses, 1, "L1D.read_miss of the user");
    read(&mut model, 0, 8, 0x2000);
    assert_eq!(look().context, 8);
    assert_ne!(tallies(look()), first);
    // Accounts of another vCPU may move these.
    for context in 0..100 {
        read(&mut model, 1, context, 0x10_0000 + 64 * u64::from(context));
    }
    assert_eq!(look().context, 8);
    // SAFETY: as above.
    assert_eq!(unsafe { (*look().tallies[0].add(3)).count }, 1);
    read(&mut model, 0, 7, 0x3000);
    // SAFETY: as above.
    assert_eq!(unsafe { (*look().tallies[0].add(3)).count }, 2);
    model.reset_statistics();
    assert_eq!(look().limit, 0, "its tallies are gone");
    read(&mut model, 0, 7, 0x4000);
    let limit = look().limit;
    assert!(limit > 0);
    // A line that the words cannot hold makes them wide, which is not what was described.
    read(&mut model, 1, 7, limit * 64);
    assert_eq!(look().limit, 0);
    read(&mut model, 0, 7, 0x5000);
    assert_eq!(look().limit, 0);
    assert!(model.tables(0).is_none());
}

#[test]
fn only_what_is_described_is_lent() {
    let whole = CacheConfig::xeon_e5_2690();
    let lent = shape(&whole).expect("three such levels are lent");
    assert_eq!(lent.levels.map(|level| level.ways), [8, 8, 20]);
    assert_eq!(lent.levels[2].sets, SetCount::Power(14));
    assert_eq!((lent.data_bit, lent.peers), (1 << 3, 1));
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

/// A memory that lends nothing leaves lines from memory to the model: there is no home that is known.
#[test]
fn memory_need_not_lend() {
    let places = VcpuPlace::grid(1, 1, 1);
    let config = CacheConfig::xeon_e5_2690();
    for lends in [false, true] {
        let memory: Box<dyn MemoryTimingModel> = match lends {
            true => Box::new(FlatMemory::default()),
            false => Box::new(Silent),
        };
        let mut model = CacheModel::new(&config, &places, memory).unwrap();
        let offer = model.tables(0).expect("the caches are lent");
        let tables = offer.tables();
        // SAFETY: the model lives, and none of its functions runs; what `recent` points to lives as long.
        let recent = unsafe { *tables.as_ref().recent };
        assert_eq!(recent.start <= recent.last, lends);
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
