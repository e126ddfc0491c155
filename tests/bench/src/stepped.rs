//! Counts the basic blocks that a function of this process executes: a forked child executes the function step by step under ptrace.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use nodescope_plugin_core::Block;

/// Maximum number of instructions of a block, as in the portable engine.
const LONGEST: u32 = 48;
const PAGE: u64 = 4096;
/// Number of steps after which the function counts as hung.
const PATIENCE: u64 = 20_000_000;

/// Counts the blocks of one call. Blocks end as in the portable engine: at branches, at the ends of pages, and after 48 instructions.
pub fn blocks(function: extern "C" fn(i64), argument: i64) -> io::Result<Vec<Block>> {
    let entry = function as usize as u64;
    // SAFETY: the child only makes system calls and calls the function, which takes no locks.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: this process is the child. TRACEME and raise take no pointers, and _exit does not return.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                libc::_exit(1);
            }
            libc::raise(libc::SIGSTOP);
            function(argument);
            libc::_exit(0);
        }
    }
    let child = Child(child);
    let code = File::open("/proc/self/mem")?;
    let mut counter = Counter::new(&code);
    // Value of the stack pointer after the function's return. None: the function was not entered yet.
    let mut caller = None;
    for _ in 0..PATIENCE {
        if !child.stopped()? {
            return Err(io::Error::other(
                "the function ended the process, or the process may not be traced",
            ));
        }
        let registers = child.registers()?;
        match caller {
            None if registers.rip == entry => caller = Some(registers.rsp + 8),
            Some(stack) if registers.rsp == stack => return Ok(counter.finish()),
            _ => {}
        }
        if caller.is_some() {
            counter.step(registers.rip)?;
        }
        child.step()?;
    }
    Err(io::Error::other("the function takes too many steps"))
}

/// A traced process, which is killed when this value is dropped.
struct Child(libc::pid_t);

impl Child {
    /// Waits until the process stops; returns false if the process has ended.
    fn stopped(&self) -> io::Result<bool> {
        let mut status = 0;
        // SAFETY: `status` is valid for the call to write.
        if unsafe { libc::waitpid(self.0, &raw mut status, 0) } != self.0 {
            return Err(io::Error::last_os_error());
        }
        Ok(libc::WIFSTOPPED(status))
    }

    fn registers(&self) -> io::Result<libc::user_regs_struct> {
        // SAFETY: the structure consists of integers, for which zero is valid.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: `registers` is valid for GETREGS to write.
        let failed = unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.0, 0, &raw mut registers) };
        checked(failed).map(|()| registers)
    }

    fn step(&self) -> io::Result<()> {
        // SAFETY: SINGLESTEP takes no pointers.
        checked(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.0, 0, 0) })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: the process is a child of this process, and `status` is valid for the call to write.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, &raw mut status, 0);
        }
    }
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

struct Counter<'a> {
    code: &'a File,
    decoded: BTreeMap<u64, Instruction>,
    blocks: BTreeMap<(u64, u32), Block>,
    /// The block in progress: address of its first instruction, address of its next instruction, and number of instructions so far.
    open: Option<(u64, u64, u32)>,
}

impl<'a> Counter<'a> {
    fn new(code: &'a File) -> Self {
        Self {
            code,
            decoded: BTreeMap::new(),
            blocks: BTreeMap::new(),
            open: None,
        }
    }

    fn step(&mut self, at: u64) -> io::Result<()> {
        let instruction = self.decode(at)?;
        let first = match self.open {
            Some((first, next, count))
                if next == at && count < LONGEST && first / PAGE == at / PAGE =>
            {
                self.open = Some((first, instruction.next_ip(), count + 1));
                first
            }
            _ => {
                self.close()?;
                self.open = Some((at, instruction.next_ip(), 1));
                at
            }
        };
        debug_assert!(first <= at);
        if instruction.flow_control() != FlowControl::Next {
            self.close()?;
        }
        Ok(())
    }

    fn decode(&mut self, at: u64) -> io::Result<Instruction> {
        if let Some(known) = self.decoded.get(&at) {
            return Ok(*known);
        }
        let mut bytes = [0; 15];
        // The mapping may end within the 15 bytes.
        let length = self.code.read_at(&mut bytes, at)?;
        let instruction = Decoder::with_ip(64, &bytes[..length], at, DecoderOptions::NONE).decode();
        self.decoded.insert(at, instruction);
        Ok(instruction)
    }

    fn close(&mut self) -> io::Result<()> {
        let Some((address, next, instructions)) = self.open.take() else {
            return Ok(());
        };
        if let Some(block) = self.blocks.get_mut(&(address, instructions)) {
            block.executions += 1;
            return Ok(());
        }
        let mut bytes = vec![0; (next - address) as usize];
        self.code.read_exact_at(&mut bytes, address)?;
        let block = Block {
            address,
            bytes,
            executions: 1,
            instructions,
        };
        self.blocks.insert((address, instructions), block);
        Ok(())
    }

    fn finish(self) -> Vec<Block> {
        self.blocks.into_values().collect()
    }
}
