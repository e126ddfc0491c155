//! Check for subordinate user and group IDs, which a plain user's build needs for the owners of packages' files.

use std::process::Command;

use crate::ImageError;
use crate::tools::find_tool;

/// Checks that a plain user can create a user namespace with the subordinate IDs of `/etc/subuid` and `/etc/subgid`. mmdebstrap unpacks
/// packages in such a namespace.
///
/// # Errors
///
/// [`ImageError::NoUidmap`] without newuidmap(1); [`ImageError::NoSubordinateIds`], with the first line of the system's message;
/// [`ImageError::MissingTool`] without unshare(1).
pub fn check_subordinate_ids() -> Result<(), ImageError> {
    if find_tool("newuidmap", "uidmap").is_err() {
        return Err(ImageError::NoUidmap);
    }
    let unshare = find_tool("unshare", "util-linux")?;
    let output = Command::new(&unshare)
        .args(["--map-root-user", "--map-auto", "true"])
        .env("LC_ALL", "C.UTF-8")
        .output()
        .map_err(ImageError::io("run", &unshare))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default();
    Err(ImageError::NoSubordinateIds(said.to_owned()))
}
