//! `fs_checkpoint_sink`: where saves go, and their memory: `include/fieldstone/checkpoint.h`.

#![allow(unsafe_code, reason = "exports symbols; reads strings of C; writes to an array of C")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::slice;

#[cfg(feature = "opendal")]
use fieldstone_checkpoint::Objects;
use fieldstone_checkpoint::{Directory, File, Result, Saved, Sink, SinkWriter};
#[cfg(feature = "opendal")]
use opendal::layers::{RetryLayer, TimeoutLayer};

use crate::memory::MemoryHandle;
use crate::result::{CallError, OutHandle, create, non_null, run_call};

/// How often a request to an object store that fails is made again.
#[cfg(feature = "opendal")]
const RETRIES: usize = 5;
/// The longest time of one request.
#[cfg(feature = "opendal")]
const REQUEST_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Any sink of the library.
#[derive(Clone, Debug)]
pub(crate) enum SinkHandle {
    File(File),
    Directory(Directory),
    #[cfg(feature = "opendal")]
    Objects(Objects),
}

impl SinkHandle {
    fn sink(&self) -> &dyn Sink {
        match self {
            Self::File(file) => file,
            Self::Directory(directory) => directory,
            #[cfg(feature = "opendal")]
            Self::Objects(objects) => objects,
        }
    }

    fn last(&self) -> Result<Saved> {
        match self {
            Self::File(file) => file.last(),
            Self::Directory(directory) => directory.last(),
            #[cfg(feature = "opendal")]
            Self::Objects(objects) => objects.last(),
        }
    }

    fn keep(&self, saves: usize) -> Result<usize> {
        match self {
            // It never has more than one.
            Self::File(_) => Ok(0),
            Self::Directory(directory) => directory.keep(saves),
            #[cfg(feature = "opendal")]
            Self::Objects(objects) => objects.keep(saves),
        }
    }
}

impl Sink for SinkHandle {
    fn begin(&self, id: u64) -> Result<Box<dyn SinkWriter>> {
        self.sink().begin(id)
    }

    fn continued(&self) -> Result<Option<(u64, u64)>> {
        self.sink().continued()
    }
}

/// A string of C, which is used during the call only.
fn text<'a>(text: *const c_char) -> std::result::Result<&'a CStr, CallError> {
    if text.is_null() {
        return Err(CallError::Argument("the path or the address of the sink is null"));
    }
    // SAFETY: the header requires a string that ends in a zero byte, and it outlives the call.
    Ok(unsafe { CStr::from_ptr(text) })
}

fn path<'a>(path: *const c_char) -> std::result::Result<&'a OsStr, CallError> {
    Ok(OsStr::from_bytes(text(path)?.to_bytes()))
}

/// The object store at an address.
#[cfg(feature = "opendal")]
fn objects(uri: &CStr) -> std::result::Result<SinkHandle, CallError> {
    let uri = uri.to_str().map_err(|_| CallError::Argument("the address of the object store is not UTF-8"))?;
    // By a call: a linker leaves constructors of a static library out.
    opendal::init_default_registry();
    opendal_http_transport_reqwest::install_default();
    // The encryption of its connections; an error is that it is chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let operator = opendal::Operator::from_uri(uri).map_err(|error| {
        let shown = uri.split('?').next().unwrap_or_default();
        CallError::Refused(format!(
            "cannot use the object store {shown}: {error}\n\
             try: s3://BUCKET/DIRECTORY?region=REGION, or fs:///DIRECTORY"
        ))
    })?;
    let timeout = TimeoutLayer::new().with_timeout(REQUEST_TIMEOUT).with_io_timeout(REQUEST_TIMEOUT);
    let operator = operator.layer(timeout).layer(RetryLayer::new().with_max_times(RETRIES).with_jitter());
    Ok(SinkHandle::Objects(Objects::new(operator)?))
}

#[cfg(not(feature = "opendal"))]
const fn objects(_uri: &CStr) -> std::result::Result<SinkHandle, CallError> {
    Err(CallError::Feature { operation: "save to an object store", feature: "opendal" })
}

/// The places for memories, all set to null.
fn places<'a>(
    regions: *mut MaybeUninit<Option<Box<MemoryHandle>>>,
    count: usize,
) -> std::result::Result<Vec<&'a mut Option<Box<MemoryHandle>>>, CallError> {
    if regions.is_null() || count == 0 {
        return Err(CallError::Argument("the array for the regions is null or empty"));
    }
    // SAFETY: the header requires an array of `count` places, which no other thread uses during the call.
    let places = unsafe { slice::from_raw_parts_mut(regions, count) };
    Ok(places.iter_mut().map(|place| place.write(None)).collect())
}

/// The memories of a save.
fn restored(saved: Saved, lazily: bool) -> Result<Vec<MemoryHandle>> {
    if lazily {
        return Ok(saved.restore_lazily()?.into_iter().map(MemoryHandle::from).collect());
    }
    Ok(saved.restore()?.into_iter().map(MemoryHandle::from).collect())
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_directory(name: *const c_char, sink: OutHandle<'_, SinkHandle>) -> c_int {
    run_call(|| create(sink, || Ok(SinkHandle::Directory(Directory::open(path(name)?)?))))
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_file(name: *const c_char, sink: OutHandle<'_, SinkHandle>) -> c_int {
    run_call(|| create(sink, || Ok(SinkHandle::File(File::at(path(name)?)))))
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_objects(uri: *const c_char, sink: OutHandle<'_, SinkHandle>) -> c_int {
    run_call(|| create(sink, || objects(text(uri)?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_sink_free(sink: Option<Box<SinkHandle>>) {
    run_call(|| {
        drop(sink);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_keep(sink: Option<&SinkHandle>, saves: c_uint) -> c_int {
    run_call(|| {
        non_null(sink)?.keep(saves as usize)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_checkpoint_restore(
    sink: Option<&SinkHandle>,
    lazily: bool,
    regions: *mut MaybeUninit<Option<Box<MemoryHandle>>>,
    count: usize,
    value: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    run_call(|| {
        let places = places(regions, count)?;
        let last = non_null(sink)?.last()?;
        let saved = last.sizes().len();
        if saved != count {
            return Err(CallError::Refused(format!(
                "cannot restore {count} regions: the save contains {saved}; pass an array of {saved} and that count"
            )));
        }
        let number = last.value();
        for (place, memory) in places.into_iter().zip(restored(last, lazily)?) {
            *place = Some(Box::new(memory));
        }
        value.map(|value| value.write(number));
        Ok(())
    })
}
