//! Chooses the call-backs of a block of code, once, when QEMU translates it.
//!
//! A call-back costs more than most instructions, so a block gets as few as possible:
//!
//! - An instruction that reads and writes back is recorded once.
//! - An access to the address of the previous access in the block (same registers, unchanged)
//!   cannot miss: it is counted with the block and not recorded.
//! - The block itself (its instructions, accesses and code page) is recorded with its first access.
//!   Only a block without accesses has a call-back of its own; a block that continues on a second
//!   page has one there.
//! - In code that runs between bursts (`translations`) only markers have call-backs.

#![allow(unsafe_code, reason = "asks QEMU about the block, and registers call-backs with it")]

use crate::callback_word::CallbackWord;
use crate::callbacks::{on_access, on_block, on_first_access, on_marker, on_marker_only, on_uncounted_access};
use crate::decode::{AccessKind, BlockEnd, GuestOperand, InstructionDecoder, MemoryEffect, block_end};
use crate::marker::{ExecutionCounts, Marker};
use crate::qemu::{self, BOTH, Id, Instruction, NO_REGISTERS, TranslationBlock};
use crate::trace::{set_guest_base, trace};
use crate::{mailbox, translations};

const PAGE_SHIFT: u32 = 12;

/// The call-back of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WatchedInstruction {
    /// The kinds of accesses to record; 0 for none.
    accesses: i32,
    /// Whether each run accesses memory.
    is_unconditional: bool,
    kind: AccessKind,
    address: u64,
}

/// The call-backs of a block.
#[derive(Debug, PartialEq, Eq)]
struct BlockPlan {
    watches: Vec<WatchedInstruction>,
    omitted: usize,
    end: BlockEnd,
}

impl BlockPlan {
    fn of<'a>(code: impl Iterator<Item = (&'a [u8], u64)>) -> Self {
        let mut decoder = InstructionDecoder::new();
        let mut plan = Self { watches: Vec::new(), omitted: 0, end: BlockEnd::default() };
        let (mut last, mut changes): (Option<GuestOperand>, Vec<u16>) = (None, Vec::new());
        let (mut start, mut final_code) = (None, None);
        for (bytes, address) in code {
            start.get_or_insert(address);
            final_code = Some((bytes, address));
            let decoded = decoder.decode(bytes, address, last.as_ref());
            let (accesses, is_unconditional, kind) = match decoded.effect {
                MemoryEffect::None => (0, false, AccessKind::Plain),
                MemoryEffect::One(place, ..) if last.is_some_and(|last| place.is_within(&last)) => {
                    plan.omitted += 1;
                    (0, false, AccessKind::Plain)
                }
                MemoryEffect::One(place, accesses, kind) => {
                    last = Some(place);
                    (accesses, true, kind)
                }
                MemoryEffect::Several => {
                    last = None;
                    (BOTH, false, AccessKind::Plain)
                }
            };
            if decoded.changes_address {
                last = None;
            }
            changes.push(decoded.changed_registers);
            plan.watches.push(WatchedInstruction { accesses, is_unconditional, kind, address });
        }
        plan.end =
            start.zip(final_code).map(|(start, (bytes, address))| block_end(bytes, address, start)).unwrap_or_default();
        plan.remove_single_chases(&changes, plan.end.is_loop);
        plan
    }

    /// Clears pointer chases that do not repeat. A load into a register of its own address chases
    /// pointers only if the loaded value reaches the next such load: in a block that loops to
    /// itself, in which nothing else changes the register.
    fn remove_single_chases(&mut self, changes: &[u16], is_loop: bool) {
        let chases = |watch: &WatchedInstruction, changes: u16| match watch.kind {
            AccessKind::Chase(register) if changes & register != 0 => Some(register),
            _ => None,
        };
        let loaded: Vec<_> = self.watches.iter().zip(changes).map(|(watch, &changes)| chases(watch, changes)).collect();
        for (watch, register) in self.watches.iter_mut().zip(&loaded) {
            let Some(register) = *register else { continue };
            let others = changes.iter().zip(&loaded);
            let mut others = others.filter(|(changes, _)| **changes & register != 0);
            if !is_loop || others.any(|(_, loaded)| *loaded != Some(register)) {
                watch.kind = AccessKind::Plain;
            }
        }
    }

    /// Accesses of each run.
    fn accesses(&self) -> usize {
        self.omitted + self.watches.iter().filter(|watch| watch.is_unconditional).count()
    }

    /// The instruction whose access also records the block, if one is on its first page.
    fn first(&self) -> Option<usize> {
        let page = self.watches.first()?.address >> PAGE_SHIFT;
        self.watches.iter().position(|watch| watch.is_unconditional && watch.address >> PAGE_SHIFT == page)
    }

    /// The first instruction on another page than the start of the block, if there is one.
    fn second_page(&self) -> Option<usize> {
        let page = self.watches.first()?.address >> PAGE_SHIFT;
        self.watches.iter().position(|watch| watch.address >> PAGE_SHIFT != page)
    }
}

/// QEMU translates a block; it calls this on one thread at a time.
pub(crate) extern "C" fn on_translation(_: Id, block: *mut TranslationBlock) {
    // SAFETY: QEMU's block and the instructions that it returns are valid during this call.
    let instructions: Vec<*mut Instruction> = unsafe {
        (0..qemu::qemu_plugin_tb_n_insns(block)).map(|at| qemu::qemu_plugin_tb_get_insn(block, at)).collect()
    };
    let code = instructions.iter().map(|&instruction| {
        // SAFETY: the instruction is valid during this call, and its data has the size that QEMU
        // returns.
        unsafe {
            let bytes = qemu::qemu_plugin_insn_data(instruction).cast::<u8>();
            let bytes = std::slice::from_raw_parts(bytes, qemu::qemu_plugin_insn_size(instruction));
            (bytes, qemu::qemu_plugin_insn_vaddr(instruction))
        }
    });
    let doorbell = mailbox::doorbell_position(code.clone());
    if let Some(&at) = doorbell.and_then(|at| instructions.get(at)) {
        mailbox::register(at);
    }
    let Some((_, start)) = code.clone().next() else { return };
    if doorbell.is_some() || mailbox::is_recorder(start) {
        return;
    }
    if let Some(&first) = instructions.first() {
        // SAFETY: the instruction is valid during this call.
        unsafe { set_guest_base(qemu::qemu_plugin_insn_vaddr(first), qemu::qemu_plugin_insn_haddr(first)) };
    }
    register(block, &instructions, &BlockPlan::of(code));
}

fn register(block: *mut TranslationBlock, instructions: &[*mut Instruction], plan: &BlockPlan) {
    let Some(start) = plan.watches.first() else { return };
    let run = ExecutionCounts { accesses: plan.accesses() as u64, instructions: instructions.len() as u64 };
    let has_markers_only = translations::is_marker_only();
    // Without bursts there is only one phase.
    if plan.end.is_backward && trace().plan.burst != 0 {
        let marker = std::ptr::from_ref(Marker::at(start.address, run, plan.end.is_loop)).cast_mut().cast();
        let call = if has_markers_only { on_marker_only } else { on_marker };
        // SAFETY: the block is being translated; the call-back has QEMU's type and uses no guest
        // registers.
        unsafe { qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, call, NO_REGISTERS, marker) };
    }
    if has_markers_only {
        return;
    }
    let word = CallbackWord::new(start.address, instructions.len(), plan.accesses());
    let first = plan.first();
    for (at, (watch, &instruction)) in plan.watches.iter().zip(instructions).enumerate() {
        if watch.accesses == 0 {
            continue;
        }
        let (call, word) = match watch {
            _ if first == Some(at) => (on_first_access as qemu::AccessCall, word),
            WatchedInstruction { is_unconditional: true, .. } => (on_access as _, CallbackWord::NONE),
            _ => (on_uncounted_access as _, CallbackWord::NONE),
        };
        let word = word.with(watch.kind).pointer();
        // SAFETY: the instruction belongs to the block being translated; the call-back has QEMU's
        // type.
        unsafe {
            qemu::qemu_plugin_register_vcpu_mem_cb(instruction, call, NO_REGISTERS, watch.accesses, word);
        }
    }
    // SAFETY: block and instruction are being translated; the call-backs have QEMU's type.
    unsafe {
        if first.is_none() {
            qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, NO_REGISTERS, word.pointer());
        }
        if let Some(at) = plan.second_page() {
            let word = CallbackWord::new(plan.watches[at].address, 0, 0);
            qemu::qemu_plugin_register_vcpu_insn_exec_cb(instructions[at], on_block, NO_REGISTERS, word.pointer());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(code: &[(&[u8], u64)]) -> BlockPlan {
        BlockPlan::of(code.iter().copied())
    }

    #[test]
    fn a_repeated_address_is_not_recorded_again() {
        let update = plan(&[
            (&[0x48, 0x8b, 0x0c, 0xc7], 0x1000), // mov rcx, [rdi+rax*8]
            (&[0x48, 0x31, 0xd1], 0x1004),       // xor rcx, rdx
            (&[0x48, 0x89, 0x0c, 0xc7], 0x1007), // mov [rdi+rax*8], rcx
        ]);
        assert_eq!(update.watches.iter().map(|watch| watch.accesses).collect::<Vec<_>>(), [BOTH, 0, 0]);
        assert_eq!((update.omitted, update.first(), update.second_page()), (1, Some(0), None));
    }

    #[test]
    fn a_changed_register_changes_the_address() {
        let chase = plan(&[(&[0x48, 0x8b, 0x00], 0x1000), (&[0x48, 0x8b, 0x00], 0x1003)]); // mov rax, [rax], twice
        assert_eq!(chase.watches.iter().filter(|watch| watch.accesses == BOTH).count(), 2);
        let moved = plan(&[
            (&[0x48, 0x8b, 0x0c, 0xc7], 0x1000), // mov rcx, [rdi+rax*8]
            (&[0x48, 0xff, 0xc0], 0x1004),       // inc rax
            (&[0x48, 0x89, 0x0c, 0xc7], 0x1007), // mov [rdi+rax*8], rcx
        ]);
        assert_eq!((moved.omitted, moved.watches[2].accesses), (0, BOTH));
    }

    #[test]
    fn only_a_loop_that_loads_its_own_address_chases() {
        let natures = |code: &[(&[u8], u64)]| plan(code).watches.iter().map(|watch| watch.kind).collect::<Vec<_>>();
        let load: &[u8] = &[0x48, 0x8b, 0x00]; // mov rax, [rax]
        let list = natures(&[(load, 0x1000), (&[0x48, 0xff, 0xc9], 0x1003), (&[0x75, 0xf8], 0x1006)]); // dec rcx; jne
        assert_eq!(list[0], AccessKind::Chase(1));
        let once = natures(&[(load, 0x1000), (&[0x48, 0xff, 0xc9], 0x1003), (&[0x75, 0x10], 0x1006)]);
        assert_eq!(once[0], AccessKind::Plain, "the block does not repeat");
        let array = natures(&[(&[0x48, 0x01, 0xf8], 0x1000), (load, 0x1003), (&[0x75, 0xf8], 0x1006)]); // add rax, rdi
        assert_eq!(array[1], AccessKind::Plain, "the address is recomputed");
        let unrolled = natures(&[(load, 0x1000), (load, 0x1003), (&[0x75, 0xf8], 0x1006)]);
        assert_eq!(unrolled[..2], [AccessKind::Chase(1); 2]);
    }

    #[test]
    fn an_access_in_between_ends_the_repetition() {
        let mixed = plan(&[
            (&[0x48, 0x8b, 0x0f], 0x1000), // mov rcx, [rdi]
            (&[0x48, 0x8b, 0x16], 0x1003), // mov rdx, [rsi]
            (&[0x48, 0x8b, 0x0f], 0x1006), // mov rcx, [rdi]
        ]);
        assert_eq!(mixed.omitted, 0, "[rsi] may have evicted the page");
    }

    #[test]
    fn loops_and_returns_are_markers() {
        let ends = |bytes: &[u8]| plan(&[(&[0x48, 0x8b, 0x0f], 0x1000), (bytes, 0x1003)]).end.is_backward; // mov rcx, [rdi]; ...
        assert!(!ends(&[0x75, 0x10]), "jne forward");
        assert!(!ends(&[0x75, 0x10]), "jne forward");
        assert!(ends(&[0xe8, 0x00, 0xff, 0xff, 0xff]) && !ends(&[0xe8, 0, 1, 0, 0]), "calls");
        assert!(ends(&[0xc3]) && ends(&[0xff, 0xe0]) && ends(&[0xff, 0xd0]), "ret; jmp rax; call rax");
        assert!(ends(&[0xf3, 0xa4]), "rep movsb is a block that jumps to itself");
        assert!(!ends(&[0x0f, 0x05]) && !ends(&[0x90]), "syscall; nop");
    }

    #[test]
    fn a_block_on_two_pages_is_recorded_on_both() {
        let code = plan(&[(&[0x48, 0x01, 0xc8], 0x1ffd), (&[0x48, 0x8b, 0x0f], 0x2000)]); // add rax, rcx; mov rcx, [rdi]
        assert_eq!((code.first(), code.second_page()), (None, Some(1)));
    }
}
