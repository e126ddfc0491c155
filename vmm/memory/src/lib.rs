//! Guest RAM: one set of regions that engines, devices and loaders share, with NUMA ranges and code maps.

mod code;
mod map;
pub mod paging;
mod ram;

pub use code::{CodeMap, CodePage, CodeSlice, MOST_WRITES_OF_SHARED_PAGE};
pub use map::MapError;
pub use ram::{GuestRam, LayoutError, MMIO_GAP_END, MMIO_GAP_START, NumaRange, Ram, RamRegion};
