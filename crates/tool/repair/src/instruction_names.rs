//! Function, file and line of the instructions that access a line.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use fieldstone_report::sharing::SampledInstruction;
use fieldstone_sharing::LineUse;

use crate::line_detector::LineDetector;
use crate::memory_objects::MemoryObjects;
use crate::tuning::MAX_REPORTED_INSTRUCTIONS;
use fieldstone_symbols::Symbolizer;

/// A cache of instruction names.
#[derive(Debug, Default)]
pub(crate) struct InstructionNames {
    symbols: Symbolizer,
    known: HashMap<u64, SampledInstruction>,
}

impl InstructionNames {
    /// The [`MAX_REPORTED_INSTRUCTIONS`] heaviest instructions that access the line, with their
    /// threads. The heaviest instruction of each thread comes before others in the choice.
    pub(crate) fn heaviest_on(
        &mut self,
        line: &LineUse,
        objects: &MemoryObjects,
        detector: &LineDetector,
    ) -> Vec<SampledInstruction> {
        let mut codes: BTreeMap<u64, SampledInstruction> = BTreeMap::new();
        for thread in &line.threads {
            for site in &thread.sites {
                let code = codes.entry(site.site).or_insert_with(|| self.name(site.site, objects));
                code.weight += f64::from(site.weight);
                (code.reads, code.writes) = detector.reads_and_writes(site.site);
                code.threads.push(thread.thread);
            }
        }
        let mut codes: Vec<SampledInstruction> = codes.into_values().collect();
        heaviest_first(&mut codes);
        let mut named = BTreeSet::new();
        let is_first_of_thread =
            |code: &SampledInstruction| code.threads.iter().filter(|&&thread| named.insert(thread)).count() > 0;
        let (mut chosen, rest): (Vec<SampledInstruction>, Vec<SampledInstruction>) =
            codes.into_iter().partition(is_first_of_thread);
        chosen.extend(rest);
        chosen.truncate(MAX_REPORTED_INSTRUCTIONS);
        heaviest_first(&mut chosen);
        chosen
    }

    /// Module, function, file and line of the instruction at `ip`; fields are empty where they are
    /// unknown.
    pub(crate) fn name(&mut self, ip: u64, objects: &MemoryObjects) -> SampledInstruction {
        if let Some(known) = self.known.get(&ip) {
            return known.clone();
        }
        let frame = objects.frame(ip);
        let stack = self.symbols.name(std::slice::from_ref(&frame)).stack;
        let index = program_frame(stack.iter().map(|name| name.file.as_deref()));
        let code = stack.into_iter().nth(index).map_or_else(SampledInstruction::default, |name| SampledInstruction {
            ip: frame.offset,
            function: name.function,
            file: name.file.map(|file| file.to_string_lossy().into_owned()),
            line: name.line,
            module: name.module,
            ..SampledInstruction::default()
        });
        self.known.insert(ip, code.clone());
        code
    }

    /// Function, file and line of the instruction at `ip`: `work (main.c:12)`. `None` if they are
    /// unknown.
    pub(crate) fn text(&mut self, ip: u64, objects: &MemoryObjects) -> Option<String> {
        let code = self.name(ip, objects);
        let place = code.file.map(|file| format!(" ({file}:{})", code.line.unwrap_or(0))).unwrap_or_default();
        let function = if code.function.is_empty() { code.module } else { code.function };
        (!function.is_empty()).then(|| format!("{function}{place}"))
    }
}

/// The index of the innermost inlined function whose file is not part of a library, or 0 if all
/// are. `files` has the innermost first. The name of a library's atomic operation does not help the
/// reader.
fn program_frame<'a>(mut files: impl Iterator<Item = Option<&'a Path>>) -> usize {
    files.position(|file| file.is_some_and(|file| !is_library_source(file))).unwrap_or(0)
}

/// Whether the file is source code of a compiler or of an installed library.
fn is_library_source(file: &Path) -> bool {
    let folders = ["/usr/include", "/usr/lib", "/rustc"];
    folders.iter().any(|folder| file.starts_with(folder))
        || file.to_string_lossy().contains("/rustlib/src/rust/library/")
}

fn heaviest_first(codes: &mut [SampledInstruction]) {
    codes.sort_by(|one, other| other.weight.total_cmp(&one.weight));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlined_code_of_a_library_is_skipped() {
        let frame =
            |files: &[&str]| program_frame(files.iter().map(|&file| (!file.is_empty()).then(|| Path::new(file))));
        let atomic = "/usr/include/c++/12/bits/atomic_base.h";
        assert_eq!(frame(&[atomic, "src/queue.cpp", "src/main.cpp"]), 1);
        assert_eq!(frame(&["/rustc/5980/library/core/src/sync/atomic.rs", "/home/me/src/main.rs"]), 1);
        assert_eq!(frame(&["src/queue.cpp", atomic]), 0);
        assert_eq!((frame(&[atomic, ""]), frame(&[])), (0, 0), "no file of the program is known");
    }
}
