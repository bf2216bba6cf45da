//! The restorer's process: forked, made deaf to the terminal, then a loop over lines.
//!
//! Requests are `set\tPATH\tNOTE\tVALUE`, `raise\tDIRECTORY\tNOTE\tPAGES` and `release\tID`; answers are `ok\tID\tDETAIL`,
//! `held\tVALUE` and `errno\tNUMBER`. From the fork on nothing may allocate or lock: another thread of the parent may have held
//! the allocator's lock at that moment, and nobody here will ever release it.

use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;

use super::held::{Held, Refused, raise, set};
use super::kernel_value::Text;
use crate::{Result, forked};

/// Knobs held at one time.
const KNOBS: usize = 32;

type Line = Text<1024>;

/// Forks the restorer; returns our end of the line to it, and its pid.
pub(super) fn start() -> Result<(UnixStream, u32)> {
    forked::fork(work)
}

/// The child's whole life.
fn work(line: &OwnedFd) {
    // Leaves the terminal's session, whose signals are not for it.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"fs-restorer");
    // A restorer that is stopped gives everything back all the same when its holder dies.
    let _ = crate::process::set_parent_death_signal(Some(libc::SIGCONT));
    let mut held = [const { None::<Held> }; KNOBS];
    let mut requests = Requests { line, bytes: [0; 1024], filled: 0 };
    let mut request = Line::EMPTY;
    while requests.next(&mut request) {
        let mut answer = Line::EMPTY;
        let told = match answer_to(request.as_str(), &mut held, &mut answer) {
            Ok(()) => Ok(()),
            Err(Refused::Held(value)) => writeln!(answer, "held\t{}", value.as_str()),
            Err(Refused::Errno(errno)) => writeln!(answer, "errno\t{}", errno.raw_os_error()),
        };
        // A holder that died while we worked hears nothing; the next read says so.
        if told.is_ok() {
            let _ = rustix::io::write(line, answer.as_str().as_bytes());
        }
    }
    for slot in held.iter_mut().rev() {
        if let Some(knob) = slot.take() {
            let _ = knob.give_back();
        }
    }
}

fn answer_to(request: &str, held: &mut [Option<Held>; KNOBS], answer: &mut Line) -> std::result::Result<(), Refused> {
    let mut words = request.split('\t');
    let mut word = || words.next().unwrap_or("");
    let verb = word();
    if verb == "release" {
        let slot = word().parse::<usize>().ok().and_then(|id| held.get_mut(id));
        slot.and_then(Option::take).ok_or(Errno::INVAL)?.give_back()?;
        return writeln!(answer, "ok\t").map_err(|_| Errno::NOMEM.into());
    }
    // A free slot first: what is taken must be kept. Each new knob goes above the older ones while there is room.
    let newest = held.iter().rposition(Option::is_some).map_or(0, |index| index + 1);
    let free = if newest < KNOBS { newest } else { held.iter().position(Option::is_none).unwrap_or(KNOBS) };
    let slot = held.get_mut(free).ok_or(Errno::NFILE)?;
    let (path, note, value) = (word(), word(), word());
    let written = match verb {
        "set" => {
            let (knob, former) = set(path, note, value)?;
            *slot = Some(knob);
            writeln!(answer, "ok\t{free}\t{}", former.as_str())
        }
        "raise" => {
            let (knob, added) = raise(path, note, value.parse().map_err(|_| Errno::INVAL)?)?;
            *slot = Some(knob);
            writeln!(answer, "ok\t{free}\t{added}")
        }
        _ => return Err(Errno::INVAL.into()),
    };
    written.map_err(|_| Errno::NOMEM.into())
}

/// The lines that come in.
struct Requests<'a> {
    line: &'a OwnedFd,
    bytes: [u8; 1024],
    filled: usize,
}

impl Requests<'_> {
    /// Waits for the next line; `false` at the end, which is the holder's.
    fn next(&mut self, request: &mut Line) -> bool {
        loop {
            let filled = self.bytes.get(..self.filled).unwrap_or_default();
            if let Some(end) = filled.iter().position(|byte| *byte == b'\n') {
                let text = filled.get(..end).and_then(|line| std::str::from_utf8(line).ok()).unwrap_or("");
                *request = Line::new(text).unwrap_or(Line::EMPTY);
                self.bytes.copy_within(end + 1..self.filled, 0);
                self.filled -= end + 1;
                return true;
            }
            let room = self.bytes.get_mut(self.filled..).unwrap_or_default();
            match rustix::io::read(self.line, room) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return false, // a line longer than all there can be ends up here too
                Ok(got) => self.filled += got,
            }
        }
    }
}
