//! What a restricted process cannot do. Each probe runs in a child process, which restricts itself and then tries.

use std::env;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nodescope_sandbox::{Cell, Measure, Sandbox, State, Status};
use nodescope_test_needs::{Need, skip};

fn main() {
    let mut args = env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("probe"), Some(name)) => probe(&name, args.next().unwrap_or_default().as_ref()),
        // What a test runner asks when it lists tests.
        (Some("--list"), _) => println!("held: test"),
        _ => {
            run();
            // The line from which scripts/test counts.
            println!("test result: ok. 1 passed; 0 failed");
        }
    }
}

/// Starts every probe and checks what it says.
fn run() {
    let status = output("status", "");
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.status.success(), "{text}");
    if text != "held by no_new_privs, Landlock, seccomp" {
        skip(Need::Sandbox, &text);
        return;
    }
    for name in [
        "guests",
        "thread",
        "temporary",
        "child",
        "program",
        "nested",
        "tcp",
        "kvm",
        "late",
        "cell",
    ] {
        if name == "kvm" && open_kvm().is_err() {
            // KVM of this host itself, not of one that is emulated.
            skip(Need::Cpu, "/dev/kvm cannot be opened");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let out = output(name, folder.path());
        assert!(
            out.status.success(),
            "{name}: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        println!("test {name} ... ok");
    }
    let spent = output("processor", "").status;
    assert_eq!(spent.signal(), Some(libc::SIGXCPU), "{spent}");
    let full = output("memory", "").status;
    assert_eq!(full.code(), Some(7), "{full}");
}

fn output(name: &str, folder: impl AsRef<OsStr>) -> Output {
    Command::new(env::current_exe().unwrap())
        .args(["probe", name])
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn probe(name: &str, folder: &Path) {
    match name {
        "status" => print!("{}", Sandbox::new().enter().unwrap()),
        "guests" => guests(folder),
        "thread" => thread(folder),
        "temporary" => temporary(folder),
        "child" => child(folder),
        "program" => program(),
        "nested" => nested(),
        "inner" => inner(),
        "abort" => {
            enter_cell();
            std::process::abort();
        }
        "tcp" => tcp(),
        "kvm" => kvm(),
        "late" => late(),
        "cell" => cell(folder),
        "processor" => {
            enter_cell();
            loop {
                std::hint::spin_loop();
            }
        }
        "memory" => {
            enter_cell();
            let mut hoard: Vec<u8> = Vec::new();
            let refused = hoard.try_reserve_exact(512 << 20).is_err();
            let enough = hoard.try_reserve_exact(16 << 20).is_ok();
            std::process::exit(if refused && enough { 7 } else { 1 });
        }
        other => panic!("no probe {other}"),
    }
}

/// Asserts that a system call fails with this error.
#[track_caller]
fn refused(number: i64, arguments: [i64; 4], error: i32) {
    let [a, b, c, d] = arguments;
    // SAFETY: the arguments name no memory that the kernel could write; each call is expected to fail before it does anything.
    let result = unsafe { libc::syscall(number, a, b, c, d) };
    let found = io::Error::last_os_error();
    assert_eq!(
        (result, found.raw_os_error()),
        (-1, Some(error)),
        "call {number}: {found}"
    );
}

#[track_caller]
fn denied<T>(result: io::Result<T>, error: i32) {
    let found = result.err().and_then(|error| error.raw_os_error());
    assert_eq!(found, Some(error));
}

fn guests(folder: &Path) {
    let input = folder.join("input");
    let results = folder.join("results");
    fs::create_dir(&results).unwrap();
    fs::write(&input, "study").unwrap();
    let status = Sandbox::new()
        .read(&input)
        .read("/usr/share")
        .read("/no/such/file")
        .list("/etc")
        .write(&results)
        .enter()
        .unwrap();
    assert!(status.is_complete(), "{status}");
    status.require().unwrap();

    assert_eq!(fs::read_to_string(&input).unwrap(), "study");
    fs::write(results.join("a"), "text").unwrap();
    fs::create_dir_all(results.join("files/node0")).unwrap();
    fs::rename(results.join("a"), results.join("files/node0/b")).unwrap();
    assert_eq!(
        fs::read_to_string(results.join("files/node0/b")).unwrap(),
        "text"
    );
    fs::remove_dir_all(results.join("files")).unwrap();

    assert!(fs::read_dir("/etc").unwrap().count() > 0);
    denied(fs::read_dir("/"), libc::EACCES);
    nothing_else(folder, libc::EACCES);
    // The engine makes code in a file of memory that is mapped twice.
    code_of_a_memory_file();
}

/// Tries what a process that runs guests never does. `file_error` is the error of a file that the process has not kept.
fn nothing_else(folder: &Path, file_error: i32) {
    let input = folder.join("input");
    denied(File::open("/etc/passwd"), file_error);
    denied(
        OpenOptions::new().append(true).open("/etc/passwd"),
        file_error,
    );
    denied(OpenOptions::new().write(true).open(&input), file_error);
    denied(File::create(folder.join("beside")), file_error);
    denied(File::create("/usr/share/new"), file_error);
    denied(
        File::open(format!(
            "/proc/{}/environ",
            std::os::unix::process::parent_id()
        )),
        file_error,
    );
    denied(TcpListener::bind("127.0.0.1:0"), libc::ENOSYS);
    denied(TcpStream::connect("127.0.0.1:22"), libc::ENOSYS);
    denied(Command::new("/bin/true").spawn(), libc::ENOSYS);

    let own = i64::from(std::process::id());
    let parent = i64::from(std::os::unix::process::parent_id());
    for (number, arguments) in [
        (
            libc::SYS_ptrace,
            [i64::from(libc::PTRACE_TRACEME as i32), 0, 0, 0],
        ),
        (libc::SYS_kill, [parent, 0, 0, 0]),
        (libc::SYS_tgkill, [parent, parent, 0, 0]),
        (libc::SYS_execve, [0; 4]),
        (libc::SYS_execveat, [0; 4]),
        (libc::SYS_fork, [0; 4]),
        (libc::SYS_clone, [libc::SIGCHLD as i64, 0, 0, 0]),
        (libc::SYS_clone3, [0; 4]),
        (libc::SYS_unshare, [libc::CLONE_NEWUSER as i64, 0, 0, 0]),
        (libc::SYS_setns, [-1, 0, 0, 0]),
        (libc::SYS_mount, [0; 4]),
        (libc::SYS_chroot, [0; 4]),
        (libc::SYS_setuid, [0; 4]),
        (libc::SYS_bpf, [0; 4]),
        (libc::SYS_perf_event_open, [0; 4]),
        (libc::SYS_io_uring_setup, [1, 0, 0, 0]),
        (libc::SYS_userfaultfd, [0; 4]),
        (libc::SYS_process_vm_readv, [own, 0, 0, 0]),
        (libc::SYS_process_vm_writev, [own, 0, 0, 0]),
        (libc::SYS_keyctl, [0; 4]),
        (libc::SYS_prlimit64, [parent, 0, 0, 0]),
        (libc::SYS_ioctl, [0, libc::TIOCSTI as i64, 0, 0]),
        // KVM_CREATE_VM, of a process that does not use KVM.
        (libc::SYS_ioctl, [0, 0xae01, 0, 0]),
        // getpid of the x32 ABI.
        (0x4000_0000 + libc::SYS_getpid, [0; 4]),
        // A number that no kernel has.
        (9999, [0; 4]),
    ] {
        refused(number, arguments, libc::ENOSYS);
    }
}

fn code_of_a_memory_file() {
    let name = CString::new("code").unwrap();
    // SAFETY: the name outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::ftruncate(fd, 4096) }, 0);
    for protection in [
        libc::PROT_READ | libc::PROT_WRITE,
        libc::PROT_READ | libc::PROT_EXEC,
    ] {
        // SAFETY: a new mapping at an address of the kernel's choice changes no memory in use.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    }
}

/// Threads that begin later are held as well.
fn thread(folder: &Path) {
    let folder = folder.to_owned();
    fs::write(folder.join("input"), "").unwrap();
    let status = Sandbox::new().enter().unwrap();
    assert!(status.is_complete(), "{status}");
    std::thread::Builder::new()
        .name("later".into())
        .spawn(move || nothing_else(&folder, libc::EACCES))
        .unwrap()
        .join()
        .unwrap();
}

/// A folder for temporary files is removed at the end; what lies beside it stays.
fn temporary(folder: &Path) {
    let own = folder.join("own");
    fs::create_dir(&own).unwrap();
    fs::write(folder.join("other"), "").unwrap();
    let status = Sandbox::new().temporary(&own).enter().unwrap();
    assert!(status.is_complete(), "{status}");
    fs::write(own.join("part"), "text").unwrap();
    denied(fs::remove_file(folder.join("other")), libc::EACCES);
    denied(File::create(folder.join("new")), libc::EACCES);
    fs::remove_dir_all(&own).unwrap();
    assert!(!own.exists());
}

/// A child that began before can be ended.
fn child(folder: &Path) {
    let mut child = Command::new("/bin/sleep").arg("100").spawn().unwrap();
    let status = Sandbox::new().earlier_children().enter().unwrap();
    assert!(status.is_complete(), "{status}");
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    denied(Command::new("/bin/true").spawn(), libc::ENOSYS);
    denied(File::create(folder.join("new")), libc::EACCES);
}

/// A program that is kept starts, with what its parent has; another does not.
fn program() {
    let status = Sandbox::new().start("/bin/cat").enter().unwrap();
    assert!(status.is_complete(), "{status}");
    let mut child = Command::new("/bin/cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
    let passwd = Command::new("/bin/cat")
        .arg("/etc/passwd")
        .output()
        .unwrap();
    assert!(
        !passwd.status.success() && passwd.stdout.is_empty(),
        "{passwd:?}"
    );
    denied(Command::new("/bin/true").spawn(), libc::EACCES);
    let namespace = (libc::CLONE_NEWUSER | libc::SIGCHLD) as i64;
    refused(libc::SYS_clone, [namespace, 0, 0, 0], libc::ENOSYS);
}

/// A process starts itself, and the child restricts itself further.
fn nested() {
    let status = Sandbox::new().start("/proc/self/exe").enter().unwrap();
    assert!(status.is_complete(), "{status}");
    let child = |name: &str| {
        let mut child = Command::new("/proc/self/exe");
        child
            .args(["probe", name])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let out = child("inner");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(out.stdout, b"from the cell");
    let out = child("abort");
    assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{out:?}");
}

fn inner() {
    let status = enter_cell();
    assert!(status.is_complete(), "{status}");
    denied(File::open("/proc/self/exe"), libc::ENOSYS);
    print!("from the cell");
}

fn tcp() {
    let status = Sandbox::new().tcp().enter().unwrap();
    assert!(status.is_complete(), "{status}");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    out.write_all(b"frame").unwrap();
    drop(out);
    let mut text = String::new();
    listener
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "frame");
    let netlink = [i64::from(libc::AF_NETLINK), 3, 0, 0];
    refused(libc::SYS_socket, netlink, libc::EOPNOTSUPP);
    denied(
        std::os::unix::net::UnixListener::bind("/tmp/socket"),
        libc::ENOSYS,
    );
}

fn open_kvm() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/kvm")
}

/// A run on KVM makes machines and vCPUs.
fn kvm() {
    let status = Sandbox::new().kvm().enter().unwrap();
    assert!(status.is_complete(), "{status}");
    let kvm = open_kvm().unwrap();
    let made = |on: &File, request: u64| {
        // SAFETY: these requests take a number and make a descriptor, which the new file owns.
        let fd = unsafe { libc::ioctl(on.as_raw_fd(), request, 0) };
        assert!(fd >= 0, "{request:#x}: {}", io::Error::last_os_error());
        // SAFETY: as above.
        unsafe { File::from_raw_fd(fd) }
    };
    // KVM_CREATE_VM and KVM_CREATE_VCPU.
    let vm = made(&kvm, 0xae01);
    made(&vm, 0xae41);
    refused(
        libc::SYS_ioctl,
        [0, libc::TIOCSTI as i64, 0, 0],
        libc::ENOSYS,
    );
}

/// A thread that began before keeps its files, and the status says so.
fn late() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let earlier = std::thread::spawn(move || {
        receiver.recv().unwrap();
        // The filter of system calls holds every thread.
        refused(libc::SYS_ptrace, [0; 4], libc::ENOSYS);
    });
    let status = Sandbox::new().enter().unwrap();
    let (_, landlock) = &status.measures[1];
    let gap = State::Partly("threads that began before keep their files until Linux 7.0: 1".into());
    // From Linux 7.0 on Landlock holds all threads.
    assert!([gap, State::Held].contains(landlock), "{landlock:?}");
    assert_eq!(status.require().is_ok(), *landlock == State::Held);
    sender.send(()).unwrap();
    earlier.join().unwrap();
}

fn enter_cell() -> Status {
    let cell = Cell {
        memory: 256 << 20,
        processor_seconds: 1,
    };
    cell.enter()
}

fn cell(folder: &Path) {
    let passed = folder.join("passed");
    fs::write(&passed, "symbols").unwrap();
    let mut passed = File::open(&passed).unwrap();
    let status = enter_cell();
    assert!(status.is_complete(), "{status}");
    assert!(
        status
            .measures
            .iter()
            .any(|(measure, _)| *measure == Measure::Limits)
    );

    let mut text = String::new();
    passed.read_to_string(&mut text).unwrap();
    assert_eq!(text, "symbols");
    print!("answers on its descriptors");

    nothing_else(folder, libc::ENOSYS);
    denied(std::thread::Builder::new().spawn(|| ()), libc::ENOSYS);
    for (number, arguments) in [
        (libc::SYS_openat, [i64::from(libc::AT_FDCWD), 0, 0, 0]),
        (libc::SYS_memfd_create, [0; 4]),
        (libc::SYS_socketpair, [i64::from(libc::AF_UNIX), 1, 0, 0]),
        (libc::SYS_unlink, [0; 4]),
        (libc::SYS_prctl, [0; 4]),
        (
            libc::SYS_mmap,
            [0, 4096, i64::from(libc::PROT_READ | libc::PROT_EXEC), 0x22],
        ),
        (libc::SYS_mprotect, [0, 4096, i64::from(libc::PROT_EXEC), 0]),
    ] {
        refused(number, arguments, libc::ENOSYS);
    }
}
