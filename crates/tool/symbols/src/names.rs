//! Names the frames of an allocation's stack, and determines which frame is the allocation site.
//!
//! ```text
//! recorded stack     return addresses and their modules                               site_frames
//!    ↓ per frame     debug info (in the file, or in /usr/lib/debug by build id),
//!                    else the symbol tables                                           symbol_file
//! names              one per frame and per inlined function, innermost first
//!    ↓
//! allocation site    the first name that is not a wrapper of an allocator             wrapper
//! advice             how to get more precise names                                    remedies
//! ```
//!
//! An optimised function that ends with `return malloc(…)` jumps to malloc (tail call) and has no
//! frame. The call instruction before the first return address names that function. It is inserted
//! before the first frame, with the line of its first instruction.
//!
//! Each name has a source ([`NameSource`]). In a stripped file it is the nearest symbol at best.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fieldstone_wire::sites::{Site, Sites};

mod mangled;
mod remedies;
mod symbol_file;
#[cfg(test)]
mod tests;
mod wrapper;

pub(crate) use mangled::demangled;
pub use remedies::{UNATTRIBUTED, remedies};
use symbol_file::SymbolFile;
pub(crate) use symbol_file::{debug_file, supplement};

/// An address in code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeLocation {
    /// The file; `None` for generated code.
    pub module: Option<PathBuf>,
    /// The address in the file, or in memory without a file. In a stack: of a call's last byte.
    pub offset: u64,
}

/// The source of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameSource {
    /// Debug info.
    DebugInfo,
    /// A symbol that contains the address.
    Symbol,
    /// The nearest symbol below the address. The address may belong to another function without a
    /// symbol.
    NearestSymbol,
    /// None: the name is the address.
    Address,
}

/// The name of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameName {
    /// The function, demangled; `name+0x1f` for [`NameSource::NearestSymbol`], `file+0x1f` for
    /// [`NameSource::Address`].
    pub function: String,
    /// The source file; `None` without debug info.
    pub file: Option<PathBuf>,
    /// The line of the call; `None` without debug info.
    pub line: Option<u32>,
    /// The base name of the file that contains the code; empty for generated code.
    pub module: String,
    /// The source of `function`.
    pub source: NameSource,
}

/// The name of an allocation site, and its whole stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteName {
    /// The function that allocates.
    pub function: String,
    /// The source file; `None` without debug info.
    pub file: Option<PathBuf>,
    /// The line that allocates; `None` without debug info.
    pub line: Option<u32>,
    /// The base name of the file that contains the code.
    pub module: String,
    /// All frames, innermost first, including inlined functions and wrappers of allocators.
    pub stack: Vec<FrameName>,
}

/// The code locations of a recorded stack, innermost first.
#[must_use]
pub fn site_frames(sites: &Sites, site: &Site) -> Vec<CodeLocation> {
    let frames = site.frames().map(|(address, number)| {
        let call = address.wrapping_sub(1);
        match sites.module(number) {
            Some(module) => {
                let path: Vec<u8> = module.path().collect();
                let base = module.base.load(std::sync::atomic::Ordering::Relaxed);
                CodeLocation { module: Some(PathBuf::from(OsStr::from_bytes(&path))), offset: call.wrapping_sub(base) }
            }
            None => CodeLocation { module: None, offset: call },
        }
    });
    frames.collect()
}

/// Names code locations. It caches the tables of each file.
#[derive(Debug, Default)]
pub struct Symbolizer {
    modules: HashMap<PathBuf, Option<SymbolFile>>,
}

impl Symbolizer {
    /// Names a stack, innermost frame first. Frames in an unreadable file are named by their
    /// address.
    pub fn name(&mut self, frames: &[CodeLocation]) -> SiteName {
        let tail_call = frames.first().and_then(|frame| self.tail_call(frame));
        let stack: Vec<FrameName> =
            tail_call.into_iter().chain(frames.iter().flat_map(|frame| self.frame(frame))).collect();
        let site = wrapper::site(&stack);
        SiteName {
            function: site.map(|site| site.function.clone()).unwrap_or_default(),
            file: site.and_then(|site| site.file.clone()),
            line: site.and_then(|site| site.line),
            module: site.map(|site| site.module.clone()).unwrap_or_default(),
            stack,
        }
    }

    /// Names each frame and its inlined functions, innermost first, and nothing else.
    pub fn frames(&mut self, frames: &[CodeLocation]) -> Vec<FrameName> {
        frames.iter().flat_map(|frame| self.frame(frame)).collect()
    }

    /// The address in the file at `path` that is loaded from `offset` in it; `None` if no segment
    /// is.
    pub fn address_at_offset(&mut self, path: &Path, offset: u64) -> Option<u64> {
        self.module(path)?.address_at_offset(offset)
    }

    /// The address in the file at which the symbol starts that contains a location.
    pub fn symbol_start(&mut self, location: &CodeLocation) -> Option<u64> {
        self.module(location.module.as_ref()?)?.symbol_start(location.offset)
    }

    /// The function that `frame` called, if that function made a tail call to the allocator.
    fn tail_call(&mut self, frame: &CodeLocation) -> Option<FrameName> {
        let path = frame.module.as_ref()?;
        self.module(path)?.callee_before(frame.offset + 1, &path.file_name()?.to_string_lossy())
    }

    fn module(&mut self, path: &Path) -> Option<&SymbolFile> {
        self.modules.entry(path.to_owned()).or_insert_with(|| SymbolFile::open(path)).as_ref()
    }

    fn frame(&mut self, frame: &CodeLocation) -> Vec<FrameName> {
        let Some(path) = &frame.module else { return vec![address("", frame.offset)] };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let names = self.module(path).map(|module| module.names(frame.offset, &name)).unwrap_or_default();
        if names.is_empty() { vec![address(&name, frame.offset)] } else { names }
    }
}

fn address(module: &str, offset: u64) -> FrameName {
    let function = if module.is_empty() { format!("{offset:#x}") } else { format!("{module}+{offset:#x}") };
    FrameName { function, file: None, line: None, module: module.to_owned(), source: NameSource::Address }
}
