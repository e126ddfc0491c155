//! Layout of the kernel's structures: offsets of the members that nodescope reads.

use crate::btf::Types;
use crate::error::KernelError;

/// Layout of all structures. Fields of the parts are offsets and sizes in bytes, unless they say otherwise.
#[derive(Debug)]
pub(crate) struct Layout {
    pub page: Page,
    pub inode: Inode,
    pub dentry: Dentry,
    pub mount: Mount,
    pub xarray: Xarray,
    pub module: Module,
    pub task: Task,
}

/// Layout of `struct page`.
#[derive(Debug)]
pub(crate) struct Page {
    pub size: u64,
    pub flags: u64,
    pub compound_head: u64,
    pub mapping: u64,
    pub index: u64,
    /// Bit masks in `flags`: `slab` and `reserved`.
    pub slab: u64,
    pub reserved: u64,
}

/// Layout of `struct address_space`, `struct inode` and `struct super_block`.
#[derive(Debug)]
pub(crate) struct Inode {
    pub host: u64,
    pub number: u64,
    pub mapping: u64,
    pub links: u64,
    pub size: u64,
    pub aliases: u64,
    pub super_block: u64,
    pub super_id: u64,
    pub super_type: u64,
    pub type_name: u64,
}

/// Layout of `struct dentry`.
#[derive(Debug)]
pub(crate) struct Dentry {
    pub alias: u64,
    pub parent: u64,
    pub len: u64,
    pub name: u64,
    pub inode: u64,
    /// Head of the list of a folder's entries, and the link of an entry in this list.
    pub children: u64,
    pub child: u64,
}

/// Layout of `struct mount`.
#[derive(Debug)]
pub(crate) struct Mount {
    /// Offset in `struct super_block` of the list of its mounts.
    pub first: u64,
    pub instance: u64,
    pub parent: u64,
    pub point: u64,
}

/// Layout of `struct xarray` in `struct address_space`, and of its nodes.
#[derive(Debug)]
pub(crate) struct Xarray {
    pub head: u64,
    pub shift: u64,
    pub slots: u64,
}

/// Layout of `struct module`.
#[derive(Debug)]
pub(crate) struct Module {
    pub list: u64,
    pub name: u64,
    pub base: u64,
    pub text: u64,
    pub kallsyms: u64,
    pub symbols: u64,
    pub count: u64,
    pub strings: u64,
}

/// Layout of `struct task_struct`, and of the registers at the top of a task's stack.
#[derive(Debug)]
pub(crate) struct Task {
    pub pid: u64,
    pub tgid: u64,
    pub comm: u64,
    pub stack: u64,
    pub registers: u64,
    pub ip: u64,
    pub cs: u64,
    pub sp: u64,
    pub bp: u64,
}

impl Layout {
    /// Looks up all offsets and sizes in the kernel's types.
    pub fn new(types: &Types<'_>) -> Result<Self, KernelError> {
        let at = |structure, member| types.offset(structure, member);
        let bit = |name| -> Result<u64, KernelError> {
            let bit = types.enumerator(name)?;
            1u64.checked_shl(bit)
                .ok_or_else(|| KernelError::Type(format!("bit {name}")))
        };
        let page = Page {
            size: types.size("page")?,
            flags: at("page", "flags")?,
            compound_head: at("page", "compound_head")?,
            mapping: at("page", "mapping")?,
            index: at("page", "index")?,
            slab: bit("PG_slab")?,
            reserved: bit("PG_reserved")?,
        };
        if page.size == 0 {
            return Err(KernelError::Type("struct page of a size".into()));
        }
        Ok(Self {
            page,
            inode: Inode {
                host: at("address_space", "host")?,
                number: at("inode", "i_ino")?,
                mapping: at("inode", "i_mapping")?,
                links: at("inode", "i_nlink")?,
                size: at("inode", "i_size")?,
                aliases: at("inode", "i_dentry.first")?,
                super_block: at("inode", "i_sb")?,
                super_id: at("super_block", "s_id")?,
                super_type: at("super_block", "s_type")?,
                type_name: at("file_system_type", "name")?,
            },
            dentry: Dentry {
                alias: at("dentry", "d_u.d_alias")?,
                parent: at("dentry", "d_parent")?,
                len: at("dentry", "d_name.len")?,
                name: at("dentry", "d_name.name")?,
                inode: at("dentry", "d_inode")?,
                children: at("dentry", "d_subdirs")?,
                child: at("dentry", "d_child")?,
            },
            mount: Mount {
                first: at("super_block", "s_mounts")?,
                instance: at("mount", "mnt_instance")?,
                parent: at("mount", "mnt_parent")?,
                point: at("mount", "mnt_mountpoint")?,
            },
            xarray: Xarray {
                head: at("address_space", "i_pages.xa_head")?,
                shift: at("xa_node", "shift")?,
                slots: at("xa_node", "slots")?,
            },
            module: Module {
                list: at("module", "list")?,
                name: at("module", "name")?,
                base: at("module", "core_layout.base")?,
                text: at("module", "core_layout.text_size")?,
                kallsyms: at("module", "kallsyms")?,
                symbols: at("mod_kallsyms", "symtab")?,
                count: at("mod_kallsyms", "num_symtab")?,
                strings: at("mod_kallsyms", "strtab")?,
            },
            task: Task {
                pid: at("task_struct", "pid")?,
                tgid: at("task_struct", "tgid")?,
                comm: at("task_struct", "comm")?,
                stack: at("task_struct", "stack")?,
                registers: types.size("pt_regs")?,
                ip: at("pt_regs", "ip")?,
                cs: at("pt_regs", "cs")?,
                sp: at("pt_regs", "sp")?,
                bp: at("pt_regs", "bp")?,
            },
        })
    }
}
