//! The restorer process: forked, detached from the terminal, then a loop over request lines.
//!
//! Requests are `set\tPATH\tNOTE\tVALUE`, `raise\tDIRECTORY\tNOTE\tPAGES` and `release\tID`;
//! replies are `ok\tID\tDETAIL`, `held\tVALUE` and `errno\tNUMBER`. Invariant: after the fork no
//! code allocates or locks. Another thread of the parent may have held the allocator's lock at that
//! moment, and no thread here releases it.

use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;

use super::hold::{KnobHold, Refusal, raise, set};
use super::kernel_value::InlineText;
use crate::{Result, helper_process};

/// Capacity in knobs.
const KNOBS: usize = 32;

type RequestLine = InlineText<1024>;

/// Forks the restorer; returns this process's end of the socket and the restorer's pid.
pub(super) fn start() -> Result<(UnixStream, u32)> {
    helper_process::fork(work)
}

/// The main function of the restorer.
fn work(socket: &OwnedFd) {
    // Leaves the terminal's session, whose signals are not for it.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"fs-restorer");
    // A stopped restorer must continue and restore everything when its holder dies.
    let _ = crate::process::set_parent_death_signal(Some(libc::SIGCONT));
    let mut held = [const { None::<KnobHold> }; KNOBS];
    let mut requests = Requests { socket, bytes: [0; 1024], filled: 0 };
    let mut request = RequestLine::EMPTY;
    while requests.next(&mut request) {
        let mut reply = RequestLine::EMPTY;
        let written = match handle(request.as_str(), &mut held, &mut reply) {
            Ok(()) => Ok(()),
            Err(Refusal::Held(value)) => writeln!(reply, "held\t{}", value.as_str()),
            Err(Refusal::Errno(errno)) => writeln!(reply, "errno\t{}", errno.raw_os_error()),
        };
        // If the holder has died meanwhile, the next read reports it.
        if written.is_ok() {
            let _ = rustix::io::write(socket, reply.as_str().as_bytes());
        }
    }
    for slot in held.iter_mut().rev() {
        if let Some(knob) = slot.take() {
            let _ = knob.restore();
        }
    }
}

fn handle(
    request: &str,
    held: &mut [Option<KnobHold>; KNOBS],
    reply: &mut RequestLine,
) -> std::result::Result<(), Refusal> {
    let mut words = request.split('\t');
    let mut word = || words.next().unwrap_or("");
    let verb = word();
    if verb == "release" {
        let slot = word().parse::<usize>().ok().and_then(|id| held.get_mut(id));
        slot.and_then(Option::take).ok_or(Errno::INVAL)?.restore()?;
        return writeln!(reply, "ok\t").map_err(|_| Errno::NOMEM.into());
    }
    // Find a free slot before acquiring. A new knob goes above the older ones while there is space.
    let newest = held.iter().rposition(Option::is_some).map_or(0, |index| index + 1);
    let free = if newest < KNOBS { newest } else { held.iter().position(Option::is_none).unwrap_or(KNOBS) };
    let slot = held.get_mut(free).ok_or(Errno::NFILE)?;
    let (path, note, value) = (word(), word(), word());
    let written = match verb {
        "set" => {
            let (knob, former) = set(path, note, value)?;
            *slot = Some(knob);
            writeln!(reply, "ok\t{free}\t{}", former.as_str())
        }
        "raise" => {
            let (knob, added) = raise(path, note, value.parse().map_err(|_| Errno::INVAL)?)?;
            *slot = Some(knob);
            writeln!(reply, "ok\t{free}\t{added}")
        }
        _ => return Err(Errno::INVAL.into()),
    };
    written.map_err(|_| Errno::NOMEM.into())
}

/// Incoming request lines.
struct Requests<'a> {
    socket: &'a OwnedFd,
    bytes: [u8; 1024],
    filled: usize,
}

impl Requests<'_> {
    /// Waits for the next line; `false` at the end of file, when the holder has ended.
    fn next(&mut self, request: &mut RequestLine) -> bool {
        loop {
            let filled = self.bytes.get(..self.filled).unwrap_or_default();
            if let Some(end) = filled.iter().position(|byte| *byte == b'\n') {
                let text = filled.get(..end).and_then(|line| std::str::from_utf8(line).ok()).unwrap_or("");
                *request = RequestLine::new(text).unwrap_or(RequestLine::EMPTY);
                self.bytes.copy_within(end + 1..self.filled, 0);
                self.filled -= end + 1;
                return true;
            }
            let free = self.bytes.get_mut(self.filled..).unwrap_or_default();
            match rustix::io::read(self.socket, free) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return false, // also for an overlong line, which fills the buffer
                Ok(got) => self.filled += got,
            }
        }
    }
}
