//! The initramfs: busybox, a short script, and the kernel modules it loads, as an uncompressed cpio archive.
//!
//! The archive is uncompressed, because every instruction of a decompressor in the guest would be emulated.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::{ImageError, cpio};

/// A kernel module of the initramfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleFile {
    /// File name of the module, for example `virtio_net.ko`.
    pub name: String,
    /// Contents of the module's file.
    pub data: Vec<u8>,
}

/// Returns the kernel modules to load for `wanted`, as paths relative to the modules' folder. Each module comes after its dependencies.
///
/// `modules_dep` is the kernel's modules.dep (`path: path path ...`). `modules_builtin` is its modules.builtin: a module that is built into
/// the kernel needs no loading. Errors name the kernel `kernel`.
///
/// # Errors
///
/// [`ImageError::Module`] for a module that the kernel does not have.
pub fn module_order(
    wanted: &[String],
    modules_dep: &str,
    modules_builtin: &str,
    kernel: &str,
) -> Result<Vec<PathBuf>, ImageError> {
    /// Returns the module's name from a path, with `-` replaced by `_`: the kernel treats both as equal.
    fn stem(path: &str) -> String {
        let file = path.rsplit('/').next().unwrap_or(path);
        file.split(".ko").next().unwrap_or(file).replace('-', "_")
    }

    fn visit<'a>(
        path: &'a str,
        needs: &HashMap<&'a str, Vec<&'a str>>,
        order: &mut Vec<&'a str>,
        open: &mut Vec<&'a str>,
    ) {
        if order.contains(&path) || open.contains(&path) {
            return;
        }
        open.push(path);
        for need in needs.get(path).into_iter().flatten() {
            visit(need, needs, order, open);
        }
        open.pop();
        order.push(path);
    }

    let needs: HashMap<&str, Vec<&str>> = modules_dep
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| (path, needs.split_whitespace().collect()))
        .collect();
    let mut order = Vec::new();
    for module in wanted {
        let name = stem(module);
        match needs.keys().find(|path| stem(path) == name) {
            Some(path) => visit(path, &needs, &mut order, &mut Vec::new()),
            None if modules_builtin.lines().any(|path| stem(path) == name) => {}
            None => {
                return Err(ImageError::Module {
                    kernel: kernel.into(),
                    module: module.clone(),
                });
            }
        }
    }
    Ok(order.into_iter().map(PathBuf::from).collect())
}

/// Makes the archive with `init`, `busybox` and `modules`. The modules must be in the order in which init loads them.
pub fn initramfs(init: &[u8], busybox: &[u8], modules: &[ModuleFile]) -> Vec<u8> {
    let mut writer = cpio::Writer::new();
    for dir in ["bin", "dev", "lower", "modules", "proc", "root", "rw"] {
        writer.directory(dir, 0o755);
    }
    // The kernel opens the console for the first process before anything is mounted.
    writer.character_device("dev/console", 0o600, 5, 1);
    writer.file("init", 0o755, init);
    writer.file("bin/busybox", 0o755, busybox);
    let mut order = String::new();
    for module in modules {
        writer.file(&format!("modules/{}", module.name), 0o644, &module.data);
        order.push_str(&module.name);
        order.push('\n');
    }
    writer.file("modules/order", 0o644, order.as_bytes());
    writer.finish(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/drivers/net/virtio_net.ko: kernel/net/core/net_failover.ko kernel/net/core/failover.ko kernel/virtio/virtio.ko kernel/virtio/virtio_ring.ko
kernel/net/core/net_failover.ko: kernel/net/core/failover.ko
kernel/net/core/failover.ko:
kernel/virtio/virtio.ko: kernel/virtio/virtio_ring.ko
kernel/virtio/virtio_ring.ko:
kernel/virtio/virtio-rng.ko: kernel/virtio/virtio.ko kernel/virtio/virtio_ring.ko
";

    fn order(wanted: &[&str]) -> Result<Vec<String>, ImageError> {
        let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let order = module_order(&wanted, DEP, "kernel/fs/ext4/ext4.ko\n", "6.1.0")?;
        Ok(order
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect())
    }

    #[test]
    fn each_module_comes_after_what_it_needs_and_once() {
        assert_eq!(
            order(&["virtio_rng", "virtio-net", "ext4"]).unwrap(),
            [
                "virtio_ring.ko",
                "virtio.ko",
                "virtio-rng.ko",
                "failover.ko",
                "net_failover.ko",
                "virtio_net.ko"
            ]
        );
    }

    #[test]
    fn a_module_the_kernel_lacks_is_named() {
        assert_eq!(
            order(&["virtio_ring", "xfs"]).unwrap_err().to_string(),
            "kernel 6.1.0 has no module `xfs`: correct `modules` in the recipe's image.toml"
        );
    }

    #[test]
    fn the_archive_names_the_modules_in_loading_order() {
        let modules = ["b.ko", "a.ko"].map(|name| ModuleFile {
            name: name.into(),
            data: name.as_bytes().to_vec(),
        });
        let archive = initramfs(b"#!", b"\x7fELF", &modules);
        let entries = cpio::read(&archive).unwrap();
        let find = |name| entries.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!(find("modules/order").data, b"b.ko\na.ko\n");
        assert_eq!(find("modules/a.ko").data, b"a.ko");
        assert_eq!(find("init").mode & 0o777, 0o755);
        assert_eq!(find("dev/console").device, (5, 1));
    }
}
