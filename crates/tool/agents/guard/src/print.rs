//! Prints a finding to standard error, when no supervisor answers: addresses by file and offset.

use fieldstone_preload::line;
use fieldstone_wire::guard::{Access, FRAMES};

use crate::private_stack::OnPrivateStack;
use crate::report::{Incident, Report};
use crate::{calls, modules, raw, thread, unwind};

/// Prints a finding. `has_ended`: the command that names functions and writes the file of findings has
/// ended.
pub(crate) fn print(report: &Report<'_>, has_ended: bool, own: Option<&OnPrivateStack>) {
    let (pid, tid) = (raw::getpid(), thread::number());
    line::print(format_args!("fieldstone: {} in process {pid}, thread {tid}", report.kind.name()));
    match report.access {
        Access::Read => line::print(format_args!("  read of address {:#x}", report.address)),
        Access::Write => line::print(format_args!("  write of address {:#x}", report.address)),
        Access::Free => line::print(format_args!("  free of address {:#x}", report.address)),
        Access::Padding => line::print(format_args!("  written behind the object some time before its free")),
    }
    print_object(report, own);
    if has_ended {
        line::print(format_args!(
            "  the fieldstone command has ended: functions have no names, and no file of findings has this\n  \
             try: addr2line -Cfe FILE OFFSET"
        ));
    }
}

/// Prints the stacks.
fn print_object(report: &Report<'_>, own: Option<&OnPrivateStack>) {
    let mut frames = [0; FRAMES];
    let count = unwind::stack(report.caller, &mut frames, own);
    print_frames(&frames[..count], report.caller.is_fault);
    let Some(Incident { slots, finding, .. }) = report.incident else { return };
    let object = &finding.object;
    line::print(format_args!(
        "  the object of {} bytes at {:#x} was allocated in thread {} by",
        object.bytes, object.start, finding.allocated.thread
    ));
    print_frames(calls::split(slots, finding.allocated.stack, &mut frames).1, false);
    if let Some(freed) = &finding.freed {
        line::print(format_args!("  the object was freed in thread {} by", freed.thread));
        print_frames(calls::split(slots, freed.stack, &mut frames).1, false);
    }
}

/// Prints return addresses. With `is_fault`, the first one is an instruction.
fn print_frames(frames: &[usize], is_fault: bool) {
    for (depth, &frame) in frames.iter().enumerate() {
        // A call ends one byte before its return address.
        let code = if is_fault && depth == 0 { frame } else { frame.wrapping_sub(1) };
        match modules::at(code) {
            Some(file) => {
                let path = core::str::from_utf8(file.path()).unwrap_or("?");
                line::print(format_args!("    {path}+{:#x}", code - file.base()));
            }
            None => line::print(format_args!("    {code:#x}")),
        }
    }
}
