//! A small program, and its memory references.

use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_test_needs::{Need, have};
use tempfile::TempDir;

/// C program with strided, transposed, unaligned and read-modify-write references over about 31 KiB of data, without a C library.
const PROGRAM: &str = r#"
static int a[48][48], b[48][48];
static char text[9000];
static unsigned long table[512];

static void leave(void)
{
    __asm__ volatile("syscall" : : "a"(60), "D"(0) : "rcx", "r11", "memory");
    __builtin_unreachable();
}

void _start(void)
{
    unsigned long seed = 12345;
    for (int i = 0; i < 48; i++)
        for (int j = 0; j < 48; j++)
            a[i][j] = i * 31 + j;
    for (int i = 0; i < 48; i++)
        for (int j = 0; j < 48; j++)
            b[j][i] = a[i][j];
    for (int i = 0; i + 8 < 9000; i += 13)
        *(volatile unsigned long *)(text + i) = i;
    for (int i = 0; i < 8000; i++) {
        seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        table[seed >> 55] += text[(seed >> 40) % 9000];
        *(volatile unsigned int *)(text + (seed >> 33) % 8996) += b[(seed >> 20) % 48][(seed >> 50) % 48];
    }
    leave();
}
"#;

/// The program, compiled in a directory of its own.
pub struct Program {
    directory: TempDir,
    program: PathBuf,
}

impl Program {
    /// Compiles the program. Returns `None` on a host without a compiler or valgrind, if these are not required.
    pub fn compile() -> Option<Program> {
        if !have(Need::Valgrind, &["valgrind"]) || !have(Need::Compiler, &["cc"]) {
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (source, program) = (
            directory.path().join("kernel.c"),
            directory.path().join("kernel"),
        );
        std::fs::write(&source, PROGRAM).expect("the source is written");
        let compiled = Command::new("cc")
            .args([
                "-O1",
                "-nostdlib",
                "-static",
                "-no-pie",
                "-fno-stack-protector",
                "-o",
            ])
            .args([&program, &source])
            .output()
            .expect("cc starts");
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        Some(Program { directory, program })
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs the program under valgrind with these arguments.
    pub fn valgrind(&self, arguments: &[String]) {
        let output = Command::new("valgrind")
            .args(arguments)
            .arg(&self.program)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap_or_default())
            .output()
            .expect("valgrind starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Returns the kind, address and size of each memory reference, in program order. They come from `valgrind --tool=lackey
    /// --trace-mem=yes`.
    pub fn references(&self) -> Vec<(char, u64, u64)> {
        let log = self.directory().join("trace");
        let arguments = [
            "--tool=lackey".to_owned(),
            "--trace-mem=yes".to_owned(),
            "--basic-counts=no".to_owned(),
            format!("--log-file={}", log.display()),
        ];
        self.valgrind(&arguments);
        let text = std::fs::read_to_string(log).expect("lackey writes its trace");
        text.lines()
            .filter(|line| !line.starts_with("=="))
            .map(|line| {
                let (kind, place) = line.trim().split_once(' ').expect("kind and place");
                let (address, size) = place.trim().split_once(',').expect("address and size");
                let address = u64::from_str_radix(address, 16).expect("a hexadecimal address");
                (
                    kind.chars().next().expect("a kind"),
                    address,
                    size.parse().expect("a size"),
                )
            })
            .collect()
    }
}
