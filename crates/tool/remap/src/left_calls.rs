//! System calls that a killed repairer was making in the program's name: their threads return to where they stood before.
//!
//! ```text
//!   thread in the code of a call (`home`) ── in the kernel ── its message is read, and the call ends
//!                                         └─ stopped ── gets the registers and the blocked signals that are saved there
//! ```
//! Such a thread would return by itself. But it could return to a clone after the clone is gone, or make a call that empties a page after
//! that page is filled. So all of them return before anything is put back. A call that has not begun is not made: it is as if the
//! repairer had been killed before it.

use std::time::Instant;

use fieldstone_sys::scheduling;
use fieldstone_sys::userfault::Message;

use crate::error::Result;
use crate::forks::LONGEST;
use crate::home;
use crate::process::Process;
use crate::tasks::{emptied_by, goes_on_at};
use crate::threads::gone_is_fine;

impl Process {
    /// Ends the calls that a killed repairer was making. All threads stand still then.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn end_left_calls(&mut self) -> Result<()> {
        let (mut begun, mut emptied) = (Instant::now(), Vec::new());
        loop {
            self.threads.stop_all()?;
            let inside = self.threads_in_calls();
            for &(thread, stub) in &inside {
                emptied.extend(emptied_by(thread));
                self.return_from(thread, stub)?;
            }
            let waiting = self.threads.waiting();
            if !inside.iter().any(|(thread, _)| waiting.contains(thread)) || begun.elapsed() > LONGEST {
                break;
            }
            self.hear_of_births(&mut begun);
            for (thread, _) in inside {
                self.threads.still_waits(thread)?;
            }
            scheduling::sleep_briefly();
        }
        // The bytes of a page that the repairer has emptied are elsewhere: the program has not dropped them.
        let is_ours =
            |message: &Message| matches!(message, Message::Gone(range) if emptied.contains(&(range.start as u64)));
        self.heard.retain(|message| !is_ours(message));
        Ok(())
    }

    /// Threads that are in the code of a call, and where that is.
    fn threads_in_calls(&self) -> Vec<(u32, u64)> {
        let inside = |thread| Some((thread, home::call_with(&self.memory, goes_on_at(thread)?)?));
        self.threads.numbers().filter_map(inside).collect()
    }

    /// Sets a thread that stands in the code of a call where it was before.
    fn return_from(&mut self, thread: u32, stub: u64) -> Result<()> {
        let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { return Ok(()) };
        let Ok(registers) = held.tracee.registers() else { return Ok(()) };
        let (before, mask) = home::saved_in(&self.memory, stub, &registers)?;
        // In this order: were we killed in between, the code sets all registers.
        gone_is_fine(held.tracee.set_signal_mask(mask))?;
        gone_is_fine(held.tracee.set_registers(&before))?;
        home::end_call(&self.memory, stub)
    }
}
