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
    old_version_bytes: u64,
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

/// Goes through a table of a snapshot. Its place is beside a key: that of the last entry, or the one it was set to.
struct Cursor {
    /// From the place to the end of the table, or with `is_backward` to its start. Lent from `snapshot`; dropped
    /// before it.
    entries: Range<'static, Snapshot, [u8], [u8]>,
    is_backward: bool,
    /// The key beside the place. That of an entry is lent until the next call.
    key: Vec<u8>,
    /// Whether the place is behind the key.
    is_behind: bool,
    table: BytesTable,
    snapshot: Arc<Snapshot>,
}

impl Cursor {
    /// Before the first entry whose key is at least `key`.
    fn at(snapshot: &Arc<Snapshot>, table: BytesTable, key: &[u8]) -> Result<Self, CallError> {
        let entries = entries(snapshot, table, (Bound::Included(key), Bound::Unbounded))?;
        let (key, snapshot) = (key.to_vec(), Arc::clone(snapshot));
        Ok(Self { entries, is_backward: false, key, is_behind: false, table, snapshot })
    }

    /// Goes to the next entry, or backwards to the one before. Returns its value.
    fn step(&mut self, is_backward: bool) -> Result<&'static [u8], CallError> {
        if self.is_backward != is_backward {
            let key = self.key.as_slice();
            let range = match (is_backward, self.is_behind) {
                (false, false) => (Bound::Included(key), Bound::Unbounded),
                (false, true) => (Bound::Excluded(key), Bound::Unbounded),
                (true, false) => (Bound::Unbounded, Bound::Excluded(key)),
                (true, true) => (Bound::Unbounded, Bound::Included(key)),
            };
            self.entries = entries(&self.snapshot, self.table, range)?;
            self.is_backward = is_backward;
        }
        let entry = if is_backward { self.entries.next_back() } else { self.entries.next() };
        let (key, value) = entry.ok_or(CallError::NoEntry)??;
        (self.key, self.is_behind) = (key, !is_backward);
        Ok(value)
    }
}

/// The entries between two keys. The caller keeps the snapshot for as long as it uses them.
fn entries(
    snapshot: &Arc<Snapshot>,
    table: BytesTable,
    range: (Bound<&[u8]>, Bound<&[u8]>),
) -> Result<Range<'static, Snapshot, [u8], [u8]>, CallError> {
    // SAFETY: the cursor that gets the entries keeps the snapshot, which does not move.
    let lent: &'static Snapshot = unsafe { &*Arc::as_ptr(snapshot) };
    Ok(lent.table(table)?.range::<&[u8]>(range)?)
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
            if let Some(bytes) = options.and_then(|options| chosen(options.old_version_bytes)) {
                builder = builder.old_version_bytes(bytes);
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

/// Lends the entry to which a step of a cursor leads.
fn step(
    cursor: Option<&mut Cursor>,
    is_backward: bool,
    key: Option<&mut MaybeUninit<Bytes>>,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> CallResult {
    let cursor = non_null_mut(cursor)?;
    let (Some(key), Some(value)) = (key, value) else {
        return Err(CallError::Argument("the place for the key or the value is null"));
    };
    let bytes = cursor.step(is_backward)?;
    key.write(Bytes::lent(&cursor.key));
    value.write(Bytes::lent(bytes));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_cursor_next(
    cursor: Option<&mut Cursor>,
    key: Option<&mut MaybeUninit<Bytes>>,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    run_call(|| step(cursor, false, key, value))
}

#[unsafe(no_mangle)]
extern "C" fn fs_store_cursor_previous(
    cursor: Option<&mut Cursor>,
    key: Option<&mut MaybeUninit<Bytes>>,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    run_call(|| step(cursor, true, key, value))
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
extern "C" fn fs_store_write_get(
    write: Option<&mut Transaction>,
    name: *const c_char,
    key: Bytes,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    run_call(|| {
        let table = non_null_mut(write)?.table(table(name)?)?;
        lend(value, table.get(key.slice()?)?.ok_or(CallError::NoEntry)?)
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
        let is_open = to.start.is_null() && to.bytes == 0;
        let to = if is_open { Bound::Unbounded } else { Bound::Excluded(to.slice()?) };
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
