//! Runs one instruction on the portable engine, interpreted or translated, in a small flat guest whose user pages lie where the
//! native side has them.

use iced_x86::{FlowControl, Instruction};
use nodescope_engine::{EngineError, Vcpu};
use nodescope_engine_soft::{Activity, SoftVcpu, StepOutcome, Translate};
use nodescope_memory::{LayoutError, Ram};
use nodescope_plugin_api::L0Geometry;
use nodescope_x86::state::seg;
use nodescope_x86::{FxImage, General, VcpuState, Vector, Vector256};

use crate::bare::page::{A, D, NX, P, U, W};
use crate::bare::{self, Bare, PageTables};
use crate::layout::{CODE, CODE_LEN, GS_BASE, PAGE, WINDOW, WINDOW_LEN, WRITABLE_LEN};
use crate::state::{Outcome, State};

/// Guest-physical addresses: page tables, code, window, the routines that touch the window.
const TABLES: u64 = 0x1000;
const CODE_PHYSICAL: u64 = 0x1_0000;
const WINDOW_PHYSICAL: u64 = 0x2_0000;
const ROUTINES_PHYSICAL: u64 = 0x3_0000;
const USED: usize = 0x3_1000;
const RAM: u64 = 2 << 20;

/// Where the routines lie: no instruction under test can reach them.
const ROUTINES: u64 = 0x7000_0000;
/// Offsets of the routines: touch all pages, read at RDI, write at RDI.
const ALL_PAGES: u64 = 0;
const READ_AT: u64 = 0x100;
const WRITE_AT: u64 = 0x140;

/// Code of `jmp $`, an instruction that jumps to itself.
const JUMP_TO_ITSELF: [u8; 2] = [0xeb, 0xfe];

/// Instructions placed after which the vCPU is made anew, so that decoded blocks do not pile up.
const LIFE: u32 = 20_000;

/// A model's first-level cache: 64 sets of 64 bytes.
const GEOMETRY: L0Geometry = L0Geometry {
    line_shift: 6,
    data_slots: 6,
    instruction_slots: 6,
    data_ways: 1,
    instruction_ways: 1,
};

/// Way in which instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    /// By the interpreter.
    Interpreted,
    /// As part of a translated block.
    Translated,
    /// As part of a translated block, while a memory model is attached: the TLB's entries hold lines.
    TranslatedWithModel,
}

/// Contents of the engine's TLB when an instruction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbState {
    /// The pages that an instruction may touch.
    Warm,
    /// Entries that earlier instructions have left.
    Unchanged,
    /// No entry, and no page is translated.
    Cold,
}

/// The engine with its guest.
pub struct Engine {
    vcpu: SoftVcpu,
    ram: Ram,
    base: VcpuState,
    /// Host addresses of code and window.
    code: *mut u8,
    window: *mut u8,
    last: (usize, usize),
    budget: u64,
    age: u32,
    mode: ExecutionMode,
    /// Set when every page has been touched since translations were dropped.
    warm: bool,
    /// Set until the placed instruction has run.
    fresh: bool,
}

impl Engine {
    /// Makes a guest whose window holds these bytes.
    pub fn new(window: &[u8], mode: ExecutionMode) -> Result<Self, LayoutError> {
        assert_eq!(window.len(), WINDOW_LEN);
        let ram = Ram::new(&[RAM])?;
        let mut bytes = vec![0; USED];
        let mut tables = PageTables::new(TABLES);
        let mut map = |linear, entry| tables.map(&mut bytes, linear, entry);
        for offset in (0..CODE_LEN as u64).step_by(PAGE as usize) {
            map(CODE + offset, (CODE_PHYSICAL + offset) | P | U | A | D);
        }
        for offset in (0..WINDOW_LEN as u64).step_by(PAGE as usize) {
            let write = if offset < WRITABLE_LEN as u64 { W } else { 0 };
            map(
                WINDOW + offset,
                (WINDOW_PHYSICAL + offset) | P | U | A | D | NX | write,
            );
        }
        map(ROUTINES, ROUTINES_PHYSICAL | P | U | A | D);
        assert!(tables.end() <= CODE_PHYSICAL);
        for (at, part) in [
            (CODE_PHYSICAL, &[0xcc_u8; CODE_LEN] as &[u8]),
            (WINDOW_PHYSICAL, window),
            (ROUTINES_PHYSICAL + ALL_PAGES, &touch_all_pages()),
            // mov al, [rdi]; then the same and mov [rdi], al
            (ROUTINES_PHYSICAL + READ_AT, &[0x8a, 0x07, 0xeb, 0xfe]),
            (
                ROUTINES_PHYSICAL + WRITE_AT,
                &[0x8a, 0x07, 0x88, 0x07, 0xeb, 0xfe],
            ),
        ] {
            bytes[at as usize..][..part.len()].copy_from_slice(part);
        }
        assert!(ram.write(0, &bytes));
        let host = ram.regions()[0].host;
        // SAFETY: both offsets lie within the region.
        let (code, data) = unsafe {
            (
                host.add(CODE_PHYSICAL as usize),
                host.add(WINDOW_PHYSICAL as usize),
            )
        };
        // 64-bit user mode.
        let mut base = bare::long_mode(bare::flat(0x33, 0xa0fb), bare::flat(0x2b, 0xc0f3), TABLES);
        base.segments.data[seg::GS].base = GS_BASE;
        let mut engine = Self {
            vcpu: bare::vcpu(&ram, Translate::Never),
            base,
            ram,
            code,
            window: data,
            last: (0, 0),
            budget: 1,
            age: 0,
            mode,
            warm: false,
            fresh: false,
        };
        engine.renew();
        Ok(engine)
    }

    /// Replaces the vCPU by a new one.
    fn renew(&mut self) {
        let translate = match self.mode {
            ExecutionMode::Interpreted => Translate::Never,
            ExecutionMode::Translated | ExecutionMode::TranslatedWithModel => Translate::After(0),
        };
        self.vcpu = bare::vcpu(&self.ram, translate);
        if self.mode == ExecutionMode::TranslatedWithModel {
            self.vcpu.attach(Some(GEOMETRY));
        }
        self.age = 0;
        self.cool();
    }

    /// Drops all translations of addresses.
    fn cool(&mut self) {
        self.vcpu.restore(&self.base);
        self.warm = false;
    }

    /// Returns the bytes of the window as they are now.
    pub fn window(&self) -> &[u8] {
        // SAFETY: guest RAM that `self.ram` keeps mapped; written only in `run` and `write`, which borrow `self` mutably.
        unsafe { std::slice::from_raw_parts(self.window, WINDOW_LEN) }
    }

    /// Changes bytes of the window.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let offset = address.wrapping_sub(WINDOW) as usize;
        assert!(offset <= WINDOW_LEN && bytes.len() <= WINDOW_LEN - offset);
        // SAFETY: the range was checked to lie in the window, which holds no code.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.window.add(offset), bytes.len());
        }
    }

    /// Puts an instruction into the code pages.
    pub fn place(&mut self, rip: u64, instruction: &Instruction, bytes: &[u8]) {
        self.age += 1;
        if self.age == LIFE {
            self.renew();
        }
        self.fresh = true;
        let offset = (rip - CODE) as usize;
        // The instruction, then a jump to itself: together they are a block, whose execution as a whole may be translated and
        // ends where the instruction ends. A branch is a block of its own.
        let mut code = [0xcc; 17];
        code[..bytes.len()].copy_from_slice(bytes);
        let mut len = bytes.len();
        self.budget = 1;
        if self.mode != ExecutionMode::Interpreted
            && instruction.flow_control() == FlowControl::Next
        {
            code[len..len + 2].copy_from_slice(&JUMP_TO_ITSELF);
            len += 2;
            self.budget = 2;
        }
        let len = len.min(CODE_LEN - offset);
        let at = |offset: usize| CODE_PHYSICAL + offset as u64;
        let (last, last_len) = self.last;
        assert!(self.ram.write(at(last), &[0xcc; 17][..last_len]));
        assert!(self.ram.write(at(offset), &code[..len]));
        self.last = (offset, len);
    }

    /// Brings the TLB into the state that a case requires; `operand` is an address that the instruction touches.
    pub fn prepare(&mut self, tlb: TlbState, operand: Option<u64>) -> Result<(), EngineError> {
        match tlb {
            TlbState::Cold => self.cool(),
            TlbState::Unchanged => {}
            TlbState::Warm => {
                if !self.warm {
                    // Seven accesses and the jump.
                    self.routine(ALL_PAGES, 0, 8)?;
                    self.warm = true;
                }
                let offset = operand.unwrap_or_default().wrapping_sub(WINDOW);
                if self.mode == ExecutionMode::TranslatedWithModel && offset < WINDOW_LEN as u64 {
                    let at = WINDOW + offset;
                    if offset < WRITABLE_LEN as u64 {
                        self.routine(WRITE_AT, at, 3)?;
                    } else {
                        self.routine(READ_AT, at, 2)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn routine(&mut self, offset: u64, rdi: u64, instructions: u64) -> Result<(), EngineError> {
        let mut general = General {
            rip: ROUTINES + offset,
            rflags: 0x202,
            ..General::default()
        };
        general.gpr[7] = rdi;
        self.vcpu
            .set_user_registers(&general, &FxImage::default(), &Vector256::default());
        let outcome = self
            .vcpu
            .run_undelivered(&mut Bare::default(), instructions)?;
        assert_eq!(outcome, StepOutcome::Retired);
        Ok(())
    }

    /// Runs the instruction that was placed at `state.rip`.
    pub fn run(&mut self, state: &State) -> Result<Outcome, EngineError> {
        let general = General {
            gpr: state.gpr,
            rip: state.rip,
            rflags: state.rflags,
        };
        self.vcpu
            .set_user_registers(&general, &state.fx, &state.vector);
        // Decoding forbids writes, so that code is seen to change.
        self.warm &= !std::mem::take(&mut self.fresh);
        let mut machine = Bare::default();
        let mut exception = None;
        // A REP instruction may take several steps; until it is done the instruction pointer stays.
        for _ in 0..1000 {
            match self.vcpu.run_undelivered(&mut machine, self.budget)? {
                StepOutcome::Retired | StepOutcome::Halted => {}
                StepOutcome::Exception(e) => {
                    exception = Some(e);
                    if e.vector != Vector::PageFault {
                        exception = Some(nodescope_x86::Exception { address: 0, ..e });
                    }
                    break;
                }
            }
            if self.vcpu.user_registers().0.rip != state.rip {
                break;
            }
        }
        let (general, fx, vector) = self.vcpu.user_registers();
        Ok(Outcome {
            exception,
            state: State {
                gpr: general.gpr,
                rip: general.rip,
                rflags: general.rflags,
                fx: *fx,
                vector: *vector,
            },
        })
    }

    /// Returns the counts of translated code since the vCPU was made.
    pub fn activity(&self) -> Activity {
        self.vcpu.activity()
    }

    /// Returns the bytes of the code pages, for tests of the harness.
    pub fn code(&self) -> &[u8] {
        // SAFETY: as in `window`.
        unsafe { std::slice::from_raw_parts(self.code, CODE_LEN) }
    }
}

/// Returns code that fills the TLB with all pages of the window. The code reads each page, and writes the byte back where the page can be
/// written.
fn touch_all_pages() -> Vec<u8> {
    let mut code = Vec::new();
    for offset in (0..WINDOW_LEN as u64).step_by(PAGE as usize) {
        let address = ((WINDOW + offset) as u32).to_le_bytes();
        // mov al, [address]
        code.extend([0x8a, 0x04, 0x25]);
        code.extend(address);
        if offset < WRITABLE_LEN as u64 {
            // mov [address], al
            code.extend([0x88, 0x04, 0x25]);
            code.extend(address);
        }
    }
    code.extend(JUMP_TO_ITSELF);
    code
}
