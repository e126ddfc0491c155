//! Contended lines of a profile: the code that used them, and the variables that they hold.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_plugin_api::{Access, ContendedLine, LineUse, Privilege, ProfiledBlock};
use nodescope_profile::Variable;
use nodescope_symbols::{FileId, FilePage};

use super::Naming;

/// Maximum number of a node's contended lines in a profile.
const LINES: usize = 100;

/// For each file in an address space, the offset and the linear address of a piece of its code. A file's data lie at a fixed distance from
/// its code.
type Code = BTreeMap<FileId, (u64, u64)>;

impl Naming<'_> {
    /// Returns the contended lines with the most cycles, with their variables. `numbers` are the numbers of the node's blocks in the profile,
    /// and `spaces` the address spaces of its contexts.
    pub(super) fn contended(
        &mut self,
        node: u32,
        lines: &[ContendedLine],
        blocks: &[ProfiledBlock],
        numbers: &[u32],
        spaces: &[u64],
    ) -> Vec<nodescope_profile::ContendedLine> {
        let cycles = |line: &ContendedLine| line.uses.iter().map(|of| of.cycles).sum::<u64>();
        let mut lines: Vec<&ContendedLine> = lines.iter().collect();
        lines.sort_by_key(|line| (std::cmp::Reverse(cycles(line)), line.physical));
        lines.truncate(LINES);
        let users = lines.iter().flat_map(|line| &line.uses);
        let used: BTreeSet<u32> = users.map(|of| of.context.0).collect();
        let code: BTreeMap<u32, Code> = (used.into_iter())
            .filter_map(|context| Some((context, *spaces.get(context as usize)?)))
            .map(|(context, space)| (context, self.code_in(space, blocks)))
            .collect();
        let named = lines.into_iter().map(|line| {
            let user = line.uses.iter().find(|of| of.privilege == Privilege::User);
            let first = user.or(line.uses.first());
            let uses = line.uses.iter().map(|of| nodescope_profile::LineUse {
                vcpu: of.vcpu,
                context: of.context.0,
                block: numbers.get(of.site.block as usize).copied().unwrap_or(0),
                instruction: of.site.operation,
                write: of.access == Access::Write,
                locked: of.locked,
                touched: of.touched,
                taken: of.taken,
                cycles: of.cycles,
            });
            nodescope_profile::ContendedLine {
                node,
                physical: line.physical,
                size: line.size,
                address: first.map_or(0, |of| of.linear),
                variable: user.and_then(|user| self.variable(line, user, &code)),
                uses: uses.collect(),
            }
        });
        named.collect()
    }

    /// Returns code of each file in an address space.
    fn code_in(&mut self, space: u64, blocks: &[ProfiledBlock]) -> Code {
        let mut code = Code::new();
        for block in blocks.iter().skip(1).filter(|block| !block.kernel) {
            let here = block.address_space == space
                || nodescope_symbols::translate(self.memory, space, block.address)
                    == Some(block.physical);
            if here && let Some(FilePage::File { file, offset }) = self.page(block.physical) {
                code.entry(file).or_insert((offset, block.address));
            }
        }
        code
    }

    /// Returns the variable that has the first used byte of a line, where a file has the line's data in the address space of `user`. `code`
    /// is the code of each context.
    fn variable(
        &mut self,
        line: &ContendedLine,
        user: &LineUse,
        code: &BTreeMap<u32, Code>,
    ) -> Option<Variable> {
        let touched = line.uses.iter().fold(0, |all, of| all | of.touched);
        let within = u64::from(touched.trailing_zeros().min(63)) * u64::from(line.size / 64).max(1);
        let byte = user.linear + within;
        let code = code.get(&user.context.0)?;
        code.iter().find_map(|(file, (offset, address))| {
            let distance = byte.wrapping_sub(*address) as i64;
            let found = self
                .names
                .locate_data(self.files, file, &[(*offset, distance)]);
            let found = found.into_iter().next()??;
            let in_variable = found.data_address?.wrapping_sub(found.function_start?) as i64;
            Some(Variable {
                module: found.module,
                name: found.function,
                offset: in_variable - within as i64,
            })
        })
    }
}
