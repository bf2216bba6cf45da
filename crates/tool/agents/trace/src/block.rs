//! What is watched in a block of code, decided once, when QEMU translates it.
//!
//! A call-back costs more than most instructions, so there are as few as can be:
//!
//! - what an instruction reads and writes back is told once;
//! - an access to the very address of the access before it in the block (same registers, unchanged since) cannot miss
//!   anything: it is counted with the block and not told;
//! - the block itself (its instructions, its accesses, its code page) is told with its first access. Only a block without one
//!   has a call-back of its own, and a block that goes on in a second page has one there;
//! - in code that runs while accesses pass (`switch`), markers alone are told.

#![allow(unsafe_code, reason = "asks QEMU about the block, and registers call-backs with it")]

use crate::calls::{entered, marked, passed, touched, touched_each, touched_first};
use crate::decode::{Effect, End, Nature, Place, Reader, end};
use crate::marker::{Marker, Run};
use crate::qemu::{self, BOTH, Block, Id, Instruction, NO_REGISTERS};
use crate::trace::{set_guest_base, trace};
use crate::word::Word;
use crate::{mail, switch};

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
    end: End,
}

impl Plan {
    fn of<'a>(code: impl Iterator<Item = (&'a [u8], u64)>) -> Self {
        let mut reader = Reader::new();
        let mut plan = Self { watches: Vec::new(), left_out: 0, end: End::default() };
        let (mut last, mut changes): (Option<Place>, Vec<u16>) = (None, Vec::new());
        let (mut start, mut final_code) = (None, None);
        for (bytes, address) in code {
            start.get_or_insert(address);
            final_code = Some((bytes, address));
            let seen = reader.read(bytes, address, last.as_ref());
            let (accesses, always, nature) = match seen.effect {
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
            if seen.moves {
                last = None;
            }
            changes.push(seen.changes);
            plan.watches.push(Watch { accesses, always, nature, address });
        }
        plan.end =
            start.zip(final_code).map(|(start, (bytes, address))| end(bytes, address, start)).unwrap_or_default();
        plan.judge_chases(&changes, plan.end.loops);
        plan
    }

    /// A load into a register of its own address chases pointers only where the next such load is reached with what was loaded: in a
    /// block that comes back to itself, in which nothing else changes the register.
    fn judge_chases(&mut self, changes: &[u16], loops: bool) {
        let chases = |watch: &Watch, changes: u16| match watch.nature {
            Nature::Chase(register) if changes & register != 0 => Some(register),
            _ => None,
        };
        let loaded: Vec<_> = self.watches.iter().zip(changes).map(|(watch, &changes)| chases(watch, changes)).collect();
        for (watch, register) in self.watches.iter_mut().zip(&loaded) {
            let Some(register) = *register else { continue };
            let others = changes.iter().zip(&loaded);
            let mut others = others.filter(|(changes, _)| **changes & register != 0);
            if !loops || others.any(|(_, loaded)| *loaded != Some(register)) {
                watch.nature = Nature::Plain;
            }
        }
    }

    /// Accesses at each run.
    fn accesses(&self) -> usize {
        self.left_out + self.watches.iter().filter(|watch| watch.always).count()
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
    let run = Run { accesses: plan.accesses() as u64, instructions: instructions.len() as u64 };
    let bare = switch::is_bare();
    // Without bursts there is one phase.
    if plan.end.goes_back && trace().plan.burst != 0 {
        let marker = std::ptr::from_ref(Marker::at(start.address, run, plan.end.loops)).cast_mut().cast();
        let call = if bare { passed } else { marked };
        // SAFETY: the block is being translated; the call-back has QEMU's type and reads no register of the guest's.
        unsafe { qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, call, NO_REGISTERS, marker) };
    }
    if bare {
        return;
    }
    let word = Word::new(start.address, instructions.len(), plan.accesses());
    let first = plan.first();
    for (at, (watch, &instruction)) in plan.watches.iter().zip(instructions).enumerate() {
        if watch.accesses == 0 {
            continue;
        }
        let (call, word) = match watch {
            _ if first == Some(at) => (touched_first as qemu::AccessCall, word),
            Watch { always: true, .. } => (touched as _, Word::NONE),
            _ => (touched_each as _, Word::NONE),
        };
        let word = word.with(watch.nature).pointer();
        // SAFETY: as above; the instruction belongs to the block.
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
    fn a_loop_chases_what_it_loads_and_nothing_else() {
        let natures = |code: &[(&[u8], u64)]| plan(code).watches.iter().map(|watch| watch.nature).collect::<Vec<_>>();
        let load: &[u8] = &[0x48, 0x8b, 0x00]; // mov rax, [rax]
        let list = natures(&[(load, 0x1000), (&[0x48, 0xff, 0xc9], 0x1003), (&[0x75, 0xf8], 0x1006)]); // dec rcx; jne
        assert_eq!(list[0], Nature::Chase(1));
        let once = natures(&[(load, 0x1000), (&[0x48, 0xff, 0xc9], 0x1003), (&[0x75, 0x10], 0x1006)]);
        assert_eq!(once[0], Nature::Plain, "it does not come back");
        let array = natures(&[(&[0x48, 0x01, 0xf8], 0x1000), (load, 0x1003), (&[0x75, 0xf8], 0x1006)]); // add rax, rdi
        assert_eq!(array[1], Nature::Plain, "the address is made anew");
        let unrolled = natures(&[(load, 0x1000), (load, 0x1003), (&[0x75, 0xf8], 0x1006)]);
        assert_eq!(unrolled[..2], [Nature::Chase(1); 2]);
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
    fn loops_and_returns_are_markers() {
        let ends = |bytes: &[u8]| plan(&[(&[0x48, 0x8b, 0x0f], 0x1000), (bytes, 0x1003)]).end.goes_back; // mov rcx, [rdi]; ...
        assert!(ends(&[0x75, 0xfb]), "jne to the block's start");
        assert!(!ends(&[0x75, 0x10]), "jne forward");
        assert!(ends(&[0xe8, 0x00, 0xff, 0xff, 0xff]) && !ends(&[0xe8, 0, 1, 0, 0]), "calls");
        assert!(ends(&[0xc3]) && ends(&[0xff, 0xe0]) && ends(&[0xff, 0xd0]), "ret; jmp rax; call rax");
        assert!(ends(&[0xf3, 0xa4]), "rep movsb is a block that comes back to itself");
        assert!(!ends(&[0x0f, 0x05]) && !ends(&[0x90]), "syscall; nop");
    }

    #[test]
    fn a_block_over_two_pages_is_told_on_both() {
        let code = plan(&[(&[0x48, 0x01, 0xc8], 0x1ffd), (&[0x48, 0x8b, 0x0f], 0x2000)]); // add rax, rcx; mov rcx, [rdi]
        assert_eq!((code.first(), code.second_page()), (None, Some(1)));
    }
}
