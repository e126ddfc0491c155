//! Runs one instruction on the portable engine, interpreted or translated, in a small flat guest whose user pages lie where the native side has them.

use nodescope_engine::{
    EngineError, GuestVirtual, Hypercall, HypercallAnswer, MsrFault, Platform, Vcpu,
};
use nodescope_engine_soft::vcpu::{SoftConfig, SoftVcpu, StepOutcome, Translate};
use nodescope_memory::{LayoutError, Ram};
use nodescope_plugin_api::{Context, Counters, FilterUpdate, MemRef, Outcome as Answer, Privilege};
use nodescope_x86::state::seg;
use nodescope_x86::{CpuidTable, Segment, VcpuState, Vector};

use iced_x86::{FlowControl, Instruction};

use crate::layout::{CODE, CODE_LEN, GS_BASE, PAGE, WINDOW, WINDOW_LEN, WRITABLE_LEN};
use crate::state::{Outcome, State};

/// Guest-physical addresses: page tables, code, window.
const TABLES: u64 = 0x1000;
const CODE_PHYSICAL: u64 = 0x1_0000;
const WINDOW_PHYSICAL: u64 = 0x2_0000;
const RAM: u64 = 2 << 20;

/// Page table bits (SDM vol. 3A §4.5): present, writable, user, accessed, dirty, no execute.
const P: u64 = 1;
const W: u64 = 2;
const U: u64 = 4;
const A: u64 = 0x20;
const D: u64 = 0x40;
const NX: u64 = 1 << 63;

/// `jmp $`
const JUMP_TO_ITSELF: [u8; 2] = [0xeb, 0xfe];

/// Cases after which the vCPU is made anew, so that decoded blocks do not pile up.
const LIFE: u32 = 20_000;

/// The engine with its guest.
pub struct Engine {
    vcpu: SoftVcpu,
    ram: Ram,
    base: VcpuState,
    /// Host addresses of code and window.
    code: *mut u8,
    window: *mut u8,
    last: (usize, usize),
    age: u32,
    translate: Translate,
    /// Instructions that were executed as part of a translated block.
    translated: u64,
}

fn config(ram: &Ram, translate: Translate) -> SoftConfig {
    SoftConfig {
        id: 0,
        ram: ram.clone(),
        cpuid: CpuidTable::default(),
        cpi: 1 << 16,
        seed: 1,
        translate,
    }
}

impl Engine {
    /// A guest whose window holds these bytes; with `Translate::After(0)` each instruction runs as part of a translated
    /// block.
    pub fn new(window: &[u8], translate: Translate) -> Result<Self, LayoutError> {
        assert_eq!(window.len(), WINDOW_LEN);
        let ram = Ram::new(&[RAM])?;
        let mut next = TABLES + PAGE;
        let put = |at: u64, value: u64| assert!(ram.write(at, &value.to_le_bytes()));
        let mut map = |linear: u64, physical: u64, bits: u64| {
            let mut table = TABLES;
            for shift in [39, 30, 21] {
                let at = table + (linear >> shift & 511) * 8;
                let mut entry = [0; 8];
                assert!(ram.read(at, &mut entry));
                let mut entry = u64::from_le_bytes(entry);
                if entry == 0 {
                    entry = next | P | W | U | A;
                    next += PAGE;
                    put(at, entry);
                }
                table = entry & 0x000f_ffff_ffff_f000;
            }
            put(table + (linear >> 12 & 511) * 8, physical | bits);
        };
        for offset in (0..CODE_LEN as u64).step_by(PAGE as usize) {
            map(CODE + offset, CODE_PHYSICAL + offset, P | U | A | D);
        }
        for offset in (0..WINDOW_LEN as u64).step_by(PAGE as usize) {
            let write = if offset < WRITABLE_LEN as u64 { W } else { 0 };
            map(
                WINDOW + offset,
                WINDOW_PHYSICAL + offset,
                P | U | A | D | NX | write,
            );
        }
        assert!(ram.write(CODE_PHYSICAL, &[0xcc; CODE_LEN]));
        assert!(ram.write(WINDOW_PHYSICAL, window));
        let host = ram.regions()[0].host;
        // SAFETY: both offsets lie within the region.
        let (code, data) = unsafe {
            (
                host.add(CODE_PHYSICAL as usize),
                host.add(WINDOW_PHYSICAL as usize),
            )
        };
        Ok(Self {
            vcpu: SoftVcpu::new(config(&ram, translate)),
            base: base_state(),
            ram,
            code,
            window: data,
            last: (0, 0),
            age: 0,
            translate,
            translated: 0,
        })
    }

    /// Bytes of the window as they are now.
    pub fn window(&self) -> &[u8] {
        // SAFETY: guest RAM that `self.ram` keeps mapped; written only in `run` and `write`, which borrow `self` mutably.
        unsafe { std::slice::from_raw_parts(self.window, WINDOW_LEN) }
    }

    /// Change bytes of the window.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let offset = address.wrapping_sub(WINDOW) as usize;
        assert!(offset <= WINDOW_LEN && bytes.len() <= WINDOW_LEN - offset);
        // SAFETY: the range was checked to lie in the window, which holds no code.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.window.add(offset), bytes.len());
        }
    }

    /// Run the instruction `bytes`, placed at `state.rip`.
    pub fn run(
        &mut self,
        state: &State,
        instruction: &Instruction,
        bytes: &[u8],
    ) -> Result<Outcome, EngineError> {
        self.age += 1;
        if self.age == LIFE {
            self.age = 0;
            self.vcpu = SoftVcpu::new(config(&self.ram, self.translate));
        }
        let offset = (state.rip - CODE) as usize;
        // The instruction, then a jump to itself: together they are a block, whose execution as a whole may be translated and
        // ends where the instruction ends. A branch is a block of its own.
        let ends_block = instruction.flow_control() != FlowControl::Next;
        let mut code = [0xcc; 17];
        code[..bytes.len()].copy_from_slice(bytes);
        let mut len = bytes.len();
        let mut budget = 1;
        if self.translate != Translate::Never && !ends_block {
            code[len..len + 2].copy_from_slice(&JUMP_TO_ITSELF);
            len += 2;
            budget = 2;
        }
        let len = len.min(CODE_LEN - offset);
        let at = |offset: usize| CODE_PHYSICAL + offset as u64;
        let (last, last_len) = self.last;
        assert!(self.ram.write(at(last), &[0xcc; 17][..last_len]));
        assert!(self.ram.write(at(offset), &code[..len]));
        self.last = (offset, len);
        let mut s = self.base.clone();
        s.general.gpr = state.gpr;
        s.general.rip = state.rip;
        s.general.rflags = state.rflags;
        s.fx = state.fx;
        s.vector = state.vector;
        self.vcpu.restore(&s);
        let mut exception = None;
        let translations = self.vcpu.translations();
        // A REP instruction may take several steps; until it is done the instruction pointer stays.
        for _ in 0..1000 {
            match self.vcpu.run_undelivered(&mut Nothing, budget)? {
                StepOutcome::Retired | StepOutcome::Halted => {}
                StepOutcome::Exception(e) => {
                    exception = Some(e);
                    if e.vector != Vector::PageFault {
                        exception = Some(nodescope_x86::Exception { address: 0, ..e });
                    }
                    break;
                }
            }
            let after = self.vcpu.save();
            if after.general.rip != state.rip {
                break;
            }
        }
        let after = self.vcpu.save();
        self.translated += u64::from(self.vcpu.translations() > translations);
        Ok(Outcome {
            exception,
            state: State {
                gpr: after.general.gpr,
                rip: after.general.rip,
                rflags: after.general.rflags,
                fx: after.fx,
                vector: after.vector,
            },
        })
    }

    /// Cases in which a block was translated and run so.
    pub fn translated(&self) -> u64 {
        self.translated
    }

    /// Bytes of the code pages, for tests of the harness.
    pub fn code(&self) -> &[u8] {
        // SAFETY: as in `window`.
        unsafe { std::slice::from_raw_parts(self.code, CODE_LEN) }
    }
}

/// 64-bit user mode under an operating system that enables what Linux enables.
fn base_state() -> VcpuState {
    let mut s = VcpuState::reset();
    let data = |selector, attributes| Segment {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes,
        unusable: false,
    };
    s.segments.data = [data(0x2b, 0xc0f3); 6];
    s.segments.data[seg::CS] = data(0x33, 0xa0fb);
    s.segments.data[seg::GS].base = GS_BASE;
    // PE, MP, ET, NE, WP, AM, PG.
    s.control.cr0 = 0x8005_0033;
    s.control.cr3 = TABLES;
    // PAE, PGE, OSFXSR, OSXMMEXCPT, FSGSBASE, OSXSAVE.
    s.control.cr4 = 0x0005_06a0 | 1 << 16;
    // SCE, LME, LMA, NXE.
    s.control.efer = 0xd01;
    s.control.xcr0 = 7;
    s
}

/// A machine without anything.
struct Nothing;

impl Platform for Nothing {
    fn port_read(&mut self, _: u16, _: u64, _: u16, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn port_write(&mut self, _: u16, _: u64, _: u16, _: &[u8]) {}
    fn mmio_read(&mut self, _: u16, _: u64, _: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn mmio_write(&mut self, _: u16, _: u64, _: u64, _: &[u8]) {}
    fn msr_read(&mut self, _: u16, _: u64, _: u32) -> Result<u64, MsrFault> {
        Err(MsrFault)
    }
    fn msr_write(&mut self, _: u16, _: u64, _: u32, _: u64) -> Result<(), MsrFault> {
        Err(MsrFault)
    }
    fn tsc_offset_changed(&mut self, _: u16, _: u64, _: u64) {}
    fn task_priority(&mut self, _: u16) -> u8 {
        0
    }
    fn set_task_priority(&mut self, _: u16, _: u64, _: u8) {}
    fn interrupt_pending(&mut self, _: u16, _: u64) -> bool {
        false
    }
    fn acknowledge(&mut self, _: u16, _: u64) -> Option<u8> {
        None
    }
    fn next_event(&mut self, _: u16) -> u64 {
        u64::MAX
    }
    fn attention(&mut self) -> bool {
        false
    }
    fn hypercall(&mut self, _: &Hypercall, _: &mut dyn GuestVirtual) -> HypercallAnswer {
        HypercallAnswer::default()
    }
    fn context(&mut self, _: u16, _: u64) -> Context {
        Context::default()
    }
    fn reference(&mut self, _: &MemRef, _: &mut Vec<FilterUpdate>) -> Answer {
        unreachable!("no model is attached")
    }
    fn account(&mut self, _: u16, _: Context, _: Privilege, _: &Counters) {}
}
