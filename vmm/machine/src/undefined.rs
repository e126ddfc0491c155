//! Note about an instruction of a user program that raises `#UD`: which program, where, which instruction, and why.

use std::fmt::Write;

use nodescope_engine::{GuestVirtual, UndefinedInstruction};

const PAGE: u64 = 4096;
/// Pages above the stack pointer among which the end of the stack is looked for: 8 MiB, Linux's limit of a stack.
const STACK_PAGES: u64 = 2048;
/// Pages below the instruction among which the module's first page is looked for: 64 MiB.
const MODULE_PAGES: u64 = 16_384;
/// Maximum length of a program's path that is shown, bytes.
const PATH_BYTES: usize = 256;

/// Returns the note. `memory` is the program's.
pub(crate) fn text(instruction: &UndefinedInstruction, memory: &mut dyn GuestVirtual) -> String {
    let program = match program(instruction.stack, memory) {
        Some(path) => format!("the program {path}"),
        None => "a program".to_owned(),
    };
    let address = instruction.address;
    let mut text = format!("{program} executed at {address:#x}");
    // Writing to a String cannot fail.
    if let Some(offset) = in_module(address, memory) {
        let _ = write!(text, " (its file's address {offset:#x})");
    }
    let bytes: Vec<String> = instruction
        .bytes
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let bytes = bytes.join(" ");
    let _ = match (&instruction.text, &instruction.feature) {
        (Some(shown), Some((_, feature))) => write!(
            text,
            " the instruction {shown} ({bytes}), which needs {feature}; the guests' processors do not have {feature}, so that the program gets SIGILL: build it for x86-64-v3 (gcc -march=x86-64-v3), or let it choose its code by CPUID"
        ),
        (Some(shown), None) => write!(
            text,
            " the instruction {shown} ({bytes}), which raises an invalid-opcode exception, so that the program gets SIGILL"
        ),
        (None, _) => write!(
            text,
            " bytes that are no instruction ({bytes}), so that the program gets SIGILL"
        ),
    };
    text
}

/// Finds the path by which a program was started. Linux puts the path at the end of the program's first stack, before 8 bytes of zeros
/// (fs/exec.c, `bprm->exec`). Returns `None` for a thread with another stack.
fn program(stack: u64, memory: &mut dyn GuestVirtual) -> Option<String> {
    // User addresses of Linux have 47 bits.
    let first = (stack < 1 << 47).then_some(stack / PAGE)?;
    let mut there = false;
    for page in first..first + STACK_PAGES {
        let mut byte = [0];
        let is = memory.read(page * PAGE, &mut byte).is_ok();
        if there
            && !is
            && let Some(path) = path_before(page * PAGE, memory)
        {
            return Some(path);
        }
        there = is;
    }
    None
}

/// Returns the path that ends before the 8 bytes of zeros that end at an address.
fn path_before(end: u64, memory: &mut dyn GuestVirtual) -> Option<String> {
    let mut bytes = [0; PATH_BYTES + 9];
    memory.read(end - bytes.len() as u64, &mut bytes).ok()?;
    let (text, zeros) = bytes.split_at(bytes.len() - 8);
    let (last, text) = text.split_last()?;
    let start = text.iter().rposition(|&byte| byte == 0)? + 1;
    let path = std::str::from_utf8(&text[start..]).ok()?;
    let is_path = *last == 0
        && zeros.iter().all(|&byte| byte == 0)
        && !path.is_empty()
        && !path.chars().any(char::is_control);
    is_path.then(|| path.to_owned())
}

/// Returns the address of code as the code's ELF file has it: relative to the file's first page, unless the file is linked to fixed
/// addresses. Returns `None` where the first page is not in memory.
fn in_module(address: u64, memory: &mut dyn GuestVirtual) -> Option<u64> {
    let last = address / PAGE;
    for page in (last.saturating_sub(MODULE_PAGES)..=last).rev() {
        let mut header = [0; 18];
        if memory.read(page * PAGE, &mut header).is_ok() && header.starts_with(b"\x7fELF") {
            const FIXED: [u8; 2] = [2, 0];
            return Some(match header[16..] == FIXED {
                true => address,
                false => address - page * PAGE,
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_engine::MemoryFault;

    /// Pages of a program: addresses and contents.
    struct Pages(Vec<(u64, Vec<u8>)>);

    impl GuestVirtual for Pages {
        fn read(&mut self, address: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
            for (at, byte) in (address..).zip(buf) {
                let page = self.0.iter().find(|(start, _)| at / PAGE * PAGE == *start);
                let page = page.ok_or(MemoryFault { address: at })?;
                *byte = page.1[(at % PAGE) as usize];
            }
            Ok(())
        }
        fn write(&mut self, address: u64, _: &[u8]) -> Result<(), MemoryFault> {
            Err(MemoryFault { address })
        }
    }

    fn page(at_end: &[u8]) -> Vec<u8> {
        let mut page = vec![0; PAGE as usize - at_end.len()];
        page.extend(at_end);
        page
    }

    fn instruction() -> UndefinedInstruction {
        UndefinedInstruction {
            vcpu: 0,
            address: 0x55_5555_5151,
            stack: 0x7fff_ffff_d123,
            bytes: vec![0x62, 0xf1],
            text: Some("vaddpd %zmm1,%zmm2,%zmm3".into()),
            feature: Some((3, "AVX512F".into())),
        }
    }

    #[test]
    fn program_and_place_are_named() {
        let mut header = page(b"");
        header[..18].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0");
        let mut memory = Pages(vec![
            (0x55_5555_4000, header),
            (0x55_5555_5000, page(b"")),
            (0x7fff_ffff_d000, page(b"")),
            // A page that the program has never touched lies between these two.
            (0x7fff_ffff_f000, page(b"\0./app\0\0\0\0\0\0\0\0\0")),
        ]);
        let text = text(&instruction(), &mut memory);
        assert!(
            text.starts_with(
                "the program ./app executed at 0x5555555151 (its file's address 0x1151) the instruction vaddpd %zmm1,%zmm2,%zmm3 (62 f1), which needs AVX512F;"
            ),
            "{text}"
        );
    }

    #[test]
    fn memory_without_these_pages_gives_a_note_without_names() {
        let nothing = UndefinedInstruction {
            text: None,
            feature: None,
            address: u64::MAX - 3,
            stack: u64::MAX - 1,
            ..instruction()
        };
        assert_eq!(
            text(&nothing, &mut Pages(Vec::new())),
            "a program executed at 0xfffffffffffffffc bytes that are no instruction (62 f1), so that the program gets SIGILL"
        );
        let mut garbage = Pages(vec![(
            0x7fff_ffff_d000,
            page(b"\0\xff\xfe\0\0\0\0\0\0\0\0\0"),
        )]);
        assert!(text(&instruction(), &mut garbage).starts_with("a program executed at"));
    }
}
