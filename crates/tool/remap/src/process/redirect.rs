//! An access to a moved page, redirected by a clone of the loop around it, else by a rewritelet for
//! it alone.
//!
//! ```text
//!   fault at ip ─┬─ a jump through memory: its target is read, the thread continues there
//!                ├─ in a loop without a clone for these addresses: the loop is cloned, the thread continues in the clone
//!                ├─ in no such loop, and the eighth time here: the same with the code up to the next jump or call
//!                └─ else: the rewritelet for ip and this distance, made once
//! ```
//! The thread waits at the access with its registers unchanged. It continues at the same
//! instruction with another displacement.
//!
//! Source: Taylor's thesis, sections 5.1 (single accesses) and 5.2 (the loop around them).

use fieldstone_rewrite::{Operand, Registers};
use fieldstone_sys::process::has_ended;
use iced_x86::{Instruction, InstructionInfoFactory};

use crate::code_cache::PendingClone;
use crate::error::Result;
use crate::event::{RemapEvent, RestoreReason, Route, WatchedAccess};
use crate::page_table::futex;
use crate::process::Process;
use crate::tracer::traced_thread::is_64_bit;

const NO_64_BITS: &str = "it is code of 32 bits";

/// Maximum number of attempts to clone the loop around an instruction.
const MAX_FAILURES: u32 = 16;
/// Number of single redirects after which an access outside of such loops gets a clone of the code
/// behind it.
const MANY_REDIRECTS: u32 = 8;

/// An access that is to be redirected.
#[derive(Clone, Copy, Debug)]
struct RedirectedAccess {
    instruction: Instruction,
    operand: Operand,
    /// The program's address of the bytes.
    address: u64,
    /// Distance from there to the copy.
    delta: i64,
    is_watched: bool,
    /// It jumps to the address in these bytes, as entries of a procedure linkage table do. The
    /// repairer reads the address.
    is_jump: bool,
}

impl Process {
    /// Redirects `thread`, which waits for `page` in user mode.
    pub(super) fn redirect(&mut self, thread: u32, page: u64) -> Result<Option<RemapEvent>> {
        if !self.tracer.stop(thread)? {
            // It has ended, or it spins in the kernel since its stop was requested, or another
            // process accesses the memory.
            let restored = (!has_ended(thread)).then(|| self.restore_page(page, RestoreReason::Kernel(None)));
            return restored.transpose();
        }
        let event = self.redirect_stopped(thread, page);
        self.tracer.resume(&self.code, thread)?;
        event
    }

    fn redirect_stopped(&mut self, thread: u32, page: u64) -> Result<Option<RemapEvent>> {
        let Some(traced) = self.tracer.thread(thread) else { return Ok(None) };
        let mut kernel = traced.tracee.registers()?;
        if self.code.is_in_probe(kernel.rip) {
            return self.restore_page(page, RestoreReason::Removed).map(Some);
        }
        // In a clone without a redirect for this page: continue from the original instruction.
        if let Some(original) = self.code.original_in_clones(kernel.rip) {
            kernel.rip = original;
        }
        let registers = from_kernel(&kernel);
        let access = if is_64_bit(&kernel) { self.access(&registers, page) } else { Err(NO_64_BITS.to_owned()) };
        let routed = access.and_then(|access| Ok((access, self.route(&access, &registers)?)));
        let (access, (to, new, route)) = match routed {
            Ok(found) => found,
            Err(reason) => {
                return self.restore_page(page, RestoreReason::Access { ip: kernel.rip, reason }).map(Some);
            }
        };
        kernel.rip = to;
        if let Some(traced) = self.tracer.thread(thread) {
            traced.tracee.set_registers(&kernel)?;
        }
        let RedirectedAccess { operand, address, .. } = access;
        let (ip, bytes) = (registers.rip, operand.bytes);
        let watched = WatchedAccess { thread, ip, address, bytes, read: operand.read, write: operand.write };
        let redirected = RemapEvent::Redirected { thread, ip, page, new, route };
        Ok(Some(if access.is_watched { RemapEvent::Watched(watched) } else { redirected }))
    }

    /// Where the thread continues, whether code was made for that, and the kind of the code.
    fn route(
        &mut self,
        access: &RedirectedAccess,
        registers: &Registers,
    ) -> std::result::Result<(u64, bool, Route), String> {
        if access.is_jump {
            let to = self.tracer.memory().word(access.address.wrapping_add_signed(access.delta));
            return to.map(|to| (to, false, Route::Alone)).map_err(|error| error.to_string());
        }
        // If a clone is impossible, a rewritelet may be possible. Each watched access must fault,
        // so it gets no clone.
        let clone = if access.is_watched { (None, Route::Alone) } else { self.try_clone(access, registers) };
        let (entry, made) = clone;
        match entry {
            Some(entry) => Ok((entry, true, made)),
            None => self.rewritelet(access).map(|(entry, new)| (entry, new || made != Route::Alone, made)),
        }
    }

    /// Address of the rewritelet for an access, and whether it is new.
    fn rewritelet(&mut self, access: &RedirectedAccess) -> std::result::Result<(u64, bool), String> {
        let (entry, new) = self.code.rewritelet(&mut self.tracer, access.instruction, access.delta)?;
        if new {
            self.update_record().map_err(|error| error.to_string())?;
        }
        Ok((entry, new))
    }

    /// Where the thread continues in a new clone or ladder, if it can enter there, and the kind of
    /// clone that was made ([`Route::Alone`]: none). No clone is tried if that has failed often
    /// here, since the attempt costs more than the redirect, nor if a clone redirects this access
    /// already. Then the thread is on its way to the loop's head.
    fn try_clone(&mut self, access: &RedirectedAccess, registers: &Registers) -> (Option<u64>, Route) {
        let failures = self.code.failures(registers.rip);
        if failures >= MAX_FAILURES {
            return (None, Route::Alone);
        }
        self.code.retire(self.tracer.memory());
        let clones = self.code.clone_count();
        let mut made = Route::Loop;
        let is_known = self.code.redirects(registers.rip, access.address, access.operand.bytes, access.delta);
        // An attempt takes as long as ten redirects, so after failures it is seldom repeated.
        let is_due = matches!(failures, 0 | 1 | 4) || failures >= MANY_REDIRECTS;
        let uses_ladders = self.code.uses_ladders();
        let entry = if uses_ladders {
            self.enter_ladder(registers)
        } else if is_known || !is_due {
            Ok(None)
        } else {
            self.enter_loop(registers)
        };
        let mut entry = entry.unwrap_or_default();
        if entry.is_none() && failures >= MANY_REDIRECTS && !uses_ladders {
            entry = self.enter_stretch(registers).unwrap_or_default();
            made = Route::Stretch;
        }
        if entry.is_none() {
            self.code.add_failure(registers.rip);
        }
        let is_made = entry.is_some() || self.code.clone_count() > clones;
        (entry, if is_made { made } else { Route::Alone })
    }

    fn enter_ladder(&mut self, registers: &Registers) -> Result<Option<u64>> {
        let pending = self.code.make_ladder(&mut self.tracer, self.pages.pages(), registers)?;
        self.install(pending)
    }

    fn enter_loop(&mut self, registers: &Registers) -> Result<Option<u64>> {
        let pending = self.code.clone_loop(&mut self.tracer, self.pages.pages(), registers)?;
        self.install(pending)
    }

    fn enter_stretch(&mut self, registers: &Registers) -> Result<Option<u64>> {
        let pending = self.code.clone_stretch(&mut self.tracer, self.pages.pages(), registers)?;
        self.install(pending)
    }

    /// Records a new clone, then patches its head. Returns where the thread continues.
    fn install(&mut self, pending: Option<PendingClone>) -> Result<Option<u64>> {
        let Some(pending) = pending else { return Ok(None) };
        self.update_record()?;
        self.code.patch_head(&mut self.tracer, self.pages.pages(), &pending)?;
        Ok(pending.entry())
    }

    /// The access to `page` of a thread with these registers.
    ///
    /// # Errors
    /// The reason why it cannot be redirected.
    fn access(&self, registers: &Registers, page: u64) -> std::result::Result<RedirectedAccess, String> {
        let instruction = self.code.instruction(self.tracer.memory(), registers.rip);
        let instruction = instruction.ok_or("no instruction can be read there")?;
        let mut factory = InstructionInfoFactory::new();
        let jump = Operand::of_jump(&instruction, &mut factory);
        let is_jump = jump.is_some();
        let operand = jump.unwrap_or_else(|| Operand::of(&instruction, &mut factory));
        let operand = operand.map_err(|error| error.to_string())?;
        let address = operand.address(registers);
        let moved = self.pages.pages().get(page).ok_or("it was restored")?;
        let piece = moved.page.piece(address, operand.bytes);
        let piece = piece.ok_or("it touches bytes of two places, or of another page too")?;
        if futex::locks_inheriting_mutex(&instruction, &self.as_seen(), address, operand.bytes) {
            return Err("it locks a mutex that inherits priority, for which the kernel waits for no page".to_owned());
        }
        let is_watched = moved.is_watched(address, operand.bytes);
        Ok(RedirectedAccess { instruction, operand, address, delta: piece.delta, is_watched, is_jump })
    }
}

/// The registers that an access may depend on.
const fn from_kernel(kernel: &fieldstone_sys::ptrace::TraceeRegisters) -> Registers {
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
