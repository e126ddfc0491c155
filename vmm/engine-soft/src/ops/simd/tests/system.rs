//! Control state: availability, save areas, exceptions.
