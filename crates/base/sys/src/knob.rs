//! Kernel knobs that are given back: what is turned for a run is turned back when it ends, however it ends.
//!
//! ```text
//!   this process                         restorer (forked, own session, signals blocked)
//!   Restorer ──── set PATH VALUE ──────▶ lock knob, note the former value, write
//!            ◀─── ok ID FORMER ───────── hold
//!   SetKnob dropped ── release ID ─────▶ write the former value back
//!   SIGKILL, exit, crash: end of file ─▶ write all of them back, newest first, and end
//! ```
//!
//! Only the restorer writes, so there is no moment in which a death leaves a knob turned and nobody who knows it. It is one
//! process for all knobs of a run. What holds, and what does not:
//!
//! - **Death of the holder**, by SIGKILL too, gives back within moments: the kernel closes the socket. A child that was *forked*
//!   from the holder and lives on without exec holds the socket open and delays it; exec closes it.
//! - **Ctrl-C** and a hang-up of the terminal do not reach the restorer; SIGKILL does. Killed together with its holder (a
//!   cgroup's end, a pid namespace's), it leaves the knobs turned; the note it leaves lets the next Fieldstone that turns the
//!   same knob give it back.
//! - **Several Fieldstones** hold one knob together when they want the same value: the last one to end gives it back. One that
//!   wants another value is refused ([`Error::KnobHeld`]). They agree through a note beside the knob's lock: a small file in
//!   `/run` that holds the former value, on which each holder keeps a shared flock(2) for as long as it lives.
//! - **Somebody else** who writes a plain knob meanwhile wins: it is given back only if it still reads as we left it.
//! - **A pool** of huge pages is raised *by* a number of pages and lowered by that number, so pages that others added or took
//!   meanwhile stay added or taken; and never below what it held before the first Fieldstone came. Pages still in use when it is
//!   lowered become surplus pages, which the kernel frees with their last user: nobody's memory is taken away.
//!
//! A fork may come from a program with threads: the restorer allocates nothing and takes no lock of the library, so it works
//! whatever the other threads held.

mod held;
mod janitor;
mod kernel_value;

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::huge_pages::pools::pool_directory;
use crate::{Error, Result, process};

/// The process that gives knobs back. Clones share it; it ends with the last clone and the last knob.
#[derive(Clone, Debug)]
pub struct Restorer {
    shared: Arc<Shared>,
}

/// A knob that is turned. Dropping it gives it back, and returns when that is done.
#[derive(Debug)]
pub struct SetKnob {
    hold: Hold,
    former: String,
}

/// Pages added to a hugetlb pool. Dropping it gives them back.
#[derive(Debug)]
pub struct RaisedPool {
    hold: Hold,
    pages: u64,
}

impl Restorer {
    /// Forks the restorer. Costs a fork; call it early, while this process is small.
    ///
    /// # Errors
    /// [`Error::Call`] where there can be no more processes or descriptors.
    pub fn start() -> Result<Self> {
        // The note must be where every Fieldstone of this machine looks, so not below $TMPDIR unless there is nothing else.
        let writable = |directory: &&Path| rustix::fs::access(*directory, rustix::fs::Access::WRITE_OK).is_ok();
        let candidates = [Path::new("/run"), Path::new("/tmp")];
        let notes = candidates.iter().copied().find(writable).map_or_else(std::env::temp_dir, Path::to_owned);
        Self::with_notes_in(notes)
    }

    fn with_notes_in(notes: PathBuf) -> Result<Self> {
        let (line, pid) = janitor::start()?;
        Ok(Self { shared: Arc::new(Shared { line: Mutex::new(BufReader::new(line)), pid, notes }) })
    }

    /// The restorer's process number, for those who count children.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.shared.pid
    }

    /// Writes `value` to the knob at `path`, until the returned [`SetKnob`] is dropped or this process ends.
    ///
    /// A file of choices (`always [madvise] never`) is read by its chosen word. `value` is written as the knob reads afterwards.
    ///
    /// # Errors
    /// [`Error::KnobDenied`] without the permission, [`Error::KnobHeld`] when another Fieldstone holds it at another value,
    /// [`Error::KnobUnfit`] for a path of more than 200 or a value of more than 60 bytes, [`Error::RestorerGone`] when the
    /// restorer was killed, [`Error::File`] with the kernel's errno otherwise.
    pub fn set(&self, path: &Path, value: &str) -> Result<SetKnob> {
        let remedy = format!("echo {value} | sudo tee {}", path.display());
        let (id, former) = self.shared.take("set", path, value, path, remedy)?;
        let remedy = format!("echo {former} | sudo tee {}", path.display());
        Ok(SetKnob {
            hold: Hold { id: Some(id), shared: Arc::clone(&self.shared), knob: path.to_owned(), remedy },
            former,
        })
    }

    /// Adds up to `pages` pages to the hugetlb pool of one page size, until the returned [`RaisedPool`] is dropped or this
    /// process ends. The kernel may find fewer than were asked for, or none: see [`RaisedPool::pages`]. May take seconds, as
    /// it compacts memory.
    ///
    /// # Errors
    /// As [`Restorer::set`]; [`Error::File`] with ENOENT where there is no pool of that page size.
    pub fn raise_pool(&self, page_bytes: u64, pages: u64) -> Result<RaisedPool> {
        self.raise_pool_in(&pool_directory(page_bytes), pages)
    }

    fn raise_pool_in(&self, directory: &Path, pages: u64) -> Result<RaisedPool> {
        let knob = directory.join("nr_hugepages");
        let add = |sign, pages| format!("echo $(($(cat {0}) {sign} {pages})) | sudo tee {0}", knob.display());
        let (id, got) = self.shared.take("raise", directory, &pages.to_string(), &knob, add('+', pages))?;
        let pages = got.parse().map_err(|_| Error::malformed(&knob, got))?;
        let remedy = add('-', pages);
        Ok(RaisedPool { hold: Hold { id: Some(id), shared: Arc::clone(&self.shared), knob, remedy }, pages })
    }
}

impl SetKnob {
    /// What the knob will be given back to.
    #[must_use]
    pub fn former(&self) -> &str {
        &self.former
    }

    /// Gives the knob back now, and says whether that worked, as dropping cannot.
    ///
    /// # Errors
    /// [`Error::RestorerGone`] with the command to do it by hand, or [`Error::File`].
    pub fn give_back(mut self) -> Result<()> {
        self.hold.release()
    }
}

impl RaisedPool {
    /// The pages that the kernel really added.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Gives the pages back now, and says whether that worked, as dropping cannot.
    ///
    /// # Errors
    /// As [`SetKnob::give_back`].
    pub fn give_back(mut self) -> Result<()> {
        self.hold.release()
    }
}

/// Our end of the line to the restorer.
#[derive(Debug)]
struct Shared {
    line: Mutex<BufReader<UnixStream>>,
    pid: u32,
    notes: PathBuf,
}

impl Shared {
    /// Asks the restorer to take hold of a knob; returns the hold's number and the detail of the answer.
    fn take(&self, verb: &str, path: &Path, value: &str, knob: &Path, remedy: String) -> Result<(String, String)> {
        let unfit = |why| Error::KnobUnfit { path: path.to_owned(), why };
        let Some(text) = path.to_str() else { return Err(unfit("its path is not UTF-8")) };
        if text.len() > 200 || value.len() > 60 || value.is_empty() {
            return Err(unfit("its path or value is too long, or empty"));
        }
        let note = self.notes.join(format!("fieldstone-knob{}", text.replace('/', "!")));
        if note.as_os_str().as_bytes().len() >= kernel_value::PATH_BYTES {
            return Err(unfit("its note's path is too long"));
        }
        let request = format!("{verb}\t{text}\t{}\t{value}", note.display());
        if request.matches('\t').count() != 3 || request.contains(['\n', '\0']) {
            return Err(unfit("it holds a tab, a newline or a zero byte"));
        }
        let answer = self.ask(&request).map_err(|_| Error::RestorerGone { remedy: remedy.clone() })?;
        match answer.split_once('\t') {
            Some(("ok", rest)) => {
                let (id, detail) = rest.split_once('\t').unwrap_or((rest, ""));
                Ok((id.to_owned(), detail.to_owned()))
            }
            Some(("held", now)) => Err(Error::KnobHeld { path: knob.to_owned(), held: now.to_owned() }),
            Some(("errno", number)) => {
                let source = io::Error::from_raw_os_error(number.parse().unwrap_or(libc::EIO));
                Err(match source.raw_os_error() {
                    Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                        Error::KnobDenied { path: knob.to_owned(), source, remedy }
                    }
                    _ => Error::File { operation: "write", path: knob.to_owned(), source },
                })
            }
            _ => Err(Error::malformed(knob, answer)),
        }
    }

    /// Continues the restorer where somebody has stopped it: whoever waits for it would wait forever.
    fn wake(&self) {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::CONT));
    }

    /// One request and its answer, both a line.
    fn ask(&self, request: &str) -> io::Result<String> {
        self.wake();
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let mut answer = String::new();
        // It ends: the restorer writes a knob, for which the kernel may compact memory for seconds, or its end of the line is closed.
        line.read_line(&mut answer)?;
        answer.strip_suffix('\n').map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Shut, not only closed: a forked child may hold a copy. Where the restorer is dead there is nothing to shut.
        let _ = line.get_ref().shutdown(Shutdown::Both);
        self.wake();
        // It may have been reaped by somebody who waits for any child.
        let _ = process::wait4(Some(self.pid), true);
    }
}

/// A hold on a knob that the restorer keeps for us.
#[derive(Debug)]
struct Hold {
    /// The restorer's number for it; `None` once given back.
    id: Option<String>,
    shared: Arc<Shared>,
    knob: PathBuf,
    remedy: String,
}

impl Hold {
    fn release(&mut self) -> Result<()> {
        let Some(id) = self.id.take() else { return Ok(()) };
        let gone = |_| Error::RestorerGone { remedy: self.remedy.clone() };
        let answer = self.shared.ask(&format!("release\t{id}")).map_err(gone)?;
        match answer.strip_prefix("errno\t") {
            None => Ok(()),
            Some(number) => {
                let source = io::Error::from_raw_os_error(number.parse().unwrap_or(libc::EIO));
                Err(Error::file("give back", &self.knob, source))
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A drop has nobody to tell; `give_back` has.
        let _ = self.release();
    }
}

#[cfg(test)]
mod tests;
