//! `fs_memory` and `fs_alias`.

#![allow(unsafe_code, reason = "exports symbols; borrows descriptors")]

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::ptr::null_mut;

use fieldstone_pages::{Alias, Memory};

use crate::answer::{Place, Refusal, answer, given, make};
use crate::choices;

/// A range as C gives it. What overflows is beyond every memory, and refused as such.
pub(crate) fn range(offset: usize, bytes: usize) -> Range<usize> {
    offset..offset.saturating_add(bytes)
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_anonymous(bytes: usize, memory: Place<'_, Memory>) -> c_int {
    answer(|| make(memory, || Ok(Memory::anonymous(bytes)?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_shared(bytes: usize, memory: Place<'_, Memory>) -> c_int {
    answer(|| make(memory, || Ok(Memory::shared(bytes)?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_hugetlb(bytes: usize, memory: Place<'_, Memory>) -> c_int {
    answer(|| make(memory, || Ok(Memory::hugetlb(bytes)?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_file(fd: c_int, offset: u64, bytes: usize, memory: Place<'_, Memory>) -> c_int {
    answer(|| make(memory, || Ok(Memory::file(&*borrowed(fd)?, offset, bytes)?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_file_private(fd: c_int, offset: u64, bytes: usize, memory: Place<'_, Memory>) -> c_int {
    answer(|| make(memory, || Ok(Memory::file_private(&*borrowed(fd)?, offset, bytes)?)))
}

/// A descriptor of the caller's, which is not closed.
fn borrowed(fd: c_int) -> Result<ManuallyDrop<File>, Refusal> {
    if fd < 0 {
        return Err(Refusal::Argument("the descriptor is negative: look at what open(2) said"));
    }
    // SAFETY: it is used for calls that fail on a descriptor that is not open, and never closed here.
    Ok(ManuallyDrop::new(unsafe { File::from_raw_fd(fd) }))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_free(memory: Option<Box<Memory>>) {
    answer(|| {
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
    answer(|| {
        given(memory)?.advise_huge();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_populate(memory: Option<&Memory>) -> c_int {
    answer(|| Ok(given(memory)?.populate()?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_guard(
    memory: Option<&Memory>,
    offset: usize,
    bytes: usize,
    how: Option<&mut MaybeUninit<c_uint>>,
) -> c_int {
    answer(|| {
        let mechanism = given(memory)?.guard(range(offset, bytes))?;
        how.map(|how| how.write(choices::number_of_guard(mechanism)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_guard_with(memory: Option<&Memory>, offset: usize, bytes: usize, how: c_uint) -> c_int {
    answer(|| Ok(given(memory)?.guard_with(range(offset, bytes), choices::guard(how)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_unguard(memory: Option<&Memory>, offset: usize, bytes: usize) -> c_int {
    answer(|| Ok(given(memory)?.unguard(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_memory_alias(memory: Option<&Memory>, alias: Place<'_, Alias>) -> c_int {
    answer(|| make(alias, || Ok(given(memory)?.alias()?)))
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
