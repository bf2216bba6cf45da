//! Taking a knob and giving it back, side by side with other Fieldstones. No allocation: this runs after a fork.
//!
//! Two locks, both by flock(2) and so freed by the kernel with their owner:
//! - on the knob itself, exclusive, for the moment of a change: changes come one after the other;
//! - on the note, shared, for as long as a holder lives. Who can turn it exclusive is the only holder.
//!
//! The note holds the value from before the first holder; of a pool also how many pages all holders have added ([`Tally`]). A note that
//! is there while nobody holds it is that of a restorer that was killed; its value, not the present one, is then the former one. The last holder removes it, under the knob's lock, so
//! nobody can have opened it and not yet locked it.

use std::ffi::CStr;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, unlinkat};
use rustix::io::{Errno, Result};

use super::kernel_value::{Path, Value, read, read_number, write, write_number};

/// Why a knob was not taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// Another Fieldstone holds it at this value.
    Held(Value),
    /// The kernel said no.
    Errno(Errno),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// A knob that is taken.
#[derive(Debug)]
pub(super) struct Held {
    /// What is written: the knob, or the pool's `nr_hugepages`.
    knob: Path,
    note_path: Path,
    /// Carries the shared lock.
    note: OwnedFd,
    change: Change,
}

#[derive(Debug)]
enum Change {
    /// The knob reads so, by our doing.
    Value(Value),
    /// So many pages were added, to the pool whose surplus is read here.
    Pages { added: u64, surplus: OwnedFd },
}

/// Sets a plain knob. Also returns its former value.
pub(super) fn set(path: &str, note_path: &str, value: &str) -> std::result::Result<(Held, Value), Refused> {
    let (knob, note_path) = (Path::new(path)?, Path::new(note_path)?);
    let file = locked(knob.as_c_str()?)?;
    let now = read(&file)?;
    let (note, alone) = join(note_path.as_c_str()?)?;
    if !alone {
        if now.as_str() != value {
            return Err(Refused::Held(now));
        }
        let former = read(&note)?;
        return Ok((Held { knob, note_path, note, change: Change::Value(now) }, former));
    }
    let left = read(&note)?;
    let made = left.as_str().is_empty();
    let former = if made { now } else { left };
    let change = || {
        write(note_path.as_c_str()?, former.as_str())?;
        write(knob.as_c_str()?, value)?;
        // The kernel may spell the value its own way; that spelling is the one to find again.
        read(&file)
    };
    let value = unless_failed(change(), made, &note_path)?;
    flock(&note, FlockOperation::NonBlockingLockShared)?;
    Ok((Held { knob, note_path, note, change: Change::Value(value) }, former))
}

/// Raises the pool in `directory` by up to `pages`. Also returns the pages really added.
///
/// Surplus pages are somebody's, and the kernel turns them into set ones first: they are counted in what is asked for, and
/// become surplus again when the pool is lowered.
pub(super) fn raise(directory: &str, note_path: &str, pages: u64) -> std::result::Result<(Held, u64), Refused> {
    let (mut knob, mut surplus, note_path) = (Path::new(directory)?, Path::new(directory)?, Path::new(note_path)?);
    knob.write_str("/nr_hugepages").map_err(|_| Errno::NAMETOOLONG)?;
    surplus.write_str("/surplus_hugepages").map_err(|_| Errno::NAMETOOLONG)?;
    let surplus = openat(CWD, surplus.as_c_str()?, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let file = locked(knob.as_c_str()?)?;
    let (before, total) = (set_pages(&file, &surplus)?, read_number(&file)?);
    let (note, alone) = join(note_path.as_c_str()?)?;
    let left = Tally::read(&note);
    let tally = if alone { Tally::begun(before, left) } else { left.unwrap_or_default() };
    let change = || {
        tally.write(&note_path)?;
        write_number(knob.as_c_str()?, total.saturating_add(pages))?;
        let after = set_pages(&file, &surplus)?;
        Tally { added: tally.added + after.saturating_sub(before), ..tally }.write(&note_path)?;
        Ok((after, read_number(&file)?))
    };
    let (after, total_after) = unless_failed(change(), left.is_none(), &note_path)?;
    flock(&note, FlockOperation::NonBlockingLockShared)?;
    let added = after.saturating_sub(before);
    let held = Held { knob, note_path, note, change: Change::Pages { added, surplus } };
    Ok((held, total_after.saturating_sub(total)))
}

impl Held {
    /// Gives the knob back, or leaves it to the holders that remain.
    pub(super) fn give_back(self) -> Result<()> {
        let file = locked(self.knob.as_c_str()?)?;
        let last = flock(&self.note, FlockOperation::NonBlockingLockExclusive).is_ok();
        let given = match &self.change {
            // Who wrote something else meanwhile wanted it so.
            Change::Value(ours) if last && read(&file)?.as_str() == ours.as_str() => {
                read(&self.note).and_then(|former| write(self.knob.as_c_str()?, former.as_str()))
            }
            Change::Value(_) => Ok(()),
            Change::Pages { added, surplus } => lower(&self, &file, *added, surplus, last),
        };
        if last {
            unlinkat(CWD, self.note_path.as_c_str()?, AtFlags::empty())?;
        }
        given
    }
}

/// Lowers a pool by what this holder has added, and the last one by what killed holders have left in it too; but not below its floor, and
/// it never raises it.
fn lower(held: &Held, file: &OwnedFd, added: u64, surplus: &OwnedFd, last: bool) -> Result<()> {
    let tally = Tally::read(&held.note).unwrap_or_default();
    let less = if last { tally.added.max(added) } else { added };
    if less == 0 {
        return Ok(());
    }
    let now = set_pages(file, surplus)?;
    write_number(held.knob.as_c_str()?, now.saturating_sub(less).max(tally.before.min(now)))?;
    if last { Ok(()) } else { Tally { added: tally.added.saturating_sub(less), ..tally }.write(&held.note_path) }
}

/// What the note of a pool holds: two numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Pages before the first holder came, or at the lowest since.
    before: u64,
    /// Pages that holders have added and not given back.
    added: u64,
}

impl Tally {
    /// The first holder's, of a pool with so many pages. What killed holders have left is in the pool still, unless somebody has lowered it.
    fn begun(pages: u64, left: Option<Self>) -> Self {
        let left = left.unwrap_or(Self { before: pages, added: 0 });
        let added = if pages >= left.before.saturating_add(left.added) { left.added } else { 0 };
        Self { before: left.before.min(pages), added }
    }

    fn read(note: &OwnedFd) -> Option<Self> {
        let text = read(note).ok()?;
        let (before, added) = text.as_str().split_once(' ')?;
        Some(Self { before: before.parse().ok()?, added: added.parse().ok()? })
    }

    fn write(self, note_path: &Path) -> Result<()> {
        let mut value = Value::EMPTY;
        write!(value, "{} {}", self.before, self.added).map_err(|_| Errno::INVAL)?;
        write(note_path.as_c_str()?, value.as_str())
    }
}

/// The pool's set size: `nr_hugepages` counts the surplus pages too, writing it does not.
fn set_pages(file: &OwnedFd, surplus: &OwnedFd) -> Result<u64> {
    Ok(read_number(file)?.saturating_sub(read_number(surplus)?))
}

/// Opens a knob and locks it for a change. Others hold this lock for moments only, so who waits for seconds waits for
/// something that is none of ours.
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

/// Opens (or makes) the note and locks it: exclusively, with `true`, where nobody holds it, shared otherwise.
fn join(note_path: &CStr) -> Result<(OwnedFd, bool)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let note = openat(CWD, note_path, flags, Mode::RUSR | Mode::WUSR)?;
    // In a directory where all may write, a stranger's note would let him choose what we give back.
    if fstat(&note)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    if flock(&note, FlockOperation::NonBlockingLockExclusive).is_ok() {
        return Ok((note, true));
    }
    flock(&note, FlockOperation::NonBlockingLockShared)?;
    Ok((note, false))
}

/// Removes the note again where we made it and the change failed. One that was found stays for the next.
fn unless_failed<T>(changed: Result<T>, made: bool, note_path: &Path) -> Result<T> {
    if changed.is_err() && made {
        unlinkat(CWD, note_path.as_c_str()?, AtFlags::empty())?;
    }
    changed
}
