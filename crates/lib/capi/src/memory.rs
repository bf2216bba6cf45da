//! `fs_memory` and `fs_alias`.

#![allow(unsafe_code, reason = "exports symbols; borrows descriptors")]

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::ptr::null_mut;

use fieldstone_pages::{Alias, Filling, Memory};

use crate::enums;
use crate::result::{CallError, OutHandle, create, non_null, run_call};

/// What a pointer to a non-const `fs_memory` refers to.
///
/// A pointer to it is also one to its memory: functions that only use the memory accept both this and the
/// memory inside another handle (`fs_x_memory`).
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MemoryHandle {
    memory: Memory,
    /// For memory that is restored lazily: its other owner, which reads missing pages.
    _filling: Option<Filling>,
}

impl MemoryHandle {
    pub(crate) const fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl From<Memory> for MemoryHandle {
    fn from(memory: Memory) -> Self {
        Self { memory, _filling: None }
    }
}

impl From<Filling> for MemoryHandle {
    fn from(filling: Filling) -> Self {
        Self { memory: filling.memory().share(), _filling: Some(filling) }
    }
}

/// A range passed by C. One that overflows is beyond every memory, and refused as such.
pub(crate) fn range(offset: usize, bytes: usize) -> Range<usize> {
    offset..offset.saturating_add(bytes)
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_anonymous(bytes: usize, memory: OutHandle<'_, MemoryHandle>) -> c_int {
    run_call(|| create(memory, || Ok(Memory::anonymous(bytes)?.into())))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_shared(bytes: usize, memory: OutHandle<'_, MemoryHandle>) -> c_int {
    run_call(|| create(memory, || Ok(Memory::shared(bytes)?.into())))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_hugetlb(bytes: usize, memory: OutHandle<'_, MemoryHandle>) -> c_int {
    run_call(|| create(memory, || Ok(Memory::hugetlb(bytes)?.into())))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_file(fd: c_int, offset: u64, bytes: usize, memory: OutHandle<'_, MemoryHandle>) -> c_int {
    run_call(|| create(memory, || Ok(Memory::file(&*borrowed(fd)?, offset, bytes)?.into())))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_file_private(
    fd: c_int,
    offset: u64,
    bytes: usize,
    memory: OutHandle<'_, MemoryHandle>,
) -> c_int {
    run_call(|| create(memory, || Ok(Memory::file_private(&*borrowed(fd)?, offset, bytes)?.into())))
}

/// The caller's descriptor, which is not closed.
fn borrowed(fd: c_int) -> Result<ManuallyDrop<File>, CallError> {
    if fd < 0 {
        return Err(CallError::Argument("the descriptor is negative: check the result of open(2)"));
    }
    // SAFETY: the file is used only for calls that fail on a closed descriptor, and never dropped
    // here.
    Ok(ManuallyDrop::new(unsafe { File::from_raw_fd(fd) }))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_free(memory: Option<Box<MemoryHandle>>) {
    run_call(|| {
        drop(memory);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_start(memory: Option<&Memory>) -> *mut c_void {
    memory.map_or(null_mut(), |memory| memory.as_ptr().cast())
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_bytes(memory: Option<&Memory>) -> usize {
    memory.map_or(0, Memory::bytes)
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_page_bytes(memory: Option<&Memory>) -> usize {
    memory.map_or(0, Memory::page_bytes)
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_advise_huge(memory: Option<&Memory>) -> c_int {
    run_call(|| {
        non_null(memory)?.advise_huge();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_populate(memory: Option<&Memory>) -> c_int {
    run_call(|| Ok(non_null(memory)?.populate()?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_guard(
    memory: Option<&Memory>,
    offset: usize,
    bytes: usize,
    how: Option<&mut MaybeUninit<c_uint>>,
) -> c_int {
    run_call(|| {
        let mechanism = non_null(memory)?.guard(range(offset, bytes))?;
        how.map(|how| how.write(enums::number_of_guard(mechanism)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_guard_with(memory: Option<&Memory>, offset: usize, bytes: usize, how: c_uint) -> c_int {
    run_call(|| Ok(non_null(memory)?.guard_with(range(offset, bytes), enums::guard(how)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_unguard(memory: Option<&Memory>, offset: usize, bytes: usize) -> c_int {
    run_call(|| Ok(non_null(memory)?.unguard(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_alias(memory: Option<&Memory>, alias: OutHandle<'_, Alias>) -> c_int {
    run_call(|| create(alias, || Ok(non_null(memory)?.alias()?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_alias_free(alias: Option<Box<Alias>>) {
    drop(alias);
}

#[unsafe(no_mangle)]
extern "C" fn fs_alias_start(alias: Option<&Alias>) -> *mut c_void {
    alias.map_or(null_mut(), |alias| alias.as_ptr().cast())
}

#[unsafe(no_mangle)]
extern "C" fn fs_alias_bytes(alias: Option<&Alias>) -> usize {
    alias.map_or(0, Alias::bytes)
}
