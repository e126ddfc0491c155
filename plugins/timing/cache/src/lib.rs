//! nodescope-plugin-cache
