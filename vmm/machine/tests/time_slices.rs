//! A vCPU that extends its own time slices must leave the node in the state that separate time slices leave.

use std::sync::{Arc, Mutex};

use nodescope_engine::{EngineError, Exit, Limit, Platform, Vcpu};
use nodescope_hypercall::NodeIdentity;
use nodescope_machine::acpi::PlatformDescription;
use nodescope_machine::node::{Node, NodeParts, NodeStatus, TIME_SLICE_CYCLES};
use nodescope_machine::topology::NodeTopology;
use nodescope_memory::Ram;
use nodescope_plugin_api::{L0Geometry, L0Update};
use nodescope_x86::VcpuState;

/// MSRs of the local APIC (SDM vol. 3A §11.12.1), and the timer's vector. The timer's mode is TSC deadline (§11.5.4.1).
const APIC_BASE: u32 = 0x1b;
const X2APIC: u64 = 1 << 10;
const SPURIOUS: u32 = 0x80f;
const TIMER: u32 = 0x832;
const DEADLINE: u32 = 0x6e0;
const TIMER_VECTOR: u64 = 0x41;

/// Time slice of a vCPU: number of the vCPU, begin and end in cycles, and the vector of the interrupt taken at the begin, if any.
type TimeSlice = (u16, u64, u64, Option<u8>);

/// A scripted vCPU. vCPU 0 runs to the end of each time slice; the others only take their timers' interrupts.
struct Script {
    id: u16,
    cycles: u64,
    state: VcpuState,
    /// True if the vCPU extends its time slices whenever the platform allows that.
    extends: bool,
    /// Clocks, in cycles, at which the timers of vCPU 1 and following expire.
    deadlines: Vec<u64>,
    slices: Arc<Mutex<Vec<TimeSlice>>>,
    extended: Arc<Mutex<u64>>,
}

impl Script {
    fn set_timers(&self, platform: &mut dyn Platform) {
        for (other, deadline) in (1..).zip(&self.deadlines) {
            let mut write = |msr, value| platform.msr_write(other, 0, msr, value).unwrap();
            write(SPURIOUS, 0x1ff);
            write(TIMER, 2 << 17 | TIMER_VECTOR);
            write(DEADLINE, *deadline);
        }
    }

    fn run_time_slice(&mut self, platform: &mut dyn Platform, until: u64) {
        let (id, from) = (self.id, self.cycles);
        let taken = platform
            .interrupt_pending(id, from)
            .then(|| platform.acknowledge(id, from))
            .flatten();
        if id == 0 {
            self.cycles = until;
        }
        let slice = (id, from, self.cycles, taken);
        self.slices.lock().unwrap().push(slice);
    }
}

impl Vcpu for Script {
    fn run(&mut self, platform: &mut dyn Platform, limit: Limit) -> Result<Exit, EngineError> {
        if self.id > 0 {
            self.run_time_slice(platform, limit.cycles);
            return Ok(Exit::Halted);
        }
        if self.cycles == 0 {
            for id in 1..=self.deadlines.len() as u16 {
                let base = platform.msr_read(id, 0, APIC_BASE).unwrap();
                platform.msr_write(id, 0, APIC_BASE, base | X2APIC).unwrap();
            }
            self.set_timers(platform);
        }
        let mut until = limit.cycles;
        loop {
            self.run_time_slice(platform, until);
            let more = (self.extends && limit.extends).then(|| platform.extend(0));
            match more.flatten() {
                Some(later) => until = later,
                None => return Ok(Exit::Limit),
            }
            *self.extended.lock().unwrap() += 1;
        }
    }

    fn cycles(&self) -> u64 {
        self.cycles
    }

    fn advance_to(&mut self, cycles: u64) {
        self.cycles = self.cycles.max(cycles);
    }

    fn instructions(&self) -> u64 {
        self.cycles
    }

    fn save(&self) -> VcpuState {
        self.state.clone()
    }

    fn restore(&mut self, state: &VcpuState) {
        self.state = state.clone();
    }

    fn attach(&mut self, _: Option<L0Geometry>) {}

    fn update_l0(&mut self, _: &[L0Update]) {}

    fn flush_counters(&mut self, _: &mut dyn Platform) {}
}

/// Runs a node to each of `targets`, in cycles. Returns all time slices and the number of extensions.
fn time_slices(extends: bool, deadlines: &[u64], targets: &[u64]) -> (Vec<TimeSlice>, u64) {
    let (log, extended) = (Arc::default(), Arc::default());
    let count = deadlines.len() as u32 + 1;
    let topology = NodeTopology::uniform(1, count, 1, 2 << 20);
    let vcpu = |id| -> Box<dyn Vcpu> {
        Box::new(Script {
            id,
            cycles: 0,
            state: VcpuState::reset(),
            extends,
            deadlines: deadlines.to_vec(),
            slices: Arc::clone(&log),
            extended: Arc::clone(&extended),
        })
    };
    let parts = NodeParts {
        index: 0,
        ram: Ram::new(&topology.socket_memory).unwrap(),
        topology,
        platform: PlatformDescription::default(),
        vcpus: (0..count as u16).map(vcpu).collect(),
        boot: VcpuState::reset(),
        virtio: Vec::new(),
        epoch: 0,
        identity: NodeIdentity {
            node: 0,
            nodes: 1,
            vcpus: count,
            seed: 0,
            ipv4: [10, 0, 0, 1],
            prefix: 16,
            mac: [2, 0, 0, 0, 0, 1],
            name: String::new(),
            text: String::new(),
        },
    };
    let mut node = Node::new(parts).unwrap();
    for target in targets {
        assert_eq!(node.run_until(*target).unwrap(), NodeStatus::Running);
        assert_eq!(node.now(), *target);
    }
    drop(node);
    let slices = Arc::try_unwrap(log).unwrap().into_inner().unwrap();
    (slices, *extended.lock().unwrap())
}

#[test]
fn extended_time_slices_are_the_same_as_separate_ones() {
    let targets = [
        12 * TIME_SLICE_CYCLES,
        12 * TIME_SLICE_CYCLES + 17,
        30 * TIME_SLICE_CYCLES,
    ];
    // The deadlines are in the middle and at the end of a time slice, and in the first and the last slice.
    for deadlines in [
        vec![],
        vec![7_300],
        vec![3 * TIME_SLICE_CYCLES],
        vec![100, 29 * TIME_SLICE_CYCLES + 1],
        vec![7_300, 7_400, 8 * TIME_SLICE_CYCLES],
    ] {
        let (separate, none) = time_slices(false, &deadlines, &targets);
        let (extended, count) = time_slices(true, &deadlines, &targets);
        assert_eq!(separate, extended, "{deadlines:?}");
        assert_eq!(none, 0);
        // The run has 31 time slices. The first slice of each call and the slices around a timer are not extensions.
        let others = 3 + 2 * deadlines.len() as u64;
        assert!(count >= 31 - others, "{deadlines:?}: {count}");
        for (id, deadline) in (1..).zip(&deadlines) {
            let wakes: Vec<_> = extended.iter().filter(|slice| slice.0 == id).collect();
            assert_eq!(
                wakes,
                [&(id, *deadline, *deadline, Some(TIMER_VECTOR as u8))],
                "it wakes up when its timer expires"
            );
        }
    }
}
