//! Types of the kernel, from its section `.BTF` (Linux, Documentation/bpf/btf.rst).
//!
//! The crate `btf` keeps one type for each name, whatever its kind. A function named `page` could take the place of `struct page`. The
//! crate also computes sizes with 32 bits without a check. This reader finds only structures, unions and enumerators by name.

use std::collections::BTreeMap;

use crate::error::KernelError;

/// Maximum nesting of anonymous members, and maximum length of a chain of typedefs and qualifiers.
const DEPTH: u32 = 32;
/// Maximum number of members that the search for one component of a path examines. The largest structures have some hundreds.
const LOOKS: u32 = 10_000;

const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// Type of the kernel: decoded `struct btf_type`.
#[derive(Clone, Copy, Debug)]
struct Type {
    /// Offset of `struct btf_type` in the section.
    at: usize,
    kind: u32,
    /// Number of members, or of enumerators. If `flag` is true, the members' offsets also have the sizes of bit fields.
    len: usize,
    flag: bool,
    /// Size in bytes; for a typedef or qualifier, the number of the type to which it refers.
    size_or_type: u32,
}

/// Position of a member in its structure, and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Offset of the member in its structure, bytes.
    pub offset: u64,
    /// Number of the member's type in the section.
    type_id: u32,
}

/// The types of a kernel.
#[derive(Debug)]
pub(crate) struct Types<'a> {
    bytes: &'a [u8],
    strings: &'a [u8],
    types: Vec<Type>,
    /// Numbers of structures and unions by name.
    names: BTreeMap<&'a [u8], u32>,
}

/// Reads the little-endian 32-bit number at an offset.
fn number(bytes: &[u8], at: usize) -> Result<u32, KernelError> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.map(|word| u32::from_le_bytes(*word))
        .ok_or(KernelError::Btf {
            offset: at,
            what: "the section ends here",
        })
}

impl<'a> Types<'a> {
    /// Parses the contents of the section `.BTF`.
    pub fn new(bytes: &'a [u8]) -> Result<Self, KernelError> {
        let bad = |offset, what| KernelError::Btf { offset, what };
        // struct btf_header: magic, version, flags, hdr_len, type_off, type_len, str_off, str_len.
        if number(bytes, 0)? & 0x00ff_ffff != 0x01_eb9f {
            return Err(bad(0, "no header of version 1"));
        }
        let part = |at: usize| -> Result<&'a [u8], KernelError> {
            let header = number(bytes, 4)? as usize;
            let from = header + number(bytes, at)? as usize;
            let to = from + number(bytes, at + 4)? as usize;
            bytes
                .get(from..to)
                .ok_or(bad(at, "a part is larger than the section"))
        };
        let all = part(8)?;
        let mut found = Types {
            bytes: all,
            strings: part(16)?,
            // Type 0 is void.
            types: vec![Type {
                at: 0,
                kind: 0,
                len: 0,
                flag: false,
                size_or_type: 0,
            }],
            names: BTreeMap::new(),
        };
        let mut at = 0;
        while at < all.len() {
            let info = number(all, at + 4)?;
            let new = Type {
                at,
                kind: (info >> 24) & 0x1f,
                len: (info & 0xffff) as usize,
                flag: info >> 31 != 0,
                size_or_type: number(all, at + 8)?,
            };
            let more = match new.kind {
                INT | VAR | DECL_TAG => 4,
                ARRAY => 12,
                STRUCT | UNION | DATASEC | ENUM64 => 12 * new.len,
                ENUM | FUNC_PROTO => 8 * new.len,
                1..=TYPE_TAG => 0,
                _ => return Err(bad(at, "an unknown kind of type")),
            };
            if all.len() - at < 12 + more {
                return Err(bad(at, "a type is cut off"));
            }
            if matches!(new.kind, STRUCT | UNION) {
                let name = found.string(number(all, at)?);
                if !name.is_empty() {
                    // Of several types with one name, the first one counts, as in libbpf.
                    let id = found.types.len() as u32;
                    found.names.entry(name).or_insert(id);
                }
            }
            found.types.push(new);
            at += 12 + more;
        }
        Ok(found)
    }

    /// Returns the text at an offset of the string section; empty if the offset has no text.
    fn string(&self, offset: u32) -> &'a [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
        &rest[..end]
    }

    /// Follows typedefs and qualifiers to the type to which they refer. Returns `None` for an invalid number or a chain that is too long.
    fn resolve(&self, mut id: u32) -> Option<&Type> {
        for _ in 0..DEPTH {
            let ty = self.types.get(id as usize)?;
            match ty.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = ty.size_or_type,
                _ => return Some(ty),
            }
        }
        None
    }

    /// Returns the size of a structure or union in bytes.
    pub fn size(&self, structure: &str) -> Result<u64, KernelError> {
        let id = self.names.get(structure.as_bytes());
        id.and_then(|id| self.types.get(*id as usize))
            .map(|ty| u64::from(ty.size_or_type))
            .ok_or_else(|| KernelError::Type(format!("struct {structure}")))
    }

    /// Returns the offset of a member in bytes. A path such as `d_name.len` names a member of a member. Paths leave out anonymous
    /// structures and unions.
    pub fn offset(&self, structure: &str, path: &str) -> Result<u64, KernelError> {
        let missing = || KernelError::Type(format!("struct {structure} with a member {path}"));
        let mut id = *self.names.get(structure.as_bytes()).ok_or_else(missing)?;
        let mut offset = 0u64;
        for name in path.split('.') {
            let mut left = LOOKS;
            let member = self.member(id, name.as_bytes(), DEPTH, &mut left);
            let member = member.ok_or_else(missing)?;
            offset += member.offset;
            id = member.type_id;
        }
        Ok(offset)
    }

    /// Searches a structure and its anonymous members for a member by name. `left` counts down the members that may still be examined.
    fn member(&self, id: u32, name: &[u8], depth: u32, left: &mut u32) -> Option<Member> {
        let ty = self.resolve(id)?;
        if !matches!(ty.kind, STRUCT | UNION) || depth == 0 {
            return None;
        }
        for n in 0..ty.len {
            *left = left.checked_sub(1)?;
            let at = ty.at + 12 + 12 * n;
            let field = |word: usize| number(self.bytes, at + 4 * word).ok();
            let (text, type_id, bits) = (self.string(field(0)?), field(1)?, field(2)?);
            let bits = if ty.flag { bits & 0x00ff_ffff } else { bits };
            let offset = u64::from(bits / 8);
            if text == name {
                return Some(Member { offset, type_id });
            }
            if text.is_empty()
                && let Some(inner) = self.member(type_id, name, depth - 1, left)
            {
                let offset = offset + inner.offset;
                return Some(Member { offset, ..inner });
            }
        }
        None
    }

    /// Returns the value of an enumerator of a 32-bit enumeration.
    pub fn enumerator(&self, name: &str) -> Result<u32, KernelError> {
        for ty in self.types.iter().filter(|ty| ty.kind == ENUM) {
            for n in 0..ty.len {
                let at = ty.at + 12 + 8 * n;
                if self.string(number(self.bytes, at)?) == name.as_bytes() {
                    return number(self.bytes, at + 4);
                }
            }
        }
        Err(KernelError::Type(format!("enumerator {name}")))
    }
}

#[cfg(test)]
mod tests {
    use super::{CONST, ENUM, STRUCT, Types, UNION};
    use crate::error::KernelError;

    /// Returns a section with `struct a { int x; union { struct a p; int y; }; const struct b b; }`, `struct b { int z : 3 }` and an enum.
    fn section() -> Vec<u8> {
        let strings = b"\0a\0x\0y\0b\0z\0E\0p\0";
        let name = |c: u8| strings.iter().position(|b| *b == c).unwrap() as u32;
        let header = |name: u32, kind: u32, len: u32, size: u32| vec![name, kind << 24 | len, size];
        let mut types = Vec::new();
        types.extend(header(name(b'a'), STRUCT, 3, 24));
        types.extend([name(b'x'), 6, 0, 0, 2, 64, name(b'b'), 5, 128]);
        types.extend(header(0, UNION, 2, 8));
        types.extend([name(b'p'), 1, 0, name(b'y'), 6, 32]);
        types.extend(header(name(b'b'), STRUCT | 0x80, 1, 4));
        types.extend([name(b'z'), 6, 3 << 24 | 16]);
        types.extend(header(0, ENUM, 1, 4));
        types.extend([name(b'E'), 7]);
        types.extend(header(0, CONST, 0, 3));
        types.extend(header(0, 1, 0, 4));
        types.push(32);
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let len = types.len() as u32 * 4;
        for word in [24, 0, len, len, strings.len() as u32].iter().chain(&types) {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn members_by_path() {
        let bytes = section();
        let types = Types::new(&bytes).unwrap();
        assert_eq!(types.size("a"), Ok(24));
        assert_eq!(types.offset("a", "x"), Ok(0));
        assert_eq!(types.offset("a", "y"), Ok(12));
        assert_eq!(types.offset("a", "b.z"), Ok(18));
        assert_eq!(types.offset("a", "p.p.b"), Ok(32));
        assert_eq!(types.enumerator("E"), Ok(7));
        let missing = types.offset("a", "x.y").unwrap_err().to_string();
        assert!(missing.contains("struct a with a member x.y"), "{missing}");
        assert!(matches!(types.size("x"), Err(KernelError::Type(_))));
        assert!(matches!(types.enumerator("F"), Err(KernelError::Type(_))));
    }

    #[test]
    fn damage_is_an_error_or_another_type() {
        let whole = section();
        for len in 0..whole.len() {
            assert!(Types::new(&whole[..len]).is_err(), "{len} bytes");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                if let Ok(types) = Types::new(&bytes) {
                    let _ = types.offset("a", "p.p.b");
                    let _ = types.offset("a", "nothing");
                    let _ = types.enumerator("E");
                }
            }
        }
    }
}
