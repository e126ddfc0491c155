//! Tests of walks through a kernel's structures in memory that the tests write: valid, damaged and cyclic structures.

use crate::image::Segment;
use crate::kallsyms::tests::symbols;
use crate::kernel::{FileId, FilePage, GuestKernel};
use crate::layout::{Dentry, Inode, Layout, Module, Mount, Page, Task, Xarray};
use crate::memory::PhysicalMemory;
use crate::memory::tests::Pages;

const DIRECT: u64 = 0xffff_8880_0000_0000;
const VMEMMAP: u64 = 0xffff_ea00_0000_0000;
const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Physical addresses: page tables, objects, the array of `struct page`, names, nodes of an xarray.
const TABLES: u64 = 0x10_0000;
const OBJECTS: u64 = 0x20_0000;
const ARRAY: u64 = 0x40_0000;
const NAMES: u64 = 0x30_0000;
const NODES: u64 = 0x31_0000;
/// Linear addresses of the objects.
const MAPPING: u64 = DIRECT + OBJECTS;
const INODE: u64 = MAPPING + 0x100;
const SUPER: u64 = MAPPING + 0x200;
const KIND: u64 = MAPPING + 0x300;
const DENTRY: u64 = MAPPING + 0x400;
const FOLDER: u64 = MAPPING + 0x500;
const TOP: u64 = MAPPING + 0x600;
const MODULES: u64 = MAPPING + 0x700;
const MODULE: u64 = MAPPING + 0x800;
const TABLE: u64 = MAPPING + 0x900;
const SYMBOLS: u64 = MAPPING + 0xa00;
const TASK: u64 = MAPPING + 0xb00;
const MOUNT: u64 = MAPPING + 0xd00;
const ROOT_MOUNT: u64 = MAPPING + 0xe00;
const STACK: u64 = DIRECT + 0x38_0000;
/// Linear address of the module's code.
const MODULE_BASE: u64 = 0xffff_ffff_c000_0000;

fn kernel() -> GuestKernel {
    GuestKernel {
        layout: Layout {
            page: Page {
                size: 64,
                flags: 0,
                compound_head: 8,
                mapping: 24,
                index: 32,
                slab: 1 << 9,
                reserved: 1 << 12,
            },
            inode: Inode {
                host: 0,
                number: 8,
                mapping: 16,
                links: 24,
                size: 32,
                aliases: 40,
                super_block: 48,
                super_id: 8,
                super_type: 0,
                type_name: 0,
            },
            dentry: Dentry {
                alias: 64,
                parent: 0,
                len: 12,
                name: 16,
                inode: 24,
                children: 48,
                child: 32,
            },
            mount: Mount {
                first: 48,
                instance: 32,
                parent: 0,
                point: 8,
            },
            xarray: Xarray {
                head: 8,
                shift: 0,
                slots: 8,
            },
            module: Module {
                list: 8,
                name: 24,
                base: 80,
                text: 88,
                kallsyms: 96,
                symbols: 0,
                count: 8,
                strings: 16,
            },
            task: Task {
                pid: 0,
                tgid: 4,
                comm: 8,
                stack: 24,
                registers: 168,
                ip: 128,
                cs: 136,
                sp: 152,
                bp: 32,
            },
        },
        symbols: symbols(),
        segments: vec![Segment {
            linear: TEXT,
            physical: 0x100_0000,
            size: 0x10_0000,
            offset: 0,
            file_size: 0,
        }],
        code: std::iter::once(TEXT..TEXT + 0x1000).collect(),
        text: TEXT..TEXT + 0x1000,
        tables: TABLES,
        modules: MODULES,
        current_task: 8,
        vdso: TEXT + 0x2000..TEXT + 0x4000,
    }
}

/// Returns the physical address of the `struct page` of a physical page.
fn page(physical: u64) -> u64 {
    ARRAY + physical / 4096 * 64
}

/// Returns memory with a file `/folder/program` of 12 pages, of which five are present, a module and a task.
fn memory() -> Pages {
    let mut memory = Pages::default();
    let at = |linear: u64| linear - DIRECT;
    // Page tables map the array of `struct page` by two large pages, and the module's code in reverse physical order.
    for (table, index, entry) in [
        (0, (VMEMMAP >> 39) & 511, TABLES + 0x1000),
        (1, 0, TABLES + 0x2000),
        (2, 0, ARRAY | 0x80),
        (2, 1, (ARRAY + 0x20_0000) | 0x80),
        (0, 511, TABLES + 0x3000),
        (3, 511, TABLES + 0x4000),
        (4, 0, TABLES + 0x5000),
        (5, 0, 0x5_1000),
        (5, 1, 0x5_0000),
    ] {
        memory.put(TABLES + table * 0x1000 + index * 8, entry | 1);
    }
    // The objects, and the `struct page` of pages that tests use, are zero unless written below.
    for start in (OBJECTS..OBJECTS + 0x2000).step_by(4096) {
        memory.put(start, 0);
    }
    for physical in [0x5_0000, 0x6_0000, 0x8_0000, 0x100_0000] {
        memory.put(page(physical), 0);
    }
    memory.put(at(MAPPING), INODE);
    memory.put(at(MAPPING) + 8, DIRECT + NODES + 2);
    for (offset, value) in [
        (8, 77),
        (16, MAPPING),
        (24, 1),
        (32, 11 * 4096 + 5),
        (40, DENTRY + 64),
        (48, SUPER),
    ] {
        memory.put(at(INODE) + offset, value);
    }
    memory.put(at(SUPER), KIND);
    memory.write(at(SUPER) + 8, b"tmpfs\0");
    memory.put(at(KIND), DIRECT + NAMES);
    // The file system is mounted at a folder that has the name of the file's folder.
    memory.put(at(SUPER) + 48, MOUNT + 32);
    memory.put(at(MOUNT), ROOT_MOUNT);
    memory.put(at(MOUNT) + 8, FOLDER);
    memory.put(at(ROOT_MOUNT), ROOT_MOUNT);
    memory.write(NAMES, b"tmpfs\0");
    memory.write(NAMES + 16, b"program\0");
    memory.write(NAMES + 32, b"folder\0");
    for (dentry, parent, len, name) in [
        (DENTRY, FOLDER, 7, 16),
        (FOLDER, TOP, 6, 32),
        (TOP, TOP, 1, 48),
    ] {
        memory.put(at(dentry), parent);
        memory.write(at(dentry) + 12, &u32::to_le_bytes(len));
        memory.put(at(dentry) + 16, DIRECT + NAMES + name);
    }
    memory.write(NAMES + 48, b"/\0");
    // Page 0 is a single page. Pages 8 to 11 are a compound page, whose entry has siblings.
    for (physical, index) in [(0x6_0000, 0), (0x8_0000, 8)] {
        memory.put(page(physical) + 24, MAPPING);
        memory.put(page(physical) + 32, index);
    }
    for tail in 1..4 {
        memory.put(
            page(0x8_0000 + tail * 4096) + 8,
            (VMEMMAP + 0x8_0000 / 4096 * 64) | 1,
        );
        memory.put(NODES + 8 + (8 + tail) * 8, (8 << 2) | 2);
    }
    memory.put(NODES + 8, VMEMMAP + 0x6_0000 / 4096 * 64);
    memory.put(NODES + 8 + 8 * 8, VMEMMAP + 0x8_0000 / 4096 * 64);
    memory.write(NODES, &[0]);
    for n in 0..6 {
        let physical = [0x6_0000, 0x8_0000, 0x8_1000, 0x8_2000, 0x8_3000, 0x5_0000][n];
        memory.write(physical, &[n as u8 + 1; 4096]);
    }
    // A module with two functions.
    memory.put(at(MODULES), MODULE + 8);
    memory.put(at(MODULE) + 8, MODULES);
    memory.write(at(MODULE) + 24, b"net\0");
    memory.put(at(MODULE) + 80, MODULE_BASE);
    memory.put(at(MODULE) + 88, 0x2000);
    memory.put(at(MODULE) + 96, TABLE);
    memory.put(at(TABLE), SYMBOLS);
    memory.put(at(TABLE) + 8, 3);
    memory.put(at(TABLE) + 16, DIRECT + NAMES + 64);
    memory.write(NAMES + 64, b"\0send\0receive\0");
    for (n, (name, kind, start, size)) in
        [(1u64, 2, 0, 0x100), (6, 2, 0x1000, 0x80), (1, 1, 0x1010, 8)]
            .iter()
            .enumerate()
    {
        let symbol = at(SYMBOLS) + 24 * n as u64;
        memory.put(symbol, name | kind << 32);
        memory.put(symbol + 8, MODULE_BASE + start);
        memory.put(symbol + 16, *size);
    }
    // A task in a system call.
    memory.put(at(TASK) - 0x40 + 8, TASK);
    memory.put(at(TASK), 5 | 4 << 32);
    memory.write(at(TASK) + 8, b"program\0");
    memory.put(at(TASK) + 24, STACK);
    let registers = at(STACK) + 0x4000 - 168;
    for (offset, value) in [(128, 0x1234), (136, 0x33), (152, 0x7fff_0000), (32, 0x99)] {
        memory.put(registers + offset, value);
    }
    memory
}

fn file() -> FileId {
    FileId {
        file_system: "tmpfs".into(),
        device: "tmpfs".into(),
        mount: "/folder".into(),
        path: "/folder/program".into(),
        inode: 77,
        mapping: MAPPING,
        deleted: false,
    }
}

#[test]
fn pages_of_files() {
    let (kernel, memory) = (kernel(), memory());
    let found = |physical| kernel.file_of(&memory, physical);
    let expected = |offset| {
        Some(FilePage::File {
            file: file(),
            offset,
        })
    };
    assert_eq!(found(0x6_0123), expected(0x123));
    assert_eq!(found(0x8_0000), expected(0x8000));
    assert_eq!(found(0x8_2fff), expected(0xafff));
    // These addresses have no `struct page`.
    assert_eq!(found(1 << 40), None);
    assert_eq!(found(u64::MAX), None);
}

#[test]
fn pages_without_a_file() {
    let (kernel, mut memory) = (kernel(), memory());
    let page = page(0x6_0000);
    for (mapping, expected) in [
        (MAPPING | 1, Some(FilePage::Anonymous)),
        (MAPPING | 3, Some(FilePage::Anonymous)),
        (MAPPING | 2, None),
        (0, None),
        (0x1230, None),
        (u64::MAX - 7, None),
    ] {
        memory.put(page + 24, mapping);
        assert_eq!(kernel.file_of(&memory, 0x6_0000), expected, "{mapping:#x}");
    }
    memory.put(page + 24, MAPPING);
    memory.put(page, 1 << 9);
    assert_eq!(kernel.file_of(&memory, 0x6_0000), None);
    // The kernel's text, a reserved page, a freed page, and the vDSO.
    let address = |offset| {
        Some(FilePage::Kernel {
            address: TEXT + offset,
        })
    };
    assert_eq!(kernel.file_of(&memory, 0x100_0010), address(0x10));
    memory.put(self::page(0x100_5000), 1 << 12);
    assert_eq!(kernel.file_of(&memory, 0x100_5004), address(0x5004));
    memory.put(self::page(0x100_5000), 0);
    memory.put(self::page(0x100_5000) + 24, MAPPING | 1);
    assert_eq!(
        kernel.file_of(&memory, 0x100_5004),
        Some(FilePage::Anonymous)
    );
    memory.put(self::page(0x100_3000), 1 << 12);
    let vdso = kernel.file_of(&memory, 0x100_3008);
    assert!(
        matches!(vdso, Some(FilePage::File { file, offset: 0x1008 }) if file == FileId::vdso())
    );
}

#[test]
fn names_that_make_no_sense() {
    let kernel = kernel();
    let path = |change: &dyn Fn(&mut Pages)| {
        let mut memory = memory();
        change(&mut memory);
        match kernel.file_of(&memory, 0x6_0000) {
            Some(FilePage::File { file, .. }) => Some(file.path),
            _ => None,
        }
    };
    let at = |linear: u64| linear - DIRECT;
    assert_eq!(path(&|_| ()).as_deref(), Some("/folder/program"));
    // A cycle of folders, an empty name, a name that is too long, an inode without a name, an invalid pointer to a name.
    assert_eq!(path(&|m| m.put(at(FOLDER), DENTRY)), None);
    assert_eq!(path(&|m| m.write(at(FOLDER) + 12, &[0; 4])), None);
    assert_eq!(path(&|m| m.write(at(FOLDER) + 12, &[0, 1, 0, 0])), None);
    assert_eq!(path(&|m| m.put(at(INODE) + 40, 0)), None);
    assert_eq!(path(&|m| m.put(at(FOLDER) + 16, 3)), None);
    // The inode of another file, and a `struct page` whose compound head is no `struct page`.
    assert_eq!(path(&|m| m.put(at(INODE) + 16, MAPPING + 8)), None);
    assert_eq!(path(&|m| m.put(page(0x6_0000) + 8, MAPPING | 1)), None);
    assert_eq!(path(&|m| m.put(page(0x6_0000) + 8, u64::MAX)), None);
    // The file system is mounted nowhere, within itself, or at an invalid address.
    let mount = |change: &dyn Fn(&mut Pages)| {
        let mut memory = memory();
        change(&mut memory);
        match kernel.file_of(&memory, 0x6_0000) {
            Some(FilePage::File { file, .. }) => Some(file.guest_path()),
            _ => None,
        }
    };
    let inside = Some("/folder/folder/program".into());
    let outside = Some("/folder/program".into());
    assert_eq!(mount(&|_| ()), inside);
    assert_eq!(mount(&|m| m.put(at(SUPER) + 48, SUPER + 48)), outside);
    assert_eq!(mount(&|m| m.put(at(ROOT_MOUNT), MOUNT)), outside);
    assert_eq!(mount(&|m| m.put(at(MOUNT) + 8, 3)), outside);
    // An index whose offset overflows.
    assert_eq!(path(&|m| m.put(page(0x6_0000) + 32, u64::MAX / 2)), None);
    assert_eq!(
        path(&|m| m.write(NAMES + 32, b"f\xfflder")).as_deref(),
        Some("/f\u{fffd}lder/program")
    );
}

#[test]
fn files_beside_a_file() {
    let (kernel, mut memory) = (kernel(), memory());
    let at = |linear: u64| linear - DIRECT;
    let found = |memory: &Pages, path: &str| kernel.beside(memory, &file(), path);
    // A folder's list of entries: the program, a folder `.debug`, in it a second name of the program.
    let (debug, second) = (MAPPING + 0x1000, MAPPING + 0x1100);
    memory.put(at(DENTRY) + 24, INODE);
    memory.put(at(FOLDER) + 48, DENTRY + 32);
    memory.put(at(DENTRY) + 32, debug + 32);
    memory.put(at(debug) + 32, FOLDER + 48);
    memory.put(at(debug) + 48, second + 32);
    memory.put(at(second) + 32, debug + 48);
    memory.put(at(second) + 24, INODE);
    for (entry, name, place) in [(debug, ".debug", 96u64), (second, "name", 112)] {
        memory.write(at(entry) + 12, &(name.len() as u32).to_le_bytes());
        memory.put(at(entry) + 16, DIRECT + NAMES + place);
        memory.write(NAMES + place, name.as_bytes());
    }
    assert_eq!(found(&memory, "program"), Some(file()));
    assert_eq!(found(&memory, ".debug/name"), Some(file()));
    for missing in [
        "name",
        ".debug",
        ".debug/program",
        "progra",
        "",
        ".debug/name/name",
    ] {
        assert_eq!(found(&memory, missing), None, "{missing}");
    }
    // The list is a circle without the folder, or leads to nowhere.
    memory.put(at(debug) + 32, DENTRY + 32);
    assert_eq!(found(&memory, "name"), None);
    memory.put(at(debug) + 32, 0xdead_0000_0000);
    assert_eq!(found(&memory, "name"), None);
    // The inode now belongs to another file.
    let other = FileId {
        inode: 78,
        ..file()
    };
    assert_eq!(kernel.beside(&memory, &other, "program"), None);
}

#[test]
fn contents_of_files() {
    let (kernel, mut memory) = (kernel(), memory());
    let bytes = kernel.read_file(&memory, &file()).unwrap();
    assert_eq!(bytes.len(), 11 * 4096 + 5);
    let pages: Vec<u8> = bytes.iter().step_by(4096).copied().collect();
    assert_eq!(pages, [1, 0, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5]);
    let inode = INODE - DIRECT;
    // Another inode at the address, another file system, a file that is too large, a page in swap space.
    let other = FileId {
        inode: 78,
        ..file()
    };
    assert_eq!(kernel.read_file(&memory, &other), None);
    let disk = FileId {
        file_system: "ext4".into(),
        ..file()
    };
    assert_eq!(kernel.read_file(&memory, &disk), None);
    memory.put(inode + 32, u64::MAX);
    assert_eq!(kernel.read_file(&memory, &file()), None);
    memory.put(inode + 32, 3 * 4096);
    memory.put(NODES + 16, 0x1235);
    assert_eq!(kernel.read_file(&memory, &file()), None);
    // A node that is its own child, a node outside of memory, and a node with an invalid shift.
    memory.put(NODES + 8, DIRECT + NODES + 2);
    assert_eq!(kernel.read_file(&memory, &file()), None);
    memory.put(NODES + 8, 0xdead_0000_0002);
    assert_eq!(kernel.read_file(&memory, &file()), None);
    memory.write(NODES, &[200]);
    assert_eq!(kernel.read_file(&memory, &file()), None);
    // The array of a file with one page has no node, and the array of a file without pages is empty.
    let head = MAPPING - DIRECT + 8;
    memory.put(head, VMEMMAP + 0x6_0000 / 4096 * 64);
    memory.put(inode + 32, 4097);
    let bytes = kernel.read_file(&memory, &file()).unwrap();
    assert_eq!((bytes[0], bytes[4095], bytes[4096]), (1, 1, 0));
    memory.put(head, 0);
    assert_eq!(kernel.read_file(&memory, &file()), Some(vec![0; 4097]));
}

#[test]
fn modules_and_their_functions() {
    let (kernel, mut memory) = (kernel(), memory());
    let found = kernel.file_of(&memory, 0x5_0010);
    let Some(FilePage::Module {
        name,
        module,
        address,
        offset,
    }) = found
    else {
        panic!("{found:?}");
    };
    assert_eq!((&*name, module), ("net", MODULE));
    assert_eq!((address, offset), (MODULE_BASE + 0x1010, 0x1010));
    let function = |memory: &Pages, offset| {
        let found = kernel.module_function(memory, MODULE, MODULE_BASE + offset);
        found.map(|found| found.name)
    };
    assert_eq!(function(&memory, 0x1010).as_deref(), Some("receive"));
    assert_eq!(function(&memory, 0xff).as_deref(), Some("send"));
    assert_eq!(function(&memory, 0x100), None);
    // The module has more symbols than memory has room for, and then the list of modules is a cycle.
    memory.put(TABLE - DIRECT + 8, u64::MAX);
    assert_eq!(function(&memory, 0x10), None);
    memory.put(MODULE - DIRECT + 8, MODULE + 8);
    memory.put(MODULE - DIRECT + 88, u64::MAX);
    assert_eq!(kernel.modules(&memory).len(), 1024);
    memory.put(MODULES - DIRECT, 0);
    assert!(kernel.modules(&memory).is_empty());
}

#[test]
fn tasks_and_their_registers() {
    let (kernel, mut memory) = (kernel(), memory());
    let task = kernel.current(&memory, TASK - 0x40).unwrap();
    assert_eq!((task.thread, task.process, &*task.name), (5, 4, "program"));
    let registers = kernel.user_registers(&memory, &task).unwrap();
    assert_eq!(
        (registers.ip, registers.sp, registers.bp),
        (0x1234, 0x7fff_0000, 0x99)
    );
    memory.put(STACK - DIRECT + 0x4000 - 168 + 136, 0x10);
    assert_eq!(kernel.user_registers(&memory, &task), None);
    assert_eq!(kernel.current(&memory, 0), None);
}

/// Memory in which all 64-bit words have the same value.
struct Alike(u64);

impl PhysicalMemory for Alike {
    fn read(&self, address: u64, buf: &mut [u8]) -> bool {
        let bytes = self.0.to_le_bytes();
        for (n, byte) in buf.iter_mut().enumerate() {
            *byte = bytes[(address.wrapping_add(n as u64) % 8) as usize];
        }
        true
    }
}

#[test]
fn no_walk_goes_on_for_ever() {
    let kernel = kernel();
    for value in [
        0,
        1,
        2,
        3,
        7,
        MAPPING,
        MAPPING | 1,
        VMEMMAP,
        VMEMMAP | 1,
        VMEMMAP | 2,
        0x80,
        u64::MAX,
        u64::MAX - 1,
        TEXT,
        MODULES,
    ] {
        let memory = Alike(value);
        for physical in [0, 0x6_0000, 0x100_0000, 0x100_5000, u64::MAX] {
            if let Some(page) = kernel.file_of(&memory, physical) {
                println!("{value:#x}: {page:?}");
            }
        }
        let _ = kernel.modules(&memory);
        let _ = kernel.module_function(&memory, MODULE, MODULE_BASE);
        let _ = kernel.read_file(&memory, &file());
        let _ = kernel.file_at(&memory, value, value);
        if let Some(task) = kernel.current(&memory, value) {
            let _ = kernel.user_registers(&memory, &task);
        }
    }
}

#[test]
fn damaged_structures_never_panic() {
    let kernel = kernel();
    let whole = memory();
    let mut state = 4711u64;
    let mut random = |below: usize| {
        state = state * 48271 % 0x7fff_ffff;
        state as usize % below
    };
    let pages: Vec<u64> = whole.0.keys().copied().collect();
    for _ in 0..2000 {
        let mut memory = memory();
        for _ in 0..4 {
            let at = pages[random(pages.len())] + 8 * random(512) as u64;
            let value = [0, 1, u64::MAX, MAPPING, INODE, VMEMMAP | 1, DENTRY, 1 << 63][random(8)];
            memory.put(at, value);
        }
        for physical in [0x6_0000, 0x8_1000, 0x5_0000, 0x100_3000] {
            let _ = kernel.file_of(&memory, physical);
        }
        let _ = kernel.module_function(&memory, MODULE, MODULE_BASE);
    }
}
