//! The access and the resumption of a fault on aarch64; x10 holds the address behind the access.

use super::ProbeKind;
use std::arch::asm;

/// The flag of mmap(2) for an address below 2 GiB; `None` if the architecture has none.
pub(crate) const MAP_32BIT: Option<i32> = None;
/// Whether `execute` generates code for this architecture.
pub(crate) const HAS_GENERATED_CODE: bool = false;

/// Accesses one byte at `address`; whether the access completed without a fault.
///
/// # Safety
/// `address` is memory of the model or unmapped, and no other thread writes there.
pub(super) unsafe fn instruction(address: usize, probe: ProbeKind) -> bool {
    let mut reached: u64 = 0;
    let write = u64::from(probe == ProbeKind::Write);
    // SAFETY: the caller passes memory of the model or an unmapped address; the clobbered x10 is
    // declared.
    unsafe {
        asm!(
            "adr x10, 2f", // the handler resumes here
            "ldrb {byte:w}, [{address}]",
            "cbz {write}, 3f",
            "strb {byte:w}, [{address}]",
            "3:",
            "mov {reached}, #1", // skipped after a fault
            "2:",
            address = in(reg) address, write = in(reg) write, byte = out(reg) _, reached = inout(reg) reached,
            out("x10") _, options(nostack)
        );
    }
    reached == 1
}

/// Continues behind the access after the signal handler returns.
///
/// # Safety
/// `context` is the ucontext of a fault in [`instruction`].
pub(super) unsafe fn resume(context: *mut libc::ucontext_t) {
    // SAFETY: the caller passes a valid ucontext; x10 was set by the instruction before the access.
    unsafe {
        (*context).uc_mcontext.pc = (*context).uc_mcontext.regs[10];
    }
}
