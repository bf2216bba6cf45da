//! The access and the resumption of a fault on x86-64; r10 holds the address behind the access.

use super::ProbeKind;
use std::arch::asm;

/// The flag of mmap(2) for an address below 2 GiB; `None` if the architecture has none.
pub(crate) const MAP_32BIT: Option<i32> = Some(libc::MAP_32BIT);
/// Whether `execute` generates code for this architecture.
pub(crate) const HAS_GENERATED_CODE: bool = true;

/// Accesses one byte at `address`; whether the access completed without a fault.
///
/// # Safety
/// `address` is memory of the model or unmapped, and no other thread writes there.
pub(super) unsafe fn instruction(address: usize, probe: ProbeKind) -> bool {
    let mut reached: u64 = 0;
    match probe {
        // SAFETY: the caller passes memory of the model or an unmapped address; the clobbered r10
        // is declared.
        ProbeKind::Read => unsafe {
            asm!(
                "lea r10, [rip + 2f]", // the handler resumes here
                "mov {byte}, byte ptr [{address}]",
                "mov {reached:e}, 1", // skipped after a fault
                "2:",
                address = in(reg) address, byte = out(reg_byte) _, reached = inout(reg) reached, out("r10") _,
                options(nostack)
            );
        },
        // SAFETY: the caller passes memory of the model or an unmapped address; `or` with 0 keeps
        // the byte; r10 is declared.
        ProbeKind::Write => unsafe {
            asm!(
                "lea r10, [rip + 2f]",
                "or byte ptr [{address}], 0",
                "mov {reached:e}, 1",
                "2:",
                address = in(reg) address, reached = inout(reg) reached, out("r10") _,
                options(nostack)
            );
        },
    }
    reached == 1
}

/// Continues behind the access after the signal handler returns.
///
/// # Safety
/// `context` is the ucontext of a fault in [`instruction`].
pub(super) unsafe fn resume(context: *mut libc::ucontext_t) {
    // SAFETY: the caller passes a valid ucontext; r10 was set by the instruction before the access.
    unsafe {
        let registers = &mut (*context).uc_mcontext.gregs;
        registers[libc::REG_RIP as usize] = registers[libc::REG_R10 as usize];
    }
}
