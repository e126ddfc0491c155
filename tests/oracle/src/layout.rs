//! Addresses that the native side and the engine share. All are below 2 GiB, so that every address form reaches them.

/// Size of a page in bytes.
pub const PAGE: u64 = 4096;

/// First address of a range that is reserved on the native side. An access that misses its target therefore faults there as in the guest.
pub const VOID_START: u64 = 0x2000_0000;
/// First address behind the reserved range.
pub const VOID_END: u64 = 0x6000_0000;

/// Address of the code: two executable pages, with nothing behind them. All bytes but the instruction under test are INT3.
pub const CODE: u64 = 0x3000_0000;
/// Length of the code pages in bytes.
pub const CODE_LEN: usize = 2 * PAGE as usize;

/// Address of the data window: three writable pages and a read-only one, with nothing before and behind them.
pub const WINDOW: u64 = 0x4000_0000;
/// Length of the writable pages in bytes.
pub const WRITABLE_LEN: usize = 3 * PAGE as usize;
/// Length of the window in bytes.
pub const WINDOW_LEN: usize = 4 * PAGE as usize;

/// Base of GS, which only instructions with a GS prefix use.
pub const GS_BASE: u64 = 0x0100_0000;
