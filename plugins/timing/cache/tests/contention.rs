//! Lines that vCPUs take from each other: waiting for a write, keeping and losing a line, and what is recorded of it.

use nodescope_plugin_api::{
    Access, Context, Hits, MemRef, MemoryModel, Outcome, Permission, Privilege, Site, VcpuPlace,
};
use nodescope_plugin_cache::{CacheConfig, CacheModel, FlatMemory, Keep};

const LINE: u64 = 0x4_0000;
/// Cycles of the way to the third level: of a read, and of a write.
const WAY: u32 = 3 + 12;
const WRITE_WAY: u32 = 3 + 10;
/// Cycles of a modified line from another core.
const MODIFIED: u32 = 45;
/// Cycles of the permission to write a shared line.
const UPGRADE: u32 = 43;
const KEEP: Keep = Keep {
    locked: 20,
    stores: 30,
};

/// Two or more cores of a socket, with a clock for each reference.
struct Cores(CacheModel);

impl Cores {
    fn new(cores: u16, keep: Option<Keep>) -> Self {
        let mut config = CacheConfig::xeon_e5_2690();
        config.levels[2].latency.upgrade = UPGRADE;
        config.coherence.from_modified.other_core = MODIFIED;
        config.coherence.keep = keep;
        let places = VcpuPlace::grid(1, cores, 1);
        let memory = Box::new(FlatMemory::default());
        Self(CacheModel::new(&config, &places, memory).unwrap())
    }

    fn go(&mut self, vcpu: u16, now: u64, access: Access, byte: u64, locked: bool) -> Outcome {
        let reference = MemRef {
            vcpu,
            privilege: Privilege::User,
            access,
            context: Context(0),
            physical: LINE + byte,
            linear: 0x7000_0000 + byte,
            size: 8,
            now,
            site: Site {
                block: 1 + u32::from(vcpu),
                operation: 0,
            },
            non_temporal: false,
            locked,
            large_page: false,
        };
        let mut updates = Vec::new();
        self.0.reference(Hits::default(), &reference, &mut updates)
    }

    fn read(&mut self, vcpu: u16, now: u64, byte: u64) -> Outcome {
        self.go(vcpu, now, Access::Read, byte, false)
    }

    fn write(&mut self, vcpu: u16, now: u64, byte: u64) -> Outcome {
        self.go(vcpu, now, Access::Write, byte, false)
    }

    /// Makes vCPU 1 take the line from vCPU 0 at cycle 1,000, and write a byte of it.
    fn taken(&mut self, byte: u64) {
        self.write(0, 0, 0);
        assert_eq!(self.read(1, 1000, byte).stall(), WAY + MODIFIED);
        // The store buffer hides the permission to write.
        assert_eq!(self.write(1, 1000, byte).stall(), 0);
    }

    fn count(&self, event: &str) -> (u64, u64) {
        let statistics = self.0.statistics(&[]);
        let rows = statistics.iter().filter(|row| row.event == event);
        rows.fold((0, 0), |(count, cycles), row| {
            (count + row.count, cycles + row.cycles)
        })
    }
}

#[test]
fn data_come_no_earlier_than_they_were_written() {
    let mut cores = Cores::new(2, Some(KEEP));
    cores.taken(8);
    cores.write(1, 1500, 8);
    // vCPU 0 has its time slice after vCPU 1, and its clock is behind.
    assert_eq!(cores.read(0, 1200, 8).stall(), 300 + WAY + MODIFIED);
    assert_eq!(cores.count("contention.wait"), (1, 300));
    // The clock of a third reference is ahead of the write.
    let mut later = Cores::new(2, Some(KEEP));
    later.taken(8);
    later.write(1, 1500, 8);
    assert_eq!(later.read(0, 1501, 8).stall(), WAY + MODIFIED);
    assert_eq!(later.count("contention.wait"), (0, 0));
}

#[test]
fn other_bytes_of_a_line_have_no_order_but_locked_instructions_have() {
    let mut cores = Cores::new(2, Some(KEEP));
    cores.taken(8);
    cores.write(1, 1500, 8);
    assert_eq!(cores.read(0, 1200, 0).stall(), WAY + MODIFIED);
    let mut cores = Cores::new(2, Some(KEEP));
    cores.taken(8);
    cores.go(1, 1500, Access::Write, 8, true);
    assert_eq!(cores.read(0, 1200, 0).stall(), 300 + WAY + MODIFIED);
    let mut cores = Cores::new(2, Some(KEEP));
    cores.taken(8);
    cores.write(1, 1500, 8);
    let locked = cores.go(0, 1200, Access::Read, 0, true);
    assert_eq!(locked.stall(), 300 + WAY + MODIFIED);
    // The read of a locked instruction has the permission to write.
    assert_eq!(cores.go(0, 1600, Access::Write, 0, true).stall(), 0);
}

#[test]
fn stores_are_there_when_their_lines_have_come_in_order() {
    let mut cores = Cores::new(2, Some(KEEP));
    cores.taken(8);
    // vCPU 1 writes at once, with the permission 43 cycles later.
    assert_eq!(
        cores.read(0, 900, 8).stall(),
        100 + UPGRADE + WAY + MODIFIED
    );
    // Both share the line now. The second store waits for the permission of the first, and a locked instruction for both.
    cores.write(1, 2000, 8);
    cores.write(1, 2001, 16);
    let locked = cores.go(1, 2002, Access::Write, 24, true);
    assert_eq!(locked.stall(), UPGRADE - 2);
    assert_eq!(
        cores.count("contention.wait"),
        (2, 143 + u64::from(UPGRADE) - 2)
    );
}

#[test]
fn a_vcpu_keeps_what_it_has_waited_for_longer_than_its_time_slice() {
    let mut cores = Cores::new(2, Some(KEEP));
    assert_eq!(cores.0.line_moves().count, 0);
    cores.write(0, 0, 0);
    assert_eq!(cores.0.line_moves().count, 0);
    cores.taken(8);
    let moves = cores.0.line_moves();
    // The clock of the write is that of the read in this test.
    assert_eq!((moves.count, moves.keeps_until), (1, 1000 + 30));
    cores.write(1, 1500, 8);
    cores.read(0, 1200, 8);
    let moves = cores.0.line_moves();
    let got = 1500 + u64::from(WAY + MODIFIED);
    assert_eq!((moves.count, moves.keeps_until), (2, got + 20));
}

#[test]
fn a_line_of_which_vcpus_write_different_bytes_is_lost_within_a_time_slice() {
    let mut cores = Cores::new(3, Some(KEEP));
    cores.taken(8);
    // vCPU 0 takes the line back from vCPU 1. The store buffer hides the transfer, but not the way to the third level.
    assert_eq!(cores.write(0, 1200, 0).stall(), WRITE_WAY);
    let got = 1200 + u64::from(WRITE_WAY);
    assert_eq!(cores.write(0, got + 29, 0).stall(), 0);
    assert_eq!(cores.write(0, got + 30, 0).stall(), WRITE_WAY);
    let again = got + 30 + u64::from(WRITE_WAY);
    assert_eq!(cores.write(0, again + 29, 0).stall(), 0);
    // With a third vCPU, the line comes back from two others.
    assert_eq!(cores.read(2, 1500, 16).stall(), WAY + MODIFIED);
    let got = 1500 + u64::from(WAY + MODIFIED);
    assert_eq!(cores.write(2, got, 16).stall(), 0);
    assert_eq!(cores.write(2, got + 30, 16).stall(), 2 * (WAY + MODIFIED));
    // Nobody has wanted the line for long.
    assert_eq!(cores.write(2, got + 5000, 16).stall(), 0);
    assert_eq!(cores.count("contention.retake").0, 2);
}

#[test]
fn writes_reach_the_model_until_nobody_takes_the_line() {
    let mut cores = Cores::new(2, Some(KEEP));
    cores.taken(8);
    let got = 1000 + u64::from(UPGRADE);
    assert_eq!(
        cores.write(1, got + 20_000, 8).permission(),
        Permission::Read
    );
    assert_eq!(
        cores.read(1, got + 20_001, 8).permission(),
        Permission::Read
    );
    assert_eq!(
        cores.write(1, got + 20_001, 8).permission(),
        Permission::ReadWrite
    );
}

#[test]
fn without_the_rules_a_transfer_costs_its_latency_alone() {
    let mut cores = Cores::new(2, None);
    cores.write(0, 0, 0);
    assert_eq!(cores.read(1, 1000, 8).stall(), WAY + MODIFIED);
    assert_eq!(cores.write(1, 1000, 8).stall(), UPGRADE);
    assert_eq!(cores.write(1, 1500, 8).permission(), Permission::ReadWrite);
    assert_eq!(cores.read(0, 1200, 8).stall(), WAY + MODIFIED);
    assert_eq!(cores.0.line_moves().count, 0);
    assert_eq!(cores.0.contended_lines(), []);
}

#[test]
fn contended_lines_name_their_users() {
    let mut cores = Cores::new(2, Some(KEEP));
    cores.taken(8);
    cores.write(0, 1200, 0);
    let lines = cores.0.contended_lines();
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0].physical, lines[0].size), (LINE, 64));
    let uses: Vec<_> = (lines[0].uses.iter())
        .map(|of| {
            (
                of.vcpu,
                of.site.block,
                of.access,
                of.touched,
                of.taken,
                of.cycles,
            )
        })
        .collect();
    let moved = u64::from(WAY + MODIFIED);
    assert_eq!(
        uses,
        [
            (0, 1, Access::Write, 0xff, 1, WRITE_WAY.into()),
            (1, 2, Access::Read, 0xff00, 1, moved),
            (1, 2, Access::Write, 0xff00, 0, 0),
        ]
    );
    assert!(lines[0].uses.iter().all(|of| of.linear == 0x7000_0000));
    cores.0.reset_statistics();
    assert_eq!(cores.0.contended_lines(), []);
}
