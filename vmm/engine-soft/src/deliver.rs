//! Delivery of exceptions and interrupts.
