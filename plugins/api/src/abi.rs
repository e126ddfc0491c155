//! The C interface of shared libraries with models, field by field as in `include/nodescope_models.h`, which explains the fields.
#![allow(missing_docs, reason = "the header has the descriptions")]

use std::ffi::{c_char, c_int, c_void};

use crate::{Answered, Privilege, VcpuPlace};
use crate::{Batch, CacheShape, Event, MemRef, MemoryRequest, NodeShape, Observed};

/// Version of the interface.
pub const VERSION: u32 = 1;
/// Name of the function that a library defines.
pub const ENTRY: &str = "nodescope_models";
/// Value of an event's number for no event.
pub const NO_EVENT: u32 = u32::MAX;
/// Bits of [`CModel::needs`].
pub const EVERY_REFERENCE: u32 = 1;
pub const PAGE_SIZES: u32 = 2;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CParameter {
    pub size: usize,
    pub name: *const c_char,
    pub line: *const c_char,
    pub default: u64,
    pub least: u64,
    pub most: u64,
    pub unit: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CEventKind {
    pub size: usize,
    pub name: *const c_char,
    pub line: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CBatch {
    pub size: usize,
    pub events: *const Event,
    pub count: usize,
    pub clock: u64,
    pub context: u32,
    pub line_bytes: u32,
    pub vcpu: u16,
    pub kernel: u8,
    pub reserved: [u8; 5],
}

impl CBatch {
    /// Returns the C form of a batch.
    pub fn new(batch: &Batch<'_>) -> Self {
        Self {
            size: size_of::<Self>(),
            events: batch.events.as_ptr(),
            count: batch.events.len(),
            clock: batch.clock,
            context: batch.context.0,
            line_bytes: batch.line_bytes,
            vcpu: batch.vcpu,
            kernel: u8::from(batch.privilege == Privilege::Kernel),
            reserved: [0; 5],
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CReference {
    pub size: usize,
    pub physical: u64,
    pub linear: u64,
    pub now: u64,
    pub bytes: u32,
    pub context: u32,
    pub block: u32,
    pub operation: u32,
    pub stall: u32,
    pub vcpu: u16,
    pub access: u8,
    pub answer: u8,
    pub kernel: u8,
    pub locked: u8,
    pub non_temporal: u8,
    pub large_page: u8,
    pub reserved: [u8; 4],
}

impl CReference {
    /// Returns the C form of a reference and its answer.
    pub fn new(reference: &MemRef, answered: Answered) -> Self {
        Self {
            size: size_of::<Self>(),
            physical: reference.physical,
            linear: reference.linear,
            now: reference.now,
            bytes: reference.size,
            context: reference.context.0,
            block: reference.site.block,
            operation: reference.site.operation,
            stall: answered.stall,
            vcpu: reference.vcpu,
            access: reference.access as u8,
            answer: answered.source.map_or(0, |source| source as u8 + 1),
            kernel: u8::from(reference.privilege == Privilege::Kernel),
            locked: reference.locked.into(),
            non_temporal: reference.non_temporal.into(),
            large_page: reference.large_page.into(),
            reserved: [0; 4],
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CRequest {
    pub size: usize,
    pub line: u64,
    pub now: u64,
    pub vcpu: u16,
    pub socket: u16,
    pub home: u16,
    pub write_back: u8,
    pub reserved: u8,
}

impl CRequest {
    /// Returns the C form of a request.
    pub fn new(request: &MemoryRequest) -> Self {
        Self {
            size: size_of::<Self>(),
            line: request.line,
            now: request.now,
            vcpu: request.vcpu,
            socket: request.socket,
            home: request.home,
            write_back: request.write_back.into(),
            reserved: 0,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CSet {
    pub size: usize,
    pub bits: *mut u64,
    pub number: u32,
    pub ways: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CAccess {
    pub size: usize,
    pub line: u64,
    pub block: u32,
    pub operation: u32,
    pub access: u8,
    pub answer: u8,
    pub reserved: [u8; 6],
}

impl CAccess {
    /// Returns the C form of an access to a cache.
    pub fn new(access: &Observed) -> Self {
        Self {
            size: size_of::<Self>(),
            line: access.line,
            block: access.site.block,
            operation: access.site.operation,
            access: access.access as u8,
            answer: access.answer as u8,
            reserved: [0; 6],
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CVcpu {
    pub core: u16,
    pub socket: u16,
}

impl From<VcpuPlace> for CVcpu {
    fn from(place: VcpuPlace) -> Self {
        Self {
            core: place.core,
            socket: place.socket,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CShape {
    pub size: usize,
    pub vcpus: *const CVcpu,
    pub vcpu_count: usize,
    pub hertz: u64,
    pub level: u32,
    pub sets: u32,
    pub ways: u32,
    pub line_bytes: u32,
}

impl CShape {
    /// Returns the C form of a node, whose vCPUs are these.
    pub fn of_node(node: &NodeShape, vcpus: &[CVcpu]) -> Self {
        Self {
            size: size_of::<Self>(),
            vcpus: vcpus.as_ptr(),
            vcpu_count: vcpus.len(),
            hertz: node.hertz,
            level: 0,
            sets: 0,
            ways: 0,
            line_bytes: node.line_bytes,
        }
    }

    /// Returns the C form of a cache.
    pub fn of_cache(cache: &CacheShape) -> Self {
        Self {
            size: size_of::<Self>(),
            vcpus: std::ptr::null(),
            vcpu_count: 0,
            hertz: 0,
            level: cache.level.into(),
            sets: cache.sets,
            ways: cache.ways,
            line_bytes: cache.line_bytes,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CModel {
    pub size: usize,
    pub name: *const c_char,
    pub line: *const c_char,
    pub parameters: *const CParameter,
    pub parameter_count: usize,
    pub events: *const CEventKind,
    pub event_count: usize,
    pub kind: u32,
    pub needs: u32,
    pub model_data: *mut c_void,
    pub make: Option<unsafe extern "C" fn(*mut c_void, *const CShape, *const u64) -> *mut c_void>,
    pub drop: Option<unsafe extern "C" fn(*mut c_void)>,
    pub observe: Option<unsafe extern "C" fn(*mut c_void, *const CBatch, *mut u64)>,
    pub file: Option<unsafe extern "C" fn(*mut c_void, *mut *const u8) -> usize>,
    pub reference: Option<unsafe extern "C" fn(*mut c_void, *const CReference, *mut u32) -> u32>,
    pub request: Option<unsafe extern "C" fn(*mut c_void, *const CRequest, *mut u32) -> u32>,
    pub hit: Option<unsafe extern "C" fn(*mut c_void, *const CSet, u32)>,
    pub insert: Option<unsafe extern "C" fn(*mut c_void, *const CSet, u32)>,
    pub victim: Option<unsafe extern "C" fn(*mut c_void, *const CSet) -> u32>,
    pub remove: Option<unsafe extern "C" fn(*mut c_void, *const CSet, u32)>,
    pub empty_way: Option<unsafe extern "C" fn(*mut c_void, u64) -> u32>,
    pub settled: Option<unsafe extern "C" fn(*mut c_void, *const CSet, u32) -> c_int>,
    pub prefetch:
        Option<unsafe extern "C" fn(*mut c_void, *const CAccess, *mut u64, usize) -> usize>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CLibrary {
    pub size: usize,
    pub version: u32,
    pub reserved: u32,
    pub models: *const *const CModel,
    pub model_count: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CHost {
    pub size: usize,
    pub version: u32,
    pub reserved: u32,
    pub fail: Option<unsafe extern "C" fn(*const c_char)>,
    pub capability: Option<unsafe extern "C" fn(*const c_char) -> u64>,
}

/// Type of the function [`ENTRY`].
pub type Entry = unsafe extern "C" fn(*const CHost) -> *const CLibrary;
