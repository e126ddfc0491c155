//! Runs one instruction on the portable engine, interpreted or translated. The guest is small and flat, and its user pages have the same
//! linear addresses as on the native side.

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

/// Guest-physical address of the page tables. The constants below are those of the code, the window and the routines that access the
/// window; the first byte behind them; and the size of RAM in bytes.
const TABLES: u64 = 0x1000;
const CODE_PHYSICAL: u64 = 0x1_0000;
const WINDOW_PHYSICAL: u64 = 0x2_0000;
const ROUTINES_PHYSICAL: u64 = 0x3_0000;
const USED: usize = 0x3_1000;
const RAM: u64 = 2 << 20;

/// Linear address of the routines; no instruction under test can reach it.
const ROUTINES: u64 = 0x7000_0000;
/// Offset from `ROUTINES` of the routine that accesses all pages of the window. `READ_AT` is that of the routine that reads at RDI,
/// `WRITE_AT` of the one that also writes there.
const ALL_PAGES: u64 = 0;
const READ_AT: u64 = 0x100;
const WRITE_AT: u64 = 0x140;

/// Code of `jmp $`, an instruction that jumps to itself.
const JUMP_TO_ITSELF: [u8; 2] = [0xeb, 0xfe];

/// Number of placed instructions after which the vCPU is replaced, so that decoded blocks do not accumulate.
const LIFE: u32 = 20_000;

/// L0 geometry of a model whose first-level cache has 64 sets of one line of 64 bytes.
const GEOMETRY: L0Geometry = L0Geometry {
    line_shift: 6,
    data_slots: 6,
    instruction_slots: 6,
    data_ways: 1,
    instruction_ways: 1,
    page_sizes: false,
};

/// How the engine executes instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    /// The interpreter executes the instruction.
    Interpreted,
    /// The instruction is part of a translated block.
    Translated,
    /// The instruction is part of a translated block, with a memory model attached: entries of the TLB are cache lines.
    TranslatedWithModel,
}

/// Contents of the softmmu TLB before the instruction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbState {
    /// The TLB has all pages of the window; with a memory model, it has the cache line of the operand.
    Warm,
    /// The TLB has the entries that earlier instructions have left.
    Unchanged,
    /// The TLB and the page-walk cache are empty.
    Cold,
}

/// The portable engine with a guest.
pub struct Engine {
    vcpu: SoftVcpu,
    ram: Ram,
    base: VcpuState,
    /// Host address of the code pages; `window` is that of the window's pages.
    code: *mut u8,
    window: *mut u8,
    last: (usize, usize),
    budget: u64,
    age: u32,
    mode: ExecutionMode,
    /// True if the TLB has every page of the window.
    warm: bool,
    /// True until the placed instruction has run.
    fresh: bool,
}

impl Engine {
    /// Makes a guest whose window has the bytes `window`.
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
            // mov al, [rdi]; the second routine also has mov [rdi], al
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

    /// Replaces the vCPU with a new one.
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

    /// Drops all address translations.
    fn cool(&mut self) {
        self.vcpu.restore(&self.base);
        self.warm = false;
    }

    /// Returns the present bytes of the window.
    pub fn window(&self) -> &[u8] {
        // SAFETY: `self.ram` keeps the guest's RAM mapped. The window is written only in `run`, `prepare` and `write`, which borrow `self`
        // mutably.
        unsafe { std::slice::from_raw_parts(self.window, WINDOW_LEN) }
    }

    /// Writes bytes into the window.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let offset = address.wrapping_sub(WINDOW) as usize;
        assert!(offset <= WINDOW_LEN && bytes.len() <= WINDOW_LEN - offset);
        // SAFETY: the range is inside the window, as checked above. The window contains no code.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.window.add(offset), bytes.len());
        }
    }

    /// Writes an instruction into the code pages, in place of the instruction that was placed before.
    pub fn place(&mut self, rip: u64, instruction: &Instruction, bytes: &[u8]) {
        self.age += 1;
        if self.age == LIFE {
            self.renew();
        }
        self.fresh = true;
        let offset = (rip - CODE) as usize;
        // The instruction and a jump to itself form one block, which may be translated as a whole. The block ends right after the
        // instruction. A branch is a block of its own.
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

    /// Brings the TLB into the state that a case requires. `operand` is an address that the instruction accesses.
    pub fn prepare(&mut self, tlb: TlbState, operand: Option<u64>) -> Result<(), EngineError> {
        match tlb {
            TlbState::Cold => self.cool(),
            TlbState::Unchanged => {}
            TlbState::Warm => {
                if !self.warm {
                    // The budget is seven accesses and the jump.
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
        // Decoding write-protects the page of the code in the TLB, so that changes of the code are detected.
        self.warm &= !std::mem::take(&mut self.fresh);
        let mut machine = Bare::default();
        let mut exception = None;
        // A REP instruction may take several steps; until the last one RIP does not change.
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

    /// Returns the bytes of the code pages, for tests of the test harness.
    pub fn code(&self) -> &[u8] {
        // SAFETY: `self.ram` keeps the guest's RAM mapped. The code pages are written only in functions that borrow `self` mutably.
        unsafe { std::slice::from_raw_parts(self.code, CODE_LEN) }
    }
}

/// Returns code that loads all pages of the window into the TLB. The code reads a byte of each page, and writes the byte back if the page
/// is writable.
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
