//! Support for tests of booted clusters on KVM, which are in `tests/`. `scripts/test` runs them on a host with full KVM
//! (`scripts/kvm-host`).

use nodescope_test_needs::{Need, skip};

/// Returns whether studies can run on this host's KVM. If not, the test is reported as skipped, or fails if KVM is required.
pub fn kvm() -> bool {
    match nodescope_cluster::kvm::usable() {
        Ok(_) => true,
        Err(error) => {
            skip(Need::Kvm, error.to_string());
            false
        }
    }
}
