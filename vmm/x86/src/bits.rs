//! Bit assignments of flags, control registers and MSRs (SDM vol. 1 §3.4.3, vol. 3A §2.2–2.5, vol. 4).

/// Bits of RFLAGS.
pub mod rflags {
    #![allow(missing_docs)]
    pub const CF: u64 = 1 << 0;
    /// Always reads as one.
    pub const FIXED: u64 = 1 << 1;
    pub const PF: u64 = 1 << 2;
    pub const AF: u64 = 1 << 4;
    pub const ZF: u64 = 1 << 6;
    pub const SF: u64 = 1 << 7;
    pub const TF: u64 = 1 << 8;
    pub const IF: u64 = 1 << 9;
    pub const DF: u64 = 1 << 10;
    pub const OF: u64 = 1 << 11;
    pub const IOPL: u64 = 3 << 12;
    pub const NT: u64 = 1 << 14;
    pub const RF: u64 = 1 << 16;
    pub const VM: u64 = 1 << 17;
    pub const AC: u64 = 1 << 18;
    pub const VIF: u64 = 1 << 19;
    pub const VIP: u64 = 1 << 20;
    pub const ID: u64 = 1 << 21;
    /// The six status flags.
    pub const STATUS: u64 = CF | PF | AF | ZF | SF | OF;
}

/// Bits of CR0.
pub mod cr0 {
    #![allow(missing_docs)]
    pub const PE: u64 = 1 << 0;
    pub const MP: u64 = 1 << 1;
    pub const EM: u64 = 1 << 2;
    pub const TS: u64 = 1 << 3;
    pub const ET: u64 = 1 << 4;
    pub const NE: u64 = 1 << 5;
    pub const WP: u64 = 1 << 16;
    pub const AM: u64 = 1 << 18;
    pub const NW: u64 = 1 << 29;
    pub const CD: u64 = 1 << 30;
    pub const PG: u64 = 1 << 31;
}

/// Bits of CR4.
pub mod cr4 {
    #![allow(missing_docs)]
    pub const VME: u64 = 1 << 0;
    pub const PVI: u64 = 1 << 1;
    pub const TSD: u64 = 1 << 2;
    pub const DE: u64 = 1 << 3;
    pub const PSE: u64 = 1 << 4;
    pub const PAE: u64 = 1 << 5;
    pub const MCE: u64 = 1 << 6;
    pub const PGE: u64 = 1 << 7;
    pub const PCE: u64 = 1 << 8;
    pub const OSFXSR: u64 = 1 << 9;
    pub const OSXMMEXCPT: u64 = 1 << 10;
    pub const UMIP: u64 = 1 << 11;
    pub const LA57: u64 = 1 << 12;
    pub const FSGSBASE: u64 = 1 << 16;
    pub const PCIDE: u64 = 1 << 17;
    pub const OSXSAVE: u64 = 1 << 18;
    pub const SMEP: u64 = 1 << 20;
    pub const SMAP: u64 = 1 << 21;
    pub const PKE: u64 = 1 << 22;
}

/// DR6 bits (SDM vol. 3B, "Debug Status Register (DR6)"); bits 0 to 3 report the breakpoints whose conditions were met.
pub mod dr6 {
    #![allow(missing_docs)]
    /// Bits that always read as one.
    pub const FIXED: u64 = 0xffff_0ff0;
    /// Bits that can change: B0 to B3, BD, BS and BT.
    pub const CHANGES: u64 = 0xe00f;
    pub const BD: u64 = 1 << 13;
    pub const BS: u64 = 1 << 14;
}

/// DR7 bits (SDM vol. 3B, "Debug Control Register (DR7)").
pub mod dr7 {
    #![allow(missing_docs)]
    /// Always reads as one.
    pub const FIXED: u64 = 1 << 10;
    /// Bits that a write can change: enables, GD, conditions and lengths.
    pub const CHANGES: u64 = 0xffff_23ff;
    pub const GD: u64 = 1 << 13;
}

/// Bits of IA32_EFER.
pub mod efer {
    #![allow(missing_docs)]
    pub const SCE: u64 = 1 << 0;
    pub const LME: u64 = 1 << 8;
    pub const LMA: u64 = 1 << 10;
    pub const NXE: u64 = 1 << 11;
}

/// IA32_APIC_BASE bits (SDM vol. 3A §11.4.4).
pub mod apic_base {
    #![allow(missing_docs)]
    pub const BSP: u64 = 1 << 8;
    pub const X2APIC: u64 = 1 << 10;
    pub const ENABLE: u64 = 1 << 11;
}

/// XCR0 bits (SDM vol. 1 §13.1).
pub mod xcr0 {
    #![allow(missing_docs)]
    pub const X87: u64 = 1 << 0;
    pub const SSE: u64 = 1 << 1;
    pub const AVX: u64 = 1 << 2;
}

/// Model-specific register numbers (SDM vol. 4, table 2-2).
pub mod msr {
    #![allow(missing_docs)]
    pub const TSC: u32 = 0x10;
    pub const APIC_BASE: u32 = 0x1b;
    pub const FEATURE_CONTROL: u32 = 0x3a;
    pub const TSC_ADJUST: u32 = 0x3b;
    pub const SPEC_CTRL: u32 = 0x48;
    pub const PRED_CMD: u32 = 0x49;
    pub const BIOS_SIGN_ID: u32 = 0x8b;
    pub const MTRR_CAP: u32 = 0xfe;
    pub const ARCH_CAPABILITIES: u32 = 0x10a;
    pub const SYSENTER_CS: u32 = 0x174;
    pub const SYSENTER_ESP: u32 = 0x175;
    pub const SYSENTER_EIP: u32 = 0x176;
    pub const MCG_CAP: u32 = 0x179;
    pub const MCG_STATUS: u32 = 0x17a;
    pub const MISC_ENABLE: u32 = 0x1a0;
    pub const MTRR_PHYS_BASE0: u32 = 0x200;
    pub const MTRR_PHYS_MASK7: u32 = 0x20f;
    pub const MTRR_FIX_64K: u32 = 0x250;
    pub const MTRR_FIX_16K_0: u32 = 0x258;
    pub const MTRR_FIX_16K_1: u32 = 0x259;
    pub const MTRR_FIX_4K_0: u32 = 0x268;
    pub const MTRR_FIX_4K_7: u32 = 0x26f;
    pub const PAT: u32 = 0x277;
    pub const MTRR_DEF_TYPE: u32 = 0x2ff;
    pub const TSC_DEADLINE: u32 = 0x6e0;
    pub const X2APIC_FIRST: u32 = 0x800;
    pub const X2APIC_LAST: u32 = 0x8ff;
    pub const EFER: u32 = 0xc000_0080;
    pub const STAR: u32 = 0xc000_0081;
    pub const LSTAR: u32 = 0xc000_0082;
    pub const CSTAR: u32 = 0xc000_0083;
    pub const SFMASK: u32 = 0xc000_0084;
    pub const FS_BASE: u32 = 0xc000_0100;
    pub const GS_BASE: u32 = 0xc000_0101;
    pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
    pub const TSC_AUX: u32 = 0xc000_0103;
}

/// Page-table entry bits (SDM vol. 3A §4.5).
pub mod pte {
    #![allow(missing_docs)]
    pub const PRESENT: u64 = 1 << 0;
    pub const WRITABLE: u64 = 1 << 1;
    pub const USER: u64 = 1 << 2;
    pub const ACCESSED: u64 = 1 << 5;
    pub const DIRTY: u64 = 1 << 6;
    pub const LARGE: u64 = 1 << 7;
    pub const GLOBAL: u64 = 1 << 8;
    pub const NO_EXECUTE: u64 = 1 << 63;
    /// Physical-address bits of an entry (MAXPHYADDR up to 52).
    pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

/// Bits of the page-fault error code (SDM vol. 3A §4.7).
pub mod page_fault {
    #![allow(missing_docs)]
    pub const PRESENT: u32 = 1 << 0;
    pub const WRITE: u32 = 1 << 1;
    pub const USER: u32 = 1 << 2;
    pub const RESERVED: u32 = 1 << 3;
    pub const FETCH: u32 = 1 << 4;
}
