//! `fs_store`: `include/fieldstone/store.h`.
//!
//! ```text
//! fs_store         Store
//! fs_store_read    Arc<Snapshot>       a cursor keeps it, too
//! fs_store_write   Transaction
//! ```

#![allow(unsafe_code, reason = "exports symbols; reads strings and bytes of C; lends bytes to C")]

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use fieldstone_store::{Range, Snapshot, Store, Table, Transaction};

use crate::result::{CallError, CallResult, OutHandle, create, non_null, run_call};

/// `fs_bytes`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Bytes {
    start: *const u8,
    bytes: usize,
}

impl Bytes {
    fn lent(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr(), bytes: bytes.len() }
    }

    /// # Errors
    /// For a null pointer with a length.
    const fn slice<'a>(self) -> Result<&'a [u8], CallError> {
        match (self.start.is_null(), self.bytes) {
            (_, 0) => Ok(&[]),
            (true, _) => Err(CallError::Argument("the start of the bytes is null")),
            // SAFETY: the header requires that the caller has this many bytes there, during the call.
            (false, bytes) => Ok(unsafe { std::slice::from_raw_parts(self.start, bytes) }),
        }
    }
}

/// `fs_store_options`: zero is the default.
#[repr(C)]
#[derive(Debug, Default)]
struct Options {
    log_bytes: u64,
    memory_bytes: u64,
}

/// A table of bytes.
type BytesTable = Table<[u8], [u8]>;

/// The table of a name. Each name is kept until the process ends.
fn table(name: *const c_char) -> Result<BytesTable, CallError> {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let name = text(name)?.to_str().map_err(|_| CallError::Argument("the name of the table is not UTF-8"))?;
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = names.get(name).copied().unwrap_or_else(|| Box::leak(name.to_owned().into_boxed_str()));
    names.insert(kept);
    Ok(Table::new(kept))
}

fn text<'a>(text: *const c_char) -> Result<&'a CStr, CallError> {
    if text.is_null() {
        return Err(CallError::Argument("the path or name is null"));
    }
    // SAFETY: the header requires a string that ends with a zero byte, during the call.
    Ok(unsafe { CStr::from_ptr(text) })
}

fn path<'a>(path: *const c_char) -> Result<&'a Path, CallError> {
    Ok(Path::new(OsStr::from_bytes(text(path)?.to_bytes())))
}

/// A snapshot.
struct Read(Arc<Snapshot>);

/// Goes through a table of a snapshot.
struct Cursor {
    /// Lent from `snapshot`; dropped before it.
    entries: Range<'static, Snapshot, [u8], [u8]>,
    /// The key that is lent until the next call.
    key: Vec<u8>,
    table: BytesTable,
    snapshot: Arc<Snapshot>,
}

impl Cursor {
    /// Before the first entry whose key is at least `key`.
    fn at(snapshot: &Arc<Snapshot>, table: BytesTable, key: &[u8]) -> Result<Self, CallError> {
        // SAFETY: the cursor keeps the snapshot, which does not move, for as long as the reference is used.
        let lent: &'static Snapshot = unsafe { &*Arc::as_ptr(snapshot) };
        let entries = lent.table(table)?.range::<&[u8]>((Bound::Included(key), Bound::Unbounded))?;
        Ok(Self { entries, key: Vec::new(), table, snapshot: Arc::clone(snapshot) })
    }
}

/// The referent of a handle that is changed; an error for null.
fn non_null_mut<T>(handle: Option<&mut T>) -> Result<&mut T, CallError> {
    handle.ok_or(CallError::Argument("the handle is null: check the result of the call that creates it"))
}

/// Lends bytes to C.
fn lend(place: Option<&mut MaybeUninit<Bytes>>, bytes: &[u8]) -> CallResult {
    place.ok_or(CallError::Argument("the place for the bytes is null"))?.write(Bytes::lent(bytes));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_open(name: *const c_char, options: Option<&Options>, store: OutHandle<'_, Store>) -> c_int {
    run_call(|| {
        create(store, || {
            let mut builder = Store::builder(path(name)?);
            let chosen = |bytes: u64| (bytes > 0).then(|| usize::try_from(bytes).unwrap_or(usize::MAX));
            if let Some(bytes) = options.and_then(|options| chosen(options.log_bytes)) {
                builder = builder.log_bytes(bytes);
            }
            if let Some(bytes) = options.and_then(|options| chosen(options.memory_bytes)) {
                builder = builder.memory_bytes(bytes);
            }
            Ok(builder.open()?)
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_read_open(store: Option<&Store>, read: OutHandle<'_, Read>) -> c_int {
    run_call(|| create(read, || Ok(Read(Arc::new(non_null(store)?.read()?)))))
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_get(
    read: Option<&Read>,
    name: *const c_char,
    key: Bytes,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    run_call(|| {
        let found = non_null(read)?.0.table(table(name)?)?.get(key.slice()?)?;
        lend(value, found.ok_or(CallError::NoEntry)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_cursor_open(read: Option<&Read>, name: *const c_char, cursor: OutHandle<'_, Cursor>) -> c_int {
    run_call(|| create(cursor, || Cursor::at(&non_null(read)?.0, table(name)?, &[])))
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_cursor_seek(cursor: Option<&mut Cursor>, key: Bytes) -> c_int {
    run_call(|| {
        let cursor = non_null_mut(cursor)?;
        *cursor = Cursor::at(&cursor.snapshot, cursor.table, key.slice()?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_cursor_next(
    cursor: Option<&mut Cursor>,
    key: Option<&mut MaybeUninit<Bytes>>,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    run_call(|| {
        let cursor = non_null_mut(cursor)?;
        let (found, bytes) = cursor.entries.next().ok_or(CallError::NoEntry)??;
        cursor.key = found;
        lend(key, &cursor.key)?;
        lend(value, bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_write_open(store: Option<&Store>, write: OutHandle<'_, Transaction>) -> c_int {
    run_call(|| create(write, || Ok(non_null(store)?.begin()?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_put(write: Option<&mut Transaction>, name: *const c_char, key: Bytes, value: Bytes) -> c_int {
    run_call(|| {
        non_null_mut(write)?.table(table(name)?)?.insert(key.slice()?, value.slice()?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_remove(write: Option<&mut Transaction>, name: *const c_char, key: Bytes) -> c_int {
    run_call(|| {
        let was = non_null_mut(write)?.table(table(name)?)?.remove(key.slice()?)?;
        if was { Ok(()) } else { Err(CallError::NoEntry) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_remove_range(
    write: Option<&mut Transaction>,
    name: *const c_char,
    from: Bytes,
    to: Bytes,
) -> c_int {
    run_call(|| {
        let to = if to.start.is_null() { Bound::Unbounded } else { Bound::Excluded(to.slice()?) };
        let range = (Bound::Included(from.slice()?), to);
        non_null_mut(write)?.table(table(name)?)?.remove_range::<&[u8]>(range)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_commit(write: Option<&mut Option<Box<Transaction>>>) -> c_int {
    run_call(|| {
        let write = write.and_then(Option::take);
        Ok(write.ok_or(CallError::Argument("the handle is null: check the result of fs_store_write_open"))?.commit()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_backup(store: Option<&Store>, name: *const c_char) -> c_int {
    run_call(|| Ok(non_null(store)?.backup(path(name)?)?))
}

/// Frees a handle.
fn free<T>(handle: Option<Box<T>>) {
    run_call(|| {
        drop(handle);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_write_free(write: Option<Box<Transaction>>) {
    free(write);
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_read_free(read: Option<Box<Read>>) {
    free(read);
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_cursor_free(cursor: Option<Box<Cursor>>) {
    free(cursor);
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_free(store: Option<Box<Store>>) {
    free(store);
}
