//! Saves in an object store.
//!
//! ```text
//! 0000000007-ID.pages   the pages of save 7, written first
//! 0000000007.save       its manifest: the save counts from then on
//! ```

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};

use opendal::{Buffer, ErrorKind, Operator, Writer};
use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, Result};
use crate::format::{TRAILER_BYTES, parse_trailer, trailer_id};
use crate::saved::{Part, Saved, Source};
use crate::series::{self, Series, name_of, number_of};
use crate::sink::{Sink, SinkWriter};

/// Bytes of one request.
const REQUEST: usize = 8 << 20;
/// Requests at the same time.
const REQUESTS: usize = 2;

/// The thread of the requests. A forked child does not have it.
static RUNTIME: LazyLock<io::Result<Runtime>> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).thread_name("fs-objects").enable_all().build());

/// An object store with saves, each of which contains what changed since the one before.
///
/// Several processes may save to one place. If they do so at the same time, one of the saves fails, where the
/// store has conditional writes.
///
/// A save fails with its first request that does. Give the operator the layers `TimeoutLayer` and `RetryLayer` of
/// opendal, so that requests are made again. The buffers of the requests take up to 32 MiB more than the memory
/// limit. No function may be called in a thread that runs asynchronous tasks: they wait.
#[derive(Clone)]
pub struct Objects {
    operator: Operator,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Objects").field(&self.path("")).finish()
    }
}

impl Objects {
    /// The saves in the root of an operator.
    ///
    /// # Errors
    /// If no objects can be listed there, and if no thread can be started.
    pub fn new(operator: Operator) -> Result<Self> {
        if let Err(error) = &*RUNTIME {
            return Err(Error::Thread(io::Error::new(error.kind(), error.to_string())));
        }
        let objects = Self { operator };
        objects.names()?;
        Ok(objects)
    }

    /// The last save, with all that it continues.
    ///
    /// # Errors
    /// [`Error::NoSave`], [`Error::Damaged`], [`Error::MissingParent`] and [`Error::Unsupported`].
    pub fn last(&self) -> Result<Saved> {
        series::last(self)
    }

    /// Deletes the saves that the last `saves` ones do not need, and what is left of saves that were not
    /// finished. Returns how many saves were deleted. As [`crate::Directory::keep`], but a save that is being
    /// restored meanwhile may lose objects: then its restoring fails.
    ///
    /// # Errors
    /// If a save cannot be read, written or deleted. Nothing that the last save needs is deleted.
    pub fn keep(&self, saves: usize) -> Result<usize> {
        series::keep(self, saves)
    }

    /// The place of an object, for messages.
    fn path(&self, name: &str) -> PathBuf {
        let info = self.operator.info();
        format!("{}://{}{}{name}", info.scheme(), info.name(), info.root()).into()
    }

    fn failed(&self, operation: &'static str, name: &str) -> impl FnOnce(opendal::Error) -> Error + use<> {
        let path = self.path(name);
        move |error| Error::File { operation, path, source: io::Error::other(error) }
    }

    /// Writes the manifest of a save.
    fn write_manifest(&self, number: u64, manifest: &[u8], replaces: bool) -> Result<()> {
        let name = name_of(number);
        let is_conditional = !replaces && self.operator.info().capability().write_with_if_not_exists;
        let written =
            wait(async { self.operator.write_with(&name, manifest.to_vec()).if_not_exists(is_conditional).await });
        match written {
            // Another process wrote it, or an earlier attempt whose answer was lost.
            Err(error) if matches!(error.kind(), ErrorKind::ConditionNotMatch | ErrorKind::AlreadyExists) => {
                let found = wait(self.operator.read(&name)).map_err(self.failed("read", &name))?;
                if found.to_vec() == manifest { Ok(()) } else { Err(Error::Taken(self.path(&name))) }
            }
            written => written.map(drop).map_err(self.failed("write", &name)),
        }
    }
}

/// Waits for a request.
fn wait<T>(request: impl Future<Output = T>) -> T {
    RUNTIME.as_ref().expect("checked when the sink was made").block_on(request)
}

fn pages_name(number: u64, id: u64) -> String {
    format!("{number:010}-{id:016x}.pages")
}

/// The number and the id of the save of pages.
fn pages_of(name: &str) -> Option<(u64, u64)> {
    let (number, id) = name.strip_suffix(".pages")?.split_once('-')?;
    Some((number.parse().ok()?, u64::from_str_radix(id, 16).ok()?))
}

impl Series for Objects {
    fn names(&self) -> Result<Vec<String>> {
        let entries = wait(self.operator.list("")).map_err(self.failed("list", ""))?;
        Ok(entries.iter().map(|entry| entry.name().to_owned()).collect())
    }

    fn open(&self, number: u64) -> Result<Part> {
        let name = name_of(number);
        let path = self.path(&name);
        let manifest = wait(self.operator.read(&name)).map_err(self.failed("read", &name))?.to_vec();
        let cut = || Error::damaged(&path, "it is too short");
        let end: &[u8; TRAILER_BYTES] = manifest.last_chunk().ok_or_else(cut)?;
        let id = trailer_id(end);
        let (offset, _) = parse_trailer(end, id).map_err(|what| Error::damaged(&path, what))?;
        let bytes = offset + manifest.len() as u64;
        let pages = pages_name(number, id);
        let window = Mutex::default();
        let source = SavedObjects { objects: self.clone(), pages, pages_bytes: offset, manifest, window };
        Part::open(Box::new(source), bytes, path)
    }

    fn create(&self, number: u64, id: u64, replaces: bool) -> Result<Box<dyn SinkWriter>> {
        let name = pages_name(number, id);
        let writer = wait(async { self.operator.writer_with(&name).chunk(REQUEST).concurrent(REQUESTS).await });
        let writer = writer.map_err(self.failed("write", &name))?;
        Ok(Box::new(NewObjects { objects: self.clone(), name, number, replaces, writer: Some(writer) }))
    }

    fn delete_before(&self, number: u64) -> Result<()> {
        let first = self.open(number)?.manifest.id;
        let is_unneeded = |name: &str| match pages_of(name) {
            Some((of, id)) => of < number || of == number && id != first,
            None => number_of(name).is_some_and(|of| of < number),
        };
        let mut names: Vec<_> = self.names()?.into_iter().filter(|name| is_unneeded(name)).collect();
        // Manifests first: no save is without its pages.
        names.sort_by_key(|name| pages_of(name).is_some());
        names.iter().try_for_each(|name| wait(self.operator.delete(name)).map_err(self.failed("delete", name)))
    }

    fn no_save(&self) -> Error {
        Error::NoSave(self.path(""))
    }
}

impl Sink for Objects {
    fn begin(&self, id: u64) -> Result<Box<dyn SinkWriter>> {
        series::begin(self, id)
    }

    fn continued(&self) -> Result<Option<(u64, u64)>> {
        series::continued_by_name(self)
    }
}

/// A save that is being written.
struct NewObjects {
    objects: Objects,
    name: String,
    number: u64,
    replaces: bool,
    /// `None` when the pages are written.
    writer: Option<Writer>,
}

impl SinkWriter for NewObjects {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Self { objects, name, writer, .. } = self;
        match writer {
            Some(writer) => wait(writer.write(bytes.to_vec())).map_err(objects.failed("write", name)),
            None => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>, manifest: &[u8]) -> Result<()> {
        if let Some(writer) = &mut self.writer {
            wait(writer.close()).map_err(self.objects.failed("write", &self.name))?;
        }
        self.writer = None;
        let written = self.objects.write_manifest(self.number, manifest, self.replaces);
        if matches!(written, Err(Error::Taken(_))) {
            let _ = wait(self.objects.operator.delete(&self.name));
        }
        // After another error the manifest may be there nevertheless.
        written
    }
}

impl Drop for NewObjects {
    fn drop(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            // What cannot be removed now is removed by `keep`.
            let _ = wait(writer.abort());
        }
    }
}

/// Bytes that were read, and their offset.
type Window = (u64, Buffer);

/// A save in objects: its pages, followed by its manifest.
#[derive(Debug)]
struct SavedObjects {
    objects: Objects,
    pages: String,
    pages_bytes: u64,
    manifest: Vec<u8>,
    window: Mutex<Window>,
}

impl SavedObjects {
    fn request(&self, offset: u64, bytes: u64) -> Result<Buffer> {
        let read = async { self.objects.operator.read_with(&self.pages).range(offset..offset + bytes).await };
        wait(read).map_err(self.objects.failed("read", &self.pages))
    }
}

impl Source for SavedObjects {
    /// Reads ahead if it continues where the last call ended.
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        if let Some(at) = offset.checked_sub(self.pages_bytes) {
            let found = self.manifest.get(at as usize..at as usize + bytes.len());
            bytes.copy_from_slice(found.ok_or_else(|| Error::damaged(&self.objects.path(&self.pages), "it is cut"))?);
            return Ok(());
        }
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = bytes.len() as u64;
        let has_all = |(start, buffer): &Window| offset >= *start && offset + wanted <= start + buffer.len() as u64;
        if !has_all(&window) {
            let is_next = offset > 0 && offset >= window.0 && offset <= window.0 + window.1.len() as u64;
            let ahead = if is_next { wanted.max(REQUEST as u64) } else { wanted };
            *window = (offset, self.request(offset, ahead.min(self.pages_bytes - offset))?);
        }
        let (start, buffer) = &*window;
        let at = (offset - start) as usize;
        if at + bytes.len() > buffer.len() {
            return Err(Error::damaged(&self.objects.path(&self.pages), "it is cut"));
        }
        bytes.copy_from_slice(&buffer.slice(at..at + bytes.len()).to_vec());
        Ok(())
    }
}
