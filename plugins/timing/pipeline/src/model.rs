//! The model as a node drives it: when to record, and what to do with a recording.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use nodescope_plugin_api::{CoreCosts, CoreModel, Recording, RecordingPlan, SOURCES, Source, Step};

use crate::branch::{Predictor, PredictorConfig};
use crate::decode::decode;
use crate::description::Core;
use crate::learning::{Learned, Retired};
use crate::micro::{Flow, Instruction};
use crate::parameters::Parameters;
use crate::timing::{Conditions, Event, Timing};
use crate::tlb::{DataTlb, TlbAnswer, TlbConfig, Walker};
use crate::wrong_path::Code;

/// Instructions of a recording that are timed and counted, behind those that fill the pipeline and those that train the predictor and the
/// TLB.
const COUNTED: u64 = 3000;
const FILLING: u64 = 5000;
const TRAINING: u64 = 30_000;
/// Instructions between the beginnings of the first recordings; doubled after every [`DOUBLE_AFTER`] recordings up to [`MOST_APART`].
const FIRST_APART: u64 = 20_000;
const DOUBLE_AFTER: u64 = 4;
const MOST_APART: u64 = 4_000_000;
/// The same while the mean of the last [`REMEMBERED`] recordings has a standard error of 1/64 at most.
const MOST_APART_STEADY: u64 = 32_000_000;
const STEADY: i128 = 64;
const REMEMBERED: usize = 16;
/// Share of a latency that is exposed before anything was learned: one third, about what Intel's means over workloads are on Granite Rapids
/// (36 % of the second level's, 45 % of the third's, 32 % of memory's; retirement latencies in github.com/intel/perfmon).
const FIRST_EXPOSED: u64 = 3;
/// Decoded blocks that are kept. All are forgotten when there are more.
const MOST_BLOCKS: usize = 1 << 16;

/// A block of code as micro-operations.
#[derive(Debug)]
struct DecodedBlock {
    instructions: Vec<Instruction>,
    /// Offset of each instruction from the first byte.
    offsets: Vec<u32>,
}

impl DecodedBlock {
    fn new(bytes: &[u8], bits: u8, address: u64, core: &Core) -> Self {
        let instructions = decode(bytes, bits, address, core);
        let offsets = instructions.iter().scan(0, |end, instruction| {
            let start = *end;
            *end += u32::from(instruction.length);
            Some(start)
        });
        Self {
            offsets: offsets.collect(),
            instructions,
        }
    }
}

/// What a core remembers from one recording to the next.
struct VcpuState {
    predictor: Predictor,
    tlb: DataTlb,
    walker: Walker,
    apart: u64,
    /// Most instructions between the beginnings of recordings while the last ones agree.
    most_apart_steady: u64,
    recordings: u64,
    /// Instructions of the last recordings, and the cycles in which they did not wait for answers.
    recent: VecDeque<(u64, i64)>,
}

impl VcpuState {
    fn new(core: &Core, most_apart_steady: u64) -> Self {
        let tlb = TlbConfig {
            first_entries: core.tlb.first_entries,
            first_ways: core.tlb.first_ways,
            second_entries: core.tlb.second_entries,
            second_ways: core.tlb.second_ways,
            ..TlbConfig::default()
        };
        Self {
            predictor: Predictor::new(&PredictorConfig::default()),
            tlb: DataTlb::new(&tlb),
            walker: Walker::new(&tlb),
            apart: FIRST_APART,
            most_apart_steady,
            recordings: 0,
            recent: VecDeque::new(),
        }
    }

    /// Remembers how long instructions took that did not wait for answers.
    fn note(&mut self, instructions: u64, cycles: i64) {
        self.recent.push_back((instructions, cycles));
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
    }

    /// Returns whether the last recordings agree so well that fewer will do.
    fn is_steady(&self) -> bool {
        let cpi = |&(instructions, cycles): &(u64, i64)| {
            i128::from(cycles << 16).checked_div(instructions.into())
        };
        let all = || self.recent.iter().filter_map(cpi);
        let (sum, squares): (i128, i128) = (all().sum(), all().map(|cpi| cpi * cpi).sum());
        let n = self.recent.len() as i128;
        // The variance of the mean is (n * squares - sum^2) / (n^3 - n^2).
        n == REMEMBERED as i128
            && (n * squares - sum * sum) * STEADY * STEADY <= (n - 1) * sum * sum
    }

    /// Returns when the next recording begins. `costs` are those of the recorded blocks.
    fn plan(&mut self, costs: Vec<Option<u32>>) -> RecordingPlan {
        if self.recordings > 0 && self.recordings.is_multiple_of(DOUBLE_AFTER) {
            let most = match self.is_steady() {
                true => self.most_apart_steady,
                false => MOST_APART,
            };
            self.apart = most.min(2 * self.apart);
        }
        self.recordings += 1;
        let training = TRAINING.min(self.apart.saturating_sub(FILLING + COUNTED));
        let length = training + FILLING + COUNTED;
        RecordingPlan {
            after: self.apart.saturating_sub(length),
            length,
            costs,
        }
    }
}

/// A model of an out-of-order core that times every micro-operation of recorded instructions.
pub struct PipelineModel {
    core: Core,
    parameters: Parameters,
    most_apart_steady: u64,
    vcpus: HashMap<u16, VcpuState>,
    blocks: HashMap<(u64, u8, Vec<u8>), Arc<DecodedBlock>>,
    learned: Learned,
    /// The same, but what each block's last recordings taught counts most.
    recent: Learned,
    /// Cycles of an answer in 1/65536 by block and source, as the clock counts them, and those of blocks that were not recorded.
    exposed: Vec<[Option<u64>; SOURCES]>,
    exposed_anywhere: [Option<u64>; SOURCES],
    /// Part of a cycle, in 1/65536, that the answers so far have left over.
    rest: u64,
}

impl PipelineModel {
    /// Makes a model of a core. `beyond`: cycles of an answer beyond a hit of the first level, by source.
    pub fn new(core: &Core, beyond: [u32; SOURCES]) -> Self {
        Self {
            parameters: Parameters::new(core, beyond),
            core: core.clone(),
            most_apart_steady: MOST_APART_STEADY,
            vcpus: HashMap::new(),
            blocks: HashMap::new(),
            learned: Learned::default(),
            recent: Learned::default(),
            exposed: Vec::new(),
            exposed_anywhere: [None; SOURCES],
            rest: 0,
        }
    }

    /// Records steady code as often as any other: for windows whose models are attached in intervals, so that instructions are few.
    pub fn for_intervals(self) -> Self {
        Self {
            most_apart_steady: MOST_APART,
            ..self
        }
    }

    fn costs_of(&self, learned: &Learned) -> CoreCosts {
        let (blocks, others) = learned.costs();
        CoreCosts {
            core: self.core.title.clone(),
            blocks,
            others,
            timed: self.learned.timed,
        }
    }

    fn decoded(&mut self, recording: &Recording) -> Vec<Arc<DecodedBlock>> {
        if self.blocks.len() > MOST_BLOCKS {
            self.blocks.clear();
        }
        let core = &self.core;
        let blocks = recording.blocks.iter().map(|block| {
            let key = (block.address, block.bits, block.bytes.clone());
            let decode = || DecodedBlock::new(&block.bytes, block.bits, block.address, core);
            let decoded = self.blocks.entry(key).or_insert_with(|| Arc::new(decode()));
            decoded.clone()
        });
        blocks.collect()
    }

    /// Trains the predictor and the TLB with a recording, and times its end.
    fn time(&mut self, vcpu: u16, recording: &Recording) {
        let decoded = self.decoded(recording);
        let Some(state) = self.vcpus.get_mut(&vcpu) else {
            return;
        };
        let mut events = events(recording, &decoded, state, &self.parameters);
        let timed = (FILLING + COUNTED) as usize;
        let Some(first) = events.len().checked_sub(timed) else {
            // A window that closes early has cut the recording.
            return;
        };
        follow_wrong_paths(recording, &decoded, &mut events, first);
        let events = &events[first..];
        let numbers: Vec<u32> = recording.steps[recording.steps.len() - timed..]
            .iter()
            .map(|step| recording.blocks[step.block as usize].number)
            .collect();
        let pass = |conditions| {
            let mut timing = Timing::new(&self.parameters, conditions, recording.accesses.len());
            let retired = (0..events.len()).map(|at| timing.step(&events[at], &events[at + 1..]));
            retired.collect::<Vec<u64>>()
        };
        let ideal = pass(Conditions::Ideal);
        let branches = pass(Conditions::Branches);
        let recorded = pass(Conditions::Recorded);
        let retired: Vec<Retired> = (0..events.len())
            .map(|at| Retired {
                ideal: ideal[at],
                branches: branches[at],
                recorded: recorded[at],
            })
            .collect();
        let (instructions, cycles) = self
            .learned
            .add(events, &numbers, &retired, FILLING as usize);
        state.note(instructions, cycles);
        self.recent.age(&numbers[FILLING as usize..]);
        (self.recent).add(events, &numbers, &retired, FILLING as usize);
        self.expose(&numbers);
    }

    /// Takes what was learned of these blocks into the tables of the clock.
    fn expose(&mut self, blocks: &[u32]) {
        self.exposed_anywhere = self.learned.waiting_anywhere();
        for &block in blocks {
            let at = block as usize;
            if self.exposed.len() <= at {
                self.exposed.resize(at + 1, [None; SOURCES]);
            }
            self.exposed[at] = self.recent.waiting(block);
        }
    }
}

/// Joins the instructions of a recording with what decides their time. Trains the predictor and the TLB.
fn events<'a>(
    recording: &'a Recording,
    decoded: &'a [Arc<DecodedBlock>],
    state: &mut VcpuState,
    core: &Parameters,
) -> Vec<Event<'a>> {
    let place = |step: &Step| {
        let (block, number) = (step.block as usize, usize::from(step.instruction));
        let offset = decoded[block].offsets.get(number).copied().unwrap_or(0);
        let instruction = decoded[block].instructions.get(number);
        let address = recording.blocks[block].address.wrapping_add(offset.into());
        (address, instruction.unwrap_or(&UNKNOWN))
    };
    let mut events = Vec::with_capacity(recording.steps.len());
    let mut interrupted = false;
    for (at, step) in recording.steps.iter().enumerate() {
        let (address, instruction) = place(step);
        let behind = address.wrapping_add(instruction.length.into());
        let next = recording
            .steps
            .get(at + 1)
            .map_or(behind, |next| place(next).0);
        let accesses = recording.accesses_of(at);
        let mut event = Event {
            address,
            instruction,
            accesses,
            answers: recording.answers_of(at),
            first_access: (recording.steps[at].accesses as usize - accesses.len()) as u32,
            translation: [0; 2],
            mispredicted: false,
            wrong_path: None,
            taken: false,
            interrupted: std::mem::take(&mut interrupted),
            repeats: step.repeats,
        };
        for (access, extra) in accesses.iter().zip(&mut event.translation) {
            *extra = translation(state, access.linear, access.large_page, core);
        }
        match instruction.flow {
            Flow::Next => interrupted = next != behind && next != address,
            Flow::System => {}
            flow => {
                event.taken = flow != Flow::Conditional || next != behind;
                let right = state
                    .predictor
                    .branch(address, flow, event.taken, next, behind);
                event.mispredicted = !right;
            }
        }
        events.push(event);
    }
    events
}

/// Finds where the wrong way behind each branch that was predicted wrongly meets the right way, for the instructions from index `first` on.
fn follow_wrong_paths<'a>(
    recording: &Recording,
    decoded: &'a [Arc<DecodedBlock>],
    events: &mut [Event<'a>],
    first: usize,
) {
    if !events[first..].iter().any(|event| event.mispredicted) {
        return;
    }
    let mut code = Code::default();
    for (block, decoded) in recording.blocks.iter().zip(decoded) {
        for (offset, instruction) in decoded.offsets.iter().zip(&decoded.instructions) {
            code.add(block.address.wrapping_add((*offset).into()), instruction);
        }
    }
    for at in 0..events.len() {
        if at >= first && events[at].mispredicted {
            events[at].wrong_path = code.wrong_path(&events[at], &events[at + 1..]);
        }
        code.note(&events[at]);
    }
}

/// Returns the cycles that the translation of an address takes beyond a hit of the first level of the TLB.
fn translation(state: &mut VcpuState, linear: u64, large: bool, core: &Parameters) -> u16 {
    let large = large && core.large_pages;
    let cycles = |cycles: u32| u16::try_from(cycles).unwrap_or(u16::MAX);
    match state.tlb.access(linear, large) {
        TlbAnswer::First => 0,
        TlbAnswer::Second => cycles(core.second_tlb),
        TlbAnswer::Walk => {
            let loads = state.walker.walk(linear, large);
            cycles(core.second_tlb + core.walk + core.walk_step * (loads - 1))
        }
    }
}

/// Stands for an instruction whose bytes are not known: one slot.
static UNKNOWN: Instruction = Instruction {
    operations: Vec::new(),
    slots: 1,
    fused: false,
    flow: Flow::System,
    target: 0,
    serialising: false,
    locked: false,
    non_temporal: false,
    microcode: 0,
    each_repeat_65536: 0,
    length: 0,
};

impl CoreModel for PipelineModel {
    fn recorded(&mut self, vcpu: u16, recording: &Recording) -> Option<RecordingPlan> {
        if !self.vcpus.contains_key(&vcpu) {
            self.vcpus
                .insert(vcpu, VcpuState::new(&self.core, self.most_apart_steady));
        }
        if !recording.steps.is_empty() {
            self.time(vcpu, recording);
        }
        let blocks = recording.blocks.iter();
        let costs = blocks.map(|block| self.recent.own_cycles(block.number));
        let costs = costs.collect();
        let state = self.vcpus.get_mut(&vcpu)?;
        Some(state.plan(costs))
    }

    fn exposed(&mut self, block: u32, source: Source, stall: u32) -> u32 {
        let source = source as usize;
        let latency = self.parameters.beyond[source];
        let of_block = self.exposed.get(block as usize);
        let learned = of_block
            .and_then(|of_block| of_block[source])
            .or(self.exposed_anywhere[source])
            .unwrap_or((u64::from(latency) << 16) / FIRST_EXPOSED);
        let exposed = learned.saturating_add(self.rest);
        self.rest = exposed & 0xffff;
        // What a line takes beyond the latency of its source is a wait for another vCPU.
        let whole = u32::try_from(exposed >> 16).unwrap_or(u32::MAX);
        whole.saturating_add(stall.saturating_sub(latency))
    }

    fn recent_costs(&self) -> CoreCosts {
        self.costs_of(&self.recent)
    }

    fn has_timed(&self, block: u32) -> bool {
        self.learned.has_timed(block)
    }

    fn reset_statistics(&mut self) {
        self.learned.timed = Default::default();
    }

    fn costs(&self) -> CoreCosts {
        self.costs_of(&self.learned)
    }
}

#[cfg(test)]
mod tests {
    use nodescope_plugin_api::{Access, Answer, DataAccess, RecordedBlock};

    use super::*;

    /// Records a loop of `mov rax, [rax]` and `jmp` back, of which each load goes to another line that memory supplies.
    fn chase(steps: u64) -> Recording {
        let mut recording = Recording {
            blocks: vec![RecordedBlock {
                number: 7,
                address: 0x1000,
                kernel: false,
                bits: 64,
                bytes: vec![0x48, 0x8b, 0x00, 0xeb, 0xfb],
            }],
            ..Recording::default()
        };
        for step in 0..steps {
            let line = (step * 7919) % 65_536 * 64;
            if step % 2 == 0 {
                recording.accesses.push(DataAccess {
                    linear: line,
                    physical: line,
                    large_page: true,
                });
                recording.answers.push(Answer {
                    line,
                    access: Access::Read,
                    prefetched_into: 0,
                    source: Some(Source::LocalMemory),
                    stall: 400,
                });
            }
            recording.steps.push(Step {
                block: 0,
                instruction: (step % 2) as u16,
                repeats: 0,
                accesses: recording.accesses.len() as u32,
                answers: recording.answers.len() as u32,
            });
        }
        recording
    }

    #[test]
    fn each_load_of_a_chain_waits_for_the_one_before() {
        let core = Core::preset("zen4").unwrap();
        let mut model = PipelineModel::new(&core, [10, 40, 60, 400, 800]);
        assert!(model.recorded(0, &Recording::default()).is_some());
        model.recorded(0, &chase(FILLING + COUNTED));
        let costs = model.costs();
        let cpi = costs.timed.cpi().unwrap();
        assert!((cpi / 202.0 - 1.0).abs() < 0.01, "{cpi}");
        let each = costs.blocks[&7].each_answer[Source::LocalMemory as usize] >> 16;
        assert!((398..=402).contains(&each), "{each}");
    }

    /// Records a loop of `mov rax, [rbx]` and `jmp` back, of which each load goes to the next line. The second level answers. It has the line
    /// from `source`, by a prefetcher that every second load starts.
    fn stream(steps: u64, source: Source) -> Recording {
        let mut recording = chase(steps);
        recording.blocks[0].bytes[2] = 0x03;
        recording.answers.clear();
        let answer = |line: u64, prefetched_into, source, stall| Answer {
            line: line * 64,
            access: Access::Read,
            prefetched_into,
            source: Some(source),
            stall,
        };
        let mut loads = recording.accesses.iter_mut().zip(0..);
        for (at, step) in recording.steps.iter_mut().enumerate() {
            if at % 2 == 0
                && let Some((access, line)) = loads.next()
            {
                (access.linear, access.physical) = (line * 64, line * 64);
                recording.answers.push(answer(line, 0, Source::Level2, 7));
                if line % 2 == 0 && source != Source::Level2 {
                    let ahead = [line + 20, line + 21].map(|line| answer(line, 2, source, 0));
                    recording.answers.extend(ahead);
                }
            }
            step.answers = recording.answers.len() as u32;
        }
        recording
    }

    #[test]
    fn a_stream_gets_the_bandwidth_of_its_source() {
        let core = Core::preset("sandy-bridge").unwrap();
        for (source, bytes_per_cycle) in [
            (Source::Level2, 11.7),
            (Source::Level3, 8.7),
            (Source::LocalMemory, 4.6),
        ] {
            let mut model = PipelineModel::new(&core, [7, 18, 40, 200, 400]);
            model.recorded(0, &Recording::default());
            model.recorded(0, &stream(FILLING + COUNTED, source));
            let each_line = 2.0 * model.costs().timed.cpi().unwrap();
            let bandwidth = 64.0 / each_line / bytes_per_cycle;
            assert!((bandwidth - 1.0).abs() < 0.01, "{source:?}: {bandwidth}");
            // The clock counts the same in the long run, although an answer has no whole number of cycles.
            let (instructions, cycles) = model.vcpus[&0].recent[0];
            let own = cycles as f64 / instructions as f64;
            let waits: u32 = (0..3000).map(|_| model.exposed(7, Source::Level2, 7)).sum();
            let clock = 2.0 * own + f64::from(waits) / 3000.0;
            assert!(
                (clock / each_line - 1.0).abs() < 0.01,
                "{source:?}: {clock}"
            );
        }
    }

    #[test]
    fn accesses_to_devices_and_to_the_last_address_are_timed() {
        let core = Core::preset("zen4").unwrap();
        let mut model = PipelineModel::new(&core, [10, 40, 60, 400, 800]);
        model.recorded(0, &Recording::default());
        let mut recording = chase(FILLING + COUNTED);
        recording.answers.clear();
        for step in &mut recording.steps {
            step.answers = 0;
        }
        for access in &mut recording.accesses {
            access.linear = u64::MAX;
            access.physical = DataAccess::DEVICE;
        }
        // Stores of the whole register and loads take turns.
        recording.blocks[0].bytes[1] = 0x89;
        model.recorded(0, &recording);
        recording.blocks[0].bytes[1] = 0x8b;
        model.recorded(0, &recording);
        assert_eq!(model.costs().timed.recordings, 2);
    }
}
