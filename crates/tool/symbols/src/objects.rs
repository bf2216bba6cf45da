//! Describes the memory at an address of a running process: variable, heap block, stack or mapping,
//! and the type of the object there.
//!
//! ```text
//!   address ─┬─ data, bss of a file ─────→ variable             modules, image, globals
//!            ├─ [heap], arena, mmap ─────→ block of malloc      heap
//!            ├─ stack ───────────────────→ its thread           threads
//!            ├─ below a thread pointer ──→ thread-local memory  threads
//!            └─ other ───────────────────→ mapping              maps
//!   block + sampled registers ───────────→ type                 type_inference, scope, location, unwind
//!   type ────────────────────────────────→ members, elements    layout, dwarf, alignment
//! ```
//! The process is neither stopped nor modified: its memory is read while it runs. An answer
//! describes one moment. If the data read are inconsistent, there is no answer. Memory and debug
//! info are untrusted input, so every loop over them has a limit.
//!
//! | query | cost (estimated times) |
//! |---|---|
//! | [`Objects::open`], [`Objects::refresh`] | `/proc/PID/maps`, one file per thread, headers of new modules |
//! | first variable of a module | all its debug info: about 10 million entries/s; it stays in memory |
//! | further variable | about 10 µs |
//! | heap block | the heap below it: about 2 GB/s, at most 100 ms; later from the nearest mark |
//! | [`Objects::infer_type`] | once the functions of each source file; later about 100 µs per sample |
//!
//! Reading a page that was moved under userfaultfd blocks the reader until the page is restored.
//! Query before pages are moved, and never in the thread that handles the faults.

mod address_info;
mod alignment;
mod dwarf;
mod globals;
mod heap;
mod image;
mod layout;
mod location;
mod maps;
mod modules;
mod scope;
#[cfg(test)]
mod tests;
mod threads;
mod type_inference;
mod unwind;
mod words;

use std::ops::Range;
use std::path::PathBuf;

use fieldstone_rewrite::{ReadableMemory, Registers};
use fieldstone_sharing::ObjectLayout;
use fieldstone_sys::process::ProcessMemory;

use crate::error::Result;
use crate::names::CodeLocation;
pub use address_info::{AddressInfo, AddressKind};
use heap::{HeapLookup, MallocHeaps};
use image::VariableSymbol;
use maps::Maps;
use modules::LoadedModules;
use threads::ThreadStacks;

/// Distance below a thread pointer within which thread-local memory of libraries is likely.
const LOCAL_BYTES: u64 = 4096;

/// The memory of a process, and tables that describe it.
#[derive(Debug)]
pub struct Objects {
    pid: u32,
    memory: ProcessMemory,
    maps: Maps,
    modules: LoadedModules,
    heap: MallocHeaps,
    threads: ThreadStacks,
    /// The file that the process was started from.
    program: Option<PathBuf>,
}

impl Objects {
    /// Opens process `pid`.
    ///
    /// # Errors
    /// If this user may not read the process's memory, or the process has ended.
    pub fn open(pid: u32) -> Result<Self> {
        let mut objects = Self {
            pid,
            memory: ProcessMemory::open(pid)?,
            maps: Maps::default(),
            modules: LoadedModules::default(),
            heap: MallocHeaps::default(),
            threads: ThreadStacks::default(),
            program: None,
        };
        objects.refresh()?;
        Ok(objects)
    }

    /// Re-reads mappings and threads and discards the positions of heap blocks. Call it before each
    /// series of queries. After an exec, a new `Objects` is needed.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn refresh(&mut self) -> Result<()> {
        self.maps = Maps::read(self.pid)?;
        self.modules = LoadedModules::of(self.pid, &self.maps, std::mem::take(&mut self.modules));
        self.heap.forget();
        self.threads.refresh(self.pid);
        self.program = fieldstone_sys::process::exe(self.pid).ok();
        Ok(())
    }

    /// Records sampled registers of a thread. The kernel does not show the stack pointer of a
    /// running thread.
    pub fn record_registers(&mut self, thread: u32, registers: &Registers) {
        self.threads.record_registers(thread, registers);
    }

    /// Describes the memory at `address`. If other variables share the cache line of `line_bytes`
    /// bytes with a variable that is entirely on it, the object has all of them as members.
    pub fn describe(&mut self, address: u64, line_bytes: u64) -> AddressInfo {
        if let Some((_, module)) = self.modules.at(address) {
            return address_info::of_module(module, address, line_bytes.max(1));
        }
        let Some(mapping) = self.maps.at(address) else {
            return AddressInfo::of(
                AddressKind::Nothing,
                "nothing is mapped there".to_owned(),
                address..address,
                address,
            );
        };
        let (name, range) = (mapping.name.clone(), mapping.range());
        if name.starts_with("[stack") {
            return AddressInfo::of(AddressKind::Stack, format!("stack of thread {}", self.pid), range, address);
        }
        let memory = reader(&self.memory);
        let lookup = self.heap.in_arena(&memory, &self.maps, address);
        if let HeapLookup::Block(_) | HeapLookup::Free(_) = lookup {
            return address_info::of_heap(lookup, range, address);
        }
        let may_be_local = maps::is_mapped(mapping) || maps::is_heap(mapping);
        if let Some(info) = may_be_local.then(|| self.thread_memory(address, range.clone())).flatten() {
            return info;
        }
        let lookup = match lookup {
            HeapLookup::NotMalloc => heap::in_mapping(&memory, &self.maps, address),
            other => other,
        };
        if lookup != HeapLookup::NotMalloc {
            return address_info::of_heap(lookup, range, address);
        }
        let mut name = if name.is_empty() { format!("mapping of {} bytes", range.end - range.start) } else { name };
        if self.threads.has_stack_in(&range) {
            name.push_str(" with stacks of goroutines or coroutines in it");
        }
        AddressInfo::of(AddressKind::Mapping, name, range, address)
    }

    /// Infers the object at `address` from variables that point to it or into its heap block. The
    /// variables are those in scope at each sample, the registers of a thread at one moment. Some
    /// samples of each thread that uses the memory give the best result.
    pub fn infer_type(&mut self, address: u64, samples: &[Registers]) -> Option<ObjectLayout> {
        let block = self.heap_block(address);
        type_inference::TypeQuery::new(&self.modules, &reader(&self.memory), address, block).answer(samples)
    }

    /// The addresses of the first variable with this symbol name, in `module` or in all modules.
    #[must_use]
    pub fn variable_range(&self, module: Option<&str>, name: &str) -> Option<Range<u64>> {
        self.modules.with_name(module).find_map(|module| {
            let symbol = module.image.find(name)?;
            let start = symbol.start.wrapping_add(module.bias);
            Some(start..start.checked_add(symbol.bytes)?)
        })
    }

    /// The variables on the cache line of `line_bytes` bytes at `address`, in the order of addresses:
    /// `counters`, or `counters+0x40` for one that begins before the line. Reads symbols only, which
    /// is faster than [`Self::describe`].
    #[must_use]
    pub fn variables_on_line(&self, address: u64, line_bytes: u64) -> Vec<String> {
        let Some((_, module)) = self.modules.at(address) else { return Vec::new() };
        let start = address.wrapping_sub(module.bias);
        let name = |symbol: &VariableSymbol| match start.saturating_sub(symbol.start) {
            0 => symbol.name.clone(),
            offset => format!("{}+{offset:#x}", symbol.name),
        };
        module.image.symbols_in(&(start..start.saturating_add(line_bytes))).into_iter().map(name).collect()
    }

    /// The file that contains the code at `ip`, and the address in the file.
    #[must_use]
    pub fn code_location(&self, ip: u64) -> Option<CodeLocation> {
        let (_, module) = self.modules.at(ip)?;
        let mapping = self.maps.at(ip)?;
        Some(CodeLocation { module: Some(PathBuf::from(&mapping.name)), offset: ip.wrapping_sub(module.bias) })
    }

    /// The block of malloc that contains `address`: the `malloc_usable_size` bytes of its user.
    pub fn heap_block(&mut self, address: u64) -> Option<Range<u64>> {
        let memory = reader(&self.memory);
        if self.modules.at(address).is_some() || self.threads.stack_owner(&memory, &self.maps, address).is_some() {
            return None;
        }
        let lookup = match self.heap.in_arena(&memory, &self.maps, address) {
            HeapLookup::NotMalloc => heap::in_mapping(&memory, &self.maps, address),
            other => other,
        };
        if let HeapLookup::Block(block) = lookup { Some(block) } else { None }
    }

    /// Describes the memory of one thread: stack or thread-local memory.
    fn thread_memory(&self, address: u64, range: Range<u64>) -> Option<AddressInfo> {
        let memory = reader(&self.memory);
        let stack = self.threads.stack_owner(&memory, &self.maps, address);
        let pointer = threads::thread_pointer_above(&memory, address, range.end);
        let program = self.program.as_ref().and_then(|path| self.modules.program(&self.maps, path));
        let variable = |(pointer, program)| address_info::thread_local(program, pointer, address);
        if let Some(info) = pointer.zip(program).and_then(variable) {
            return Some(info);
        }
        // The size of the libraries' thread-local memory is unknown. Outside a thread's mapping,
        // only the program's variables are certain.
        let thread = stack?;
        let close = pointer.is_some_and(|pointer| pointer - address < LOCAL_BYTES);
        let name = if close { "thread-local memory or stack" } else { "stack" };
        Some(AddressInfo::of(AddressKind::Stack, format!("{name} of thread {thread}"), range, address))
    }
}

/// The memory of a process, as the searches of this module read it.
fn reader(memory: &ProcessMemory) -> impl ReadableMemory + '_ {
    move |address: u64, into: &mut [u8]| memory.read(address, into)
}
