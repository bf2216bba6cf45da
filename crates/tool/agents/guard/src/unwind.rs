//! From a stack to return addresses, by the unwind tables of the loaded files (`framehop`).
//!
//! ```text
//! Caller (return address, stack and frame pointer)
//!    │ per frame: the file of the address (modules), its tables if they are new
//!    ▼
//! framehop: the rule of the address, from its cache or the tables; the return address by `probe`
//! ```
//! An unwinder changes its cache and its list of files, so one thread uses it at a time. There are
//! several; a thread takes any that is free and never waits. If all are in use, the stack is the
//! return address alone.
//!
//! Reading a rule takes up to 20 KiB of stack, so this runs on a private stack. Without one, the stack
//! is the return address alone too.
//!
//! Cost: .3 µs for a stack of 16 frames whose rules are in the cache, and a system call for each page
//! that they are on, but the first.

#![allow(unsafe_code, reason = "shares unwinders by a lock")]

use alloc::boxed::Box;
use alloc::string::String;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, MustNotAllocateDuringUnwind, Unwinder};

use crate::modules::{self, LoadedFile};
use crate::private_stack::OnPrivateStack;
use crate::probe::Reader;
use crate::{report, thread};

/// Unwinders: more than processors that allocate guarded objects at one time.
const UNWINDERS: usize = 16;
/// Files known to one unwinder. A program that loads and unloads more starts with an empty list.
const FILES: usize = 256;

/// The registers with which an unwind starts.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    /// An instruction, or a return address.
    pub(crate) instruction: usize,
    /// Whether `instruction` is an instruction that faulted.
    pub(crate) is_fault: bool,
    stack_pointer: usize,
    frame_pointer: usize,
}

impl Caller {
    /// The caller of an interposed function.
    ///
    /// # Safety
    /// `sp` has to point to the return address, and `bp` to be the caller's frame pointer.
    pub(crate) unsafe fn new(sp: *const usize, bp: usize) -> Self {
        // SAFETY: the caller guarantees that the return address is there.
        let instruction = unsafe { *sp };
        Self { instruction, is_fault: false, stack_pointer: sp as usize + 8, frame_pointer: bp }
    }

    /// An instruction that faulted.
    pub(crate) fn at_fault(instruction: usize, stack_pointer: usize, frame_pointer: usize) -> Self {
        Self { instruction, is_fault: true, stack_pointer, frame_pointer }
    }

    /// The key of the site, as the entries compute it.
    pub(crate) fn key(&self) -> usize {
        let depth = thread::pointer().wrapping_sub(self.stack_pointer - 8);
        self.instruction.wrapping_add(depth << 20).wrapping_mul(crate::entries::KEY_MULTIPLIER)
    }
}

type Policy = MustNotAllocateDuringUnwind;

struct State {
    unwinder: UnwinderX86_64<&'static [u8], Policy>,
    cache: CacheX86_64<Policy>,
    files: [Option<LoadedFile>; FILES],
    count: usize,
}

struct Shared {
    is_used: AtomicBool,
    state: UnsafeCell<Option<Box<State>>>,
}

// SAFETY: the state is accessed only by the thread that set `is_used`.
unsafe impl Sync for Shared {}

static POOL: [Shared; UNWINDERS] =
    [const { Shared { is_used: AtomicBool::new(false), state: UnsafeCell::new(None) } }; UNWINDERS];

/// Writes the return addresses from `caller` on, innermost first. Returns their number, at least 1
/// if there is space. Signals are blocked on a private stack, so no handler finds the unwinder in use.
pub(crate) fn stack(caller: Caller, into: &mut [usize], own: Option<&OnPrivateStack>) -> usize {
    let Some((first, rest)) = into.split_first_mut() else { return 0 };
    *first = caller.instruction;
    if own.is_none() {
        return 1;
    }
    let start = thread::number() as usize;
    let is_free = |shared: &&Shared| shared.is_used.compare_exchange(false, true, Acquire, Relaxed).is_ok();
    let shared = (0..UNWINDERS).map(|step| &POOL[(start + step) % UNWINDERS]).find(is_free);
    let Some(shared) = shared else { return 1 };
    // SAFETY: this thread set `is_used`, so no other one accesses the state until it is cleared.
    let state = unsafe { &mut *shared.state.get() };
    let count = state.get_or_insert_with(State::new).unwind(caller, rest);
    shared.is_used.store(false, Release);
    1 + count
}

/// In the child of a fork: gives up the unwinders that other threads of the parent used.
pub(crate) fn after_fork() {
    for shared in POOL.iter().filter(|shared| shared.is_used.load(Acquire)) {
        // SAFETY: the child has one thread, which uses no unwinder now. A state that was being
        // changed is left as it is.
        core::mem::forget(unsafe { (*shared.state.get()).take() });
        shared.is_used.store(false, Release);
    }
}

impl State {
    fn new() -> Box<Self> {
        Box::new(Self {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new_in(),
            files: [const { None }; FILES],
            count: 0,
        })
    }

    fn unwind(&mut self, caller: Caller, into: &mut [usize]) -> usize {
        let mut registers =
            UnwindRegsX86_64::new(caller.instruction as u64, caller.stack_pointer as u64, caller.frame_pointer as u64);
        let mut at = if caller.is_fault {
            FrameAddress::from_instruction_pointer(caller.instruction as u64)
        } else {
            let Some(at) = FrameAddress::from_return_address(caller.instruction as u64) else { return 0 };
            at
        };
        let mut reader = if caller.is_fault { Reader::default() } else { Reader::of_stack(caller.stack_pointer - 8) };
        let mut count = 0;
        while let Some(slot) = into.get_mut(count) {
            self.learn(at.address_for_lookup() as usize);
            let next = self
                .unwinder
                .unwind_frame(at, &mut registers, &mut self.cache, &mut |address| reader.read(address).ok_or(()));
            let Ok(Some(next)) = next else { break };
            let Some(next_at) = FrameAddress::from_return_address(next) else { break };
            (*slot, at) = (next as usize, next_at);
            count += 1;
            if let (Some(interrupted), [.., restorer, slot]) =
                (interrupted(next, registers.sp(), &mut reader), into.get_mut(..=count).unwrap_or_default())
            {
                // One more, because readers take one off: a return address is behind its call.
                *restorer += 1;
                *slot = interrupted.ip() as usize + 1;
                at = FrameAddress::from_instruction_pointer(interrupted.ip());
                registers = interrupted;
                count += 1;
            }
        }
        count
    }

    /// Adds the file of an address, unless it is known. Tables of an unloaded file are not memory any
    /// more: if the address is in such a file, or in one that replaced it, all files are forgotten.
    fn learn(&mut self, address: usize) {
        let file = modules::at(address);
        let range = file.as_ref().map_or(address..address + 1, |file| file.range.clone());
        let known = self.files[..self.count].iter().flatten();
        let mut overlapping = known.filter(|known| known.range.start < range.end && range.start < known.range.end);
        let is_stale = match overlapping.next() {
            Some(known) if Some(known) == file.as_ref() => return,
            overlapping => overlapping.is_some(),
        };
        if is_stale || self.count == FILES {
            self.unwinder = UnwinderX86_64::new();
            self.count = 0;
        }
        let Some(file) = file else { return };
        if let Some(module) = module(&file) {
            self.unwinder.add_module(module);
        }
        self.files[self.count] = Some(file);
        self.count += 1;
    }
}

/// The code of `__restore_rt`, to which a signal handler returns: `mov $15, %rax; syscall`.
const RESTORER: [u64; 2] = [0x0f00_0000_0fc0_c748, 0x05];
/// The largest value of the flags of the kernel's record: the `UC_` constants of the kernel.
const RECORD_FLAGS: u64 = 7;
/// Where in the kernel's record on the stack are frame pointer, stack pointer and instruction.
const RECORD: [u64; 3] = [40 + 10 * 8, 40 + 15 * 8, 40 + 16 * 8];

/// The registers of the code that a signal interrupted, if a handler returns to `address` with this
/// stack pointer. The tables of the restorer have expressions that the unwinder does not evaluate.
fn interrupted(address: u64, stack_pointer: u64, reader: &mut Reader) -> Option<UnwindRegsX86_64> {
    // The record starts with flags and a null pointer. Few stacks do, so the code is seldom read.
    if reader.read(stack_pointer)? > RECORD_FLAGS || reader.read(stack_pointer.wrapping_add(8))? != 0 {
        return None;
    }
    let has_code = report::code_word(address as usize) == RESTORER[0]
        && report::code_word(address as usize + 8) & 0xff == RESTORER[1];
    let [frame, stack, instruction] = RECORD.map(|offset| reader.read(stack_pointer.wrapping_add(offset)));
    has_code.then_some(UnwindRegsX86_64::new(instruction?, stack?, frame?))
}

/// The file for the unwinder. All addresses are those in memory.
fn module(file: &LoadedFile) -> Option<Module<&'static [u8]>> {
    let tables = file.unwind_tables()?;
    let range = |bytes: &[u8]| {
        let bytes = bytes.as_ptr_range();
        bytes.start as u64..bytes.end as u64
    };
    let start = file.range.start as u64;
    let sections = ExplicitModuleSectionInfo {
        base_svma: start,
        eh_frame_svma: Some(range(tables.frames)),
        eh_frame: Some(tables.frames),
        eh_frame_hdr_svma: Some(range(tables.header)),
        eh_frame_hdr: Some(tables.header),
        ..ExplicitModuleSectionInfo::default()
    };
    Some(Module::new(String::new(), start..file.range.end as u64, start, sections))
}
