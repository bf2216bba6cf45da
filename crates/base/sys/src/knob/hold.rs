//! Holds knobs together with other Fieldstone processes. Runs after a fork, so it never allocates.
//!
//! Two flock(2) locks, which the kernel releases when their owner dies:
//! - on the knob itself, exclusive, during a change: it serialises changes;
//! - on the note, shared, while a holder lives. A holder that can convert it to exclusive is the
//!   only one.
//!
//! The note holds the value before the first holder; for a pool also the pages that all holders
//! have added ([`PoolCounts`]). An unlocked note comes from a killed restorer; the former value is
//! then the one in the note, not the present one. The last holder removes the note under the knob's
//! lock, so no process can have opened it without having locked it.

use std::ffi::CStr;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, unlinkat};
use rustix::io::{Errno, Result};

use super::kernel_value::{KnobPath, KnobValue, read, read_number, write, write_number};

/// Why a knob was not acquired.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Another Fieldstone process holds it at this value.
    Held(KnobValue),
    /// The kernel returned an error.
    Errno(Errno),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// An acquired knob.
#[derive(Debug)]
pub(super) struct KnobHold {
    /// The written file: the knob, or the pool's `nr_hugepages`.
    knob: KnobPath,
    note_path: KnobPath,
    /// Owns the shared lock.
    note: OwnedFd,
    change: HeldChange,
}

#[derive(Debug)]
enum HeldChange {
    /// The knob reads this value, written by this holder.
    Value(KnobValue),
    /// Pages added, and the file with the pool's surplus.
    Pages { added: u64, surplus: OwnedFd },
}

/// Sets a plain knob. Also returns its former value.
pub(super) fn set(path: &str, note_path: &str, value: &str) -> std::result::Result<(KnobHold, KnobValue), Refusal> {
    let (knob, note_path) = (KnobPath::new(path)?, KnobPath::new(note_path)?);
    let file = locked(knob.as_c_str()?)?;
    let now = read(&file)?;
    let (note, is_only_holder) = join(note_path.as_c_str()?)?;
    if !is_only_holder {
        if now.as_str() != value {
            return Err(Refusal::Held(now));
        }
        let former = read(&note)?;
        return Ok((KnobHold { knob, note_path, note, change: HeldChange::Value(now) }, former));
    }
    let left = read(&note)?;
    let is_new = left.as_str().is_empty();
    let former = if is_new { now } else { left };
    let change = || {
        write(note_path.as_c_str()?, former.as_str())?;
        write(knob.as_c_str()?, value)?;
        // The kernel may change the spelling of the value; the comparison at the end needs its
        // spelling.
        read(&file)
    };
    let value = unless_failed(change(), is_new, &note_path)?;
    flock(&note, FlockOperation::NonBlockingLockShared)?;
    Ok((KnobHold { knob, note_path, note, change: HeldChange::Value(value) }, former))
}

/// Raises the pool in `directory` by up to `pages`. Also returns the pages added.
///
/// Surplus pages are in use, and the kernel first turns them into ordinary ones. So the request
/// includes them, and they become surplus again when the pool is lowered.
pub(super) fn raise(directory: &str, note_path: &str, pages: u64) -> std::result::Result<(KnobHold, u64), Refusal> {
    let (mut knob, mut surplus, note_path) =
        (KnobPath::new(directory)?, KnobPath::new(directory)?, KnobPath::new(note_path)?);
    knob.write_str("/nr_hugepages").map_err(|_| Errno::NAMETOOLONG)?;
    surplus.write_str("/surplus_hugepages").map_err(|_| Errno::NAMETOOLONG)?;
    let surplus = openat(CWD, surplus.as_c_str()?, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let file = locked(knob.as_c_str()?)?;
    let (before, total) = (set_pages(&file, &surplus)?, read_number(&file)?);
    let (note, is_only_holder) = join(note_path.as_c_str()?)?;
    let left = PoolCounts::read(&note);
    let tally = if is_only_holder { PoolCounts::first_holder(before, left) } else { left.unwrap_or_default() };
    let change = || {
        tally.write(&note_path)?;
        write_number(knob.as_c_str()?, total.saturating_add(pages))?;
        let after = set_pages(&file, &surplus)?;
        PoolCounts { added: tally.added + after.saturating_sub(before), ..tally }.write(&note_path)?;
        Ok((after, read_number(&file)?))
    };
    let (after, total_after) = unless_failed(change(), left.is_none(), &note_path)?;
    flock(&note, FlockOperation::NonBlockingLockShared)?;
    let added = after.saturating_sub(before);
    let held = KnobHold { knob, note_path, note, change: HeldChange::Pages { added, surplus } };
    Ok((held, total_after.saturating_sub(total)))
}

impl KnobHold {
    /// Restores the knob, or leaves it to the remaining holders.
    pub(super) fn restore(self) -> Result<()> {
        let file = locked(self.knob.as_c_str()?)?;
        let last = flock(&self.note, FlockOperation::NonBlockingLockExclusive).is_ok();
        let restored = match &self.change {
            // A value written by another process meanwhile stays.
            HeldChange::Value(ours) if last && read(&file)?.as_str() == ours.as_str() => {
                read(&self.note).and_then(|former| write(self.knob.as_c_str()?, former.as_str()))
            }
            HeldChange::Value(_) => Ok(()),
            HeldChange::Pages { added, surplus } => lower(&self, &file, *added, surplus, last),
        };
        if last {
            unlinkat(CWD, self.note_path.as_c_str()?, AtFlags::empty())?;
        }
        restored
    }
}

/// Lowers a pool by the pages this holder added; the last holder also removes those of killed
/// holders. Never lowers it below its floor, and never raises it.
fn lower(held: &KnobHold, file: &OwnedFd, added: u64, surplus: &OwnedFd, last: bool) -> Result<()> {
    let tally = PoolCounts::read(&held.note).unwrap_or_default();
    let less = if last { tally.added.max(added) } else { added };
    if less == 0 {
        return Ok(());
    }
    let now = set_pages(file, surplus)?;
    write_number(held.knob.as_c_str()?, now.saturating_sub(less).max(tally.before.min(now)))?;
    if last { Ok(()) } else { PoolCounts { added: tally.added.saturating_sub(less), ..tally }.write(&held.note_path) }
}

/// The contents of a pool's note.
#[derive(Clone, Copy, Debug, Default)]
struct PoolCounts {
    /// The smallest pool size seen without holders' pages.
    before: u64,
    /// Pages that holders have added and not removed.
    added: u64,
}

impl PoolCounts {
    /// The first holder's counts, for a pool of `pages` pages. Pages of killed holders are still in
    /// the pool, unless another process has lowered it.
    fn first_holder(pages: u64, left: Option<Self>) -> Self {
        let left = left.unwrap_or(Self { before: pages, added: 0 });
        let added = if pages >= left.before.saturating_add(left.added) { left.added } else { 0 };
        Self { before: left.before.min(pages), added }
    }

    fn read(note: &OwnedFd) -> Option<Self> {
        let text = read(note).ok()?;
        let (before, added) = text.as_str().split_once(' ')?;
        Some(Self { before: before.parse().ok()?, added: added.parse().ok()? })
    }

    fn write(self, note_path: &KnobPath) -> Result<()> {
        let mut value = KnobValue::EMPTY;
        write!(value, "{} {}", self.before, self.added).map_err(|_| Errno::INVAL)?;
        write(note_path.as_c_str()?, value.as_str())
    }
}

/// The pool's configured size: reading `nr_hugepages` includes surplus pages, writing does not.
fn set_pages(file: &OwnedFd, surplus: &OwnedFd) -> Result<u64> {
    Ok(read_number(file)?.saturating_sub(read_number(surplus)?))
}

/// Opens a knob and locks it for a change, waiting at most 10 s. Fieldstone processes hold this
/// lock only briefly.
fn locked(knob: &CStr) -> Result<OwnedFd> {
    let file = openat(CWD, knob, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..1000 {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(10)),
            result => return result.map(|()| file),
        }
    }
    Err(Errno::BUSY)
}

/// Opens or creates the note and locks it: exclusively (`true`) if it has no holder, else shared.
fn join(note_path: &CStr) -> Result<(OwnedFd, bool)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let note = openat(CWD, note_path, flags, Mode::RUSR | Mode::WUSR)?;
    // In a world-writable directory, another user's note could set the value that is restored.
    if fstat(&note)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    if flock(&note, FlockOperation::NonBlockingLockExclusive).is_ok() {
        return Ok((note, true));
    }
    flock(&note, FlockOperation::NonBlockingLockShared)?;
    Ok((note, false))
}

/// Removes a note that this call created if the change failed. An older note stays.
fn unless_failed<T>(changed: Result<T>, is_new: bool, note_path: &KnobPath) -> Result<T> {
    if changed.is_err() && is_new {
        unlinkat(CWD, note_path.as_c_str()?, AtFlags::empty())?;
    }
    changed
}
