//! The handler of SIGSEGV and SIGBUS.
//!
//! | fault | action |
//! |---|---|
//! | in a guard page, a freed object or an unused slot | report; then the default action, or with `--keep-going` continue |
//! | any other | the program's own disposition (`dispositions`) |
//!
//! The default action is restored and the instruction repeated, so that the core dump and the exit
//! status are those of the fault. To continue, the page is made accessible.

#![allow(unsafe_code, reason = "reads the record and the context of a signal")]

use core::ffi::{c_int, c_void};

use fieldstone_wire::guard::Access;

use crate::report::{self, Incident};
use crate::unwind::Caller;
use crate::{dispositions, ending, range, start};

/// The bit of the page-fault error code for a write.
const WRITE: i64 = 1 << 1;

/// The handler.
pub(crate) unsafe extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes its record and context, which live until the handler returns.
    let (info, thread) = unsafe { (&mut *info, &*context.cast::<libc::ucontext_t>()) };
    let registers = &thread.uc_mcontext.gregs;
    // SAFETY: a fault's record has an address.
    let address = if info.si_code > 0 { unsafe { info.si_addr() as usize } } else { 0 };
    if !is_finding(address, registers) {
        return dispositions::deliver(signal, info, context);
    }
    let is_continued = start::keeps_going() && range::slots().is_some_and(|slots| slots.open_page(address));
    if !is_continued {
        ending::complete();
        dispositions::restore_default(signal);
    }
}

/// Reports the access, if it is an error of a guarded object.
fn is_finding(address: usize, registers: &[libc::greg_t; 23]) -> bool {
    let Some(slots) = range::slots().filter(|_| range::contains(address)) else { return false };
    let Some(finding) = slots.explain(address).or_else(|| slots.explain_far(address)) else { return false };
    let register = |number: c_int| registers[number as usize] as usize;
    let instruction = register(libc::REG_RIP);
    let is_write = registers[libc::REG_ERR as usize] & WRITE != 0;
    report::report(&Incident {
        slots,
        finding: &finding,
        access: if is_write { Access::Write } else { Access::Read },
        bytes: 0,
        caller: Caller::at_fault(instruction, register(libc::REG_RSP), register(libc::REG_RBP)),
    });
    true
}
