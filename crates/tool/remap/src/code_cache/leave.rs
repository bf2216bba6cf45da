//! Moves a thread from the code cache to the program's own code.
//!
//! ```text
//!   clone   add [..], 1        <- mapped: the thread is about to execute a program instruction
//!           mov t, ..  lea t   <- in a guard: not mapped until the guard has passed or failed
//!           cmp t, ..  ja ..
//!           add [t + ..], 1    <- mapped
//! ```
//! Algorithm: guards and jumps between two mapped addresses are a few generated instructions on
//! registers and on the stack below the red zone. The rest of them is emulated here on the thread's
//! registers, so that no thread must run and no signal must wait.
//!
//! A thread that receives a signal leaves the cache first: its handler, a debugger and an unwinder
//! see the program's own code, and no handler returns to removed code. A handler may have started
//! after a repairer was killed. The [frame](super::frames) of such a handler is changed.

use std::time::{Duration, Instant};

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::{ptrace, scheduling};
use iced_x86::{Code as Kind, Decoder, DecoderOptions, Instruction, Register};

use crate::code_cache::CodeCache;
use crate::code_cache::frames::SignalFrame;
use crate::error::{Error, Result, ignore_gone};
use crate::tracer::Tracer;
use crate::tracer::status::{cpu_time_ns, user_ip, user_stack_pointer};
use crate::tracer::traced_thread::TracedThread;

/// More instructions than there are between two mapped addresses. An entry checks each object of
/// its loop by about five.
const MAX_INSTRUCTIONS: u32 = 4096;
/// The flags that a guard saves, and those that its comparison sets.
const SAVED_FLAGS: u64 = 0xcd5;
const CARRY: u64 = 1;
const ZERO: u64 = 1 << 6;
/// Maximum time in which a page is fetched for a thread.
const LONGEST_FAULT: Duration = Duration::from_millis(250);
/// Maximum processor time of such a fetch, in nanoseconds: the thread mostly sleeps. A thread that
/// uses more is in a system call that spins at a missing page.
const LONGEST_FAULT_NS: u64 = 50_000_000;

impl CodeCache {
    /// As [`InsertedCode::prepare_for_signal`](crate::tracer::InsertedCode::prepare_for_signal).
    pub(super) fn leave_for_signal(&self, memory: &ProcessMemory, traced: &mut TracedThread) -> Result<Option<u64>> {
        let trap = self.resume_from_trap(memory, traced)?;
        let Ok(mut registers) = traced.tracee.registers() else {
            // The thread is being killed.
            return Ok(trap);
        };
        // If no handler runs, the thread stays. Outside of the cache it could be inside of a
        // patched head.
        let is_visible = self.arena.contains(registers.rip) && traced.has_effective_signals();
        if is_visible && self.leave(memory, &mut registers) {
            ignore_gone(traced.tracee.set_registers(&registers))?;
        }
        Ok(trap)
    }

    /// Resumes a thread behind one of our traps; returns the address at which it continues.
    fn resume_from_trap(&self, memory: &ProcessMemory, traced: &mut TracedThread) -> Result<Option<u64>> {
        let Ok(mut registers) = traced.tracee.registers() else { return Ok(None) };
        let Some(to) = self.heads.resume_address(memory, registers.rip) else { return Ok(None) };
        if !traced.remove_signal(libc::SIGTRAP) {
            return Ok(None);
        }
        registers.rip = to;
        ignore_gone(traced.tracee.set_registers(&registers))?;
        Ok(Some(to))
    }

    /// Changes the registers of a thread in the cache to those in the program's unpatched code.
    /// Returns false if that is impossible.
    pub(crate) fn leave(&self, memory: &ProcessMemory, registers: &mut ptrace::TraceeRegisters) -> bool {
        let (mut now, mut pushed) = (*registers, Vec::new());
        for _ in 0..MAX_INSTRUCTIONS {
            if let Some(original) = self.original(now.rip) {
                now.rip = original;
            }
            if !self.arena.contains(now.rip) {
                *registers = now;
                return true;
            }
            if run_one(memory, &mut now, &mut pushed).is_none() {
                return false;
            }
        }
        false
    }

    /// Makes every thread in the cache continue in the program's own code. All threads are stopped.
    ///
    /// # Errors
    /// [`Error::Refused`] if a thread cannot leave; as ptrace(2).
    pub(crate) fn leave_all(&self, tracer: &mut Tracer) -> Result<()> {
        for thread in tracer.threads() {
            self.await_fault(tracer, thread)?;
            let pid = tracer.pid();
            let Some((traced, memory)) = tracer.stopped(thread) else { continue };
            self.resume_from_trap(memory, traced)?;
            let Ok(mut registers) = traced.tracee.registers() else { continue };
            if !self.arena.contains(registers.rip) {
                continue;
            }
            if !self.leave(memory, &mut registers) {
                let why = format!("thread {thread} cannot leave the inserted code at {:#x}", registers.rip);
                return Err(Error::Refused { pid, why });
            }
            self.heads.move_to_copy(&mut registers);
            ignore_gone(traced.tracee.set_registers(&registers))?;
        }
        self.leave_frames(tracer)
    }

    /// Waits for a thread that takes a page fault of its own in the cache; it stops when the page
    /// is there. While it runs in the kernel, its next address is unknown. A thread that runs there
    /// for longer is in a system call, and the cache makes none.
    fn await_fault(&self, tracer: &mut Tracer, thread: u32) -> Result<()> {
        let (began, mut spent_ns) = (Instant::now(), None);
        let mut is_short = || {
            let now_ns = cpu_time_ns(thread);
            let since_ns = now_ns.saturating_sub(*spent_ns.get_or_insert(now_ns));
            began.elapsed() < LONGEST_FAULT && since_ns < LONGEST_FAULT_NS
        };
        let mut may_be_inside = |at: Option<u64>| at.map_or_else(&mut is_short, |at| self.arena.contains(at));
        let mut polls = 0;
        let is_in_call = tracer.thread(thread).is_some_and(|traced| traced.is_in_call);
        while !is_in_call && may_be_inside(user_ip(thread)) && tracer.poll_stop(thread)? {
            scheduling::spin_or_sleep(polls);
            polls += 1;
        }
        Ok(())
    }

    /// Makes signal handlers return to the program's own code. All threads are stopped or in the
    /// kernel.
    fn leave_frames(&self, tracer: &mut Tracer) -> Result<()> {
        if self.arena.ranges().is_empty() {
            return Ok(());
        }
        let threads = tracer.threads();
        let mut registers = |thread| tracer.stopped(thread).and_then(|(traced, _)| traced.tracee.registers().ok());
        // Registers that a frame does not save are irrelevant here, so those of any thread serve.
        let known: Vec<_> = threads.into_iter().map(|thread| (thread, registers(thread))).collect();
        let Some(others) = known.iter().find_map(|&(_, registers)| registers) else { return Ok(()) };
        let memory = tracer.memory();
        for (thread, registers) in known {
            let from_kernel = || user_stack_pointer(thread);
            let Some(rsp) = registers.map(|registers| registers.rsp).or_else(from_kernel) else { continue };
            for frame in SignalFrame::find_all(memory, rsp) {
                self.leave_frame(memory, &frame, frame.registers(&others))?;
            }
        }
        Ok(())
    }

    /// What looks like a frame may be stale data whose code is removed. It stays.
    fn leave_frame(
        &self,
        memory: &ProcessMemory,
        frame: &SignalFrame,
        mut registers: ptrace::TraceeRegisters,
    ) -> Result<()> {
        let is_inside = self.arena.contains(registers.rip);
        let has_left = is_inside && self.leave(memory, &mut registers);
        if has_left { frame.set(memory, &registers) } else { Ok(()) }
    }
}

/// Emulates one generated instruction. Pushed values are kept in `pushed`, by address, and popped
/// from there. They are not written: after an interruption, the handler's frame may be at those
/// addresses.
fn run_one(
    memory: &ProcessMemory,
    registers: &mut ptrace::TraceeRegisters,
    pushed: &mut Vec<(u64, u64)>,
) -> Option<()> {
    let mut bytes = [0; 15];
    let got = memory.read(registers.rip, &mut bytes);
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

fn push(registers: &mut ptrace::TraceeRegisters, pushed: &mut Vec<(u64, u64)>, value: u64) {
    registers.rsp = registers.rsp.wrapping_sub(8);
    pushed.push((registers.rsp, value));
}

fn pop(memory: &ProcessMemory, registers: &mut ptrace::TraceeRegisters, pushed: &[(u64, u64)]) -> Option<u64> {
    let here = pushed.iter().rev().find(|&&(at, _)| at == registers.rsp);
    let value = here.map_or_else(|| memory.word(registers.rsp).ok(), |&(_, value)| Some(value))?;
    registers.rsp = registers.rsp.wrapping_add(8);
    Some(value)
}

/// `base + index * scale + displacement`, of 64-bit registers.
fn address(instruction: &Instruction, registers: &mut ptrace::TraceeRegisters) -> Option<u64> {
    let mut value = |part| if part == Register::None { Some(0) } else { register(registers, part).map(|value| *value) };
    let base = value(instruction.memory_base())?;
    let index = value(instruction.memory_index())?.wrapping_mul(u64::from(instruction.memory_index_scale()));
    Some(base.wrapping_add(index).wrapping_add(instruction.memory_displacement64()))
}

/// Compares a register with `other`. Sets only the flags that `ja`, `jb`, `jbe` and `jne` read.
fn compare(instruction: &Instruction, registers: &mut ptrace::TraceeRegisters, other: u64) -> Option<()> {
    let one = *register(registers, instruction.op0_register())?;
    let flags = if one < other { CARRY } else { 0 } | if one == other { ZERO } else { 0 };
    registers.eflags = registers.eflags & !(CARRY | ZERO) | flags;
    Some(())
}

/// A 64-bit general register.
const fn register(registers: &mut ptrace::TraceeRegisters, register: Register) -> Option<&mut u64> {
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
    use fieldstone_rewrite::clone::ClonePlan;
    use fieldstone_rewrite::page::PAGE_BYTES;
    use fieldstone_rewrite::{Flow, Liveness, LoopClone, Redirect, RemapRule};
    use iced_x86::Decoder;

    use super::*;
    use crate::code_cache::arena::CodeArena;
    use crate::code_cache::heads::HeadTable;

    /// head: adc [rdi + rcx * 8], rax; adc rdx, 0; dec rcx; jne head; ret. Every register and flag
    /// is live at the guard.
    const LOOP: [u8; 14] = [0x48, 0x11, 0x04, 0xcf, 0x48, 0x83, 0xd2, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf3, 0xc3];

    /// A clone of the loop in this process's own memory, as in a region.
    fn with_clone(check: impl FnOnce(&CodeCache, &ProcessMemory, &LoopClone, &[u8])) {
        let all: &mut [u8] = Vec::leak(vec![0; 1024]);
        let (code, room) = all.split_at_mut(512);
        code[..LOOP.len()].copy_from_slice(&LOOP);
        let code: &[u8] = code;
        let head = code.as_ptr().addr() as u64;
        // Code is read in whole pages.
        let before = usize::try_from(head % PAGE_BYTES).unwrap();
        let image = fieldstone_rewrite::MemoryImage {
            start: head / PAGE_BYTES * PAGE_BYTES,
            bytes: [&vec![0; before], &LOOP[..]].concat(),
        };
        let flow = Flow::discover(&image, head).unwrap();
        let within = flow.loops().remove(0);
        let liveness = Liveness::of(&flow);
        let redirects =
            [Redirect { ip: head, rule: RemapRule { bytes: 0x7000..0x7100, delta: 0x1_0000 }, expected: None }];
        let at = room.as_ptr().addr() as u64;
        let plan = ClonePlan {
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
        let heads = HeadTable::of_clone(&flow, LOOP[..5].try_into().unwrap(), clone.clone());
        let cache = CodeCache { heads, arena: CodeArena::of_range(at..at + 512), ..CodeCache::default() };
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        check(&cache, &memory, &clone, code);
    }

    #[test]
    fn a_thread_leaves_each_instruction_of_a_guard_as_if_there_were_none() {
        with_clone(|cache, memory, clone, _| {
            assert!(clone.saving_guards > 0, "the test needs a guard that saves both");
            for inside in [true, false] {
                let mut stack = vec![0_u64; 256];
                let mut begin = registers();
                begin.rsp = stack.as_mut_ptr().addr() as u64 + 1024;
                (begin.rdi, begin.rcx, begin.eflags) = (if inside { 0x7000 } else { 0x9000 }, 3, 0x2 | CARRY | ZERO);
                begin.rip = clone.map.iter().find(|(_, ip)| *ip == clone.entries[0].0).unwrap().0;
                let (mut now, mut steps) = (begin, 0);
                loop {
                    let mut out = now;
                    assert!(cache.leave(memory, &mut out), "at {:#x}", now.rip);
                    assert_eq!(out.rip, clone.entries[0].0, "the access is not executed yet");
                    assert_eq!(
                        (out.rsp, out.eflags, out.rdi, out.rcx),
                        (begin.rsp, begin.eflags, begin.rdi, begin.rcx)
                    );
                    assert_eq!((out.rax, out.rdx, out.rbx), (begin.rax, begin.rdx, begin.rbx));
                    let mut pushed = Vec::new();
                    if run_one(memory, &mut now, &mut pushed).is_none() || !cache.arena.contains(now.rip) {
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
    fn program_instructions_are_not_emulated() {
        with_clone(|_, memory, _, code| {
            let mut now = registers();
            now.rip = code.as_ptr().addr() as u64;
            let own = Decoder::with_ip(64, code, now.rip, DecoderOptions::NONE).decode();
            assert_eq!((own.code(), run_one(memory, &mut now, &mut Vec::new())), (Kind::Adc_rm64_r64, None));
        });
    }

    /// Registers of a stopped child.
    pub(crate) fn registers() -> ptrace::TraceeRegisters {
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
