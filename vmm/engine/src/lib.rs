//! The engine interface: the traits between an engine and the node around it.
//!
//! An engine runs one vCPU ([`Vcpu`]) and asks the machine for everything outside it through [`Platform`]. Engines do not
//! know devices; devices do not know engines.

mod error;
mod platform;

pub use error::{EngineError, StopReport};
pub use platform::{
    GuestVirtual, Hypercall, HypercallAnswer, MemoryFault, MsrFault, Platform, UndefinedInstruction,
};

use std::sync::Arc;

use nodescope_plugin_api::{BlockProfile, Context, L0Geometry, L0Update, ProfiledBlock};
use nodescope_x86::VcpuState;
use serde::{Deserialize, Serialize};

/// Reason why a vCPU returned to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The clock or the number of instructions reached the limit.
    Limit,
    /// The vCPU waits: it executed HLT and has no interrupt to take, or waits for a start-up IPI. After HLT, the clock shows the time of
    /// HLT.
    Halted,
    /// The platform asked for attention during an access (`Platform::attention`).
    Attention,
    /// A triple fault shut the vCPU down.
    Shutdown,
}

/// Limit of a vCPU's run. Both bounds are absolute. The bound in cycles is checked where the engine reads the clock, so that the vCPU stops
/// soon after its clock has reached it (the portable engine at the beginning of basic blocks, which have 48 instructions at most). The vCPU
/// stops exactly at the bound in instructions, which only the portable engine supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bound on the vCPU's clock, in cycles since power-on; `u64::MAX` for none.
    pub cycles: u64,
    /// Bound on the instructions retired since power-on; `u64::MAX` for none.
    pub instructions: u64,
    /// True if the bound in cycles may be extended: see [`Platform::extend`].
    pub extends: bool,
}

impl Limit {
    /// Returns a limit in cycles: the vCPU runs until its clock shows `cycles`.
    pub fn cycles(cycles: u64) -> Self {
        Self {
            cycles,
            instructions: u64::MAX,
            extends: false,
        }
    }
    /// Returns a limit in instructions: the vCPU runs until `instructions` have been retired since power-on.
    pub fn instructions(instructions: u64) -> Self {
        Self {
            cycles: u64::MAX,
            instructions,
            extends: false,
        }
    }
}

/// Numbers that windows have given to code so far. Later windows of the node continue with these numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeNumbers {
    /// Blocks in the order of their numbers, from number 0.
    pub blocks: Vec<ProfiledBlock>,
    /// Contexts that have records, each with the index of its vCPU. The context whose records were made last comes last.
    pub contexts: Vec<(u16, Context)>,
    /// How often a block got no number of its own, because the engine's limit of blocks was reached; a block may count several times.
    pub lost_blocks: u64,
    /// How often a context got no records of its own, because the engine's limit of records was reached; a context may count several times.
    pub lost_contexts: u64,
}

/// What one execution of a block costs.
#[derive(Clone, Copy, Debug)]
pub struct CodeCost<'a> {
    /// The block. Blocks of equal bytes at equal offsets within their pages have equal costs.
    pub block: &'a ProfiledBlock,
    /// Cost in sixteenths of a cycle.
    pub sixteenths: u64,
}

/// The block that a vCPU runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextBlock {
    /// Number of the block ([`nodescope_plugin_api::Site::block`]); 0 if it has none.
    pub number: u32,
    /// True if [`Vcpu::set_code_costs`] has set its cost.
    pub has_cost: bool,
}

/// Handle that makes a vCPU on another thread check its interrupts and [`Platform::attention`] soon.
pub trait Kicker: Send + Sync {
    /// Kicks the vCPU. Does nothing where the vCPU does not run.
    fn kick(&self);
}

/// A virtual CPU, executed by an engine.
pub trait Vcpu: Send {
    /// Runs the vCPU until a reason of [`Exit`] arises, such as `limit`. Interrupts that the platform has pending are taken at instruction
    /// boundaries, where the engine reads the clock.
    fn run(&mut self, platform: &mut dyn Platform, limit: Limit) -> Result<Exit, EngineError>;

    /// Returns the vCPU's clock in cycles since power-on.
    fn cycles(&self) -> u64;

    /// Lets the clock jump forward to `cycles` without executing (idle time, or time taken by the platform).
    fn advance_to(&mut self, cycles: u64);

    /// Returns the instructions retired since power-on.
    fn instructions(&self) -> u64;

    /// Returns the kicker that makes this running vCPU check its interrupts. An engine has a kicker if each of its vCPUs runs on a thread
    /// of its own, in parallel with the others of the node. None for other engines.
    fn kicker(&self) -> Option<Arc<dyn Kicker>> {
        None
    }

    /// Brings the vCPU to a point where [`Vcpu::save`] finds its whole state: events that are being delivered are not part of a state.
    fn synchronize(&mut self, platform: &mut dyn Platform) -> Result<(), EngineError> {
        let _ = platform;
        Ok(())
    }

    /// Hands a restored state to the processor, and reads the state back. Fails where both differ.
    fn check_restored(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Copies all state out.
    fn save(&self) -> VcpuState;

    /// Loads all state.
    fn restore(&mut self, state: &VcpuState);

    /// Attributes counts to basic blocks from the next [`Vcpu::attach`] on, or stops doing so if `on` is false.
    fn attribute_to_code(&mut self, on: bool) {
        let _ = on;
    }

    /// Forgets the counts by basic block of all vCPUs that share code with this one.
    fn forget_block_profile(&mut self) {}

    /// Takes the counts by basic block of all vCPUs that share code with this one. None where nothing is attributed to code.
    fn take_block_profile(&mut self) -> Option<BlockProfile> {
        None
    }

    /// Returns the numbers that windows have given to the code of all vCPUs that share code with this one.
    fn code_numbers(&self) -> CodeNumbers {
        CodeNumbers::default()
    }

    /// Restores these numbers, before anything is attributed to code. Returns false if there are more numbers than the engine supports.
    fn restore_code_numbers(&mut self, numbers: CodeNumbers) -> bool {
        numbers == CodeNumbers::default()
    }

    /// Attaches a model whose L0 filter cache has this geometry, or detaches the model (None). Counting starts or stops at the same time.
    fn attach(&mut self, geometry: Option<L0Geometry>);

    /// Detaches the model, which [`Vcpu::resume`] attaches again: the plan of recordings and the numbers of code stay.
    fn pause(&mut self) {
        self.attach(None);
        self.attribute_to_code(false);
    }

    /// Attaches the model again after [`Vcpu::pause`], and attributes counts to code.
    fn resume(&mut self, geometry: L0Geometry) {
        self.attribute_to_code(true);
        self.attach(Some(geometry));
    }

    /// Sets costs of code, for all vCPUs that share code with this one. Clocks advance by these costs while no model is attached, if the
    /// engine was made for that.
    fn set_code_costs(&mut self, costs: &[CodeCost<'_>]) {
        let _ = costs;
    }

    /// Returns the block at the instruction pointer. None if its first instruction cannot be fetched, or the engine has no blocks.
    fn next_block(&mut self, platform: &mut dyn Platform) -> Option<NextBlock> {
        let _ = platform;
        None
    }

    /// Lets the next recording for a model of the core begin at once, if recordings are planned.
    fn record_soon(&mut self) {}

    /// Gives all code its nominal cost again.
    fn forget_code_costs(&mut self) {}

    /// Applies changes that a model made to this vCPU's L0 filter cache while another vCPU ran.
    fn update_l0(&mut self, updates: &[L0Update]);

    /// Passes the counters gathered since the last such call to [`Platform::account`].
    fn flush_counters(&mut self, platform: &mut dyn Platform);
}
