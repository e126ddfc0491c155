//! Addresses that both sides share. All lie below 2 GiB, so that every address form reaches them.

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// First address of a range that is reserved on the native side, so that an access that misses its target faults there
/// as it does in the guest.
pub const VOID_START: u64 = 0x2000_0000;
/// First address after that range.
pub const VOID_END: u64 = 0x6000_0000;

/// Code: two executable pages, then nothing. Everything but the instruction under test is INT3.
pub const CODE: u64 = 0x3000_0000;
/// Bytes of code.
pub const CODE_LEN: usize = 2 * PAGE as usize;

/// Data: three pages that can be written, one that can only be read, nothing before and after.
pub const WINDOW: u64 = 0x4000_0000;
/// Bytes that can be written.
pub const WRITABLE_LEN: usize = 3 * PAGE as usize;
/// Length of the window in bytes.
pub const WINDOW_LEN: usize = 4 * PAGE as usize;

/// Base of GS, of which only segment overrides take notice.
pub const GS_BASE: u64 = 0x0100_0000;
