use super::*;
use crate::acpi::{PlatformDescription, build};
use crate::topology::NodeTopology;
use proptest::prelude::*;

const ENTRY: u64 = 0x100_0000;

fn elf(segments: &[(u64, &[u8], u64)], entry: u64) -> Vec<u8> {
    let mut b = vec![0; 64];
    b[..6].copy_from_slice(b"\x7fELF\x02\x01");
    b[6] = 1;
    b[16..18].copy_from_slice(&2_u16.to_le_bytes());
    b[18..20].copy_from_slice(&62_u16.to_le_bytes());
    b[24..32].copy_from_slice(&entry.to_le_bytes());
    b[32..40].copy_from_slice(&64_u64.to_le_bytes());
    b[54..56].copy_from_slice(&56_u16.to_le_bytes());
    b[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    let mut offset = 64 + 56 * segments.len() as u64;
    for (start, data, memory) in segments {
        b.extend(1_u32.to_le_bytes());
        b.extend(7_u32.to_le_bytes());
        for word in [offset, *start, *start, data.len() as u64, *memory, 4096] {
            b.extend(word.to_le_bytes());
        }
        offset += data.len() as u64;
    }
    for (_, data, _) in segments {
        b.extend(*data);
    }
    b
}

fn good() -> Vec<u8> {
    elf(
        &[(ENTRY, &[0x90, 0xf4], 0x3000), (ENTRY + 0x4000, b"data", 4)],
        ENTRY,
    )
}

fn parse(bytes: Vec<u8>) -> Result<KernelImage, BootError> {
    KernelImage::parse(Path::new("vmlinux"), bytes)
}

fn tables(ram: &Ram) -> AcpiTables {
    build(
        &NodeTopology::default(),
        ram.numa(),
        &PlatformDescription::default(),
    )
    .unwrap()
}

fn boot(ram: &Ram, kernel: &KernelImage, initramfs: Option<usize>) -> Result<Boot, BootError> {
    let initramfs = initramfs.map(|n| Initramfs::new(Path::new("initrd"), vec![7; n]));
    load(
        ram,
        &BootConfig {
            kernel,
            initramfs: initramfs.as_ref(),
            command_line: "console=ttyS0",
            acpi: &tables(ram),
        },
    )
}

fn quad(ram: &Ram, at: u64) -> u64 {
    let mut b = [0; 8];
    assert!(ram.read(at, &mut b), "{at:#x}");
    u64::from_le_bytes(b)
}

#[test]
fn the_kernel_finds_what_the_protocol_promises() {
    let ram = Ram::new(&[32 << 20]).unwrap();
    assert!(ram.write(ENTRY + 0x2000, &[0xff; 16]));
    let b = boot(&ram, &parse(good()).unwrap(), Some(5000)).unwrap();
    assert_eq!(b.state.general.rip, ENTRY);
    let zero = b.state.general.gpr[6];
    let mut text = [0; 14];
    ram.read(quad(&ram, zero + 0x228) & 0xffff_ffff, &mut text);
    assert_eq!(&text, b"console=ttyS0\0");
    let (at, size) = b.initramfs.unwrap();
    assert_eq!((at % 4096, size), (0, 5000));
    assert!(at + size <= 32 << 20 && at >= b.kernel_end);
    assert_eq!(quad(&ram, zero + 0x218), at | size << 32);
    assert_eq!(quad(&ram, at) & 0xff, 7);
    assert_eq!(quad(&ram, zero + 0x70), 0xe_0000);
    assert_eq!(&quad(&ram, 0xe_0000).to_le_bytes(), b"RSD PTR ");
    assert_eq!(quad(&ram, ENTRY) & 0xffff, 0xf490);
    assert_eq!(
        quad(&ram, ENTRY + 0x2000),
        0,
        "memory beyond the file is zero"
    );
    assert_eq!(
        quad(&ram, ENTRY + 0x4000) as u32,
        u32::from_le_bytes(*b"data")
    );
    assert_eq!(b.kernel_end, ENTRY + 0x4004);
}

#[test]
fn the_memory_map_covers_ram_and_reserves_the_tables() {
    let ram = Ram::new(&[4 << 30]).unwrap();
    let map: Vec<_> = memory_map(&ram)
        .iter()
        .map(|e| ({ e.addr }, { e.size }, { e.r#type }))
        .collect();
    assert_eq!(
        map,
        [
            (0, 0x9_fc00, 1),
            (0xe_0000, 0x2_0000, 2),
            (0x10_0000, 0xc000_0000 - 0x10_0000, 1),
            (1 << 32, 1 << 30, 1),
        ]
    );
}

/// The test walks the boot page tables as a processor would.
#[test]
fn the_first_four_gibibytes_are_mapped_onto_themselves() {
    let ram = Ram::new(&[32 << 20]).unwrap();
    let state = boot(&ram, &parse(good()).unwrap(), None).unwrap().state;
    for linear in [0, ENTRY + 0x123, 0x7fff_f000, 0xfee0_0030, (1 << 32) - 1] {
        let mut table = state.control.cr3;
        for shift in [39, 30] {
            let entry = quad(&ram, table + 8 * (linear >> shift & 511));
            assert_eq!(entry & 3, 3);
            table = entry & pte::ADDRESS;
        }
        let leaf = quad(&ram, table + 8 * (linear >> 21 & 511));
        assert_eq!(leaf & 0x83, 0x83);
        let physical = (leaf & pte::ADDRESS) | (linear & 0x1f_ffff);
        assert_eq!(physical, linear);
    }
    let gdt = state.segments.gdt.base;
    let descriptor = quad(&ram, gdt + u64::from(BOOT_CS));
    let attributes = (descriptor >> 40 & 0xf0ff) as u16;
    assert_eq!(attributes, state.segments.data[seg::CS].attributes);
    let descriptor = quad(&ram, gdt + u64::from(BOOT_DS));
    let attributes = (descriptor >> 40 & 0xf0ff) as u16;
    assert_eq!(attributes, state.segments.data[seg::DS].attributes);
}

#[test]
fn each_failure_says_what_where_and_what_to_do() {
    let ram = Ram::new(&[32 << 20]).unwrap();
    let say = |e: BootError, needles: &[&str]| {
        let text = e.to_string();
        for n in needles {
            assert!(text.contains(n), "{n:?} not in {text:?}");
        }
    };
    say(
        KernelImage::open(Path::new("/nowhere/vmlinux")).unwrap_err(),
        &["/nowhere/vmlinux", "cannot read", "give the path"],
    );
    say(
        parse(b"hello world".to_vec()).unwrap_err(),
        &["vmlinux is not a kernel", "bzImage"],
    );
    say(
        parse(good()[..100].to_vec()).unwrap_err(),
        &["is cut", "100 bytes", "176"],
    );
    let mut arm = good();
    arm[18] = 183;
    say(parse(arm).unwrap_err(), &["another machine", "183"]);
    say(
        parse(elf(&[(ENTRY, b"x", 1)], 0x5000)).unwrap_err(),
        &["entry point 0x5000"],
    );
    let high = parse(elf(&[(ENTRY, b"x", 64 << 20)], ENTRY)).unwrap();
    say(
        boot(&ram, &high, None).unwrap_err(),
        &["0x1000000 to 0x5000000", "0x2000000", "more memory"],
    );
    let low = parse(elf(&[(0x1000, b"x", 1)], 0x1000)).unwrap();
    say(boot(&ram, &low, None).unwrap_err(), &["0x100000"]);
    let kernel = parse(good()).unwrap();
    say(
        boot(&ram, &kernel, Some(20 << 20)).unwrap_err(),
        &["initrd", "20971520 bytes", "more memory"],
    );
    let small = Ram::new(&[8 << 20]).unwrap();
    say(boot(&small, &kernel, None).unwrap_err(), &["16 MiB"]);
    let acpi = tables(&ram);
    let with = |line: &str| {
        load(
            &ram,
            &BootConfig {
                kernel: &kernel,
                initramfs: None,
                command_line: line,
                acpi: &acpi,
            },
        )
    };
    say(
        with(&"x".repeat(2048)).unwrap_err(),
        &["2048 bytes", "2047"],
    );
    say(with("a\0b").unwrap_err(), &["NUL at byte 1"]);
    assert!(with(&"x".repeat(2047)).is_ok());
}

#[test]
fn a_bzimage_is_entered_at_its_64_bit_entry() {
    let ram = Ram::new(&[32 << 20]).unwrap();
    let mut b = vec![0; 2 * 512 + 0x400];
    b[0x1f1] = 1;
    b[0x1f4..0x1f8].copy_from_slice(&0x40_u32.to_le_bytes());
    b[0x202..0x206].copy_from_slice(b"HdrS");
    b[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
    b[0x211] = 1;
    b[0x236] = 1;
    b[0x258..0x260].copy_from_slice(&ENTRY.to_le_bytes());
    b[0x260..0x264].copy_from_slice(&0x10_0000_u32.to_le_bytes());
    b[1024 + 0x200] = 0xf4;
    let kernel = parse(b.clone()).unwrap();
    let started = boot(&ram, &kernel, None).unwrap();
    assert_eq!(started.state.general.rip, ENTRY + 0x200);
    assert_eq!(quad(&ram, ENTRY + 0x200), 0xf4);
    assert_eq!(started.kernel_end, ENTRY + 0x10_0000);
    b.truncate(1500);
    assert!(matches!(
        parse(b),
        Err(BootError::KernelTruncated { needed: 2048, .. })
    ));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..1400),
        kind in 0..3,
    ) {
        if kind == 1 && bytes.len() > 4 {
            bytes[..4].copy_from_slice(b"\x7fELF");
        }
        if kind == 2 && bytes.len() > 0x206 {
            bytes[0x202..0x206].copy_from_slice(b"HdrS");
        }
        let _ = parse(bytes);
    }

    #[test]
    fn a_damaged_kernel_is_refused_or_loads_within_ram(
        at in 0_usize..200,
        value in any::<u8>(),
        cut in 0_usize..400,
    ) {
        let ram = Ram::new(&[32 << 20]).unwrap();
        let mut bytes = good();
        if let Some(b) = bytes.get_mut(at) {
            *b = value;
        }
        bytes.truncate(cut.max(1));
        if let Ok(kernel) = parse(bytes) {
            let _ = boot(&ram, &kernel, Some(100));
        }
    }
}
