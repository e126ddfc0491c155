//! Instructions as micro-operations of a core.
//!
//! Loads, the address and the data of stores are micro-operations of their own; the others come from the class of the instruction. A loaded
//! value, an intermediate result and a result on its way to memory are temporaries. Pushes and pops do not change RSP for others: a stack
//! engine adds up their changes, so that only explicit writes of RSP make a new value.
//!
//! Of a fused pair, the first instruction has the operation of both, on the ports of [`Class::JumpFused`], and the jump has one
//! [`Kind::Eliminated`] that waits for the flags. So the pair takes one port once, and the jump is resolved when the flags are there.

use iced_x86::{
    Decoder, DecoderOptions, EncodingKind, FlowControl, InstructionInfoFactory, Mnemonic,
};

use crate::class::{self, Class};
use crate::description::{Core, Indexed, Recipe, Step};
use crate::micro::{
    Flow, Instruction, Kind, MicroOperation, NO_ACCESS, NONE, Ports, Resource, resource,
};

mod idioms;
mod operands;
mod system;

use idioms::Treatment;
use operands::Operands;

/// Values that a micro-operation waits for at most.
const SOURCES: usize = 4;
/// Number of temporaries.
const TEMPORARIES: u8 = resource::COUNT as u8 - resource::TEMPORARY;
/// Resource of the stack pointer.
const STACK_POINTER: Resource = resource::GENERAL + 4;
/// Resources of RSI and RDI, which string instructions use as addresses.
const STRING_SOURCE: Resource = resource::GENERAL + 6;
const STRING_TARGET: Resource = resource::GENERAL + 7;

/// Decodes the instructions of a straight-line block. `bits` is the width of the code segment: 16, 32 or 64; any other is taken as 64. Bytes
/// that are no instruction become one instruction of the system each.
pub fn decode(bytes: &[u8], bits: u8, address: u64, core: &Core) -> Vec<Instruction> {
    let bits = match bits {
        16 | 32 => u32::from(bits),
        _ => 64,
    };
    let decoder = Decoder::with_ip(bits, bytes, address, DecoderOptions::NONE);
    let instructions: Vec<iced_x86::Instruction> = decoder.into_iter().collect();
    let mut factory = InstructionInfoFactory::new();
    let mut top = 0;
    let mut fused = false;
    let mut all = Vec::with_capacity(instructions.len());
    for (index, instruction) in instructions.iter().enumerate() {
        let next = instructions.get(index + 1);
        let fuses = next.is_some_and(|n| idioms::fuses(core.renaming.fusion, instruction, n));
        let operands = Operands::of(instruction, factory.info(instruction), top);
        let change = instruction.fpu_stack_increment_info().increment();
        top = operands::moved_top(top, change);
        all.push(if fused {
            fused_jump(instruction, &operands)
        } else {
            Builder::new(core, instruction, operands, fuses).build()
        });
        // A jump is never the first of a pair.
        fused = fuses && !fused;
    }
    all
}

/// Returns the jump of a fused pair.
fn fused_jump(instruction: &iced_x86::Instruction, operands: &Operands) -> Instruction {
    let mut jump = empty(instruction, Flow::Conditional);
    jump.fused = true;
    jump.operations.push(MicroOperation {
        sources: fill(&operands.sources),
        ..eliminated()
    });
    jump
}

/// Returns an instruction without operations and slots.
fn empty(instruction: &iced_x86::Instruction, flow: Flow) -> Instruction {
    Instruction {
        operations: Vec::new(),
        slots: 0,
        fused: false,
        flow,
        target: instruction.near_branch_target(),
        serialising: false,
        locked: false,
        non_temporal: false,
        microcode: 0,
        each_repeat_65536: 0,
        length: instruction.len() as u8,
    }
}

/// Returns a micro-operation that is not executed and has no operands.
fn eliminated() -> MicroOperation {
    MicroOperation {
        kind: Kind::Eliminated,
        ports: 0,
        latency: 0,
        busy: 1,
        sources: fill(&[]),
        results: fill(&[]),
        access: NO_ACCESS,
        size: 0,
    }
}

/// Returns the first values of a list in an array, filled up with [`NONE`].
fn fill<const N: usize>(list: &[Resource]) -> [Resource; N] {
    let mut array = [NONE; N];
    for (place, value) in array.iter_mut().zip(list) {
        *place = *value;
    }
    array
}

/// An instruction under construction.
struct Builder<'a> {
    core: &'a Core,
    from: &'a iced_x86::Instruction,
    class: Class,
    recipe: &'a Recipe,
    treatment: Treatment,
    operands: Operands,
    /// Values that the computation needs.
    inputs: Vec<Resource>,
    temporaries: u8,
    to: Instruction,
}

impl<'a> Builder<'a> {
    fn new(
        core: &'a Core,
        from: &'a iced_x86::Instruction,
        operands: Operands,
        fuses: bool,
    ) -> Self {
        let class = Class::of(from);
        let recipe = match fuses {
            true => core.recipe(Class::JumpFused),
            false => core.recipe(class),
        };
        Self {
            core,
            from,
            class,
            recipe,
            treatment: idioms::treatment(core, from, class),
            inputs: operands.sources.clone(),
            operands,
            temporaries: 0,
            to: empty(from, flow(from, class)),
        }
    }

    fn build(mut self) -> Instruction {
        let alone = system::alone(self.core, self.from, self.class);
        self.to.microcode = alone.cycles;
        self.to.each_repeat_65536 = alone.each_65536;
        self.to.serialising = alone.serialising;
        self.to.locked = self.locked();
        self.to.non_temporal = non_temporal(self.from);
        let repeated = alone.each_65536 != 0;
        match self.treatment {
            _ if repeated => self.pass_on(),
            _ if self.class == Class::Nop => self.nop(),
            Treatment::Constant => {
                self.inputs.clear();
                self.pass_on();
            }
            Treatment::Renamed => self.pass_on(),
            _ if self.class == Class::X87Exchange => self.swap(),
            _ if self.class == Class::Exchange && self.recipe.steps.is_empty() => self.exchange(),
            _ if self.class == Class::Leave => self.leave(),
            _ if moves_string(self.class) => self.string(),
            _ => self.execute(),
        }
        if !self.to.fused {
            self.to.slots = self.slots();
        }
        self.to
    }

    /// Returns the next temporary. They are few, and a later one of the same number is another value.
    fn temporary(&mut self) -> Resource {
        let number = resource::TEMPORARY + self.temporaries % TEMPORARIES;
        self.temporaries += 1;
        number
    }

    fn nop(&mut self) {
        if self.core.renaming.free_nops {
            self.to.fused = true;
        } else {
            self.to.operations.push(eliminated());
        }
    }

    /// Passes the inputs on to the results without a port.
    fn pass_on(&mut self) {
        self.to.operations.push(MicroOperation {
            sources: fill(&self.inputs),
            results: fill(&self.operands.results),
            ..eliminated()
        });
    }

    /// Exchanges two registers by renaming.
    fn swap(&mut self) {
        let registers = self.operands.results.clone();
        let &[one, other, ..] = registers.as_slice() else {
            return self.pass_on();
        };
        let between = self.temporary();
        for (source, result) in [(one, between), (other, one), (between, other)] {
            self.to.operations.push(MicroOperation {
                sources: fill(&[source]),
                results: fill(&[result]),
                ..eliminated()
            });
        }
    }

    fn exchange(&mut self) {
        if self.operands.memory.load {
            self.execute();
        } else {
            self.swap();
        }
    }

    /// Makes the loads, the computation and the stores.
    fn execute(&mut self) {
        if self.treatment == Treatment::Independent {
            self.inputs.clear();
        } else if let Some(register) = idioms::same(self.from) {
            // The operands of zero idioms count as unused, but this core waits for them.
            let number = operands::number(register, 0).filter(|n| !self.inputs.contains(n));
            self.inputs
                .extend(number.filter(|_| idioms::makes_zero(self.from)));
        }
        if self.keeps_flags() {
            self.inputs.extend([resource::CARRY, resource::FLAGS]);
        }
        self.loads();
        let data = self.compute();
        self.stores(data);
        if self.to.operations.is_empty() {
            self.pass_on();
        }
    }

    /// Returns whether the instruction is a shift by CL that keeps the flags if the count is 0, and the core waits for them.
    fn keeps_flags(&self) -> bool {
        self.core.renaming.shifts_keep_flags
            && matches!(
                self.class,
                Class::ShiftByRegister | Class::RotateByRegister | Class::ShiftDoubleByRegister
            )
    }

    /// Returns whether a load puts its value straight into a register.
    fn plain_load(&self) -> bool {
        let memory = &self.operands.memory;
        self.recipe.steps.is_empty() && !memory.store && self.operands.stack.push == 0
    }

    fn loads(&mut self) {
        let memory = self.operands.memory.clone();
        if matches!(self.class, Class::GatherFour | Class::GatherEight) {
            self.gather(&memory);
        } else if memory.load || self.class == Class::Prefetch {
            self.load(&memory.address, memory.size, 0);
        }
        if self.operands.stack.pop > 0 {
            let access = u8::from(memory.load || memory.store);
            self.load(&[STACK_POINTER], self.operands.stack.pop, access);
        }
        for (class, address) in [
            (Class::StringScan, STRING_TARGET),
            (Class::StringCompare, STRING_TARGET),
            (Class::StringCompare, STRING_SOURCE),
        ] {
            if self.class == class {
                self.load(&[address], 8, NO_ACCESS);
            }
        }
    }

    /// Adds a load. Its value is an input of the computation, or the result if there is none.
    fn load(&mut self, address: &[Resource], size: u16, access: u8) {
        let results = if self.class == Class::Prefetch {
            Vec::new()
        } else if self.plain_load() {
            self.operands.results.clone()
        } else {
            let value = self.temporary();
            self.inputs.insert(0, value);
            vec![value]
        };
        self.load_to(&results, address, size, access);
    }

    /// Adds the loads of a gather. All are alike, so the computation waits for the last one.
    fn gather(&mut self, memory: &operands::Memory) {
        let value = self.temporary();
        for _ in 0..class::elements(self.from) {
            self.load_to(&[value], &memory.address, memory.size, NO_ACCESS);
        }
        self.inputs.insert(0, value);
    }

    fn load_to(&mut self, results: &[Resource], address: &[Resource], size: u16, access: u8) {
        let load = &self.core.load;
        let memory = &self.operands.memory;
        let vector = self.operands.vector;
        let explicit = access == 0 && memory.load;
        let latency = [
            (vector, load.vector_latency),
            (explicit && memory.indexed, load.indexed_latency),
            (explicit && memory.complex, load.complex_latency),
        ];
        self.to.operations.push(MicroOperation {
            kind: Kind::Load,
            ports: if vector {
                load.vector_ports
            } else {
                load.ports
            },
            latency: latency.iter().filter(|l| l.0).map(|l| l.1).sum(),
            busy: passes(size, load.bytes),
            sources: fill(address),
            results: fill(results),
            access,
            size,
        });
    }

    /// Makes LEAVE: RSP is the old RBP, and RBP is loaded from there.
    fn leave(&mut self) {
        let pointer = resource::GENERAL + 5;
        self.inputs = vec![pointer];
        for step in &self.recipe.steps {
            self.step(step, &[STACK_POINTER]);
        }
        self.load_to(&[pointer], &[pointer], self.operands.stack.pop, 0);
    }

    /// Makes MOVS, STOS and LODS without a prefix. The addresses do not wait for the data.
    fn string(&mut self) {
        let address = |r: &Resource| matches!(*r, STRING_SOURCE | STRING_TARGET);
        let (addresses, data): (Vec<_>, Vec<_>) =
            self.operands.results.iter().partition(|r| address(r));
        let mut stored = vec![resource::GENERAL];
        if self.class != Class::StringStore {
            let value = match data.first() {
                Some(register) => *register,
                None => self.temporary(),
            };
            stored = vec![value];
            self.load_to(&[value], &[STRING_SOURCE], 8, NO_ACCESS);
        }
        if self.class != Class::StringLoad {
            self.store(&[STRING_TARGET], 8, NO_ACCESS, &stored);
        }
        self.inputs.retain(address);
        for step in &self.recipe.steps {
            self.step(step, &addresses);
        }
    }

    /// Adds the computation. Returns the values that a store takes.
    fn compute(&mut self) -> Vec<Resource> {
        let recipe = self.recipe;
        let stores = self.operands.memory.store || self.operands.stack.push > 0;
        let Some((last, steps)) = recipe.steps.split_last() else {
            return self.inputs.clone();
        };
        for step in steps {
            if step.beside {
                self.step(step, &[]);
            } else {
                let result = self.temporary();
                self.step(step, &[result]);
                self.advance(result);
            }
        }
        let mut results = Vec::new();
        let makes_data = stores && self.makes_data();
        if makes_data {
            results.push(self.temporary());
        }
        let data = results.clone();
        results.extend(&self.operands.results);
        self.step(last, &results);
        match makes_data {
            true => data,
            false => Vec::new(),
        }
    }

    /// Returns whether the data of the store come from the computation: not a return address, and not RBP of ENTER.
    fn makes_data(&self) -> bool {
        !matches!(
            self.class,
            Class::Call | Class::CallIndirect | Class::Enter | Class::System
        )
    }

    /// Replaces the inputs that a step has taken by its result.
    fn advance(&mut self, result: Resource) {
        let taken = self.inputs.len().min(SOURCES);
        self.inputs.drain(..taken);
        self.inputs.insert(0, result);
    }

    /// Adds the micro-operations of a step. The last one has the results.
    fn step(&mut self, step: &Step, results: &[Resource]) {
        let width = self.operands.vector_bytes;
        let operation = MicroOperation {
            kind: Kind::Compute,
            ports: step.ports,
            latency: step.latency,
            busy: step.busy * passes(width, self.core.pipeline.vector_bytes),
            sources: fill(&self.inputs),
            results: fill(&[]),
            access: NO_ACCESS,
            size: 0,
        };
        for _ in 1..step.count {
            self.to.operations.push(operation);
        }
        self.to.operations.push(MicroOperation {
            results: fill(results),
            ..operation
        });
    }

    fn stores(&mut self, data: Vec<Resource>) {
        let memory = self.operands.memory.clone();
        if self.class == Class::Exchange && memory.store {
            return self.exchange_store(data);
        }
        if memory.store {
            self.store(&memory.address, memory.size, 0, &data);
        }
        if self.operands.stack.push > 0 {
            let access = u8::from(memory.load || memory.store);
            self.store(&[STACK_POINTER], self.operands.stack.push, access, &data);
        }
        // MASKMOVDQU names no memory operand.
        if self.class == Class::StoreMasked && !memory.store {
            self.store(&[STRING_TARGET], 16, 0, &data);
        }
    }

    /// Stores the register of an exchange with memory, then passes the loaded value on to the register.
    fn exchange_store(&mut self, data: Vec<Resource>) {
        let memory = self.operands.memory.clone();
        if !self.recipe.steps.is_empty() {
            return self.store(&memory.address, memory.size, 0, &data);
        }
        let register = self.operands.sources.clone();
        self.store(&memory.address, memory.size, 0, &register);
        let loaded = self.inputs.first().copied();
        self.to.operations.push(MicroOperation {
            sources: fill(loaded.as_slice()),
            results: fill(&self.operands.results),
            ..eliminated()
        });
    }

    fn store(&mut self, address: &[Resource], size: u16, access: u8, data: &[Resource]) {
        let store = &self.core.store;
        let ports: Ports = match self.operands.vector {
            true => store.vector_data_ports,
            false => store.data_ports,
        };
        let operation = MicroOperation {
            kind: Kind::StoreAddress,
            ports: store.address_ports,
            latency: 0,
            busy: 1,
            sources: fill(address),
            results: fill(&[]),
            access,
            size,
        };
        self.to.operations.push(operation);
        self.to.operations.push(MicroOperation {
            kind: Kind::StoreData,
            ports,
            busy: passes(size, store.bytes),
            sources: fill(data),
            ..operation
        });
    }

    /// Returns whether an index register costs the instruction a slot.
    fn splits(&self, indexed: Indexed) -> bool {
        let memory = &self.operands.memory;
        match indexed {
            Indexed::Fused => false,
            Indexed::ThreeOperands => self.from.code().encoding() != EncodingKind::Legacy,
            Indexed::General => !(self.operands.vector || memory.load && memory.store),
            Indexed::Split => true,
        }
    }

    fn locked(&self) -> bool {
        self.from.has_lock_prefix() || self.class == Class::Exchange && self.operands.memory.store
    }

    /// Returns the places that the instruction takes.
    fn slots(&self) -> u8 {
        let renaming = &self.core.renaming;
        if matches!(self.treatment, Treatment::Constant | Treatment::Renamed) {
            return 1;
        }
        let memory = &self.operands.memory;
        let stack = &self.operands.stack;
        let stores = memory.store || stack.push > 0;
        let loads = memory.load || stack.pop > 0;
        let works = !self.recipe.steps.is_empty();
        let mut slots = self.recipe.slots;
        if loads && stores {
            slots = slots.saturating_add(renaming.write_back_slots);
        }
        if memory.load && memory.indexed && works && self.splits(renaming.indexed) {
            slots = slots.saturating_add(1);
        }
        if memory.store && memory.indexed && self.splits(renaming.indexed_store) {
            slots = slots.saturating_add(1);
        }
        if matches!(self.class, Class::GatherFour | Class::GatherEight) {
            slots = slots.saturating_add(class::elements(self.from) as u8);
        }
        slots.max(1)
    }
}

/// Returns whether an instruction is a string instruction that only moves data.
fn moves_string(class: Class) -> bool {
    matches!(
        class,
        Class::StringMove | Class::StringStore | Class::StringLoad
    )
}

/// Returns how often a port works on an operand of so many bytes.
fn passes(size: u16, width: u32) -> u16 {
    u32::from(size).div_ceil(width).clamp(1, 4) as u16
}

fn non_temporal(instruction: &iced_x86::Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Movnti
            | M::Movntps
            | M::Movntpd
            | M::Movntdq
            | M::Movntq
            | M::Movntss
            | M::Movntsd
            | M::Vmovntps
            | M::Vmovntpd
            | M::Vmovntdq
            | M::Maskmovdqu
            | M::Vmaskmovdqu
            | M::Maskmovq
    )
}

fn flow(instruction: &iced_x86::Instruction, class: Class) -> Flow {
    match class {
        Class::JumpConditional | Class::Loop | Class::JumpCounter => Flow::Conditional,
        Class::Jump => Flow::Jump,
        Class::JumpIndirect => Flow::IndirectJump,
        Class::Call => Flow::Call,
        Class::CallIndirect => Flow::IndirectCall,
        Class::Return => Flow::Return,
        _ if instruction.flow_control() != FlowControl::Next => Flow::System,
        _ if instruction.mnemonic() == Mnemonic::Hlt => Flow::System,
        _ if instruction.is_invalid() => Flow::System,
        _ => Flow::Next,
    }
}

#[cfg(test)]
mod tests;
