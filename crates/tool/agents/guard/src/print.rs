//! Prints a finding to standard error, when no supervisor answers: addresses by file and offset.

#![allow(unsafe_code, reason = "reads a name that the loader holds")]

use core::fmt::{self, Write};

use fieldstone_wire::guard::{Access, FRAMES};

use crate::private_stack::OnPrivateStack;
use crate::report::{Incident, Report};
use crate::unwind::{self};
use crate::{calls, modules, raw, thread};

/// A text of bounded length, written when it is dropped.
struct Line {
    text: [u8; 256],
    bytes: usize,
}

impl Line {
    fn print(content: fmt::Arguments<'_>) {
        let mut line = Self { text: [0; 256], bytes: 0 };
        // A longer text is cut off.
        let _ = line.write_fmt(content);
        line.text[line.bytes.min(255)] = b'\n';
        raw::write_error(&line.text[..line.bytes.min(255) + 1]);
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes().take(255 - self.bytes) {
            self.text[self.bytes] = byte;
            self.bytes += 1;
        }
        Ok(())
    }
}

/// Prints a finding.
pub(crate) fn print(report: &Report<'_>, own: Option<&OnPrivateStack>) {
    let (pid, tid) = (raw::getpid(), thread::number());
    Line::print(format_args!("fieldstone: {} in process {pid}, thread {tid}", report.kind.name()));
    match report.access {
        Access::Read => Line::print(format_args!("  read of address {:#x}", report.address)),
        Access::Write => Line::print(format_args!("  write of address {:#x}", report.address)),
        Access::Free => Line::print(format_args!("  free of address {:#x}", report.address)),
        Access::Padding => Line::print(format_args!("  written behind the object some time before its free")),
    }
    let mut frames = [0; FRAMES];
    let count = unwind::stack(report.caller, &mut frames, own);
    print_frames(&frames[..count]);
    let Some(Incident { slots, finding, .. }) = report.incident else { return };
    let object = &finding.object;
    Line::print(format_args!(
        "  the object of {} bytes at {:#x} was allocated in thread {} by",
        object.bytes, object.start, finding.allocated.thread
    ));
    print_frames(calls::split(slots, finding.allocated.stack, &mut frames).1);
    if let Some(freed) = &finding.freed {
        Line::print(format_args!("  the object was freed in thread {} by", freed.thread));
        print_frames(calls::split(slots, freed.stack, &mut frames).1);
    }
}

fn print_frames(frames: &[usize]) {
    for &frame in frames {
        match modules::at(frame) {
            Some(file) => {
                let mut path = [0; 128];
                let name = file.name(&mut path);
                let name = core::str::from_utf8(name).unwrap_or("?");
                Line::print(format_args!("    {name}+{:#x}", frame - file.base()));
            }
            None => Line::print(format_args!("    {frame:#x}")),
        }
    }
}
