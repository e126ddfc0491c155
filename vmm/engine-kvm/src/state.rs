//! Conversions between `VcpuState` and KVM's structures. `vcpu` makes the ioctls.

use kvm_bindings::{
    KVM_VCPUEVENT_VALID_NMI_PENDING, KVM_VCPUEVENT_VALID_SHADOW, KVM_X86_SHADOW_INT_MOV_SS,
    KVM_X86_SHADOW_INT_STI, kvm_debugregs, kvm_dtable, kvm_regs, kvm_segment, kvm_sregs,
    kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use nodescope_x86::bits::{apic_base, xcr0};
use nodescope_x86::state::seg;
use nodescope_x86::{
    Control, Debug, DescriptorTable, Events, FxImage, General, InterruptShadow, Segment, Segments,
    VcpuState, Vector256,
};

pub(crate) fn regs(g: &General) -> kvm_regs {
    let r = &g.gpr;
    kvm_regs {
        rax: r[0],
        rcx: r[1],
        rdx: r[2],
        rbx: r[3],
        rsp: r[4],
        rbp: r[5],
        rsi: r[6],
        rdi: r[7],
        r8: r[8],
        r9: r[9],
        r10: r[10],
        r11: r[11],
        r12: r[12],
        r13: r[13],
        r14: r[14],
        r15: r[15],
        rip: g.rip,
        rflags: g.rflags,
    }
}

pub(crate) fn general(r: &kvm_regs) -> General {
    General {
        gpr: [
            r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ],
        rip: r.rip,
        rflags: r.rflags,
    }
}

fn segment_in(s: &Segment) -> kvm_segment {
    let bit = |at: u32| (s.attributes >> at & 1) as u8;
    kvm_segment {
        base: s.base,
        limit: s.limit,
        selector: s.selector,
        type_: (s.attributes & 0xf) as u8,
        s: bit(4),
        dpl: s.dpl(),
        present: bit(7),
        avl: bit(12),
        l: bit(13),
        db: bit(14),
        g: bit(15),
        unusable: s.unusable.into(),
        padding: 0,
    }
}

fn segment_out(k: &kvm_segment) -> Segment {
    let field = |value: u8, at: u32| u16::from(value) << at;
    Segment {
        selector: k.selector,
        base: k.base,
        limit: k.limit,
        attributes: field(k.type_ & 0xf, 0)
            | field(k.s & 1, 4)
            | field(k.dpl & 3, 5)
            | field(k.present & 1, 7)
            | field(k.avl & 1, 12)
            | field(k.l & 1, 13)
            | field(k.db & 1, 14)
            | field(k.g & 1, 15),
        unusable: k.unusable != 0,
    }
}

/// Returns whether two values of a segment register agree in all parts that every processor stores. VMX stores no attributes of an unusable
/// segment (`vmx_segment_access_rights` in KVM). The granularity bit is redundant, since the limit is in bytes and SVM derives the bit from
/// the limit. The accessed bit of a loaded code or data segment is always set (`svm_get_segment`).
fn equivalent(a: &Segment, b: &Segment) -> bool {
    const ACCESSED: u16 = 1;
    const NO_SYSTEM: u16 = 1 << 4;
    const GRANULAR: u16 = 1 << 15;
    let visible = |s: &Segment| (s.selector, s.base, s.limit, s.unusable);
    let kept = |s: &Segment| {
        let accessed = s.attributes & NO_SYSTEM != 0;
        let ignored = GRANULAR | if accessed { ACCESSED } else { 0 };
        s.attributes & !ignored
    };
    visible(a) == visible(b) && (a.unusable || kept(a) == kept(b))
}

fn table_in(t: &DescriptorTable) -> kvm_dtable {
    kvm_dtable {
        base: t.base,
        limit: t.limit,
        padding: [0; 3],
    }
}

fn table_out(k: &kvm_dtable) -> DescriptorTable {
    DescriptorTable {
        base: k.base,
        limit: k.limit,
    }
}

/// Returns KVM's segment and control registers. The platform owns the real APIC base; KVM only needs an enabled APIC.
pub(crate) fn sregs(s: &Segments, c: &Control) -> kvm_sregs {
    const APIC_ENABLED: u64 = 0xfee0_0000 | apic_base::ENABLE;
    kvm_sregs {
        es: segment_in(&s.data[seg::ES]),
        cs: segment_in(&s.data[seg::CS]),
        ss: segment_in(&s.data[seg::SS]),
        ds: segment_in(&s.data[seg::DS]),
        fs: segment_in(&s.data[seg::FS]),
        gs: segment_in(&s.data[seg::GS]),
        ldt: segment_in(&s.ldt),
        tr: segment_in(&s.tr),
        gdt: table_in(&s.gdt),
        idt: table_in(&s.idt),
        cr0: c.cr0,
        cr2: c.cr2,
        cr3: c.cr3,
        cr4: c.cr4,
        cr8: c.cr8,
        efer: c.efer,
        apic_base: APIC_ENABLED,
        interrupt_bitmap: [0; 4],
    }
}

pub(crate) fn segments(k: &kvm_sregs) -> Segments {
    let mut data = [Segment::default(); 6];
    for (index, segment) in [
        (seg::ES, &k.es),
        (seg::CS, &k.cs),
        (seg::SS, &k.ss),
        (seg::DS, &k.ds),
        (seg::FS, &k.fs),
        (seg::GS, &k.gs),
    ] {
        data[index] = segment_out(segment);
    }
    Segments {
        data,
        ldt: segment_out(&k.ldt),
        tr: segment_out(&k.tr),
        gdt: table_out(&k.gdt),
        idt: table_out(&k.idt),
    }
}

/// Returns the segment registers of `now`. Registers that are equivalent to those in `before` get back the attributes that the processor
/// did not store.
pub(crate) fn with_unstored_attributes(now: &Segments, before: &Segments) -> Segments {
    let one = |now: &Segment, before: &Segment| {
        if equivalent(now, before) {
            *before
        } else {
            *now
        }
    };
    let mut segments = *now;
    for (segment, before) in segments.data.iter_mut().zip(&before.data) {
        *segment = one(segment, before);
    }
    segments.ldt = one(&now.ldt, &before.ldt);
    segments.tr = one(&now.tr, &before.tr);
    segments
}

pub(crate) fn control(k: &kvm_sregs, xcr0_value: u64) -> Control {
    Control {
        cr0: k.cr0,
        cr2: k.cr2,
        cr3: k.cr3,
        cr4: k.cr4,
        cr8: k.cr8,
        efer: k.efer,
        xcr0: xcr0_value,
    }
}

pub(crate) fn xcrs(xcr0_value: u64) -> kvm_xcrs {
    let mut x = kvm_xcrs {
        nr_xcrs: 1,
        ..Default::default()
    };
    x.xcrs[0].value = xcr0_value;
    x
}

pub(crate) fn xcr0_of(x: &kvm_xcrs) -> u64 {
    x.xcrs[..(x.nr_xcrs as usize).min(x.xcrs.len())]
        .iter()
        .find(|x| x.xcr == 0)
        .map_or(xcr0::X87, |x| x.value)
}

pub(crate) fn debug_in(d: &Debug) -> kvm_debugregs {
    kvm_debugregs {
        db: d.dr,
        dr6: d.dr6,
        dr7: d.dr7,
        ..Default::default()
    }
}

pub(crate) fn debug_out(k: &kvm_debugregs) -> Debug {
    Debug {
        dr: k.db,
        dr6: k.dr6,
        dr7: k.dr7,
    }
}

/// Offset in the XSAVE area of the XMM registers. The constants below are the offsets of XSTATE_BV and of the upper YMM halves (SDM vol. 1
/// §13.4).
const XMM: usize = 160;
const XSTATE_BV: usize = 512;
const YMM_HIGH: usize = 576;
/// Bytes of MXCSR_MASK, which is a constant of the processor and not part of the state.
const MXCSR_MASK: std::ops::Range<usize> = 28..32;

/// Returns KVM's XSAVE area. `components` are the state components that the guest may use.
pub(crate) fn xsave(fx: &FxImage, vector: &Vector256, components: u64) -> kvm_xsave {
    let mut area = [0_u8; 4096];
    area[..XMM].copy_from_slice(fx.legacy());
    area[MXCSR_MASK].fill(0);
    for (i, register) in vector.0.iter().enumerate() {
        area[XMM + 16 * i..][..16].copy_from_slice(&register[..16]);
        area[YMM_HIGH + 16 * i..][..16].copy_from_slice(&register[16..]);
    }
    let present = components & (xcr0::X87 | xcr0::SSE | xcr0::AVX);
    area[XSTATE_BV..XSTATE_BV + 8].copy_from_slice(&present.to_le_bytes());
    let mut out = kvm_xsave::default();
    for (word, bytes) in out.region.iter_mut().zip(area.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    out
}

pub(crate) fn vector_state(k: &kvm_xsave) -> (FxImage, Vector256) {
    let mut area = [0_u8; 4096];
    for (bytes, word) in area.chunks_exact_mut(4).zip(k.region) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut present = [0; 8];
    present.copy_from_slice(&area[XSTATE_BV..XSTATE_BV + 8]);
    let present = u64::from_le_bytes(present);
    let mut fx = FxImage::default();
    let mxcsr = fx.mxcsr();
    if present & xcr0::X87 != 0 {
        fx.0[..XMM].copy_from_slice(&area[..XMM]);
    }
    // MXCSR belongs to the SSE and AVX components. A component that is not present is in its initial state.
    fx.set_mxcsr(mxcsr);
    if present & (xcr0::SSE | xcr0::AVX) != 0 {
        fx.0[24..28].copy_from_slice(&area[24..28]);
    }
    fx.0[MXCSR_MASK].fill(0);
    let mut vector = Vector256::default();
    for (i, register) in vector.0.iter_mut().enumerate() {
        if present & xcr0::SSE != 0 {
            register[..16].copy_from_slice(&area[XMM + 16 * i..][..16]);
        }
        if present & xcr0::AVX != 0 {
            register[16..].copy_from_slice(&area[YMM_HIGH + 16 * i..][..16]);
        }
    }
    (fx, vector)
}

pub(crate) fn events_in(e: &Events) -> kvm_vcpu_events {
    let mut k = kvm_vcpu_events {
        flags: KVM_VCPUEVENT_VALID_NMI_PENDING | KVM_VCPUEVENT_VALID_SHADOW,
        ..Default::default()
    };
    k.interrupt.shadow = match e.shadow {
        InterruptShadow::None => 0,
        InterruptShadow::Sti => KVM_X86_SHADOW_INT_STI as u8,
        InterruptShadow::MovSs => KVM_X86_SHADOW_INT_MOV_SS as u8,
    };
    k.nmi.masked = e.nmi_blocked.into();
    k.nmi.pending = e.nmi_pending.into();
    k
}

/// Returns the pending events. The activity state is the engine's own and is taken from `before`. `ran` says whether the vCPU has run since
/// KVM was given `before`.
///
/// SVM has a single interrupt shadow (APM vol. 2 §15.21.5), which KVM reports as both kinds. If the vCPU has not run, the shadow is of the
/// kind that KVM was given. Otherwise it is taken for a MOV SS shadow, which blocks more than an STI shadow.
pub(crate) fn events_out(k: &kvm_vcpu_events, before: &Events, ran: bool) -> Events {
    let has = |kind| u32::from(k.interrupt.shadow) & kind != 0;
    Events {
        shadow: match (has(KVM_X86_SHADOW_INT_STI), has(KVM_X86_SHADOW_INT_MOV_SS)) {
            (false, false) => InterruptShadow::None,
            (true, false) => InterruptShadow::Sti,
            (true, true) if !ran && before.shadow == InterruptShadow::Sti => InterruptShadow::Sti,
            (_, true) => InterruptShadow::MovSs,
        },
        nmi_blocked: k.nmi.masked != 0,
        nmi_pending: k.nmi.pending != 0,
        // KVM has no field for them, and drops those that it was not given.
        pending_breakpoints: if ran { 0 } else { before.pending_breakpoints },
        mp: before.mp,
    }
}

/// Returns the differences between two states, separated by semicolons.
pub(crate) fn differences(wanted: &VcpuState, found: &VcpuState) -> String {
    let lines = |state: &VcpuState| format!("{state:#x?}");
    let (wanted, found) = (lines(wanted), lines(found));
    let pairs = wanted.lines().zip(found.lines());
    let different: Vec<_> = pairs
        .filter(|(wanted, found)| wanted != found)
        .map(|(wanted, found)| format!("{} became {}", wanted.trim(), found.trim()))
        .collect();
    different.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_segments_survive_the_conversion() {
        let mut g = General {
            rip: 99,
            rflags: 2,
            ..Default::default()
        };
        for (i, r) in g.gpr.iter_mut().enumerate() {
            *r = 100 + i as u64;
        }
        assert_eq!(general(&regs(&g)), g);
        let mut s = Segments::default();
        for (i, d) in s.data.iter_mut().enumerate() {
            *d = Segment {
                selector: 8 * i as u16,
                base: i as u64,
                limit: 0xf_ffff,
                attributes: 0xf0ff & !(1 << (i * 2)),
                unusable: i == 3,
            };
        }
        s.gdt = DescriptorTable {
            base: 0x1000,
            limit: 39,
        };
        assert_eq!(segments(&sregs(&s, &Control::default())), s);
    }

    #[test]
    fn a_segment_that_is_still_loaded_keeps_what_processors_forget() {
        let null = Segment {
            attributes: 0x60,
            unusable: true,
            ..Default::default()
        };
        let small = Segment {
            selector: 0x10,
            limit: 0xfff,
            attributes: 0xc092,
            ..Default::default()
        };
        let mut before = Segments {
            data: [small; 6],
            ..Default::default()
        };
        before.data[seg::DS] = null;
        let mut k = sregs(&before, &Control::default());
        // VMX changes an unusable segment, and SVM a segment with a small limit.
        k.ds.dpl = 0;
        (k.es.g, k.es.type_) = (0, 3);
        let after = |k: &kvm_sregs| with_unstored_attributes(&segments(k), &before);
        assert_eq!(after(&k), before);
        k.es.type_ = 1;
        assert_eq!(after(&k).data[seg::ES].attributes, 0x4091);
        k.ds.selector = 3;
        assert_eq!(after(&k).data[seg::DS].attributes, 0);
    }

    #[test]
    fn vector_state_survives_and_absent_components_are_initial() {
        let mut fx = FxImage::default();
        fx.0[2] = 0x38;
        fx.0[40] = 0x11;
        fx.set_mxcsr(0x9fc0);
        let mut v = Vector256::default();
        for (i, r) in v.0.iter_mut().enumerate() {
            r.fill(i as u8 + 1);
            r[31] = 0xee;
        }
        let k = xsave(&fx, &v, 7);
        assert_eq!(vector_state(&k), (fx, v));
        let empty = xsave(&fx, &v, 0);
        assert_eq!(
            vector_state(&empty),
            (FxImage::default(), Vector256::default())
        );
    }

    #[test]
    fn events_survive() {
        let e = Events {
            shadow: InterruptShadow::MovSs,
            nmi_blocked: true,
            nmi_pending: true,
            pending_breakpoints: 0,
            mp: Default::default(),
        };
        assert_eq!(events_out(&events_in(&e), &e, false), e);
        assert_eq!(events_out(&events_in(&e), &e, true), e);
        let pending = Events {
            pending_breakpoints: 5,
            ..e
        };
        assert_eq!(events_out(&events_in(&pending), &pending, false), pending);
        assert_eq!(events_out(&events_in(&pending), &pending, true), e);
    }

    #[test]
    fn the_single_shadow_of_svm_is_of_the_kind_given_until_the_vcpu_runs() {
        let mut k = kvm_vcpu_events::default();
        k.interrupt.shadow = (KVM_X86_SHADOW_INT_STI | KVM_X86_SHADOW_INT_MOV_SS) as u8;
        use InterruptShadow::{MovSs, None, Sti};
        for (given, ran, read) in [
            (Sti, false, Sti),
            (Sti, true, MovSs),
            (MovSs, false, MovSs),
            (None, true, MovSs),
        ] {
            let before = Events {
                shadow: given,
                ..Default::default()
            };
            assert_eq!(events_out(&k, &before, ran).shadow, read, "{given:?}");
        }
    }
}
