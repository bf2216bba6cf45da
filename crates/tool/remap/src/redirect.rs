//! An access to a moved page, redirected: by the clone of the loop around it, else by a rewritelet for it alone.
//!
//! ```text
//!   fault at ip ── a jump through memory? ── its target is read, go on there
//!               ├─ in a loop that no clone knows with these addresses? ── clone it, lead its head there, go on in the clone
//!               ├─ in none, and here for the eighth time? ── the same with the code from here to the next jump or call
//!               └─ else ── the rewritelet for ip and where its bytes are, made once
//! ```
//! The thread waits at the access with all its registers as they are. It is let on where the same instruction stands with another
//! displacement. Source: the thesis, sections 5.1 (access by access) and 5.2 (the loop around it).

use fieldstone_rewrite::trampoline::Site as Access;
use fieldstone_rewrite::{Form, Live, Operand, Registers, Trampoline};
use fieldstone_sys::process::has_ended;
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::events::{RemapEvent, Route, Touch, Why};
use crate::futex;
use crate::held::is_of_64_bits;
use crate::process::Process;

/// The longest instruction, and the room that a rewritelet for one access is given.
const LONGEST: usize = 15;
const REWRITELET_BYTES: u64 = 64;
const NO_64_BITS: &str = "it is code of 32 bits";

/// The loop around an instruction is looked at so often.
const MOST_IN_VAIN: u32 = 16;
/// An access that has been redirected one by one so often gets a clone of what comes behind it, if it is in no loop that can be cloned.
const OFTEN: u32 = 8;

/// Rewritelets for one instruction: one for each place where its bytes have been.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Site {
    /// The instruction as it was when they were made.
    #[serde(skip)]
    instruction: Instruction,
    /// The distance, and where the rewritelet lies.
    pub(crate) rewritelets: Vec<(i64, Trampoline)>,
}

impl Site {
    /// What comes after the instruction.
    pub(crate) const fn next_ip(&self) -> u64 {
        self.instruction.next_ip()
    }
}

impl Process {
    /// Serves `thread`, which waits for `page` in user mode.
    pub(crate) fn redirect(&mut self, thread: u32, page: u64) -> Result<Option<RemapEvent>> {
        if !self.threads.stop(thread)? {
            // It has ended, or it was asked to stop before and goes round in the kernel since, or it is none of the process's: another
            // one looks in.
            let put_back = (!has_ended(thread)).then(|| self.put_page_back(page, Why::Kernel(None)));
            return put_back.transpose();
        }
        let done = self.redirect_stopped(thread, page);
        self.resume(thread)?;
        done
    }

    fn redirect_stopped(&mut self, thread: u32, page: u64) -> Result<Option<RemapEvent>> {
        let Some(held) = self.threads.get_mut(thread) else { return Ok(None) };
        let mut kernel = held.tracee.registers()?;
        if self.ours.protections.contains(kernel.rip) {
            return self.put_page_back(page, Why::Gone).map(Some);
        }
        // In a clone that knew nothing of this page: as if it had never been there.
        if let Some(original) = self.ours.heads.original(kernel.rip) {
            kernel.rip = original;
        }
        let registers = of_kernel(&kernel);
        let target = if is_of_64_bits(&kernel) { self.target(&registers, page) } else { Err(NO_64_BITS.to_owned()) };
        let target = match target {
            Ok(target) => target,
            Err(reason) => return self.put_page_back(page, Why::Access { ip: kernel.rip, reason }).map(Some),
        };
        let (to, new, route) = match self.way_on(&target, &registers) {
            Ok(found) => found,
            Err(reason) => return self.put_page_back(page, Why::Access { ip: kernel.rip, reason }).map(Some),
        };
        kernel.rip = to;
        if let Some(held) = self.threads.get_mut(thread) {
            held.tracee.set_registers(&kernel)?;
        }
        let Target { operand, address, .. } = target;
        let touch = Touch {
            thread,
            ip: registers.rip,
            address,
            bytes: operand.bytes,
            read: operand.read,
            write: operand.write,
        };
        let redirected = RemapEvent::Redirected { thread, ip: registers.rip, page, new, route };
        Ok(Some(if target.is_watched { RemapEvent::Touched(touch) } else { redirected }))
    }

    /// Where the thread goes on, whether code was made for that, and which kind of code it is.
    fn way_on(&mut self, target: &Target, registers: &Registers) -> std::result::Result<(u64, bool, Route), String> {
        if target.is_jump {
            let to = self.memory.word(target.address.wrapping_add_signed(target.delta));
            return to.map(|to| (to, false, Route::Alone)).map_err(|error| error.to_string());
        }
        // What stands in the way of a clone need not stand in that of a rewritelet. Of what is watched each access has to come by.
        let clone = if target.is_watched { (None, Route::Alone) } else { self.try_clone(target, registers) };
        let (entry, made) = clone;
        match entry {
            Some(entry) => Ok((entry, true, made)),
            None => self.rewritelet(target).map(|(entry, new)| (entry, new || made != Route::Alone, made)),
        }
    }

    /// Where the thread goes on in a new clone, if it can be entered here, and which kind of clone was made ([`Route::Alone`]: none). By
    /// [`Self::enter_clone`] or [`Self::enter_ladder`], unless that was in vain at this instruction often enough: looking at the loop costs more
    /// than the redirect. Nor where a clone knows the access: then the thread is on its way to the loop's head.
    fn try_clone(&mut self, target: &Target, registers: &Registers) -> (Option<u64>, Route) {
        let times = self.in_vain.get(&registers.rip).copied().unwrap_or(0);
        if times >= MOST_IN_VAIN {
            return (None, Route::Alone);
        }
        self.ours.retire(&self.memory);
        let clones = self.ours.heads.clones();
        let mut made = Route::Loop;
        let is_known = self.ours.heads.know(registers.rip, target.address, target.operand.bytes, target.delta);
        // What was in vain is seldom worth another look so soon: it takes as long as ten redirects.
        let is_due = matches!(times, 0 | 1 | 4) || times >= OFTEN;
        let entry = if self.by_ladders {
            self.enter_ladder(registers)
        } else if is_known || !is_due {
            Ok(None)
        } else {
            self.enter_clone(registers)
        };
        let mut entry = entry.unwrap_or_default();
        if entry.is_none() && times >= OFTEN && !self.by_ladders {
            entry = self.enter_stretch(registers).unwrap_or_default();
            made = Route::Stretch;
        }
        if entry.is_none() {
            *self.in_vain.entry(registers.rip).or_default() += 1;
        }
        let is_made = entry.is_some() || self.ours.heads.clones() > clones;
        (entry, if is_made { made } else { Route::Alone })
    }

    /// The instruction and where its bytes are.
    fn target(&self, registers: &Registers, page: u64) -> std::result::Result<Target, String> {
        let instruction = self.instruction(registers.rip).ok_or("no instruction can be read there")?;
        let mut factory = InstructionInfoFactory::new();
        let jump = Operand::of_jump(&instruction, &mut factory);
        let is_jump = jump.is_some();
        let operand = jump.unwrap_or_else(|| Operand::of(&instruction, &mut factory));
        let operand = operand.map_err(|error| error.to_string())?;
        let address = operand.address(registers);
        let moved = self.ours.moved.get(&page).ok_or("it was put back")?;
        let piece = moved.page.piece(address, operand.bytes);
        let piece = piece.ok_or("it touches bytes of two places, or of another page too")?;
        if futex::locks_inheriting(&instruction, &self.as_seen(), address, operand.bytes) {
            return Err("it locks a mutex that inherits priority, for which the kernel waits for no page".to_owned());
        }
        let is_watched = moved.is_watched(address, operand.bytes);
        Ok(Target { instruction, operand, address, delta: piece.delta, is_watched, is_jump })
    }

    pub(crate) fn instruction(&self, ip: u64) -> Option<Instruction> {
        let mut bytes = [0; LONGEST];
        let got = fieldstone_rewrite::Memory::read(&self.memory, ip, &mut bytes);
        // A patched head still has its own instructions.
        self.ours.heads.unpatched(&self.memory, ip, &mut bytes[..got]);
        let mut decoder = Decoder::with_ip(64, &bytes[..got], ip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Where the rewritelet for the access lies, and whether it is new.
    fn rewritelet(&mut self, target: &Target) -> std::result::Result<(u64, bool), String> {
        let ip = target.instruction.ip();
        if self.ours.sites.get(&ip).is_some_and(|site| !site.instruction.eq_all_bits(&target.instruction)) {
            // Another instruction lies there now. Who is still in its rewritelets finds them as they were.
            self.ours.sites.remove(&ip);
        }
        let known =
            self.ours.sites.get(&ip).and_then(|site| site.rewritelets.iter().find(|(delta, _)| *delta == target.delta));
        if let Some((_, trampoline)) = known {
            return Ok((trampoline.at, false));
        }
        let mut why = "its rewritelet is too long".to_owned();
        let make = |this: &Self, at| {
            let moved = this.ours.heads.copies();
            let access = Access { instruction: &target.instruction, live: Live::ALL, moved: &moved };
            let made = Trampoline::new(&access, &Form::Displaced(target.delta), at);
            made.map_err(|error| why = error.to_string()).ok().filter(is_plain)
        };
        let placed = self.place(ip, None, REWRITELET_BYTES, make, |made| &made.code);
        let made = placed.map_err(|error| error.to_string())?.ok_or(why)?;
        let at = made.at;
        let site = || Site { instruction: target.instruction, rewritelets: Vec::new() };
        self.ours.sites.entry(ip).or_insert_with(site).rewritelets.push((target.delta, made));
        self.keep_record().map_err(|error| error.to_string())?;
        Ok((at, true))
    }
}

/// Whether it is the instruction and a jump, which can be left at any point.
fn is_plain(made: &Trampoline) -> bool {
    let mut kinds = Decoder::with_ip(64, &made.code, made.at, DecoderOptions::NONE).into_iter();
    kinds.nth(1).is_some_and(|second| second.is_jmp_near() || second.is_jmp_short())
}

/// An access that is to be redirected.
#[derive(Clone, Copy, Debug)]
struct Target {
    instruction: Instruction,
    operand: Operand,
    /// Where the program thinks that its bytes are.
    address: u64,
    /// How far from there they are.
    delta: i64,
    is_watched: bool,
    /// It jumps to where these bytes say, as the entries of a procedure linkage table do: that is read in its place.
    is_jump: bool,
}

/// The registers that an access may depend on.
pub(crate) fn of_kernel(kernel: &fieldstone_sys::ptrace::Registers) -> Registers {
    let k = kernel;
    Registers {
        gpr: [
            k.rax, k.rcx, k.rdx, k.rbx, k.rsp, k.rbp, k.rsi, k.rdi, k.r8, k.r9, k.r10, k.r11, k.r12, k.r13, k.r14,
            k.r15,
        ],
        rip: k.rip,
        rflags: k.eflags,
        fs_base: k.fs_base,
        gs_base: k.gs_base,
    }
}
