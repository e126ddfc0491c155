//! Debug information, symbols and frames of a small program, as fields (DWARF version 4, System V ABI).

use std::io::Read;

use crate::elf::{
    ALLOC, BASE, COMPRESSED, Field, Field::*, File, STRTAB, SYMTAB, Section, TEXT, TEXT_LEN, byte,
    text,
};

/// Link-time address of the code.
pub const CODE: u64 = BASE + TEXT;
/// Numbers of the abbreviations below.
const UNIT: u64 = 1;
const FUNCTION: u64 = 2;
const INLINED_LIST: u64 = 3;
const INLINED: u64 = 4;
const ABSTRACT: u64 = 5;

/// Returns `.debug_abbrev`: tag, children, and attributes with their forms.
fn abbreviations() -> Vec<Field> {
    let mut fields = Vec::new();
    let mut add = |code: u64, tag: u64, children: u8, attributes: &[(u64, u64)]| {
        fields.extend([Leb(code), Leb(tag), byte(children)]);
        for (name, form) in attributes {
            fields.extend([Leb(*name), Leb(*form)]);
        }
        fields.extend([Leb(0), Leb(0)]);
    };
    // Attributes: name 3, stmt_list 0x10, low_pc 0x11, high_pc 0x12, comp_dir 0x1b, abstract_origin 0x31, ranges 0x55, call_file 0x58,
    // call_line 0x59, linkage_name 0x6e. Forms: addr 1, data8 7, string 8, data1 0xb, strp 0xe, udata 0xf, ref4 0x13, sec_offset 0x17.
    let unit = [(3, 8), (0x1b, 0xe), (0x11, 1), (0x12, 7), (0x10, 0x17)];
    add(UNIT, 0x11, 1, &unit);
    add(FUNCTION, 0x2e, 1, &[(3, 0xe), (0x11, 1), (0x12, 7)]);
    let inlined = [(0x31, 0x13), (0x55, 0x17), (0x58, 0xb), (0x59, 0xf)];
    add(INLINED_LIST, 0x1d, 1, &inlined);
    let inlined = [(0x31, 0x13), (0x11, 1), (0x12, 7), (0x58, 0xb), (0x59, 0xf)];
    add(INLINED, 0x1d, 1, &inlined);
    add(ABSTRACT, 0x2e, 0, &[(0x6e, 0xe)]);
    fields.push(byte(0));
    fields
}

/// Offset in its unit of the entry of the abstract function.
const ABSTRACT_AT: u64 = 11 + 1 + 5 + 4 + 8 + 8 + 4;

/// Returns the beginning of a unit: header, root entry, and an abstract function.
fn unit() -> Vec<Field> {
    vec![
        Begin,
        Word(4, 2),
        Word(0, 4),
        byte(8),
        Leb(UNIT),
        text("unit"),
        Word(0, 4),
        Word(CODE, 8),
        Word(TEXT_LEN, 8),
        Word(0, 4),
        Leb(ABSTRACT),
        Word(0, 4),
    ]
}

fn function() -> Vec<Field> {
    vec![Leb(FUNCTION), Word(0, 4), Word(CODE, 8), Word(TEXT_LEN, 8)]
}

fn inlined() -> Vec<Field> {
    vec![
        Leb(INLINED),
        Word(ABSTRACT_AT, 4),
        Word(CODE, 8),
        Word(TEXT_LEN, 8),
        byte(1),
        Leb(7),
    ]
}

/// Inlined function with its addresses in the list at the beginning of `.debug_ranges`.
fn inlined_list() -> Vec<Field> {
    vec![
        Leb(INLINED_LIST),
        Word(ABSTRACT_AT, 4),
        Word(0, 4),
        byte(1),
        Leb(7),
    ]
}

fn repeat(fields: &[Field], times: usize) -> Vec<Field> {
    std::iter::repeat_n(fields, times)
        .flatten()
        .cloned()
        .collect()
}

/// Returns `.debug_line` with so many files, and rows for the whole code.
fn lines(files: usize) -> Vec<Field> {
    let mut fields = vec![Begin, Word(4, 2), Begin];
    // Minimum length of an instruction, operations, is_stmt, line_base -3, line_range 12, opcode_base 13 with lengths of operands.
    fields.extend([1, 1, 1, 0xfd, 12, 13].map(byte));
    fields.extend([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1].map(byte));
    fields.extend([text("dir"), byte(0)]);
    for _ in 0..files {
        fields.extend([text("f.c"), Leb(1), Leb(0), Leb(0)]);
    }
    fields.extend([byte(0), End]);
    // Extended opcode: set the address; then rows; then the end of the sequence.
    fields.extend([byte(0), Leb(9), byte(2), Word(CODE, 8), byte(1)]);
    for _ in 0..64 {
        // Advance by 64 bytes and a line, and add a row.
        fields.extend([byte(2), Leb(64), byte(3), Leb(1), byte(1)]);
    }
    fields.extend([byte(0), Leb(1), byte(1), End]);
    fields
}

/// Returns `.eh_frame` with a CIE and a description of the whole code. `more` are further instructions.
fn frames(at: u64, more: &[u8]) -> Vec<Field> {
    let mut fields = vec![
        Begin,
        Word(0, 4),
        byte(1),
        text("zR"),
        Leb(1),
        byte(0x78),
        Leb(16),
        Leb(1),
    ];
    // Pointers are relative to their place, four bytes. The CFA is RSP + 8, the return address at CFA - 8.
    fields.push(byte(0x1b));
    fields.extend([
        byte(0x0c),
        Leb(7),
        Leb(8),
        byte(0x90),
        Leb(1),
        byte(0),
        byte(0),
        End,
    ]);
    let cie = crate::elf::encode(&fields).len() as u64;
    let pointer = BASE + at + cie + 8;
    fields.extend([Begin, Word(cie + 4, 4), Word(CODE.wrapping_sub(pointer), 4)]);
    fields.extend([Word(TEXT_LEN, 4), Leb(0), Bytes(more.to_vec())]);
    fields.extend([byte(0), byte(0), byte(0), End, Word(0, 4)]);
    fields
}

/// Symbol of a function in the code: offset of the name, offset in the code, length.
fn symbol(name: u64, at: u64, len: u64) -> Vec<Field> {
    vec![
        Word(name, 4),
        byte(0x12),
        byte(0),
        Word(1, 2),
        Word(CODE + at, 8),
        Word(len, 8),
    ]
}

/// Returns a file with these names, symbols, entries and further instructions for frames. `name` is the name of all functions in the debug
/// information, and `ranges` the number of addresses in the list that inlined functions share.
fn file(name: &str, symbols: Vec<Field>, entries: Vec<Field>, ranges: u64, more: &[u8]) -> File {
    let strings = vec![text(name)];
    let list = (0..ranges).flat_map(|n| [Word(n % TEXT_LEN, 8), Word(n % TEXT_LEN + 1, 8)]);
    let list = list.chain([Word(0, 8), Word(0, 8)]).collect();
    let mut file = File::new(vec![Section::new(".eh_frame", ALLOC, Vec::new())]);
    let at = file.offset(".eh_frame");
    file.0[1].fields = frames(at, more);
    let mut symtab = Section::new(".symtab", 0, [symbol(0, 0, 0), symbols].concat());
    (symtab.kind, symtab.link) = (SYMTAB, file.0.len() as u32 + 2);
    let mut strtab = Section::new(".strtab", 0, vec![byte(0), text(name), text("f")]);
    strtab.kind = STRTAB;
    let info = [unit(), entries, vec![byte(0), End]].concat();
    file.0.extend([
        symtab,
        strtab,
        Section::new(".debug_abbrev", 0, abbreviations()),
        Section::new(".debug_info", 0, info),
        Section::new(".debug_str", 0, strings),
        Section::new(".debug_line", 0, lines(3)),
        Section::new(".debug_ranges", 0, list),
    ]);
    file
}

fn nested(inner: Vec<Field>, times: usize) -> Vec<Field> {
    let ends = vec![byte(0); times + 1];
    [function(), repeat(&inner, times), ends].concat()
}

/// Returns a well-formed file: a function with two nested inlined functions, and one with a list of addresses.
pub fn whole() -> File {
    let entries = [
        function(),
        inlined(),
        inlined(),
        inlined_list(),
        vec![byte(0); 4],
    ];
    let symbols = [symbol(1, 0, 0x800), symbol(4, 0x800, 0x800)].concat();
    file("fn", symbols, entries.concat(), 10, &[])
}

/// C++ name whose text doubles with each argument: 240 bytes become some hundred megabytes.
pub fn doubling_name() -> String {
    let mut name = String::from("_Z1f1aIiiE");
    for n in 0..23 {
        let digit = char::from_digit(n, 36).unwrap_or('0').to_ascii_uppercase();
        name += &format!("S_IS{digit}_S{digit}_E");
    }
    name
}

/// C++ name of 225 bytes that has thousands of readings, found by search.
pub const AMBIGUOUS: &str = "_Z1bC1I1bC1ID0C1I1bC1I1bC1ISt1bC1I1bsrC1I1bC1IS_OC1I1bC1IC1I1bC1IC1I1bC1SbIC1C1II1bC1I1bC1C1OUC1OUC1IadDyUT1_T1_T1_T1_UDpyUUyUUUUUUNRDUIT_fUadUJNUadUNUadUNTnDnNTnTKISbS_SbC1S_C1fS_PSbtlI1bC1C1IC1C1C1C1Li0EC1Li0EC1Li0ES_C1C1S_";

/// Attack on the reader of debug information.
pub struct Attack {
    /// Description of the attack.
    pub what: &'static str,
    /// Makes the file.
    pub file: fn() -> Vec<u8>,
    /// Names of the limits, as `Limit` writes them in debug output, one of which the file must exceed; none where names are only cut.
    pub limits: &'static [&'static str],
    /// Bytes of memory that a reader may take in addition to 16 for each byte of the file.
    pub memory: usize,
}

/// Files of some kilobytes or megabytes that once took gigabytes, hours, or the whole process.
pub const ATTACKS: &[Attack] = &[
    Attack {
        what: "inlined functions, 20,000 deep",
        file: || {
            file(
                "fn",
                symbol(1, 0, TEXT_LEN),
                nested(inlined(), 20_000),
                1,
                &[],
            )
            .build()
        },
        limits: &["Nesting"],
        memory: 16 << 20,
    },
    Attack {
        what: "an expression for unwinding that jumps back",
        // DW_CFA_def_cfa_expression, three bytes, DW_OP_skip -3.
        file: || {
            file(
                "fn",
                symbol(1, 0, TEXT_LEN),
                nested(inlined(), 1),
                1,
                &[0x0f, 3, 0x2f, 0xfd, 0xff],
            )
            .build()
        },
        limits: &["Frames"],
        memory: 16 << 20,
    },
    Attack {
        what: "an expression for unwinding that jumps back after a jump into an operand",
        // DW_OP_skip +1 into DW_OP_const4u, whose operand has DW_OP_skip -7.
        file: || {
            let expression = [0x0f, 8, 0x2f, 1, 0, 0x0c, 0x2f, 0xf9, 0xff, 0];
            file(
                "fn",
                symbol(1, 0, TEXT_LEN),
                nested(inlined(), 1),
                1,
                &expression,
            )
            .build()
        },
        limits: &["Frames"],
        memory: 16 << 20,
    },
    Attack {
        what: "compressed sections that share one stream",
        file: || compressed(true).build(),
        limits: &["Headers"],
        memory: 16 << 20,
    },
    Attack {
        what: "600 symbols that share one name of 8 MB",
        file: || {
            let symbols = (0..600).flat_map(|n| symbol(1, n, 1)).collect();
            file(&"x".repeat(8 << 20), symbols, Vec::new(), 1, &[]).build()
        },
        limits: &[],
        memory: 256 << 20,
    },
    Attack {
        what: "20,000 inlined functions that share a list of 10,000 addresses",
        file: || {
            let list = [inlined_list(), vec![byte(0)]].concat();
            let entries = [function(), repeat(&list, 20_000), vec![byte(0)]].concat();
            file("fn", symbol(1, 0, TEXT_LEN), entries, 10_000, &[]).build()
        },
        limits: &["Steps"],
        memory: 256 << 20,
    },
    Attack {
        what: "20,000 functions that share one name of 8 MB in the debug information",
        file: || {
            let entries = repeat(&[function(), vec![byte(0)]].concat(), 20_000);
            let inlined = repeat(&[inlined(), vec![byte(0)]].concat(), 20_000);
            let entries = [entries, function(), inlined, vec![byte(0)]].concat();
            file(&"x".repeat(8 << 20), Vec::new(), entries, 1, &[]).build()
        },
        limits: &["Steps"],
        memory: 256 << 20,
    },
    Attack {
        what: "a C++ name whose text doubles",
        file: || named(&doubling_name()),
        limits: &[],
        memory: 16 << 20,
    },
    Attack {
        what: "a C++ name of many readings",
        file: || named(AMBIGUOUS),
        limits: &[],
        memory: 16 << 20,
    },
    Attack {
        what: "50,000 source files in a folder with a name of 1 MB",
        file: || {
            let mut file = file(
                &"d".repeat(1 << 20),
                Vec::new(),
                nested(inlined(), 1),
                1,
                &[],
            );
            if let Some(section) = file.section(".debug_line") {
                section.fields = lines(50_000);
            }
            file.build()
        },
        limits: &["Steps"],
        memory: 256 << 20,
    },
    Attack {
        what: "20,000 units that share a table of 10,000 source files",
        file: || {
            let mut file = file("fn", Vec::new(), nested(inlined(), 1), 1, &[]);
            let info = [unit(), vec![byte(0), End]].concat();
            if let Some(section) = file.section(".debug_info") {
                section.fields = repeat(&info, 20_000);
            }
            if let Some(section) = file.section(".debug_line") {
                section.fields = lines(10_000);
            }
            file.build()
        },
        limits: &["Steps"],
        memory: 256 << 20,
    },
    Attack {
        what: "60,000 sections with one long name",
        file: || {
            let mut file = whole();
            let mut section = Section::new("", 0, Vec::new());
            section.kind = 7;
            section.shares = Some(0);
            file.0.extend(std::iter::repeat_n(section, 60_000));
            file.build()
        },
        limits: &["Headers"],
        memory: 16 << 20,
    },
];

/// Returns a file whose functions all have this name.
fn named(name: &str) -> Vec<u8> {
    file(name, symbol(1, 0, TEXT_LEN), nested(inlined(), 3), 1, &[]).build()
}

/// Returns a file with 16 compressed sections of 200 MB, which share one stream, or have one each.
pub fn compressed(share: bool) -> File {
    const LEN: usize = 200 << 20;
    let stream = zstd::encode_all(std::io::repeat(0).take(LEN as u64), 1).unwrap_or_default();
    // Elf64_Chdr: ELFCOMPRESS_ZSTD, reserved, size, alignment.
    let header = vec![
        Word(2, 4),
        Word(0, 4),
        Word(LEN as u64, 8),
        Word(1, 8),
        Bytes(stream),
    ];
    let mut file = whole();
    file.0.retain(|section| !section.name.starts_with(".debug"));
    let names = [
        ".debug_abbrev",
        ".debug_addr",
        ".debug_aranges",
        ".debug_info",
        ".debug_line",
        ".debug_line_str",
        ".debug_ranges",
        ".debug_rnglists",
        ".debug_str",
        ".debug_str_offsets",
        ".debug_types",
        ".debug_loc",
        ".debug_loclists",
        ".debug_macinfo",
        ".debug_macro",
        ".debug_names",
    ];
    let first = file.0.len();
    for (n, name) in names.iter().enumerate() {
        let mut section = Section::new(name, COMPRESSED, header.clone());
        section.shares = (share && n > 0).then_some(first);
        file.0.push(section);
    }
    file
}
