//! Whose memory is it: the variable, the block or the mapping of a running process that an address lies in, and what is in there.
//!
//! ```text
//!   address ─┬─ in a file's data, bss ──→ variable, by debug information or symbol    modules, image, globals
//!            ├─ in [heap], an arena, a mapping of malloc's ──→ block                  heap
//!            ├─ in a stack ──→ its thread; below a thread pointer ──→ thread-local    threads
//!            └─ elsewhere ──→ the mapping
//!   block + samples' registers ──→ its type, by the variables that point there        typed, scope, location, frames
//!   type ──→ members, elements                                                        layout, dwarf, place
//! ```
//! Nothing is loaded into the process and it is never stopped: its memory is read while it runs. So each answer is one of a moment, and
//! where a moment's picture does not fit together nothing is told. What others wrote (a program's memory, its debug information) is
//! believed nowhere without bounds.
//!
//! | question | cost (times are estimates, none is measured yet) |
//! |---|---|
//! | [`Objects::of`], [`Objects::look_again`] | `/proc/PID/maps`, a file a thread, the headers of each new module |
//! | a global, the first of a module | all its debug information: some 10 million entries a second; it stays in memory |
//! | a global, later | some 10 µs |
//! | a block | the heap up to it, some 2 GB a second, a tenth of a second at most; then from the nearest mark |
//! | [`Objects::typed`] | the functions' source files once; later some 100 µs a sample |
//!
//! A page that was moved away under userfaultfd makes who reads it wait until it is given back: ask before pages are moved, or never in
//! the thread that serves them.

mod alignment;
mod dwarf;
mod frames;
mod globals;
mod heap;
mod image;
mod layout;
mod location;
mod maps;
mod modules;
mod place;
mod read;
mod scope;
#[cfg(test)]
mod tests;
mod threads;
mod typed;

use std::ops::Range;
use std::path::PathBuf;

use fieldstone_remap::Memory;
use fieldstone_rewrite::Registers;
use fieldstone_sharing::Object;

use crate::error::Result;
use crate::names::Frame;
use heap::{Found, Heap};
use maps::Maps;
use modules::Modules;
pub use place::{Kind, Place};
use threads::Threads;

/// So near below a thread pointer thread-local memory of libraries is likely.
const LOCAL_BYTES: u64 = 4096;

/// A process's memory, and what is known of it.
#[derive(Debug)]
pub struct Objects {
    pid: u32,
    memory: Memory,
    maps: Maps,
    modules: Modules,
    heap: Heap,
    threads: Threads,
    /// The file that the process was started from.
    program: Option<PathBuf>,
}

impl Objects {
    /// Looks at process `pid`.
    ///
    /// # Errors
    /// Where this user may not read its memory, or it is gone.
    pub fn of(pid: u32) -> Result<Self> {
        let mut objects = Self {
            pid,
            memory: Memory::open(pid)?,
            maps: Maps::default(),
            modules: Modules::default(),
            heap: Heap::default(),
            threads: Threads::default(),
            program: None,
        };
        objects.look_again()?;
        Ok(objects)
    }

    /// Looks at its mappings and threads again, and forgets where blocks were: once for each round of questions. Of another program that
    /// it executes since, nothing can be read: that needs new ones of these.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn look_again(&mut self) -> Result<()> {
        self.maps = Maps::read(self.pid)?;
        self.modules = Modules::of(self.pid, &self.maps, std::mem::take(&mut self.modules));
        self.heap.forget();
        self.threads.look(self.pid);
        self.program = fieldstone_sys::process::exe(self.pid).ok();
        Ok(())
    }

    /// A thread has these registers: of one that runs, the kernel does not show where its stack is.
    pub fn saw(&mut self, thread: u32, registers: &Registers) {
        self.threads.saw(thread, registers);
    }

    /// Whose memory `address` is. Where variables share its line of `line_bytes` bytes, and the one asked for is wholly on it, the object is
    /// all of them, each a member.
    pub fn at(&mut self, address: u64, line_bytes: u64) -> Place {
        if let Some((_, module)) = self.modules.at(address) {
            return place::of_module(module, address, line_bytes.max(1));
        }
        let Some(mapping) = self.maps.at(address) else {
            return Place::of(Kind::Nothing, "nothing is mapped there".to_owned(), address..address, address);
        };
        let (name, range) = (mapping.name.clone(), mapping.range());
        if name.starts_with("[stack") {
            return Place::of(Kind::Stack, format!("stack of thread {}", self.pid), range, address);
        }
        let found = self.heap.in_arena(&self.memory, &self.maps, address);
        if let Found::Block(_) | Found::Free(_) = found {
            return place::of_heap(found, range, address);
        }
        let may_be_local = maps::is_mapped(mapping) || maps::is_heap(mapping);
        if let Some(place) = may_be_local.then(|| self.of_thread(address, range.clone())).flatten() {
            return place;
        }
        let found = if found == Found::Elsewhere { heap::in_mapping(&self.memory, &self.maps, address) } else { found };
        if found != Found::Elsewhere {
            return place::of_heap(found, range, address);
        }
        let mut name = if name.is_empty() { format!("mapping of {} bytes", range.end - range.start) } else { name };
        if self.threads.any_in(&range) {
            name.push_str(" with stacks of goroutines or coroutines in it");
        }
        Place::of(Kind::Mapping, name, range, address)
    }

    /// What the memory at `address` is, by the variables that threads had in view when these samples were taken: those that point there,
    /// or into the same block. A sample is the registers at one moment, `rip` among them; best are some of each thread that used the memory.
    pub fn typed(&mut self, address: u64, samples: &[Registers]) -> Option<Object> {
        let block = self.block(address);
        typed::Question::new(&self.modules, &self.memory, address, block).answer(samples)
    }

    /// Where the variable of this name is, by its symbol: the first of `module`, or of all files.
    #[must_use]
    pub fn variable(&self, module: Option<&str>, name: &str) -> Option<Range<u64>> {
        self.modules.called(module).find_map(|module| {
            let symbol = module.image.named(name)?;
            let start = symbol.start.wrapping_add(module.bias);
            Some(start..start.checked_add(symbol.bytes)?)
        })
    }

    /// The file that the code at `ip` is of, and where in it.
    #[must_use]
    pub fn code(&self, ip: u64) -> Option<Frame> {
        let (_, module) = self.modules.at(ip)?;
        let mapping = self.maps.at(ip)?;
        Some(Frame { module: Some(PathBuf::from(&mapping.name)), offset: ip.wrapping_sub(module.bias) })
    }

    /// The block of malloc's that has `address`: its user's bytes, as many as `malloc_usable_size` tells.
    pub fn block(&mut self, address: u64) -> Option<Range<u64>> {
        if self.modules.at(address).is_some() || self.threads.with_stack_at(&self.memory, &self.maps, address).is_some()
        {
            return None;
        }
        let found = match self.heap.in_arena(&self.memory, &self.maps, address) {
            Found::Elsewhere => heap::in_mapping(&self.memory, &self.maps, address),
            found => found,
        };
        if let Found::Block(block) = found { Some(block) } else { None }
    }

    /// Memory of one thread: its stack, and what is thread-local.
    fn of_thread(&self, address: u64, range: Range<u64>) -> Option<Place> {
        let stack = self.threads.with_stack_at(&self.memory, &self.maps, address);
        let pointer = threads::pointer_above(&self.memory, address, range.end);
        let program = self.program.as_ref().and_then(|path| self.modules.program(&self.maps, path));
        if let Some(place) = pointer.zip(program).and_then(|(pointer, program)| place::local(program, pointer, address))
        {
            return Some(place);
        }
        // In [heap] and in mappings of no thread only the program's own variables are sure. How much the libraries have below the thread
        // pointer is not known.
        let thread = stack?;
        let close = pointer.is_some_and(|pointer| pointer - address < LOCAL_BYTES);
        let name = if close { "thread-local memory or stack" } else { "stack" };
        Some(Place::of(Kind::Stack, format!("{name} of thread {thread}"), range, address))
    }
}
