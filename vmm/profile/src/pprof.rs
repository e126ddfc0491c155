//! Profiles for `pprof` and other programs that read its format: a gzipped protocol buffer, defined by `profile.proto` of
//! github.com/google/pprof.

use std::collections::BTreeMap;
use std::io::{self, Write};

use nodescope_plugin_api::StallTerm;
use prost::Message;

use crate::paths::{Frame, Stack, Stacks};
use crate::record::WindowProfile;

/// Messages of `profile.proto`, with the fields that are used. Strings are indices in the profile's `string_table`.
#[allow(missing_docs, reason = "profile.proto documents the fields")]
pub mod proto {
    /// Profile as a whole.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, repeated, tag = "13")]
        pub comment: Vec<i64>,
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    /// Kind and unit of a value.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub r#type: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    /// Values of a call path.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    /// Property of a sample.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Label {
        #[prost(int64, tag = "1")]
        pub key: i64,
        #[prost(int64, tag = "2")]
        pub str: i64,
    }

    /// Module that contains code: a file, the kernel or other memory.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(int64, tag = "6")]
        pub build_id: i64,
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
        #[prost(bool, tag = "8")]
        pub has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub has_inline_frames: bool,
    }

    /// Position in code: functions inlined there, innermost first, then the function that contains them.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    /// Line of a function in a source file.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
        #[prost(int64, tag = "2")]
        pub line: i64,
    }

    /// Function: its name and source file.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

/// Names and units of a sample's values, in their order.
pub const VALUES: [(&str, &str); 9] = [
    ("instructions", "count"),
    ("cycles", "cycles"),
    ("core", "cycles"),
    ("L1", "cycles"),
    ("L2", "cycles"),
    ("L3", "cycles"),
    ("memory_local", "cycles"),
    ("memory_remote", "cycles"),
    ("other", "cycles"),
];

/// Makes the message of a profile. Each call path has its instructions, its cycles, and the terms of its cycles.
///
/// The rank, the node, the program and the MPI function are labels, not frames. Select by them with `-tagroot` or `-tagfocus`.
pub fn message(profile: &WindowProfile, stacks: &Stacks) -> proto::Profile {
    let mut writer = Writer::new(profile, stacks);
    for ((stack, cycles), core) in (stacks.stacks.iter())
        .zip(stacks.whole_cycles())
        .zip(stacks.whole_core_cycles())
    {
        writer.sample(stack, cycles, core);
    }
    writer.finish()
}

/// Returns the message of a profile, compressed by gzip.
pub fn write(profile: &WindowProfile, stacks: &Stacks) -> io::Result<Vec<u8>> {
    let bytes = message(profile, stacks).encode_to_vec();
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(&bytes)?;
    out.finish()
}

struct Writer<'a> {
    profile: &'a WindowProfile,
    stacks: &'a Stacks,
    /// Source file of each function and of each inlined function.
    files: BTreeMap<Frame, &'a str>,
    strings: BTreeMap<String, i64>,
    functions: BTreeMap<Frame, u64>,
    locations: BTreeMap<(Vec<Frame>, Option<u32>), u64>,
    message: proto::Profile,
}

impl<'a> Writer<'a> {
    fn new(profile: &'a WindowProfile, stacks: &'a Stacks) -> Self {
        let mut writer = Writer {
            profile,
            stacks,
            files: files(profile, stacks),
            strings: BTreeMap::new(),
            functions: BTreeMap::new(),
            locations: BTreeMap::new(),
            message: proto::Profile::default(),
        };
        // The first string of the table must be empty.
        writer.string("");
        for (name, unit) in VALUES {
            let (r#type, unit) = (writer.string(name), writer.string(unit));
            writer
                .message
                .sample_type
                .push(proto::ValueType { r#type, unit });
        }
        writer.message.default_sample_type = writer.string("cycles");
        let comment = writer.string(&format!("nodescope window {}", profile.name));
        writer.message.comment.push(comment);
        for (index, module) in profile.modules.iter().enumerate() {
            let mapping = proto::Mapping {
                id: index as u64 + 1,
                filename: writer.string(&module.name),
                build_id: writer.string(module.build_id.as_deref().unwrap_or_default()),
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            };
            writer.message.mapping.push(mapping);
        }
        writer
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.strings.get(text) {
            return index;
        }
        let index = self.message.string_table.len() as i64;
        self.message.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn function(&mut self, frame: Frame) -> u64 {
        if let Some(&id) = self.functions.get(&frame) {
            return id;
        }
        let (profile, stacks) = (self.profile, self.stacks);
        let name = self.string(stacks.name(profile, frame));
        let filename = self.string(self.files.get(&frame).copied().unwrap_or_default());
        let id = self.message.function.len() as u64 + 1;
        self.message.function.push(proto::Function {
            id,
            name,
            system_name: name,
            filename,
        });
        self.functions.insert(frame, id);
        id
    }

    /// Returns the id of the location of a function and those inlined in it, at a line of the innermost one.
    fn location(&mut self, frames: &[Frame], line: Option<u32>) -> u64 {
        let key = (frames.to_vec(), line);
        if let Some(&id) = self.locations.get(&key) {
            return id;
        }
        let number = |index: u32| i64::from(self.profile.lines[index as usize].line);
        let innermost = line.map_or(0, number);
        let mut lines = Vec::new();
        for (n, &frame) in frames.iter().rev().enumerate() {
            lines.push(proto::Line {
                function_id: self.function(frame),
                line: if n == 0 { innermost } else { 0 },
            });
        }
        let mut location = proto::Location {
            id: self.message.location.len() as u64 + 1,
            line: lines,
            ..proto::Location::default()
        };
        if let Some(&Frame::Function(index)) = frames.first() {
            let function = &self.profile.functions[index as usize];
            location.mapping_id = u64::from(function.module) + 1;
            location.address = function.start;
        }
        let id = location.id;
        self.message.location.push(location);
        self.locations.insert(key, id);
        id
    }

    fn sample(&mut self, stack: &Stack, cycles: i128, core: i128) {
        // A function and the functions inlined in it are one location.
        let mut groups: Vec<&[Frame]> = Vec::new();
        let mut rest = &stack.frames[..];
        while let Some((_, tail)) = rest.split_first() {
            let expanded = tail.iter().take_while(|f| matches!(f, Frame::Inlined(_)));
            let (group, further) = rest.split_at(1 + expanded.count());
            groups.push(group);
            rest = further;
        }
        let leaf = groups.len().saturating_sub(1);
        let mut location_id = Vec::new();
        for (n, group) in groups.iter().enumerate().rev() {
            let line = stack.line.filter(|_| n == leaf);
            location_id.push(self.location(group, line));
        }
        let term = |term: StallTerm| stack.costs.stalls[term as usize] as i128;
        let values = [
            i128::try_from(stack.costs.instructions).unwrap_or(i128::MAX),
            cycles,
            core,
            term(StallTerm::Level1),
            term(StallTerm::Level2),
            term(StallTerm::Level3),
            term(StallTerm::LocalMemory),
            term(StallTerm::RemoteMemory),
            term(StallTerm::Unattributed),
        ];
        let value = values.map(|value| i64::try_from(value).unwrap_or(i64::MAX));
        let owner = &self.stacks.labels[stack.label as usize];
        // Labels are texts, because pprof drops labels whose number is 0.
        let texts = [
            ("node", Some(owner.node.to_string())),
            ("rank", owner.rank.map(|rank| rank.to_string())),
            ("program", owner.program.clone()),
            ("mpi", owner.mpi.clone()),
        ];
        let mut label = Vec::new();
        for (key, text) in texts {
            if let Some(text) = text {
                label.push(proto::Label {
                    key: self.string(key),
                    str: self.string(&text),
                });
            }
        }
        self.message.sample.push(proto::Sample {
            location_id,
            value: value.to_vec(),
            label,
        });
    }

    fn finish(self) -> proto::Profile {
        self.message
    }
}

/// Returns the source file of each function: that of its first known line. `pprof` would take a function with two files for two functions.
fn files<'a>(profile: &'a WindowProfile, stacks: &Stacks) -> BTreeMap<Frame, &'a str> {
    let known: BTreeMap<&str, u32> = (stacks.inlined.iter().enumerate())
        .map(|(index, name)| (name.as_str(), index as u32))
        .collect();
    let mut files = BTreeMap::new();
    for block in &profile.blocks {
        for range in &block.source_ranges {
            let Some(line) = range.line else { continue };
            let frame = match range.inlined.first() {
                None => Frame::Function(block.function),
                Some(inlined) => match known.get(inlined.function.as_str()) {
                    Some(&index) => Frame::Inlined(index),
                    None => continue,
                },
            };
            files
                .entry(frame)
                .or_insert(profile.lines[line as usize].file.as_str());
        }
    }
    files
}
