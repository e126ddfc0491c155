//! Guest kernels of a few instructions, which boot at once: tests see how a run handles its guests without a guest image.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use iced_x86::code_asm::*;
use nodescope_hypercall::{LEAF, Operation};
use tempfile::TempDir;

/// Guest-physical address at which kernels are loaded.
const BASE: u64 = 0x10_0000;
/// I/O port of the first serial port, and that of its line status register.
const SERIAL: u32 = 0x3f8;
const LINE_STATUS: u32 = SERIAL + 5;
/// I/O port at which a node is switched off, and the value that does it (ACPI 6.5, section 4.8.3.7).
const SLEEP: u32 = 0x600;
const OFF: u32 = 5 << 2 | 1 << 5;

/// Guest-physical address to which the host writes a node's identity, and the offsets of the identity's name and text.
const IDENTITY: u64 = 0x18_0000;
const NAME: i32 = 40;
const TEXT: i32 = 104;

/// A kernel under construction: each method appends code.
pub struct Kernel {
    code: CodeAssembler,
    texts: Vec<(CodeLabel, String)>,
}

impl Kernel {
    pub fn new() -> Kernel {
        Kernel {
            code: CodeAssembler::new(64).unwrap(),
            texts: Vec::new(),
        }
    }

    fn text(&mut self, text: &str) -> CodeLabel {
        let label = self.code.create_label();
        self.texts.push((label, text.into()));
        label
    }

    /// Writes a text to the console.
    pub fn say(mut self, text: &str) -> Kernel {
        let at = self.text(text);
        let code = &mut self.code;
        let mut next = code.create_label();
        code.lea(rsi, ptr(at)).unwrap();
        code.mov(ecx, text.len() as u32).unwrap();
        code.mov(edx, SERIAL).unwrap();
        code.set_label(&mut next).unwrap();
        code.mov(al, byte_ptr(rsi)).unwrap();
        code.out(dx, al).unwrap();
        code.inc(rsi).unwrap();
        code.dec(ecx).unwrap();
        code.jne(next).unwrap();
        self
    }

    /// Makes the marker `name`, which becomes an event of the trace.
    pub fn mark(mut self, name: &str) -> Kernel {
        let at = self.text(name);
        let code = &mut self.code;
        code.lea(rsi, ptr(at)).unwrap();
        code.mov(edi, name.len() as u32).unwrap();
        code.mov(eax, LEAF).unwrap();
        code.mov(ecx, Operation::Mark as u32).unwrap();
        code.cpuid().unwrap();
        self
    }

    /// Asks the host for the node's identity, and writes a line to the console: the first five characters of the node's name, then the
    /// first byte of the identity's text, or `-` without a text. Clones have a text.
    pub fn say_name(mut self) -> Kernel {
        let code = &mut self.code;
        let mut next = code.create_label();
        code.mov(rsi, IDENTITY).unwrap();
        // An identity without a text leaves this byte as it is.
        code.mov(byte_ptr(rsi + TEXT), '-' as i32).unwrap();
        code.mov(edi, 0x1000).unwrap();
        code.mov(eax, LEAF).unwrap();
        code.mov(ecx, Operation::NodeIdentity as u32).unwrap();
        code.cpuid().unwrap();
        code.mov(rsi, IDENTITY + NAME as u64).unwrap();
        code.mov(ecx, 5).unwrap();
        code.mov(edx, SERIAL).unwrap();
        code.set_label(&mut next).unwrap();
        code.mov(al, byte_ptr(rsi)).unwrap();
        code.out(dx, al).unwrap();
        code.inc(rsi).unwrap();
        code.dec(ecx).unwrap();
        code.jne(next).unwrap();
        code.mov(rsi, IDENTITY).unwrap();
        code.mov(al, byte_ptr(rsi + TEXT)).unwrap();
        code.out(dx, al).unwrap();
        code.mov(al, '\n' as i32).unwrap();
        code.out(dx, al).unwrap();
        self
    }

    /// Executes about so many instructions.
    pub fn work(mut self, instructions: u32) -> Kernel {
        let code = &mut self.code;
        let mut again = code.create_label();
        code.mov(ecx, instructions / 2).unwrap();
        code.set_label(&mut again).unwrap();
        code.dec(ecx).unwrap();
        code.jne(again).unwrap();
        self
    }

    /// Waits until this byte is typed at the console.
    pub fn read(mut self, byte: u32) -> Kernel {
        let code = &mut self.code;
        let mut wait = code.create_label();
        let mut pause = code.create_label();
        code.set_label(&mut wait).unwrap();
        // Reading the port is slow, since it leaves the engine: wait between two reads.
        code.mov(ecx, 1000).unwrap();
        code.set_label(&mut pause).unwrap();
        code.dec(ecx).unwrap();
        code.jne(pause).unwrap();
        code.mov(edx, LINE_STATUS).unwrap();
        code.in_(al, dx).unwrap();
        code.test(al, 1).unwrap();
        code.je(wait).unwrap();
        code.mov(edx, SERIAL).unwrap();
        code.in_(al, dx).unwrap();
        code.cmp(al, byte as i32).unwrap();
        code.jne(wait).unwrap();
        self
    }

    /// Jumps back to the beginning for ever, and writes the kernel's file.
    pub fn for_ever(mut self, path: &Path) {
        self.code.mov(rax, BASE + CODE).unwrap();
        self.code.jmp(rax).unwrap();
        self.write(path);
    }

    /// Writes over its own code for ever, each time with other code, and writes the kernel's file.
    pub fn rewrite_for_ever(mut self, path: &Path) {
        let code = &mut self.code;
        let mut again = code.create_label();
        let mut written = code.create_label();
        code.lea(rsi, ptr(written)).unwrap();
        code.set_label(&mut again).unwrap();
        // The immediate operand of the instruction that follows.
        code.inc(byte_ptr(rsi + 1)).unwrap();
        code.set_label(&mut written).unwrap();
        code.mov(eax, 0).unwrap();
        code.jmp(again).unwrap();
        self.write(path);
    }

    /// Ends the job with a status, powers the node off, and writes the kernel's file.
    pub fn off(mut self, status: u32, path: &Path) {
        let code = &mut self.code;
        code.mov(esi, status).unwrap();
        code.mov(eax, LEAF).unwrap();
        code.mov(ecx, Operation::JobExit as u32).unwrap();
        code.cpuid().unwrap();
        code.mov(eax, OFF).unwrap();
        code.mov(edx, SLEEP).unwrap();
        code.out(dx, al).unwrap();
        self.write(path);
    }

    /// Writes the kernel as an ELF executable of one segment.
    fn write(mut self, path: &Path) {
        for (mut label, text) in self.texts {
            self.code.set_label(&mut label).unwrap();
            self.code.db(text.as_bytes()).unwrap();
        }
        let code = self.code.assemble(BASE + CODE).unwrap();
        let mut file = Vec::new();
        let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
        let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
        let long = |file: &mut Vec<u8>, value: u64| file.extend(value.to_le_bytes());
        file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        half(&mut file, 2); // executable
        half(&mut file, 62); // x86-64
        word(&mut file, 1);
        long(&mut file, BASE + CODE); // entry
        long(&mut file, 64); // program headers
        long(&mut file, 0);
        word(&mut file, 0);
        for value in [64, 56, 1, 0, 0, 0] {
            half(&mut file, value);
        }
        word(&mut file, 1); // load
        word(&mut file, 7);
        let size = CODE + code.len() as u64;
        for value in [0, BASE, BASE, size, size, 0x1000] {
            long(&mut file, value);
        }
        assert_eq!(file.len() as u64, CODE);
        file.extend(code);
        fs::write(path, file).unwrap();
    }
}

/// Offset of the code in the file and in memory, after the ELF header and one program header.
const CODE: u64 = 64 + 56;

/// A folder with a study `s.toml` that boots a kernel made by [`Kernel`].
pub struct WorkFolder {
    dir: TempDir,
}

impl WorkFolder {
    /// Makes a study of `nodes` nodes with the lines `part`. `make` writes the kernel to the path that it gets.
    pub fn new(nodes: u32, part: &str, make: impl FnOnce(&Path)) -> WorkFolder {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let study = format!(
            "image = {{ kernel = \"vmlinux\", initramfs = \"initramfs\", root = \"root\" }}\n\
             cluster.nodes = {nodes}\njob.command = \"true\"\njob.mpi = \"none\"\njob.ranks = 1\nnode.memory = \"64 MiB\"\n{part}"
        );
        fs::write(path.join("s.toml"), study).unwrap();
        fs::write(path.join("initramfs"), b"\x1f\x8b compressed").unwrap();
        fs::write(path.join("root"), [0; 512]).unwrap();
        make(&path.join("vmlinux"));
        WorkFolder { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn results(&self) -> std::path::PathBuf {
        self.path().join("results/s")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodescope"));
        command
            .args(args)
            .current_dir(self.path())
            .env("XDG_CACHE_HOME", self.path().join("cache"))
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A shell that starts the tests in the background ignores SIGINT, and children inherit that.
        set_dispositions(&mut command, libc::SIG_DFL);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Starts a command and waits until this file of the results has at least `bytes` bytes.
    pub fn start(&self, args: &[&str], file: &str, bytes: u64) -> Child {
        let mut child = self.command(args).spawn().unwrap();
        let path = self.results().join(file);
        wait_until(&mut child, file, || holds(&path, bytes));
        child
    }
}

/// Signals that `nohup` and the `&` of a shell make a program ignore.
pub const HANG_UP_AND_INTERRUPT: [i32; 2] = [libc::SIGHUP, libc::SIGINT];

/// Makes a command start with this disposition of SIGHUP and SIGINT, whatever the disposition in the tests is. A later call replaces the
/// disposition of an earlier one.
pub fn set_dispositions(command: &mut Command, disposition: libc::sighandler_t) {
    // SAFETY: signal may be called between fork and exec; neither disposition runs code.
    unsafe {
        command.pre_exec(move || {
            for signal in HANG_UP_AND_INTERRUPT {
                libc::signal(signal, disposition);
            }
            Ok(())
        });
    }
}

/// Returns whether a file has at least so many bytes.
pub fn holds(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|data| data.len() >= bytes)
}

/// Waits until `happened` returns true. Fails if the child ends first, or after two minutes. `what` names the event in messages.
pub fn wait_until(child: &mut Child, what: &str, happened: impl Fn() -> bool) {
    let begin = Instant::now();
    while !happened() {
        if let Some(status) = child.try_wait().unwrap() {
            let mut told = String::new();
            if let Some(stderr) = &mut child.stderr {
                stderr.read_to_string(&mut told).unwrap();
            }
            panic!("ended with {status} before {what}: {told}");
        }
        if begin.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("waited in vain for {what}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal to a child.
pub fn signal(child: &Child, signal: i32) {
    // SAFETY: kill takes any process and signal; the child has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Waits until a child ends, and returns its output. Kills the child and fails after `limit`.
pub fn ends_within(mut child: Child, limit: Duration) -> Output {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > limit {
            child.kill().unwrap();
            panic!("still runs after {limit:?}: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the contents of all files below a folder, by their relative paths.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_path_buf();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Checks that two folders have the same files with the same bytes.
pub fn same(one: &Path, other: &Path) {
    let compared = other.display().to_string();
    let (one, other) = (files(one), files(other));
    let names = |of: &BTreeMap<PathBuf, Vec<u8>>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&one), names(&other));
    for (name, bytes) in &one {
        let lines = |bytes: &[u8]| -> Vec<String> {
            let text = String::from_utf8_lossy(bytes);
            text.lines().map(str::to_owned).collect()
        };
        let (lines, others) = (lines(bytes), lines(&other[name]));
        let differs = lines.iter().zip(&others).find(|(one, other)| one != other);
        assert!(
            *bytes == other[name],
            "{compared}: {} differs: {differs:?}",
            name.display()
        );
    }
}

/// Makes a study of three nodes that print a line and make a marker in each of 20 steps, with a window in between.
pub fn talking() -> WorkFolder {
    let window = "node.frequency = \"100 MHz\"\n\
        [[window]]\nname = \"w\"\nopen = { marker = \"step\", occurrence = 4 }\nmeasure = \"2 M instructions\"\n";
    WorkFolder::new(3, window, |path| {
        let steps = (0..20).fold(Kernel::new(), |kernel, n| {
            kernel
                .mark("step")
                .say(&format!("step {n}\n"))
                .work(3_000_000)
        });
        steps.off(0, path);
    })
}

pub fn ok(work: &WorkFolder, args: &[&str]) -> String {
    let output = work.run(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
