//! Injected calls of a killed repairer: their threads return to where they were before.
//!
//! ```text
//!   thread in a call stub ─┬─ in the kernel: its message is read, and the call ends
//!                          └─ stopped: it gets the registers and the blocked signals that the stub has saved
//! ```
//! Such a thread would return by itself. But it could return to a removed clone, or empty a page
//! that is restored already. So all of them return before anything is restored. A call that has not
//! begun is not made, as if the repairer had been killed before it.

use std::time::Instant;

use fieldstone_sys::scheduling;
use fieldstone_sys::userfault::Message;

use crate::error::{Result, ignore_gone};
use crate::process::Process;
use crate::process::forks::LONGEST_FORK;
use crate::tracer::call_stub;
use crate::tracer::status::{madvise_address, user_ip};

impl Process {
    /// Ends the injected calls of a killed repairer. All threads are stopped on return.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(super) fn end_abandoned_calls(&mut self) -> Result<()> {
        let (mut begun, mut emptied) = (Instant::now(), Vec::new());
        loop {
            self.tracer.stop_all()?;
            let inside = self.threads_in_stubs();
            for &(thread, stub) in &inside {
                emptied.extend(madvise_address(thread));
                self.return_from(thread, stub)?;
            }
            let pending = self.tracer.pending_stops();
            if !inside.iter().any(|(thread, _)| pending.contains(thread)) || begun.elapsed() > LONGEST_FORK {
                break;
            }
            self.read_child_messages(&mut begun);
            for (thread, _) in inside {
                self.tracer.poll_stop(thread)?;
            }
            scheduling::sleep_briefly();
        }
        // The repairer has emptied these pages, not the program: their bytes are in the copies.
        let is_ours =
            |message: &Message| matches!(message, Message::Gone(range) if emptied.contains(&(range.start as u64)));
        self.pages.retain_deferred(|message| !is_ours(message));
        Ok(())
    }

    /// Threads in call stubs, with the address of the stub.
    fn threads_in_stubs(&self) -> Vec<(u32, u64)> {
        let inside = |thread| Some((thread, call_stub::stub_at(self.tracer.memory(), user_ip(thread)?)?));
        self.tracer.threads().into_iter().filter_map(inside).collect()
    }

    /// Restores the registers and blocked signals of a stopped thread in a call stub.
    fn return_from(&mut self, thread: u32, stub: u64) -> Result<()> {
        let Some((traced, memory)) = self.tracer.stopped(thread) else { return Ok(()) };
        let Ok(registers) = traced.tracee.registers() else { return Ok(()) };
        let (before, mask) = call_stub::saved_registers(memory, stub, &registers)?;
        // In this order: if the repairer is killed in between, the stub restores all registers.
        ignore_gone(traced.tracee.set_signal_mask(mask))?;
        ignore_gone(traced.tracee.set_registers(&before))?;
        call_stub::mark_idle(memory, stub)
    }
}
