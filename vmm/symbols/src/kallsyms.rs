//! Symbols of the kernel, from the tables that the kernel carries for itself (Linux 6.1, scripts/kallsyms.c).
//!
//! The tables follow each other in `.rodata`, each at a multiple of eight bytes: `kallsyms_offsets`, `kallsyms_relative_base`,
//! `kallsyms_num_syms`, `kallsyms_names`, `kallsyms_markers`, `kallsyms_seqs_of_names` (in later releases of 6.1), `kallsyms_token_table`,
//! `kallsyms_token_index`. Their addresses are not recorded anywhere. Each table has a length that follows from its contents. The
//! search accepts only tables that agree with each other: the tokens with their index, the names with their markers.

use crate::error::KernelError;

/// Number of names between two markers.
const BLOCK: usize = 256;
/// Lowest linear address at which kernels are linked: `__START_KERNEL_map` (Documentation/x86/x86_64/mm.rst).
const KERNEL: u64 = 0xffff_ffff_8000_0000;
/// Maximum number of symbols of a kernel.
const MOST: usize = 4 << 20;
/// Maximum length of the last token with its padding, bytes. The search does not find a table with a longer one.
const TOKEN: usize = 512;

/// A symbol of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSymbol<'a> {
    /// Name in the kernel's tables.
    pub name: &'a str,
    /// Linear address of the symbol's first byte.
    pub address: u64,
    /// Bytes up to the next symbol of code; `None` for the last symbol of code. From `GuestKernel::function`, never `None`, and at most up
    /// to the end of the section.
    pub size: Option<u64>,
}

#[derive(Debug)]
struct Entry {
    address: u64,
    /// Range of the name in `KernelSymbols::text`.
    name: std::ops::Range<u32>,
    /// Type letter, as in the output of `nm`.
    kind: u8,
}

/// The kernel's symbols, ordered by address.
#[derive(Debug)]
pub struct KernelSymbols {
    text: String,
    /// All symbols, ordered by address.
    all: Vec<Entry>,
    /// Indices in `all` of the symbols of code, ordered by address.
    code: Vec<u32>,
    /// Indices in `all` of all symbols, ordered by name.
    names: Vec<u32>,
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_le_bytes(*word).into())
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*word) as usize)
}

/// Ranges of the 256 tokens in the searched bytes.
struct Tokens(Vec<std::ops::Range<usize>>);

impl Tokens {
    /// Searches for the index of tokens, and before it for the token table that agrees with the index.
    fn find(bytes: &[u8]) -> Option<Tokens> {
        (0..bytes.len().saturating_sub(2 * 256))
            .step_by(8)
            .find_map(|at| Self::at(bytes, at))
    }

    fn at(bytes: &[u8], index: usize) -> Option<Tokens> {
        let mut starts = [0; 256];
        for n in 1..256 {
            starts[n] = half(bytes, index + 2 * n)?;
            // A token has at least one byte and a terminating zero.
            if starts[n] < starts[n - 1] + 2 {
                return None;
            }
        }
        if half(bytes, index)? != 0 {
            return None;
        }
        // The last token's length is unknown, and so is the beginning of the table. The search tries all lengths of the table.
        (8..starts[255] + TOKEN)
            .step_by(8)
            .filter(|len| *len > starts[255] + 1)
            .find_map(|len| {
                let table = index.checked_sub(len)?;
                let mut tokens = Vec::with_capacity(256);
                for (n, start) in starts.iter().enumerate() {
                    let from = table + start;
                    let len = bytes[from..index].iter().position(|byte| *byte == 0)?;
                    if len == 0
                        || starts
                            .get(n + 1)
                            .is_some_and(|next| start + len + 1 != *next)
                    {
                        return None;
                    }
                    tokens.push(from..from + len);
                }
                // Zeros pad the table up to the index.
                let end = tokens[255].end;
                let zeros = bytes[end..index].iter().all(|byte| *byte == 0);
                (zeros && index - end <= 8).then_some(Tokens(tokens))
            })
    }
}

/// Offsets of the tables of offsets and names in the searched bytes, with the base address and the number of symbols.
struct Tables {
    offsets: usize,
    base: u64,
    names: usize,
    count: usize,
}

impl Tables {
    /// Searches for a base address of the kernel and a number of symbols, followed by that number of names and by their markers.
    fn find(bytes: &[u8]) -> Option<Tables> {
        (0..bytes.len().saturating_sub(16))
            .step_by(8)
            .find_map(|at| Self::at(bytes, at))
    }

    fn at(bytes: &[u8], at: usize) -> Option<Tables> {
        // The base is the kernel's first address: in the uppermost 2 GiB, and at the beginning of a page.
        let base = u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        let count = word(bytes, at + 8)?;
        if base < KERNEL || base & 0xfff != 0 || count == 0 || count > MOST {
            return None;
        }
        let offsets = at.checked_sub((4 * count).next_multiple_of(8))?;
        let names = at + 16;
        let mut name = names;
        let mut markers = Vec::new();
        for n in 0..count {
            if n % BLOCK == 0 {
                markers.push(name - names);
            }
            name = name_at(bytes, name)?.end;
        }
        let table = name.next_multiple_of(8);
        let mut marked = markers.iter().enumerate();
        let agree = marked.all(|(n, marker)| word(bytes, table + 4 * n) == Some(*marker));
        agree.then_some(Tables {
            offsets,
            base,
            names,
            count,
        })
    }
}

/// Returns the range of a compressed name's tokens. The name begins with its length, which takes two bytes if 128 or more.
fn name_at(bytes: &[u8], at: usize) -> Option<std::ops::Range<usize>> {
    let first = usize::from(*bytes.get(at)?);
    let (len, from) = match first & 0x80 {
        0 => (first, at + 1),
        _ => (
            (first & 0x7f) | usize::from(*bytes.get(at + 1)?) << 7,
            at + 2,
        ),
    };
    (len > 0 && from + len <= bytes.len()).then_some(from..from + len)
}

impl KernelSymbols {
    /// Finds the tables in `.rodata`, and decompresses all symbols.
    pub fn new(rodata: &[u8]) -> Result<Self, KernelError> {
        let tokens = Tokens::find(rodata).ok_or(KernelError::Symbols("no table of tokens"))?;
        let tables = Tables::find(rodata).ok_or(KernelError::Symbols("no table of names"))?;
        let mut text = String::new();
        let mut all = Vec::with_capacity(tables.count);
        let mut at = tables.names;
        for n in 0..tables.count {
            let compressed =
                name_at(rodata, at).ok_or(KernelError::Symbols("a name is cut off"))?;
            at = compressed.end;
            let mut name = Vec::new();
            for token in &rodata[compressed] {
                name.extend_from_slice(&rodata[tokens.0[usize::from(*token)].clone()]);
            }
            let offset =
                word(rodata, tables.offsets + 4 * n).ok_or(KernelError::Symbols("no offsets"))?;
            // CONFIG_KALLSYMS_ABSOLUTE_PERCPU: an offset that is not negative is an absolute value.
            let offset = offset as u32 as i32;
            let address = match offset {
                0.. => offset as u64,
                _ => tables.base.wrapping_add((-1 - i64::from(offset)) as u64),
            };
            let from = text.len() as u32;
            let (kind, name) = name.split_first().unwrap_or((&0, &[]));
            text.push_str(&String::from_utf8_lossy(name));
            all.push(Entry {
                address,
                name: from..text.len() as u32,
                kind: *kind,
            });
        }
        all.sort_by_key(|entry| entry.address);
        let code = |entry: &Entry| matches!(entry.kind, b't' | b'T' | b'w' | b'W');
        let numbers = 0..all.len() as u32;
        let code = numbers.clone().filter(|n| code(&all[*n as usize]));
        let code = code.collect();
        let mut symbols = KernelSymbols {
            text,
            all,
            code,
            names: Vec::new(),
        };
        let mut names: Vec<u32> = numbers.collect();
        // The sort is stable, so that of symbols with the same name the lowest address is first.
        names.sort_by(|a, b| symbols.name(*a).cmp(symbols.name(*b)));
        symbols.names = names;
        Ok(symbols)
    }

    /// Returns the name of the symbol with this index in `all`.
    fn name(&self, number: u32) -> &str {
        let range = &self.all[number as usize].name;
        &self.text[range.start as usize..range.end as usize]
    }

    /// Returns the number of symbols.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether the kernel has no symbols.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the address of the symbol with this name, the lowest address if several symbols have the name. For a per-CPU variable,
    /// returns the offset in the per-CPU area.
    pub fn address(&self, name: &str) -> Option<u64> {
        let first = self.names.partition_point(|n| self.name(*n) < name);
        let number = *self.names.get(first)?;
        (self.name(number) == name).then(|| self.all[number as usize].address)
    }

    /// Finds the last symbol of code at or before an address. Of several names of one address, a global symbol is preferred, then a name
    /// without an underscore in front, then the first name.
    pub fn function(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let at = |n: &u32| &self.all[*n as usize];
        let after = self.code.partition_point(|n| at(n).address <= address);
        let start = at(self.code[..after].last()?).address;
        let first = self.code.partition_point(|n| at(n).address < start);
        let same = &self.code[first..after];
        // The rank prefers `memcpy` to `__memcpy`.
        let rank = |n: &&u32| (at(n).kind != b'T', self.name(**n).starts_with('_'), **n);
        let number = *same.iter().min_by_key(rank)?;
        Some(KernelSymbol {
            name: self.name(number),
            address: start,
            size: self.code.get(after).map(|n| at(n).address - start),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::KernelSymbols;

    /// Returns tables with these symbols, whose names begin with the type letter. Token 0 stands for `sys_`, every other token for one
    /// byte.
    fn tables(symbols: &[(i32, &str)], base: u64) -> Vec<u8> {
        let pad = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(8), 0);
        let mut bytes = vec![0xcc; 4096];
        for (offset, _) in symbols {
            bytes.extend(offset.to_le_bytes());
        }
        pad(&mut bytes);
        bytes.extend(base.to_le_bytes());
        bytes.extend((symbols.len() as u32).to_le_bytes());
        pad(&mut bytes);
        let names = bytes.len();
        let mut markers = Vec::new();
        for (n, (_, name)) in symbols.iter().enumerate() {
            if n % 256 == 0 {
                markers.extend(((bytes.len() - names) as u32).to_le_bytes());
            }
            let packed = name.replace("sys_", "\0");
            match packed.len() {
                len @ 0..0x80 => bytes.push(len as u8),
                len => bytes.extend([len as u8 | 0x80, (len >> 7) as u8]),
            }
            bytes.extend(packed.bytes());
        }
        pad(&mut bytes);
        bytes.extend(markers);
        pad(&mut bytes);
        // kallsyms_seqs_of_names, which the reader does not use.
        bytes.extend(vec![3; 3 * symbols.len()]);
        pad(&mut bytes);
        let table = bytes.len();
        let mut index = Vec::new();
        for token in 0..=255u8 {
            index.extend(((bytes.len() - table) as u16).to_le_bytes());
            match token {
                0 => bytes.extend(b"sys_\0"),
                _ => bytes.extend([token, 0]),
            }
        }
        pad(&mut bytes);
        bytes.extend(index);
        bytes.extend([0xcc; 64]);
        bytes
    }

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn some(count: i32, long: &str) -> Vec<u8> {
        let names: Vec<String> = (0..count).map(|n| format!("tsys_{n}")).collect();
        let mut symbols: Vec<(i32, &str)> = vec![(8, "Aper_cpu"), (-1, "T_text")];
        symbols.extend((1..).zip(&names).map(|(n, name)| (-1 - 16 * n, &**name)));
        symbols.extend([
            (-2 - 16 * count, long),
            (-2 - 16 * count, "Tglobal"),
            (-2 - 16 * count, "dlater"),
        ]);
        tables(&symbols, BASE)
    }

    /// Returns the symbols of a small kernel.
    pub(crate) fn symbols() -> KernelSymbols {
        KernelSymbols::new(&some(4, "tlong")).unwrap()
    }

    #[test]
    fn names_and_addresses() {
        let long = format!("t{}", "x".repeat(300));
        for count in [1, 251, 252, 600] {
            let symbols = KernelSymbols::new(&some(count, &long)).unwrap();
            assert_eq!(symbols.len() as i32, count + 5);
            assert_eq!(symbols.address("per_cpu"), Some(8));
            assert_eq!(symbols.address("_text"), Some(BASE));
            assert_eq!(symbols.address("sys_0"), Some(BASE + 16));
            assert_eq!(symbols.address("nothing"), None);
            let function = symbols.function(BASE + 15).unwrap();
            assert_eq!((function.name, function.size), ("_text", Some(16)));
            assert!(symbols.function(BASE - 1).is_none());
            let last = symbols.function(u64::MAX).unwrap();
            assert_eq!((last.name, last.size), ("global", None));
        }
    }

    #[test]
    fn damage_is_an_error_or_other_names() {
        let whole = some(300, "tlong");
        assert!(KernelSymbols::new(&[]).is_err());
        for at in (4096..whole.len() - 64).step_by(3) {
            for value in [0, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = KernelSymbols::new(&bytes);
            }
            let _ = KernelSymbols::new(&whole[..at]);
        }
    }
}
