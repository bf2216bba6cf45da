//! Memory errors found by `fieldstone run --guard`, and the counts of such a run.
//!
//! A file of findings has one JSON object a line, so that several processes can append to it.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::quantity::{count, plural};

/// An entry of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StackFrame {
    /// The function; `file+0x1f` if it has no name.
    pub function: String,
    /// The source file; `None` without debug information.
    pub file: Option<String>,
    /// The line of the call.
    pub line: Option<u32>,
    /// The base name of the file that contains the code.
    pub module: String,
}

impl StackFrame {
    /// The place in the source, or the file that contains the code. Empty if the function's name has
    /// it already.
    fn place(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}"),
            (Some(file), None) => file.clone(),
            (None, _) if self.function.starts_with(&format!("{}+", self.module)) => String::new(),
            (None, _) => self.module.clone(),
        }
    }
}

/// A memory error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapError {
    /// [`HeapError::SCHEMA`].
    pub schema: String,
    /// The kind: `heap-buffer-overflow`, `heap-buffer-underflow`, `use-after-free`, `double-free` or
    /// `invalid-free`.
    pub kind: String,
    /// `read`, `write` or `free`.
    pub access: String,
    /// Bytes of the access; 0 if unknown, and for a free.
    pub bytes: u64,
    /// Whether these are the bytes of a vector instruction, of which a part may be valid.
    pub is_vector: bool,
    /// Bytes past the end of the object (overflow), before its start (underflow), or between its
    /// start and the address, which may be before it.
    pub offset: u64,
    /// Bytes of the object as requested.
    pub object_bytes: u64,
    /// Where the error was found, innermost first.
    pub stack: Vec<StackFrame>,
    /// Where the object was allocated.
    pub allocated: Vec<StackFrame>,
    /// Where the object was freed; empty if it was not.
    pub freed: Vec<StackFrame>,
    /// Allocations of the object's site until then.
    pub site_allocations: u64,
    /// Guarded ones among them.
    pub site_guarded: u64,
    /// The program's name.
    pub program: String,
    /// The process.
    pub process: u32,
    /// The thread that found it.
    pub thread: u32,
    /// The thread that allocated the object; 0 without an object.
    pub allocated_thread: u32,
    /// The thread that freed the object; 0 if it was not freed.
    pub freed_thread: u32,
    /// The address of the access or of the free.
    pub address: u64,
    /// The first address of the object.
    pub object: u64,
    /// Whether it was found by changed padding when the object was freed.
    pub is_padding: bool,
    /// For an address that no allocator returned: `the stack`, or `a file`.
    pub place: String,
}

impl HeapError {
    /// The schema of this version.
    pub const SCHEMA: &str = "fieldstone-guard/1";

    /// The first line: what was found where.
    #[must_use]
    pub fn headline(&self) -> String {
        format!("{} in {} (process {}, thread {})", self.kind, self.program, self.process, self.thread)
    }

    /// What the access did to which object.
    #[must_use]
    pub fn event(&self) -> String {
        let (offset, object) = (plural(self.offset, "byte"), plural(self.object_bytes, "byte"));
        let into = match self.object.checked_sub(self.address) {
            Some(before) if before > 0 => format!("{} before an object of {object}", plural(before, "byte")),
            _ if self.offset >= self.object_bytes && self.object_bytes > 0 => {
                format!("{} after an object of {object}", plural(self.offset - self.object_bytes, "byte"))
            }
            _ => format!("{offset} into an object of {object}"),
        };
        if self.is_padding {
            let side = if self.kind == "heap-buffer-underflow" { "before" } else { "behind" };
            return format!(
                "written {side} the object some time before its free: {}; freed by",
                self.place_of_access(&offset, &object)
            );
        }
        match self.kind.as_str() {
            "double-free" => format!("second free of an object of {object}"),
            "invalid-free" if !self.place.is_empty() => {
                format!("free of address {:#x}, which is in {}", self.address, self.place)
            }
            "invalid-free" if self.object_bytes == 0 => {
                format!("free of address {:#x}, where no object starts", self.address)
            }
            "invalid-free" => format!("free of an address {into}"),
            _ => {
                let by = if self.is_vector { " by an instruction" } else { "" };
                let size = plural(self.bytes, "byte");
                let size = if self.bytes == 0 { String::new() } else { format!("{by} of {size}") };
                let place = if self.kind == "use-after-free" { into } else { self.place_of_access(&offset, &object) };
                format!("{}{size}, {place}", self.access)
            }
        }
    }

    fn place_of_access(&self, offset: &str, object: &str) -> String {
        let side = if self.kind == "heap-buffer-underflow" { "before" } else { "after" };
        format!("{offset} {side} an object of {object}")
    }

    /// How to find the write, if it was found by changed padding. An object at the right side of its
    /// pages has only the padding that alignment requires.
    fn remedy(&self) -> Option<&'static str> {
        let end = (self.object + self.object_bytes).next_multiple_of(ALIGNMENT);
        match self.kind.as_str() {
            _ if !self.is_padding => None,
            "heap-buffer-underflow" => Some("run again with --guard-side left, which reports the write itself"),
            _ if end.is_multiple_of(PAGE) => {
                Some("use a watchpoint or AddressSanitizer: alignment leaves no place for a guard before this byte")
            }
            _ => Some(
                "run again with --guard-side right, which reports the write itself if it passes the alignment of 16",
            ),
        }
    }

    /// All lines, without an end of line after the last.
    #[must_use]
    pub fn text(&self) -> String {
        let all = [&self.stack, &self.allocated, &self.freed];
        let width = all.into_iter().flatten().map(|frame| frame.function.chars().count()).max().unwrap_or(0);
        let width = width.min(LONGEST_COLUMN);
        let mut text = format!("{}\n  {}", self.headline(), self.event());
        write_frames(&mut text, &self.stack, width);
        if self.allocated_thread != 0 {
            let _ = write!(text, "\n  the object was allocated in thread {} by", self.allocated_thread);
            write_frames(&mut text, &self.allocated, width);
        }
        if self.freed_thread != 0 && !self.is_padding {
            let _ = write!(text, "\n  the object was freed in thread {} by", self.freed_thread);
            write_frames(&mut text, &self.freed, width);
        }
        if self.site_allocations > 0 {
            let (guarded, all) = (count(self.site_guarded), count(self.site_allocations));
            let _ = write!(text, "\n  guarded: {guarded} of {all} allocations of this site");
        }
        if let Some(remedy) = self.remedy() {
            let _ = write!(text, "\n  try: {remedy}");
        }
        text
    }
}

/// The alignment that malloc promises.
const ALIGNMENT: u64 = 16;
const PAGE: u64 = 4096;
/// The widest column of functions; longer names push their place to the right.
const LONGEST_COLUMN: usize = 48;

fn write_frames(text: &mut String, frames: &[StackFrame], width: usize) {
    for frame in frames {
        let line = format!("    {:width$}   {}", frame.function, frame.place());
        let _ = write!(text, "\n{}", line.trim_end());
    }
    if frames.is_empty() {
        text.push_str("\n    (no stack was recorded)");
    }
}

/// The counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuardStats {
    /// [`GuardStats::SCHEMA`].
    pub schema: String,
    /// Version of the tool that ran the program.
    pub tool_version: String,
    /// The command.
    pub command: Vec<String>,
    /// `all`, `sampled` or `1/N`.
    pub mode: String,
    /// The limit of the memory of guarded objects in each process.
    pub memory_limit_bytes: u64,
    /// How the program ended; empty if another record of the run says it.
    pub outcome: String,
    /// Each process, in the order of their starts.
    pub processes: Vec<GuardedProcess>,
}

/// The counts of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuardedProcess {
    /// Its number, in its own pid namespace.
    pub pid: u32,
    /// The first 15 bytes of the program's name.
    pub name: String,
    /// Memory errors found, those that were printed once included each time.
    pub findings: u32,
    /// Allocations.
    pub allocations: u64,
    /// Guarded ones among them.
    pub guarded: u64,
    /// Allocation sites.
    pub sites: u64,
    /// Allocations that were not guarded, by reason.
    pub unguarded: Vec<UnguardedCount>,
    /// The largest size of guarded objects, freed ones and their records.
    pub peak_memory_bytes: u64,
    /// Address space reserved for guarded objects.
    pub reserved_bytes: u64,
}

/// Allocations without a guard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnguardedCount {
    /// The reason.
    pub reason: String,
    /// The number.
    pub allocations: u64,
}

impl GuardStats {
    /// The schema of this version.
    pub const SCHEMA: &str = "fieldstone-guard-stats/1";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, place: &str) -> StackFrame {
        let (file, line) = place.split_once(':').unzip();
        StackFrame {
            function: function.to_owned(),
            file: file.map(str::to_owned),
            line: line.map(|line: &str| line.parse().unwrap()),
            module: "server".to_owned(),
        }
    }

    fn overflow() -> HeapError {
        HeapError {
            kind: "heap-buffer-overflow".into(),
            access: "write".into(),
            bytes: 1,
            object_bytes: 24,
            program: "server".into(),
            process: 4711,
            thread: 4713,
            allocated_thread: 4711,
            stack: vec![
                frame("copy_name", "src/user.c:41"),
                frame("add_user", "src/user.c:77"),
                frame("main", "src/main.c:12"),
            ],
            allocated: vec![
                frame("new_user", "src/user.c:30"),
                frame("add_user", "src/user.c:75"),
                frame("main", "src/main.c:12"),
            ],
            site_allocations: 1204,
            site_guarded: 12,
            ..HeapError::default()
        }
    }

    #[test]
    fn the_text_has_the_documented_form() {
        let expected = "\
heap-buffer-overflow in server (process 4711, thread 4713)
  write of 1 byte, 0 bytes after an object of 24 bytes
    copy_name   src/user.c:41
    add_user    src/user.c:77
    main        src/main.c:12
  the object was allocated in thread 4711 by
    new_user    src/user.c:30
    add_user    src/user.c:75
    main        src/main.c:12
  guarded: 12 of 1,204 allocations of this site";
        assert_eq!(overflow().text(), expected);
    }

    #[test]
    fn each_kind_has_its_words() {
        let base = HeapError { offset: 3, bytes: 8, ..overflow() };
        let of = |kind: &str| HeapError { kind: kind.into(), ..base.clone() };
        assert_eq!(of("heap-buffer-underflow").event(), "write of 8 bytes, 3 bytes before an object of 24 bytes");
        assert_eq!(of("use-after-free").event(), "write of 8 bytes, 3 bytes into an object of 24 bytes");
        assert_eq!(of("double-free").event(), "second free of an object of 24 bytes");
        assert_eq!(of("invalid-free").event(), "free of an address 3 bytes into an object of 24 bytes");
        let foreign = HeapError { place: "the stack".into(), address: 0x7ffc_1000, ..of("invalid-free") };
        assert_eq!(foreign.event(), "free of address 0x7ffc1000, which is in the stack");
        let padding = HeapError { is_padding: true, ..of("heap-buffer-overflow") };
        assert_eq!(
            padding.event(),
            "written behind the object some time before its free: 3 bytes after an object of 24 bytes; freed by"
        );
        let vector = HeapError { is_vector: true, bytes: 32, ..of("heap-buffer-overflow") };
        assert_eq!(vector.event(), "write by an instruction of 32 bytes, 3 bytes after an object of 24 bytes");
        let unknown = HeapError { bytes: 0, ..of("use-after-free") };
        assert_eq!(unknown.event(), "write, 3 bytes into an object of 24 bytes");
    }

    #[test]
    fn a_write_into_padding_has_the_option_that_finds_it() {
        let padding =
            |kind: &str, object| HeapError { is_padding: true, kind: kind.into(), object, ..overflow() }.text();
        assert!(padding("heap-buffer-overflow", 0x1000).contains("try: run again with --guard-side right, "));
        assert!(padding("heap-buffer-underflow", 0x1fe0).contains("try: run again with --guard-side left, "));
        assert!(padding("heap-buffer-overflow", 0x1fe0).contains("AddressSanitizer"));
        assert!(!overflow().text().contains("try:"));
    }

    #[test]
    fn frames_without_lines_show_their_file() {
        let mut error = overflow();
        error.stack = vec![frame("memmove", ""), frame("server+0x1f", "")];
        let text = error.text();
        assert!(text.contains("\n    memmove       server\n    server+0x1f\n"), "{text}");
        error.stack.clear();
        assert!(error.text().contains("(no stack was recorded)"));
    }
}
