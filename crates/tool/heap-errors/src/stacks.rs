//! Names the frames of a stack in another process.
//!
//! ```text
//! address ─ mapping ─→ file and offset ─ segment ─→ address in the file ─ symbols ─→ function, line
//! ```
//! Frames of the C library below `main` or below the function of a thread are left out: they are the
//! same in every stack. Paths below the current directory are shown relative to it.

use std::path::{Path, PathBuf};

use fieldstone_report::heap_error::StackFrame;
use fieldstone_symbols::{CodeLocation, FrameName, Symbolizer};
use fieldstone_sys::smaps::{self, Mapping};

/// Files of the C library whose functions start programs and threads.
const START_FILES: [&str; 2] = ["libc.so.6", "ld-linux-x86-64.so.2"];

/// Names stacks. It caches the tables of each file.
#[derive(Debug)]
pub(crate) struct StackNames {
    symbolizer: Symbolizer,
    directory: Option<PathBuf>,
}

/// The mappings of a process at one moment.
#[derive(Debug, Default)]
pub(crate) struct ProcessMaps {
    pid: u32,
    mappings: Vec<Mapping>,
}

impl ProcessMaps {
    /// Reads the mappings of process `pid`; none if that is not permitted.
    pub(crate) fn read(pid: u32) -> Self {
        Self { pid, mappings: smaps::read_addresses(pid).unwrap_or_default() }
    }

    /// The process; 0 if it is unknown.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether a mapping has a name that contains `part`.
    pub(crate) fn has_name(&self, part: &str) -> bool {
        self.mappings.iter().any(|mapping| mapping.name.contains(part))
    }

    /// The file that is mapped at an address, and the offset in it.
    fn file_at(&self, address: u64) -> Option<(PathBuf, u64)> {
        let mapping = self.mappings.iter().find(|mapping| mapping.range().contains(&address))?;
        let path = mapping.name.starts_with('/').then(|| PathBuf::from(mapping.name.trim_end_matches(" (deleted)")))?;
        // A process in a container has files that are elsewhere here.
        let inside = || Path::new(&format!("/proc/{}/root", self.pid)).join(path.strip_prefix("/").unwrap_or(&path));
        let path = if path.exists() { path.clone() } else { inside() };
        Some((path, address - mapping.start + mapping.offset))
    }

    /// The file name at an address.
    pub(crate) fn file_name_at(&self, address: u64) -> Option<String> {
        let (path, _) = self.file_at(address)?;
        Some(path.file_name()?.to_string_lossy().into_owned())
    }
}

impl StackNames {
    pub(crate) fn new() -> Self {
        Self { symbolizer: Symbolizer::default(), directory: std::env::current_dir().ok() }
    }

    /// Names return addresses, innermost first. With `is_fault` the first one is an instruction.
    pub(crate) fn name(&mut self, maps: &ProcessMaps, addresses: &[u64], is_fault: bool) -> Vec<StackFrame> {
        let locations = addresses.iter().enumerate().map(|(depth, &address)| {
            // A call ends one byte before its return address.
            let code = if is_fault && depth == 0 { address } else { address.wrapping_sub(1) };
            self.location(maps, code)
        });
        let locations: Vec<CodeLocation> = locations.collect();
        let names = self.symbolizer.frames(&locations);
        without_start(names).into_iter().map(|name| self.frame(name)).collect()
    }

    fn location(&mut self, maps: &ProcessMaps, address: u64) -> CodeLocation {
        let Some((path, offset)) = maps.file_at(address) else {
            return CodeLocation { module: None, offset: address };
        };
        let offset = self.symbolizer.address_at_offset(&path, offset).unwrap_or(offset);
        CodeLocation { module: Some(path), offset }
    }

    fn frame(&self, name: FrameName) -> StackFrame {
        let directory = self.directory.as_deref();
        let file = name.file.map(|file| {
            let relative = directory.and_then(|directory| file.strip_prefix(directory).ok().map(Path::to_owned));
            relative.unwrap_or(file).display().to_string()
        });
        StackFrame { function: name.function, file, line: name.line, module: name.module }
    }
}

/// The frames without those that start `main` or a thread.
fn without_start(mut names: Vec<FrameName>) -> Vec<FrameName> {
    if let Some(main) = names.iter().rposition(|name| name.function == "main") {
        names.truncate(main + 1);
        return names;
    }
    let is_start = |name: &FrameName| START_FILES.contains(&name.module.as_str());
    let count = names.iter().rposition(|name| !is_start(name)).map_or(names.len(), |last| last + 1);
    names.truncate(count);
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_symbols::NameSource;

    fn names(all: &[(&str, &str)]) -> Vec<FrameName> {
        let name = |&(function, module): &(&str, &str)| FrameName {
            function: function.to_owned(),
            file: None,
            line: None,
            module: module.to_owned(),
            source: NameSource::Symbol,
        };
        all.iter().map(name).collect()
    }

    #[test]
    fn the_start_of_a_program_and_of_a_thread_is_left_out() {
        let program = names(&[("f", "a"), ("main", "a"), ("__libc_start_main", "libc.so.6"), ("_start", "a")]);
        assert_eq!(without_start(program.clone()), program[..2]);
        let thread = names(&[("memcpy", "libc.so.6"), ("work", "a"), ("start_thread", "libc.so.6")]);
        assert_eq!(without_start(thread.clone()), thread[..2]);
        let library = names(&[("memcpy", "libc.so.6")]);
        assert_eq!(without_start(library.clone()), library);
    }

    #[test]
    fn the_functions_of_this_process_are_named() {
        let maps = ProcessMaps::read(std::process::id());
        let address = (the_functions_of_this_process_are_named as fn()) as usize as u64;
        let named = StackNames::new().name(&maps, &[address], true);
        assert!(named[0].function.contains("the_functions_of_this_process_are_named"), "{named:?}");
        assert!(named[0].file.as_deref().is_some_and(|file| file.ends_with("stacks.rs")), "{named:?}");
        let generated = StackNames::new().name(&ProcessMaps::default(), &[0x1001], false);
        assert_eq!(generated[0].function, "0x1000");
    }
}
