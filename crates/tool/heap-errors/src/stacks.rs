//! Names the frames of a stack in another process.
//!
//! ```text
//! address ─ mapping ─→ file and offset ─ segment ─→ address in the file ─ symbols ─→ function, line
//! ```
//! Frames of the C library below `main` or below the function of a thread are left out: they are the
//! same in every stack. Paths below the current directory are shown relative to it.

use std::path::{Path, PathBuf};

use fieldstone_report::heap_error::StackFrame;
use fieldstone_symbols::{CodeLocation, FrameName, NameSource, Symbolizer};
use fieldstone_sys::smaps::{self, Mapping};

/// Files of the C library whose functions start programs and threads.
const START_FILES: [&str; 2] = ["libc.so.6", "ld-linux-x86-64.so.2"];

/// Names stacks. It caches the tables of each file.
#[derive(Debug)]
pub struct StackNames {
    symbolizer: Symbolizer,
    directory: Option<PathBuf>,
}

/// The mappings of a process at one moment.
#[derive(Debug, Default)]
pub struct ProcessMaps {
    pid: u32,
    mappings: Vec<Mapping>,
}

impl ProcessMaps {
    /// Reads the mappings of process `pid`; none if that is not permitted.
    #[must_use]
    pub fn read(pid: u32) -> Self {
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

    /// Whether something is mapped at an address.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        self.mappings.iter().any(|mapping| mapping.range().contains(&address))
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
    /// Without any tables. Paths below the current directory will be shown relative to it.
    #[expect(clippy::new_without_default, reason = "it reads the current directory")]
    #[must_use]
    pub fn new() -> Self {
        Self {
            symbolizer: Symbolizer::default(),
            directory: std::env::current_dir().ok().filter(|path| path.parent().is_some()),
        }
    }

    /// Names return addresses, innermost first. With `is_fault` the first one is an instruction.
    pub fn name(&mut self, maps: &ProcessMaps, addresses: &[u64], is_fault: bool) -> Vec<StackFrame> {
        let locations = addresses.iter().enumerate().map(|(depth, &address)| {
            // A call ends one byte before its return address.
            let code = if is_fault && depth == 0 { address } else { address.wrapping_sub(1) };
            self.location(maps, code)
        });
        let locations: Vec<CodeLocation> = locations.collect();
        let named = locations.into_iter().flat_map(|location| {
            let names = self.symbolizer.frames(std::slice::from_ref(&location));
            names.into_iter().map(move |name| (name, location.clone()))
        });
        let named: Vec<(FrameName, CodeLocation)> = named.collect();
        let count = count_without_start(&named);
        named.into_iter().take(count).map(|(name, location)| self.frame(name, &location)).collect()
    }

    fn location(&mut self, maps: &ProcessMaps, address: u64) -> CodeLocation {
        let Some((path, offset)) = maps.file_at(address) else {
            return CodeLocation { module: None, offset: address };
        };
        let offset = self.symbolizer.address_at_offset(&path, offset).unwrap_or(offset);
        CodeLocation { module: Some(path), offset }
    }

    /// The frame, with the place in the function if the line is unknown. A symbol that does not
    /// contain the place is the name of another function, and not used.
    fn frame(&mut self, name: FrameName, location: &CodeLocation) -> StackFrame {
        let function = match name.source {
            NameSource::NearestSymbol if name.line.is_none() => format!("{}+{:#x}", name.module, location.offset),
            NameSource::Symbol if name.line.is_none() => match self.symbolizer.symbol_start(location) {
                Some(start) => format!("{}+{:#x}", name.function, location.offset - start),
                None => name.function,
            },
            _ => name.function,
        };
        let directory = self.directory.as_deref();
        let file = name.file.map(|file| {
            let relative = directory.and_then(|directory| file.strip_prefix(directory).ok().map(Path::to_owned));
            relative.unwrap_or(file).display().to_string()
        });
        StackFrame { function, file, line: name.line, module: name.module }
    }
}

/// The number of frames without those that start `main` or a thread, which are the last.
fn count_without_start(named: &[(FrameName, CodeLocation)]) -> usize {
    if let Some(main) = named.iter().rposition(|(name, _)| name.function == "main") {
        return main + 1;
    }
    let is_start = |name: &FrameName| START_FILES.contains(&name.module.as_str());
    named.iter().rposition(|(name, _)| !is_start(name)).map_or(named.len(), |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(all: &[(&str, &str)]) -> usize {
        let name = |&(function, module): &(&str, &str)| {
            let (function, module, source) = (function.to_owned(), module.to_owned(), NameSource::Symbol);
            (FrameName { function, file: None, line: None, module, source }, CodeLocation { module: None, offset: 0 })
        };
        count_without_start(&all.iter().map(name).collect::<Vec<_>>())
    }

    #[test]
    fn the_start_of_a_program_and_of_a_thread_is_left_out() {
        let program = [("f", "a"), ("main", "a"), ("__libc_start_main", "libc.so.6"), ("_start", "a")];
        assert_eq!(kept(&program), 2);
        assert_eq!(kept(&[("memcpy", "libc.so.6"), ("work", "a"), ("start_thread", "libc.so.6")]), 2);
        assert_eq!(kept(&[("memcpy", "libc.so.6")]), 1);
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
