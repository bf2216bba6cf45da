//! A layer of opendal that lets one call of a store fail: as a whole, or after it has done its work, as if
//! the answer were lost.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use opendal::raw::oio::{self, Write};
use opendal::raw::*;
use opendal::{Buffer, Capability, Error, ErrorKind, Metadata, OperationContext, Result};

/// Counts calls, and fails at one of them.
#[derive(Clone, Debug)]
pub(crate) struct FailAt {
    calls: Arc<AtomicUsize>,
    fails: usize,
    /// Whether writes that fail take effect.
    loses_answers: bool,
}

impl FailAt {
    pub(crate) fn new(fails: usize, loses_answers: bool) -> Self {
        Self { calls: Arc::default(), fails, loses_answers }
    }

    /// Whether there was a call that failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.calls.load(Relaxed) > self.fails
    }

    fn fails_now(&self) -> bool {
        self.calls.fetch_add(1, Relaxed) == self.fails
    }

    fn call(&self) -> Result<()> {
        if self.fails_now() { Err(error()) } else { Ok(()) }
    }
}

fn error() -> Error {
    Error::new(ErrorKind::Unexpected, "the connection was cut")
}

impl Layer for FailAt {
    fn apply_service(&self, inner: Servicer) -> Servicer {
        Arc::new(FailingService { inner, at: self.clone() })
    }
}

#[derive(Debug)]
struct FailingService {
    inner: Servicer,
    at: FailAt,
}

struct FailingWriter {
    inner: oio::Writer,
    at: FailAt,
}

impl Write for FailingWriter {
    async fn write(&mut self, bytes: Buffer) -> Result<()> {
        self.at.call()?;
        self.inner.write(bytes).await
    }

    async fn close(&mut self) -> Result<Metadata> {
        let fails = self.at.fails_now();
        if fails && !self.at.loses_answers {
            return Err(error());
        }
        let closed = self.inner.close().await;
        if fails { Err(error()) } else { closed }
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

impl Service for FailingService {
    type Reader = oio::Reader;
    type Writer = FailingWriter;
    type Lister = oio::Lister;
    type Deleter = oio::Deleter;
    type Copier = oio::Copier;
    type Composer = oio::Composer;

    fn info(&self) -> ServiceInfo {
        self.inner.info()
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn compose(&self, context: &OperationContext, to: &str, options: OpCompose) -> Result<Self::Composer> {
        self.inner.compose(context, to, options)
    }

    async fn create_dir(&self, context: &OperationContext, path: &str, options: OpCreateDir) -> Result<RpCreateDir> {
        self.inner.create_dir(context, path, options).await
    }

    async fn stat(&self, context: &OperationContext, path: &str, options: OpStat) -> Result<RpStat> {
        self.at.call()?;
        self.inner.stat(context, path, options).await
    }

    fn read(&self, context: &OperationContext, path: &str, options: OpRead) -> Result<Self::Reader> {
        self.at.call()?;
        self.inner.read(context, path, options)
    }

    fn write(&self, context: &OperationContext, path: &str, options: OpWrite) -> Result<Self::Writer> {
        self.at.call()?;
        Ok(FailingWriter { inner: self.inner.write(context, path, options)?, at: self.at.clone() })
    }

    fn copy(&self, context: &OperationContext, from: &str, to: &str, options: OpCopy) -> Result<Self::Copier> {
        self.inner.copy(context, from, to, options)
    }

    fn list(&self, context: &OperationContext, path: &str, options: OpList) -> Result<Self::Lister> {
        self.at.call()?;
        self.inner.list(context, path, options)
    }

    fn delete(&self, context: &OperationContext) -> Result<Self::Deleter> {
        self.at.call()?;
        self.inner.delete(context)
    }

    async fn rename(&self, context: &OperationContext, from: &str, to: &str, options: OpRename) -> Result<RpRename> {
        self.inner.rename(context, from, to, options).await
    }

    async fn restore(&self, context: &OperationContext, path: &str, options: OpRestore) -> Result<RpRestore> {
        self.inner.restore(context, path, options).await
    }

    async fn presign(&self, context: &OperationContext, path: &str, options: OpPresign) -> Result<RpPresign> {
        self.inner.presign(context, path, options).await
    }
}
