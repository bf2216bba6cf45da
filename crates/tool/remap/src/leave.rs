//! A thread led out of code of ours, to where it would be in its own.
//!
//! ```text
//!   clone   add [..], 1        <- mapped: it is about to run an instruction of its own, which lies elsewhere
//!           mov t, ..  lea t   <- in a guard: nothing is mapped until the guard is through, or has failed
//!           cmp t, ..  ja ..
//!           add [t + ..], 1    <- mapped
//! ```
//! What lies between two mapped addresses are guards and jumps that were made here: a handful of instructions, which touch registers and the
//! stack below the red zone. What is left of them is done here in the thread's name, on its registers: so nobody has to run for it,
//! and no signal has to wait or to be sent again.
//!
//! Who gets a signal is led out first: its handler, a debugger and whoever unwinds the stack see the program's own code, and none returns to
//! code that is gone by then. A handler may have begun after a repairer was killed. When that one returns, it must not
//! return to our code: its [frame](crate::frames) is changed.

use fieldstone_sys::ptrace;
use iced_x86::{Code as Kind, Decoder, DecoderOptions, Instruction, Register};

use crate::error::Result;
use crate::frames::Frame;
use crate::held::Held;
use crate::memory::Memory;
use crate::ours::Ours;
use crate::process::Process;
use crate::tasks::stack_of;
use crate::threads::gone_is_fine;

/// More than there are between two mapped addresses: an entry checks each object of its loop, by some five instructions.
const MOST_INSTRUCTIONS: u32 = 4096;
/// The flags that a guard saves, and those that its comparison sets.
const SAVED_FLAGS: u64 = 0xcd5;
const CARRY: u64 = 1;
const ZERO: u64 = 1 << 6;

impl Ours {
    /// Sets a thread that is about to get a signal into the program's own code. Where it has run into a trap of ours, which is no signal
    /// of the program's, the instruction that it was to do.
    pub(crate) fn settle(&self, memory: &Memory, held: &mut Held) -> Result<Option<u64>> {
        let trap = self.untrap(memory, held)?;
        let Ok(mut registers) = held.tracee.registers() else {
            // It is being killed.
            return Ok(trap);
        };
        // Where no handler runs, the thread stays where it is: led out, it could stand inside of a jump at a loop's head.
        let is_seen = self.code.contains(registers.rip) && held.has_effective_signals();
        if is_seen && self.lead_out(memory, &mut registers) {
            gone_is_fine(held.tracee.set_registers(&registers))?;
        }
        Ok(trap)
    }

    /// Sends a thread on that has run into a trap of ours; where to.
    pub(crate) fn untrap(&self, memory: &Memory, held: &mut Held) -> Result<Option<u64>> {
        let Ok(mut registers) = held.tracee.registers() else { return Ok(None) };
        let Some(to) = self.heads.trapped(memory, registers.rip) else { return Ok(None) };
        if !held.take_back(libc::SIGTRAP) {
            return Ok(None);
        }
        registers.rip = to;
        gone_is_fine(held.tracee.set_registers(&registers))?;
        Ok(Some(to))
    }

    /// Sets a thread that stands in code of ours to where it would be in the program's own, if no head were overwritten. False where
    /// that cannot be.
    pub(crate) fn lead_out(&self, memory: &Memory, registers: &mut ptrace::Registers) -> bool {
        let (mut now, mut pushed) = (*registers, Vec::new());
        for _ in 0..MOST_INSTRUCTIONS {
            if let Some(original) = self.original(now.rip) {
                now.rip = original;
            }
            if !self.code.contains(now.rip) {
                *registers = now;
                return true;
            }
            if run_one(memory, &mut now, &mut pushed).is_none() {
                return false;
            }
        }
        false
    }

    /// The instruction of the program that one of ours stands for.
    pub(crate) fn original(&self, rip: u64) -> Option<u64> {
        let of_sites = || {
            let maps = self.sites.values().flat_map(|site| &site.rewritelets).flat_map(|(_, made)| &made.map);
            maps.copied().find(|&(at, _)| at == rip).map(|(_, original)| original)
        };
        self.heads.original(rip).or_else(of_sites).or_else(|| self.protections.original(rip))
    }
}

impl Process {
    /// Has handlers that return go on in the program's own code. All threads stand still, or are in the kernel.
    ///
    /// # Errors
    /// Where the process is gone.
    pub(crate) fn lead_frames_out(&mut self) -> Result<()> {
        if self.ours.code.ranges().is_empty() {
            return Ok(());
        }
        let threads: Vec<u32> = self.threads.numbers().collect();
        let mut registers = |thread| {
            let held = self.threads.get_mut(thread).filter(|held| held.stands());
            held.and_then(|held| held.tracee.registers().ok())
        };
        // What a frame does not keep is not asked for: any thread's does.
        let known: Vec<_> = threads.into_iter().map(|thread| (thread, registers(thread))).collect();
        let Some(others) = known.iter().find_map(|&(_, registers)| registers) else { return Ok(()) };
        for (thread, registers) in known {
            let Some(rsp) = registers.map(|registers| registers.rsp).or_else(|| stack_of(thread)) else { continue };
            for frame in Frame::all(&self.memory, rsp) {
                self.lead_frame_out(&frame, frame.registers(&others))?;
            }
        }
        Ok(())
    }

    /// One that is on the stack no more than by chance, as what a handler has left there, may return to code that is gone. It stays.
    fn lead_frame_out(&self, frame: &Frame, mut registers: ptrace::Registers) -> Result<()> {
        let is_ours = self.ours.code.contains(registers.rip);
        let is_led = is_ours && self.ours.lead_out(&self.memory, &mut registers);
        if is_led { frame.set(&self.memory, &registers) } else { Ok(()) }
    }
}

/// Does an instruction of ours. What it pushes is kept in `pushed`, by address, and popped from there: where a handler interrupted it,
/// its frame lies where the thread itself would push.
fn run_one(memory: &Memory, registers: &mut ptrace::Registers, pushed: &mut Vec<(u64, u64)>) -> Option<()> {
    let mut bytes = [0; 15];
    let got = fieldstone_rewrite::Memory::read(memory, registers.rip, &mut bytes);
    let instruction = Decoder::with_ip(64, &bytes[..got], registers.rip, DecoderOptions::NONE).decode();
    registers.rip = instruction.next_ip();
    let flags = registers.eflags;
    let mut jump_if = |is_taken: bool| {
        if is_taken {
            registers.rip = instruction.near_branch_target();
        }
    };
    match instruction.code() {
        Kind::Jmp_rel8_64 | Kind::Jmp_rel32_64 => jump_if(true),
        Kind::Ja_rel8_64 | Kind::Ja_rel32_64 => jump_if(flags & (CARRY | ZERO) == 0),
        Kind::Jb_rel8_64 | Kind::Jb_rel32_64 => jump_if(flags & CARRY != 0),
        Kind::Jne_rel8_64 | Kind::Jne_rel32_64 => jump_if(flags & ZERO == 0),
        Kind::Jbe_rel8_64 | Kind::Jbe_rel32_64 => jump_if(flags & (CARRY | ZERO) != 0),
        Kind::Lea_r64_m => *register(registers, instruction.op0_register())? = address(&instruction, registers)?,
        Kind::Mov_r64_imm64 => *register(registers, instruction.op0_register())? = instruction.immediate64(),
        Kind::Cmp_rm64_imm32 | Kind::Cmp_rm64_imm8 | Kind::Cmp_RAX_imm32 => {
            compare(&instruction, registers, instruction.immediate(1))?;
        }
        Kind::Cmp_r64_rm64 if instruction.is_ip_rel_memory_operand() => {
            let other = memory.word(instruction.ip_rel_memory_address()).ok()?;
            compare(&instruction, registers, other)?;
        }
        Kind::Push_r64 => {
            let value = *register(registers, instruction.op0_register())?;
            push(registers, pushed, value);
        }
        Kind::Pushfq => push(registers, pushed, flags),
        Kind::Pop_r64 => {
            let value = pop(memory, registers, pushed)?;
            *register(registers, instruction.op0_register())? = value;
        }
        Kind::Popfq => {
            let saved = pop(memory, registers, pushed)? & SAVED_FLAGS;
            registers.eflags = registers.eflags & !SAVED_FLAGS | saved;
        }
        _ => return None,
    }
    Some(())
}

fn push(registers: &mut ptrace::Registers, pushed: &mut Vec<(u64, u64)>, value: u64) {
    registers.rsp = registers.rsp.wrapping_sub(8);
    pushed.push((registers.rsp, value));
}

fn pop(memory: &Memory, registers: &mut ptrace::Registers, pushed: &[(u64, u64)]) -> Option<u64> {
    let here = pushed.iter().rev().find(|&&(at, _)| at == registers.rsp);
    let value = here.map_or_else(|| memory.word(registers.rsp).ok(), |&(_, value)| Some(value))?;
    registers.rsp = registers.rsp.wrapping_add(8);
    Some(value)
}

/// `base + index * scale + displacement`, of whole registers.
fn address(instruction: &Instruction, registers: &mut ptrace::Registers) -> Option<u64> {
    let mut value = |part| if part == Register::None { Some(0) } else { register(registers, part).map(|value| *value) };
    let base = value(instruction.memory_base())?;
    let index = value(instruction.memory_index())?.wrapping_mul(u64::from(instruction.memory_index_scale()));
    Some(base.wrapping_add(index).wrapping_add(instruction.memory_displacement64()))
}

/// With another value, as far as `ja`, `jb`, `jbe` and `jne` ask.
fn compare(instruction: &Instruction, registers: &mut ptrace::Registers, other: u64) -> Option<()> {
    let one = *register(registers, instruction.op0_register())?;
    let flags = if one < other { CARRY } else { 0 } | if one == other { ZERO } else { 0 };
    registers.eflags = registers.eflags & !(CARRY | ZERO) | flags;
    Some(())
}

/// A whole general register.
const fn register(registers: &mut ptrace::Registers, register: Register) -> Option<&mut u64> {
    let r = registers;
    Some(match register {
        Register::RAX => &mut r.rax,
        Register::RCX => &mut r.rcx,
        Register::RDX => &mut r.rdx,
        Register::RBX => &mut r.rbx,
        Register::RSP => &mut r.rsp,
        Register::RBP => &mut r.rbp,
        Register::RSI => &mut r.rsi,
        Register::RDI => &mut r.rdi,
        Register::R8 => &mut r.r8,
        Register::R9 => &mut r.r9,
        Register::R10 => &mut r.r10,
        Register::R11 => &mut r.r11,
        Register::R12 => &mut r.r12,
        Register::R13 => &mut r.r13,
        Register::R14 => &mut r.r14,
        Register::R15 => &mut r.r15,
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use fieldstone_rewrite::clone::Plan;
    use fieldstone_rewrite::page::PAGE_BYTES;
    use fieldstone_rewrite::{Flow, Liveness, LoopClone, Redirect, Rule};
    use iced_x86::Decoder;

    use super::*;
    use crate::code::Code;
    use crate::heads::Heads;

    /// head: adc [rdi + rcx * 8], rax; adc rdx, 0; dec rcx; jne head; ret: every register and flag is live at the guard.
    const LOOP: [u8; 14] = [0x48, 0x11, 0x04, 0xcf, 0x48, 0x83, 0xd2, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf3, 0xc3];

    /// The clone of the loop in this process's own memory, where a place of ours would be.
    fn with_clone(check: impl FnOnce(&Ours, &Memory, &LoopClone, &[u8])) {
        let all: &mut [u8] = Vec::leak(vec![0; 1024]);
        let (code, room) = all.split_at_mut(512);
        code[..LOOP.len()].copy_from_slice(&LOOP);
        let code: &[u8] = code;
        let head = code.as_ptr().addr() as u64;
        // Code is read by whole pages.
        let before = usize::try_from(head % PAGE_BYTES).unwrap();
        let image = fieldstone_rewrite::Image {
            start: head / PAGE_BYTES * PAGE_BYTES,
            bytes: [&vec![0; before], &LOOP[..]].concat(),
        };
        let flow = Flow::discover(&image, head).unwrap();
        let within = flow.loops().remove(0);
        let liveness = Liveness::of(&flow);
        let redirects = [Redirect { ip: head, rule: Rule { bytes: 0x7000..0x7100, delta: 0x1_0000 }, seen: None }];
        let at = room.as_ptr().addr() as u64;
        let plan = Plan {
            flow: &flow,
            within: &within,
            liveness: &liveness,
            redirects: &redirects,
            moved: &[],
            enter: &[],
            at,
            aligned: false,
        };
        let clone = LoopClone::new(&plan).unwrap();
        room[..clone.code.len()].copy_from_slice(&clone.code);
        let heads = Heads::of_clone(&flow, LOOP[..5].try_into().unwrap(), clone.clone());
        let ours = Ours { heads, code: Code::of_range(at..at + 512), ..Ours::default() };
        let memory = Memory::open(std::process::id()).unwrap();
        check(&ours, &memory, &clone, code);
    }

    #[test]
    fn from_each_instruction_of_a_guard_the_program_goes_on_as_if_there_were_none() {
        with_clone(|ours, memory, clone, _| {
            assert!(clone.saving_guards > 0, "a guard that saves both is what is tried here");
            for inside in [true, false] {
                let mut stack = vec![0_u64; 256];
                let mut begin = registers();
                begin.rsp = stack.as_mut_ptr().addr() as u64 + 1024;
                (begin.rdi, begin.rcx, begin.eflags) = (if inside { 0x7000 } else { 0x9000 }, 3, 0x2 | CARRY | ZERO);
                begin.rip = clone.map.iter().find(|(_, ip)| *ip == clone.entries[0].0).unwrap().0;
                let (mut now, mut steps) = (begin, 0);
                loop {
                    let mut out = now;
                    assert!(ours.lead_out(memory, &mut out), "at {:#x}", now.rip);
                    assert_eq!(out.rip, clone.entries[0].0, "the access is still to come");
                    assert_eq!(
                        (out.rsp, out.eflags, out.rdi, out.rcx),
                        (begin.rsp, begin.eflags, begin.rdi, begin.rcx)
                    );
                    assert_eq!((out.rax, out.rdx, out.rbx), (begin.rax, begin.rdx, begin.rbx));
                    let mut pushed = Vec::new();
                    if run_one(memory, &mut now, &mut pushed).is_none() || !ours.code.contains(now.rip) {
                        break;
                    }
                    for (at, value) in pushed {
                        memory.write(at, &value.to_le_bytes()).unwrap();
                    }
                    steps += 1;
                }
                assert!(steps > 8, "lea push pushfq mov lea lea cmp ja popfq pop lea: {steps}");
            }
        });
    }

    #[test]
    fn the_programs_own_instructions_are_not_done_here() {
        with_clone(|_, memory, _, code| {
            let mut now = registers();
            now.rip = code.as_ptr().addr() as u64;
            let own = Decoder::with_ip(64, code, now.rip, DecoderOptions::NONE).decode();
            assert_eq!((own.code(), run_one(memory, &mut now, &mut Vec::new())), (Kind::Adc_rm64_r64, None));
        });
    }

    /// Those of a child that stands still.
    pub(crate) fn registers() -> ptrace::Registers {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let mut tracee = ptrace::Tracee::seize(child.id()).unwrap();
        tracee.interrupt().unwrap();
        tracee.wait().unwrap();
        let found = tracee.registers().unwrap();
        drop(tracee);
        child.kill().unwrap();
        let _ = child.wait();
        found
    }
}
