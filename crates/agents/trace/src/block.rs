//! What is watched in a block of code, decided once, when QEMU translates it.
//!
//! A call-back costs more than most instructions, so there are as few as can be:
//!
//! - what an instruction reads and writes back is told once;
//! - an access to the very address of the access before it in the block (same registers, unchanged since) cannot miss
//!   anything: it is counted with the block and not told;
//! - the block itself (its instructions, its code page) is told with its first access. Only a block without one has a
//!   call-back of its own, and a block that goes on in a second page has one there.

#![allow(unsafe_code, reason = "asks QEMU about the block, and registers call-backs with it")]

use crate::decode::{Effect, Nature, Place, Reader};
use crate::mail;
use crate::qemu::{self, BOTH, Block, Id, Instruction, NO_REGISTERS};
use crate::thread::{Word, entered, touched, touched_first};
use crate::trace::set_guest_base;

const PAGE_SHIFT: u32 = 12;

/// What is watched at one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watch {
    /// Accesses to be told; 0 for none.
    accesses: i32,
    /// Whether it touches memory at each run.
    always: bool,
    nature: Nature,
    address: u64,
}

/// What is watched in a block.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    watches: Vec<Watch>,
    left_out: usize,
}

impl Plan {
    fn of<'a>(code: impl Iterator<Item = (&'a [u8], u64)>) -> Self {
        let mut reader = Reader::new();
        let mut plan = Self { watches: Vec::new(), left_out: 0 };
        let mut last: Option<Place> = None;
        for (bytes, address) in code {
            let (effect, changed) = reader.read(bytes, address, last.as_ref());
            let (accesses, always, nature) = match effect {
                Effect::None => (0, false, Nature::Plain),
                Effect::One(place, ..) if last.is_some_and(|last| place.is_within(&last)) => {
                    plan.left_out += 1;
                    (0, false, Nature::Plain)
                }
                Effect::One(place, accesses, nature) => {
                    last = Some(place);
                    (accesses, true, nature)
                }
                Effect::Several => {
                    last = None;
                    (BOTH, false, Nature::Plain)
                }
            };
            if changed {
                last = None;
            }
            plan.watches.push(Watch { accesses, always, nature, address });
        }
        plan
    }

    /// The instruction whose access stands for the block, if there is one on its first page.
    fn first(&self) -> Option<usize> {
        let page = self.watches.first()?.address >> PAGE_SHIFT;
        self.watches.iter().position(|watch| watch.always && watch.address >> PAGE_SHIFT == page)
    }

    /// The first instruction on another page than the block's first, if there is one.
    fn second_page(&self) -> Option<usize> {
        let page = self.watches.first()?.address >> PAGE_SHIFT;
        self.watches.iter().position(|watch| watch.address >> PAGE_SHIFT != page)
    }
}

/// A block is translated: called by QEMU, one thread at a time.
pub(crate) extern "C" fn translated(_: Id, block: *mut Block) {
    // SAFETY: QEMU's block and what it gives out of it are valid during this call.
    let instructions: Vec<*mut Instruction> = unsafe {
        (0..qemu::qemu_plugin_tb_n_insns(block)).map(|at| qemu::qemu_plugin_tb_get_insn(block, at)).collect()
    };
    let code = instructions.iter().map(|&instruction| {
        // SAFETY: as above; the bytes are as many as QEMU says.
        unsafe {
            let bytes = qemu::qemu_plugin_insn_data(instruction).cast::<u8>();
            let bytes = std::slice::from_raw_parts(bytes, qemu::qemu_plugin_insn_size(instruction));
            (bytes, qemu::qemu_plugin_insn_vaddr(instruction))
        }
    });
    let bell = mail::bell(code.clone());
    if let Some(&at) = bell.and_then(|at| instructions.get(at)) {
        mail::watch(at);
    }
    let Some((_, start)) = code.clone().next() else { return };
    if bell.is_some() || mail::is_recorder(start) {
        return;
    }
    if let Some(&first) = instructions.first() {
        // SAFETY: as above.
        unsafe { set_guest_base(qemu::qemu_plugin_insn_vaddr(first), qemu::qemu_plugin_insn_haddr(first)) };
    }
    watch(block, &instructions, &Plan::of(code));
}

fn watch(block: *mut Block, instructions: &[*mut Instruction], plan: &Plan) {
    let Some(start) = plan.watches.first() else { return };
    let word = Word::new(start.address, instructions.len(), plan.left_out);
    let first = plan.first();
    for (at, (watch, &instruction)) in plan.watches.iter().zip(instructions).enumerate() {
        if watch.accesses == 0 {
            continue;
        }
        let (call, word) =
            if first == Some(at) { (touched_first as qemu::AccessCall, word) } else { (touched as _, Word::NONE) };
        let word = word.with(watch.nature).pointer();
        // SAFETY: the instruction belongs to the block; the call-backs have QEMU's types and read no register.
        unsafe {
            qemu::qemu_plugin_register_vcpu_mem_cb(instruction, call, NO_REGISTERS, watch.accesses, word);
        }
    }
    // SAFETY: as above.
    unsafe {
        if first.is_none() {
            qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, entered, NO_REGISTERS, word.pointer());
        }
        if let Some(at) = plan.second_page() {
            let word = Word::new(plan.watches[at].address, 0, 0);
            qemu::qemu_plugin_register_vcpu_insn_exec_cb(instructions[at], entered, NO_REGISTERS, word.pointer());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(code: &[(&[u8], u64)]) -> Plan {
        Plan::of(code.iter().copied())
    }

    #[test]
    fn an_address_told_once_is_not_told_again() {
        let update = plan(&[
            (&[0x48, 0x8b, 0x0c, 0xc7], 0x1000), // mov rcx, [rdi+rax*8]
            (&[0x48, 0x31, 0xd1], 0x1004),       // xor rcx, rdx
            (&[0x48, 0x89, 0x0c, 0xc7], 0x1007), // mov [rdi+rax*8], rcx
        ]);
        assert_eq!(update.watches.iter().map(|watch| watch.accesses).collect::<Vec<_>>(), [BOTH, 0, 0]);
        assert_eq!((update.left_out, update.first(), update.second_page()), (1, Some(0), None));
    }

    #[test]
    fn a_changed_register_makes_another_address() {
        let chase = plan(&[(&[0x48, 0x8b, 0x00], 0x1000), (&[0x48, 0x8b, 0x00], 0x1003)]); // mov rax, [rax], twice
        assert_eq!(chase.watches.iter().filter(|watch| watch.accesses == BOTH).count(), 2);
        let moved = plan(&[
            (&[0x48, 0x8b, 0x0c, 0xc7], 0x1000), // mov rcx, [rdi+rax*8]
            (&[0x48, 0xff, 0xc0], 0x1004),       // inc rax
            (&[0x48, 0x89, 0x0c, 0xc7], 0x1007), // mov [rdi+rax*8], rcx
        ]);
        assert_eq!((moved.left_out, moved.watches[2].accesses), (0, BOTH));
    }

    #[test]
    fn another_access_in_between_is_told_and_ends_it() {
        let mixed = plan(&[
            (&[0x48, 0x8b, 0x0f], 0x1000), // mov rcx, [rdi]
            (&[0x48, 0x8b, 0x16], 0x1003), // mov rdx, [rsi]
            (&[0x48, 0x8b, 0x0f], 0x1006), // mov rcx, [rdi]
        ]);
        assert_eq!(mixed.left_out, 0, "[rsi] may have taken the page's place");
    }

    #[test]
    fn a_block_over_two_pages_is_told_on_both() {
        let code = plan(&[(&[0x48, 0x01, 0xc8], 0x1ffd), (&[0x48, 0x8b, 0x0f], 0x2000)]); // add rax, rcx; mov rcx, [rdi]
        assert_eq!((code.first(), code.second_page()), (None, Some(1)));
    }
}
