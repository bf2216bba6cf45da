//! Kernel settings (knobs) that are restored when the run ends for any reason.
//!
//! ```text
//!   this process                         restorer (forked, own session, signals blocked)
//!   Restorer ──── set PATH VALUE ──────▶ lock knob, note the former value, write
//!            ◀─── ok ID FORMER ───────── hold
//!   KnobSetting dropped ── release ID ─────▶ write the former value back
//!   SIGKILL, exit, crash: end of file ─▶ restore all of them, newest first, and exit
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `hold` | who may set a knob, and who restores it |
//! | `kernel_value` | the text of a knob |
//! | `restorer_process` | the process that writes and restores |
//!
//! Only the restorer writes, so at no time does a changed knob depend on a process that can die
//! first. One process serves all knobs of a run. Guarantees and limits:
//!
//! - **Death of the holder**, by SIGKILL too, restores within moments: the kernel closes the
//!   socket. A child that was *forked* from the holder and lives on without exec keeps the socket
//!   open and delays it; exec closes it.
//! - **Ctrl-C** and a hang-up of the terminal do not reach the restorer; SIGKILL does. If it is
//!   killed with its holder (the end of a cgroup or a pid namespace), the knobs stay changed. The
//!   note it leaves lets the next Fieldstone process that sets the same knob restore it.
//! - **Several Fieldstone processes** share one knob when they want the same value; the last one to
//!   end restores it. A different value is refused ([`Error::KnobBusy`]). They coordinate through a
//!   note: a small file in `/run` that holds the former value. Each holder keeps a shared flock(2)
//!   on it while it lives.
//! - **Other writers** of a plain knob win: it is restored only if it still has the value written
//!   here.
//! - **A pool** of huge pages is raised *by* a number of pages and lowered by that number. So pages
//!   that others added or removed meanwhile stay so. It is never lowered below its size before the
//!   first holder. Pages in use become surplus pages, which the kernel frees with their last user:
//!   no process loses memory.
//!
//! The fork may happen in a program with threads: the restorer neither allocates nor takes locks of
//! the library.

mod hold;
mod kernel_value;
mod restorer_process;

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::huge_pages::pools::pool_directory;
use crate::{Error, Result, process};

/// Handle of the process that restores knobs. Clones share it; the process ends with the last clone
/// and the last knob.
#[derive(Clone, Debug)]
pub struct Restorer {
    shared: Arc<Shared>,
}

/// A changed knob. Dropping it restores the former value, and returns when that is done.
#[derive(Debug)]
pub struct KnobSetting {
    hold: RemoteHold,
    former: String,
}

/// Pages added to a hugetlb pool. Dropping it removes them.
#[derive(Debug)]
pub struct PoolReservation {
    hold: RemoteHold,
    pages: u64,
}

impl Restorer {
    /// Forks the restorer. Call it early, while this process is small.
    ///
    /// # Errors
    /// [`Error::Call`] when processes or descriptors are exhausted.
    pub fn start() -> Result<Self> {
        // Every Fieldstone process of this machine must use the same directory, so $TMPDIR is the
        // last choice.
        let writable = |directory: &&Path| rustix::fs::access(*directory, rustix::fs::Access::WRITE_OK).is_ok();
        let candidates = [Path::new("/run"), Path::new("/tmp")];
        let notes = candidates.iter().copied().find(writable).map_or_else(std::env::temp_dir, Path::to_owned);
        Self::with_notes_in(notes)
    }

    fn with_notes_in(notes: PathBuf) -> Result<Self> {
        let (socket, pid) = restorer_process::start()?;
        Ok(Self { shared: Arc::new(Shared { socket: Mutex::new(BufReader::new(socket)), pid, notes }) })
    }

    /// The restorer's pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.shared.pid
    }

    /// Writes `value` to the knob at `path`, until the returned [`KnobSetting`] is dropped or this
    /// process ends.
    ///
    /// A file of choices (`always [madvise] never`) is read by its selected word. `value` must be
    /// what the knob reads afterwards.
    ///
    /// # Errors
    /// [`Error::KnobDenied`] without the permission, [`Error::KnobBusy`] when another Fieldstone
    /// process holds another value, [`Error::InvalidKnob`] for a path of more than 200 or a value
    /// of more than 60 bytes, [`Error::RestorerKilled`] when the restorer was killed, otherwise
    /// [`Error::File`] with the errno.
    pub fn set(&self, path: &Path, value: &str) -> Result<KnobSetting> {
        let remedy = format!("echo {value} | sudo tee {}", path.display());
        let (id, former) = self.shared.take("set", path, value, path, remedy)?;
        let remedy = format!("echo {former} | sudo tee {}", path.display());
        Ok(KnobSetting {
            hold: RemoteHold { id: Some(id), shared: Arc::clone(&self.shared), knob: path.to_owned(), remedy },
            former,
        })
    }

    /// Adds up to `pages` pages to the hugetlb pool of one page size, until the returned
    /// [`PoolReservation`] is dropped or this process ends. The kernel may find fewer pages, or
    /// none: see [`PoolReservation::pages`]. May take seconds, because the kernel compacts memory.
    ///
    /// # Errors
    /// As [`Restorer::set`]; [`Error::File`] with ENOENT without a pool of that page size.
    pub fn raise_pool(&self, page_bytes: u64, pages: u64) -> Result<PoolReservation> {
        self.raise_pool_in(&pool_directory(page_bytes), pages)
    }

    fn raise_pool_in(&self, directory: &Path, pages: u64) -> Result<PoolReservation> {
        let knob = directory.join("nr_hugepages");
        let add = |sign, pages| format!("echo $(($(cat {0}) {sign} {pages})) | sudo tee {0}", knob.display());
        let (id, added) = self.shared.take("raise", directory, &pages.to_string(), &knob, add('+', pages))?;
        let pages = added.parse().map_err(|_| Error::malformed(&knob, added))?;
        let remedy = add('-', pages);
        Ok(PoolReservation { hold: RemoteHold { id: Some(id), shared: Arc::clone(&self.shared), knob, remedy }, pages })
    }
}

impl KnobSetting {
    /// The value that will be restored.
    #[must_use]
    pub fn former(&self) -> &str {
        &self.former
    }

    /// Restores the knob now and reports failures, which dropping ignores.
    ///
    /// # Errors
    /// [`Error::RestorerKilled`] with the command that restores by hand, or [`Error::File`].
    pub fn restore(mut self) -> Result<()> {
        self.hold.release()
    }
}

impl PoolReservation {
    /// The pages that the kernel added.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Removes the pages now and reports failures, which dropping ignores.
    ///
    /// # Errors
    /// As [`KnobSetting::restore`].
    pub fn restore(mut self) -> Result<()> {
        self.hold.release()
    }
}

/// The connection to the restorer.
#[derive(Debug)]
struct Shared {
    socket: Mutex<BufReader<UnixStream>>,
    pid: u32,
    notes: PathBuf,
}

impl Shared {
    /// Requests a hold on a knob; returns the hold's number and the detail of the reply.
    fn take(&self, verb: &str, path: &Path, value: &str, knob: &Path, remedy: String) -> Result<(String, String)> {
        let unfit = |why| Error::InvalidKnob { path: path.to_owned(), why };
        let Some(text) = path.to_str() else { return Err(unfit("its path is not UTF-8")) };
        if text.len() > 200 || value.len() > 60 || value.is_empty() {
            return Err(unfit("its path or value is too long, or empty"));
        }
        let note = self.notes.join(format!("fieldstone-knob{}", text.replace('/', "!")));
        if note.as_os_str().as_bytes().len() >= kernel_value::PATH_BYTES {
            return Err(unfit("the path of its note is too long"));
        }
        let request = format!("{verb}\t{text}\t{}\t{value}", note.display());
        if request.matches('\t').count() != 3 || request.contains(['\n', '\0']) {
            return Err(unfit("it contains a tab, a newline or a zero byte"));
        }
        let reply = self.request(&request).map_err(|_| Error::RestorerKilled { remedy: remedy.clone() })?;
        match reply.split_once('\t') {
            Some(("ok", rest)) => {
                let (id, detail) = rest.split_once('\t').unwrap_or((rest, ""));
                Ok((id.to_owned(), detail.to_owned()))
            }
            Some(("held", now)) => Err(Error::KnobBusy { path: knob.to_owned(), held: now.to_owned() }),
            Some(("errno", number)) => {
                let source = io::Error::from_raw_os_error(number.parse().unwrap_or(libc::EIO));
                Err(match source.raw_os_error() {
                    Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                        Error::KnobDenied { path: knob.to_owned(), remedy }
                    }
                    _ => Error::File { operation: "write", path: knob.to_owned(), source },
                })
            }
            _ => Err(Error::malformed(knob, reply)),
        }
    }

    /// Continues a stopped restorer, which otherwise would block its callers forever.
    fn wake(&self) {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::CONT));
    }

    /// Sends one request and reads its reply, each one line.
    fn request(&self, request: &str) -> io::Result<String> {
        self.wake();
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let mut reply = String::new();
        // This terminates: the restorer writes a knob, for which the kernel may compact memory for
        // seconds, or its end of the socket is closed.
        socket.read_line(&mut reply)?;
        reply.strip_suffix('\n').map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let socket = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Shut down, not only closed: a forked child may have a copy. A dead restorer is no error
        // here.
        let _ = socket.get_ref().shutdown(Shutdown::Both);
        self.wake();
        // A caller that waits for any child may have reaped it.
        let _ = process::wait4(Some(self.pid), true);
    }
}

/// A knob that the restorer holds for this process.
#[derive(Debug)]
struct RemoteHold {
    /// The restorer's number for it; `None` once released.
    id: Option<String>,
    shared: Arc<Shared>,
    knob: PathBuf,
    remedy: String,
}

impl RemoteHold {
    fn release(&mut self) -> Result<()> {
        let Some(id) = self.id.take() else { return Ok(()) };
        let gone = |_| Error::RestorerKilled { remedy: self.remedy.clone() };
        let reply = self.shared.request(&format!("release\t{id}")).map_err(gone)?;
        match reply.strip_prefix("errno\t") {
            None => Ok(()),
            Some(number) => {
                let source = io::Error::from_raw_os_error(number.parse().unwrap_or(libc::EIO));
                Err(Error::file("restore", &self.knob, source))
            }
        }
    }
}

impl Drop for RemoteHold {
    fn drop(&mut self) {
        // A drop cannot report failures.
        let _ = self.release();
    }
}

#[cfg(test)]
mod tests;
