//! The store `opendal`: pages as objects of an object store.
//!
//! ```text
//! fieldstone/ID/NUMBER ─→ a page, compressed by lz4 if that makes it smaller
//! ```
//! The pages of a batch are written, or read, at the same time. A request that fails is repeated until
//! its timeout has passed. The objects are deleted when the store is dropped.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use opendal::{ErrorKind, Operator};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::device::{Device, DeviceStore, PagesLeft};
use crate::kernel::{EIO, ENODATA};
use crate::packed::{new_prefix, pack, unpack};
use crate::store::{Page, StoreError};

/// How long the store waits before it repeats a request.
const PAUSE: Duration = Duration::from_millis(50);
/// Threads that wait for the requests of all stores of this kind.
const THREADS: usize = 2;

/// Pages as objects of an object store.
pub type Objects = DeviceStore<ObjectStorage>;

/// An object store cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot store pages in the object store {place}: {cause}\ntry: check its address, and the permission to write, read and delete"
)]
pub struct ObjectsError {
    place: String,
    cause: String,
}

impl Objects {
    /// Writes, reads and deletes an object once, so that a wrong setting is noticed now. Later, a request
    /// that fails is repeated until `limit` has passed; faults wait meanwhile.
    ///
    /// # Errors
    /// If an object cannot be written, read or deleted now.
    pub fn open(operator: Operator, limit: Duration) -> Result<Self, ObjectsError> {
        let storage = ObjectStorage::new(operator, limit)?;
        storage.check()?;
        let place = storage.to_string();
        Self::new(storage).map_err(|error| ObjectsError { place, cause: error.to_string() })
    }
}

/// An object store.
pub struct ObjectStorage {
    operator: Operator,
    runtime: &'static Runtime,
    /// The start of the names of this store's objects.
    prefix: String,
    limit: Duration,
    has_objects: AtomicBool,
    /// The process whose pages these are.
    process: u32,
}

impl fmt::Display for ObjectStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&place_of(&self.operator))
    }
}

impl fmt::Debug for ObjectStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStorage").field("place", &place_of(&self.operator)).finish_non_exhaustive()
    }
}

/// The threads of all stores. They are never joined: a forked child does not have them.
fn runtime() -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let start = || {
        let built = Builder::new_multi_thread().worker_threads(THREADS).thread_name("fs-objects").enable_all().build();
        built.map_err(|error| error.to_string())
    };
    RUNTIME.get_or_init(start).as_ref().map_err(Clone::clone)
}

impl ObjectStorage {
    /// A store whose objects have names of their own.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(operator: Operator, limit: Duration) -> Result<Self, ObjectsError> {
        let place = place_of(&operator);
        let runtime = runtime().map_err(|cause| ObjectsError { place, cause })?;
        let prefix = new_prefix('/');
        Ok(Self { operator, runtime, prefix, limit, has_objects: AtomicBool::new(false), process: std::process::id() })
    }

    /// Writes, reads and deletes an object.
    ///
    /// # Errors
    /// If that fails.
    pub fn check(&self) -> Result<(), ObjectsError> {
        let (operator, name) = (&self.operator, format!("{}check", self.prefix));
        let attempt = async {
            operator.write(&name, vec![7]).await?;
            let read = operator.read(&name).await?;
            operator.delete(&name).await?;
            Ok::<_, opendal::Error>(read.to_vec() == [7])
        };
        let refused = |cause: String| ObjectsError { place: self.to_string(), cause };
        match self.runtime.block_on(async { timeout(self.limit, attempt).await }) {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(refused("an object has other contents than were written".to_owned())),
            Ok(Err(error)) => Err(refused(error.to_string())),
            Err(_) => Err(refused(format!("no answer within {} s", self.limit.as_secs_f32()))),
        }
    }

    /// Makes a request for each page at the same time; the results in order.
    fn request_all<T, F>(&self, requests: impl Iterator<Item = F>) -> Result<Vec<T>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let running: Vec<_> = requests.map(|request| self.runtime.spawn(request)).collect();
        let all = running.into_iter().map(|one| self.runtime.block_on(one).unwrap_or(Err(StoreError::Failed(EIO))));
        // Each request ends before the batch does, also after an error.
        all.collect::<Vec<_>>().into_iter().collect()
    }
}

fn place_of(operator: &Operator) -> String {
    let info = operator.info();
    format!("{}:{}{}", info.scheme(), info.name(), info.root())
}

/// Makes a request, again until the limit has passed.
async fn repeat<T, F>(limit: Duration, request: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = opendal::Result<T>>,
{
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed()).max(PAUSE);
        match timeout(left, request()).await {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) if error.kind() == ErrorKind::NotFound => return Err(StoreError::Failed(ENODATA)),
            _ if start.elapsed() < limit => sleep(PAUSE).await,
            _ => return Err(StoreError::Failed(EIO)),
        }
    }
}

impl Device for ObjectStorage {
    fn name(&self) -> &'static str {
        "opendal"
    }

    fn write(&self, first: u32, pages: &[&Page]) -> Result<usize, StoreError> {
        self.has_objects.store(true, Ordering::Relaxed);
        let write = |(number, page): (u32, &&Page)| {
            let (operator, limit) = (self.operator.clone(), self.limit);
            let (name, value) = (format!("{}{number}", self.prefix), pack(page));
            async move { repeat(limit, || operator.write(&name, value.clone())).await.map(drop) }
        };
        self.request_all((first..).zip(pages).map(write))?;
        Ok(pages.len())
    }

    fn read(&self, numbers: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
        let read = |&number: &u32| {
            let (operator, limit) = (self.operator.clone(), self.limit);
            let name = format!("{}{number}", self.prefix);
            async move { repeat(limit, || operator.read(&name)).await.map(|value| value.to_vec()) }
        };
        let values = self.request_all(numbers.iter().map(read))?;
        values.iter().zip(pages).try_for_each(|(value, page)| unpack(value, page))
    }

    fn delete_all(&self) -> Result<(), PagesLeft> {
        if !self.has_objects.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let delete = async { timeout(self.limit, self.operator.delete_with(&self.prefix).recursive(true)).await };
        match self.runtime.block_on(delete) {
            Ok(Ok(())) => Ok(()),
            _ => {
                let names = format!("{}*", self.prefix);
                let remedy = "delete these objects when the store can be reached".to_owned();
                Err(PagesLeft { place: self.to_string(), names, remedy })
            }
        }
    }
}

impl Drop for ObjectStorage {
    fn drop(&mut self) {
        // The pages are those of the parent, not of a forked child.
        if std::process::id() == self.process {
            let _ = self.delete_all();
        }
    }
}
