//! `fs_checkpoint`: `include/fieldstone/checkpoint.h`.
//!
//! ```text
//! begin   ─→ a thread of the library runs the save; `Saver::running` has its handle
//! wait    sleeps until the thread drops the safe point, then takes the handle and the report
//! cancel  uses the handle, also while another thread waits
//! ```

#![allow(unsafe_code, reason = "exports symbols; calls C functions; reads an array of C")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fieldstone_checkpoint::{Checkpointer, CheckpointerBuilder, Compression, Error, Report, Save};
use fieldstone_pages::Memory;

use crate::checkpoint_sink::SinkHandle;
use crate::result::{CallError, CallResult, OutHandle, create, non_null, run_call};

/// `fs_checkpoint_options`: zero is the default.
#[repr(C)]
#[derive(Debug, Default)]
struct Options {
    stop_limit_ns: u64,
    memory_limit_bytes: u64,
    compression: u64,
    compare_pages: bool,
    pinned_elsewhere: bool,
}

/// `fs_checkpoint_report`.
#[repr(C)]
struct FsReport {
    pages: u64,
    bytes: u64,
    stop_ns: u64,
    longest_wait_ns: u64,
    peak_buffer_bytes: u64,
    total_ns: u64,
    fell_back: u64,
    is_increment: u64,
    missed_pages: u64,
    value: u64,
}

impl From<Report> for FsReport {
    fn from(report: Report) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            pages: report.pages,
            bytes: report.bytes,
            stop_ns: nanoseconds(report.stop),
            longest_wait_ns: nanoseconds(report.longest_wait),
            peak_buffer_bytes: report.peak_buffer_bytes,
            total_ns: nanoseconds(report.total),
            fell_back: report.fell_back.into(),
            is_increment: report.is_increment.into(),
            missed_pages: report.missed_pages,
            value: report.value,
        }
    }
}

/// `fs_checkpoint_safe_point`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SafePoint {
    enter: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    leave: Option<unsafe extern "C" fn(*mut c_void)>,
    user: *mut c_void,
}

// SAFETY: the header requires that `user` may be used in the thread of the save.
unsafe impl Send for SafePoint {}

impl SafePoint {
    /// Nothing is held, and the number is 0.
    const NONE: Self = Self { enter: None, leave: None, user: std::ptr::null_mut() };

    /// Calls `enter`; `leave` is called when the result is dropped.
    fn enter(self) -> (Held, u64) {
        // SAFETY: the function has the header's type, and `user` is valid until the save has ended.
        let value = self.enter.map_or(0, |enter| unsafe { enter(self.user) });
        (Held(self), value)
    }
}

/// What a safe point holds.
struct Held(SafePoint);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(leave) = self.0.leave {
            // SAFETY: the function has the header's type, and `enter` has returned in this thread.
            unsafe { leave(self.0.user) }
        }
    }
}

/// Set when the save has ended.
type Ended = Arc<OnceLock<()>>;

/// Reports the end of a save when its thread drops this value.
struct EndOnDrop(Ended);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let _ = self.0.set(());
    }
}

/// A save that no call has waited for.
struct RunningSave {
    save: Save,
    ended: Ended,
}

/// A checkpointer, and the save that runs.
struct Saver {
    checkpointer: Mutex<Checkpointer>,
    running: Mutex<Option<RunningSave>>,
    /// The process that created it: a forked child has no thread of the save.
    process: u32,
}

impl Saver {
    /// # Errors
    /// In a forked child.
    fn check_process(&self) -> CallResult {
        if self.process == std::process::id() { Ok(()) } else { Err(fieldstone_pages::Error::Forked.into()) }
    }

    fn running(&self) -> MutexGuard<'_, Option<RunningSave>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// [`Error::Busy`] until the save before was waited for.
    fn begin(&self, sink: &SinkHandle, safe_point: SafePoint) -> CallResult {
        self.check_process()?;
        let mut running = self.running();
        if running.is_some() {
            return Err(Error::Busy.into());
        }
        let ended = Ended::default();
        let end = EndOnDrop(Arc::clone(&ended));
        let enter = move || {
            let _in_thread = &end;
            safe_point.enter()
        };
        let save = self.checkpointer.lock().unwrap_or_else(PoisonError::into_inner).begin(sink, enter)?;
        *running = Some(RunningSave { save, ended });
        Ok(())
    }

    /// Waits for the save that was begun.
    ///
    /// # Errors
    /// Those of the save; and if no save was begun, or another call has waited for it.
    fn wait(&self) -> Result<Report, CallError> {
        const NONE: CallError = CallError::Argument("there is no save to wait for: call fs_checkpoint_begin first");
        self.check_process()?;
        let ended = self.running().as_ref().map(|running| Arc::clone(&running.ended)).ok_or(NONE)?;
        ended.wait();
        let running = self.running().take_if(|running| Arc::ptr_eq(&running.ended, &ended)).ok_or(NONE)?;
        Ok(running.save.wait()?)
    }

    fn cancel(&self) -> CallResult {
        self.check_process()?;
        if let Some(running) = &*self.running() {
            running.save.cancel();
        }
        Ok(())
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        let is_same_process = self.check_process().is_ok();
        match self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            Some(running) if is_same_process => drop(running.save.wait()),
            // The thread does not exist here.
            running => std::mem::forget(running),
        }
    }
}

/// The memories of an array of C.
fn memories(regions: *const Option<&Memory>, count: usize) -> Result<Vec<&Memory>, CallError> {
    if regions.is_null() || count == 0 {
        return Err(CallError::Argument("the array of regions is null or empty"));
    }
    // SAFETY: the header requires an array of `count` handles, each null or live.
    let regions = unsafe { std::slice::from_raw_parts(regions, count) };
    regions.iter().map(|&region| non_null(region)).collect()
}

/// The options of the library for those of C.
fn configured(mut builder: CheckpointerBuilder, options: &Options) -> Result<CheckpointerBuilder, CallError> {
    if options.stop_limit_ns > 0 {
        builder = builder.stop_limit(Duration::from_nanos(options.stop_limit_ns));
    }
    if options.memory_limit_bytes > 0 {
        builder = builder.memory_limit(usize::try_from(options.memory_limit_bytes).unwrap_or(usize::MAX));
    }
    let compression = match options.compression {
        0 => Compression::None,
        1 => Compression::Lz4,
        2 => zstd()?,
        _ => return Err(CallError::Argument("the compression is not one of enum fs_checkpoint_compression")),
    };
    let builder = builder.compare_pages(options.compare_pages).pinned_elsewhere(options.pinned_elsewhere);
    Ok(builder.compression(compression))
}

#[cfg(feature = "zstd")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature it is an error")]
const fn zstd() -> Result<Compression, CallError> {
    Ok(Compression::Zstd)
}

#[cfg(not(feature = "zstd"))]
const fn zstd() -> Result<Compression, CallError> {
    Err(CallError::Feature { operation: "compress saves by zstd", feature: "zstd" })
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_open(
    regions: *const Option<&Memory>,
    count: usize,
    options: Option<&Options>,
    saver: OutHandle<'_, Saver>,
) -> c_int {
    run_call(|| {
        create(saver, || {
            let builder = Checkpointer::builder(memories(regions, count)?);
            let checkpointer = configured(builder, options.unwrap_or(&Options::default()))?.build()?;
            let checkpointer = Mutex::new(checkpointer);
            Ok(Saver { checkpointer, running: Mutex::default(), process: std::process::id() })
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_begin(
    saver: Option<&Saver>,
    sink: Option<&SinkHandle>,
    safe_point: Option<&SafePoint>,
) -> c_int {
    run_call(|| {
        if safe_point.is_some_and(|safe_point| safe_point.enter.is_none()) {
            return Err(CallError::Argument("`enter` of the safe point is null: pass a function"));
        }
        non_null(saver)?.begin(non_null(sink)?, safe_point.copied().unwrap_or(SafePoint::NONE))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_wait(saver: Option<&Saver>, report: Option<&mut MaybeUninit<FsReport>>) -> c_int {
    run_call(|| {
        let done = non_null(saver)?.wait()?;
        report.map(|report| report.write(done.into()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_cancel(saver: Option<&Saver>) -> c_int {
    run_call(|| non_null(saver)?.cancel())
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_free(saver: Option<Box<Saver>>) {
    run_call(|| {
        drop(saver);
        Ok(())
    });
}
