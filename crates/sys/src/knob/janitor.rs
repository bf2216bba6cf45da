//! The restorer's process: forked, made deaf to the terminal, then a loop over lines.
//!
//! Requests are `set\tPATH\tNOTE\tVALUE`, `raise\tDIRECTORY\tNOTE\tPAGES` and `release\tID`; answers are `ok\tID\tDETAIL`,
//! `held\tVALUE` and `errno\tNUMBER`. From the fork on nothing may allocate or lock: another thread of the parent may have held
//! the allocator's lock at that moment, and nobody here will ever release it.
#![allow(unsafe_code, reason = "fork, signal masks and _exit have no safe form")]

use std::fmt::Write;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use rustix::io::Errno;

use super::held::{Held, Refused, raise, set};
use super::kernel_value::Text;
use crate::{Error, Result};

/// Knobs held at one time.
const KNOBS: usize = 32;

type Line = Text<1024>;

/// Forks the restorer; returns our end of the line to it, and its pid.
pub(super) fn start() -> Result<(UnixStream, u32)> {
    let failed = |call| move |source| Error::Call { call, source };
    let (ours, theirs) = UnixStream::pair().map_err(failed("socketpair"))?;
    let former_mask = block_signals();
    // SAFETY: the child runs `work` only, which makes system calls on its own stack and never returns here.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(ours);
        work(&theirs.into());
    }
    let forked = u32::try_from(pid).map_err(|_| io::Error::last_os_error());
    // SAFETY: the mask is the one that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former_mask, ptr::null_mut()) };
    Ok((ours, forked.map_err(failed("fork"))?))
}

/// Blocks every signal for this thread, so that no handler of the parent's ever runs in the child; returns the former mask.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut former = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigfillset writes all of `all` before it is used; a zeroed mask is a valid empty one, so `former` is
    // initialised whatever happens.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), former.as_mut_ptr());
        former.assume_init()
    }
}

/// Ends the child without running anything of the parent's: its exit handlers, its buffers, its destructors.
fn leave() -> ! {
    // SAFETY: _exit is async-signal-safe and takes no memory.
    unsafe { libc::_exit(0) }
}

/// Ends the child even where a panic unwinds.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        leave();
    }
}

/// The child's whole life.
fn work(line: &OwnedFd) -> ! {
    let _leave = Leave;
    detach(line);
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
    leave()
}

/// Leaves the terminal's session and lets go of all that was inherited: a pipe kept open here would keep its reader
/// waiting. (A kernel before 5.9 has no close_range(2); there they stay open until the end.)
fn detach(line: &OwnedFd) {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir(c"/");
    let _ = rustix::thread::set_name(c"fs-restorer");
    let keep = line.as_raw_fd();
    // SAFETY: only descriptors are touched, and nothing in this process uses any of them but `keep`.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for standard in (0..3).filter(|standard| *standard != keep && null >= 0) {
            libc::dup2(null, standard);
        }
        let close = |first: i32, last: i32| libc::syscall(libc::SYS_close_range, first, last, 0);
        if keep > 3 {
            close(3, keep - 1);
        }
        close(keep.max(2) + 1, i32::MAX);
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
