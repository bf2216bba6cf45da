//! Names for allocation sites: function, file and line of each frame of a stack, and which frame is the site.
//!
//! ```text
//! record   frame = address behind a call, and its module     frames_of
//! file     debug info (its own, or /usr/lib/debug by build id), else the symbol tables        module
//! names    one for each frame and for each function inlined there, innermost first
//! site     the first that is no wrapper of an allocator      wrapper
//! words    what would make a report of them say more         remedies
//! ```
//!
//! A function that ends with `return malloc(…)` is, optimised, left by a jump, and has no frame: the return address is its
//! caller's. But the call before that address names the function, so it is put in front of the stack, with the line of its first
//! instruction.
//!
//! Each name says how it is known ([`Known`]): a stripped file has a symbol in the neighbourhood at best.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fieldstone_wire::sites::{Site, Sites};

mod mangled;
mod module;
mod remedies;
#[cfg(test)]
mod tests;
mod wrapper;

pub(crate) use mangled::demangled;
use module::Module;
pub(crate) use module::{debug_file, supplement};
pub use remedies::{MAPPED, remedies};

/// An address in a program's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The file that it lies in; `None` for code that the program wrote itself.
    pub module: Option<PathBuf>,
    /// The last byte of the call, as an address in the file; in memory where there is no file.
    pub offset: u64,
}

/// How a name is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// From debug info.
    DebugInfo,
    /// The address lies in a symbol of this name.
    Symbol,
    /// The name is that of the nearest symbol below, and how far, in bytes: another function without a name may be between.
    Nearby,
    /// The name is the address alone.
    Address,
}

/// What a frame is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameName {
    /// The function, demangled; `name+0x1f` for [`Known::Nearby`], `file+0x1f` for [`Known::Address`].
    pub function: String,
    /// Its source file.
    pub file: Option<PathBuf>,
    /// The line of the call.
    pub line: Option<u32>,
    /// The name of the file that its code lies in; empty where there is none.
    pub module: String,
    /// How the function is known.
    pub known: Known,
}

/// What a site is called: the frame that is one, and the whole stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteName {
    /// The function that allocates.
    pub function: String,
    /// Its source file.
    pub file: Option<PathBuf>,
    /// The line that allocates.
    pub line: Option<u32>,
    /// The name of the file that its code lies in.
    pub module: String,
    /// All frames, innermost first, inlined ones and allocators' wrappers among them.
    pub stack: Vec<FrameName>,
}

/// The frames of a site of the record.
#[must_use]
pub fn frames_of(sites: &Sites, site: &Site) -> Vec<Frame> {
    let frames = site.frames().map(|(address, number)| {
        let call = address.wrapping_sub(1);
        match sites.module(number) {
            Some(module) => {
                let path: Vec<u8> = module.path().collect();
                let base = module.base.load(std::sync::atomic::Ordering::Relaxed);
                Frame { module: Some(PathBuf::from(OsStr::from_bytes(&path))), offset: call.wrapping_sub(base) }
            }
            None => Frame { module: None, offset: call },
        }
    });
    frames.collect()
}

/// Names frames; keeps each file's tables once they were read.
#[derive(Debug, Default)]
pub struct Symbols {
    modules: HashMap<PathBuf, Option<Module>>,
}

impl Symbols {
    /// Names for a stack, innermost frame first. A file that cannot be read leaves addresses.
    pub fn name(&mut self, frames: &[Frame]) -> SiteName {
        let jumped = frames.first().and_then(|frame| self.jumped(frame));
        let stack: Vec<FrameName> =
            jumped.into_iter().chain(frames.iter().flat_map(|frame| self.frame(frame))).collect();
        let site = wrapper::site(&stack);
        SiteName {
            function: site.map(|site| site.function.clone()).unwrap_or_default(),
            file: site.and_then(|site| site.file.clone()),
            line: site.and_then(|site| site.line),
            module: site.map(|site| site.module.clone()).unwrap_or_default(),
            stack,
        }
    }

    /// The function that `frame` called, if it ended in a jump to the allocator: see the module's words.
    fn jumped(&mut self, frame: &Frame) -> Option<FrameName> {
        let path = frame.module.as_ref()?;
        self.module(path)?.called_before(frame.offset + 1, &path.file_name()?.to_string_lossy())
    }

    fn module(&mut self, path: &Path) -> Option<&Module> {
        self.modules.entry(path.to_owned()).or_insert_with(|| Module::open(path)).as_ref()
    }

    fn frame(&mut self, frame: &Frame) -> Vec<FrameName> {
        let Some(path) = &frame.module else { return vec![address("", frame.offset)] };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let names = self.module(path).map(|module| module.names(frame.offset, &name)).unwrap_or_default();
        if names.is_empty() { vec![address(&name, frame.offset)] } else { names }
    }
}

fn address(module: &str, offset: u64) -> FrameName {
    let function = if module.is_empty() { format!("{offset:#x}") } else { format!("{module}+{offset:#x}") };
    FrameName { function, file: None, line: None, module: module.to_owned(), known: Known::Address }
}
