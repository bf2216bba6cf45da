//! A model of the kernel's address space, for tests of placement.
//!
//! While a thread has a model installed, its system calls that map, unmap and move memory act on
//! the pages of the model. The seam is [`crate::raw::syscall`]; the shipped agent has none. Each
//! page stores the number of its mapping, since mremap(2) moves one mapping at a time, and a value:
//! zero if fresh, then what its owner wrote. A page that is replaced or unmapped loses its value.

use std::cell::RefCell;
use std::vec::Vec;

use crate::raw::RawResult;
use crate::table::PAGE;

#[cfg(test)]
mod tests;

/// Where the kernel maps without a given address: outside the region.
const OUTSIDE_REGION: usize = 1 << 44;

std::thread_local! {
    static INSTALLED: RefCell<Option<AddressSpace>> = const { RefCell::new(None) };
}

/// A mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedPage {
    mapping: u32,
    pub(crate) value: u32,
}

/// The first pages of an address space that starts at the base of the region, zero. There is no
/// memory above them.
pub(crate) struct AddressSpace {
    pages: Vec<Option<MappedPage>>,
    mappings: u32,
    /// Makes munmap(2) fail, as for a program at the limit of mappings.
    pub(crate) refuses_unmaps: bool,
}

/// Runs `act` on the model of this thread.
pub(crate) fn with<T>(act: impl FnOnce(&mut AddressSpace) -> T) -> T {
    INSTALLED.with_borrow_mut(|space| act(space.as_mut().unwrap()))
}

/// Installs an empty model of `pages` pages on this thread.
pub(crate) fn install(pages: usize) {
    INSTALLED.set(Some(AddressSpace { pages: std::vec![None; pages], mappings: 0, refuses_unmaps: false }));
}

/// The result of a system call in the model; `None` if the real kernel handles the call.
pub(crate) fn handle(number: libc::c_long, args: [usize; 6]) -> Option<RawResult> {
    let [address, bytes, third, flags, new, _] = args;
    INSTALLED.with_borrow_mut(|space| {
        let space = space.as_mut()?;
        let fixed = flags as i32 & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
        let result = match number {
            // The memory of the table is real.
            libc::SYS_mmap if address == 0 && fixed == 0 => return None,
            libc::SYS_mmap if fixed == 0 => Ok(OUTSIDE_REGION),
            libc::SYS_mmap => space.map(address / PAGE, bytes / PAGE, fixed == libc::MAP_FIXED_NOREPLACE),
            libc::SYS_munmap if address >= OUTSIDE_REGION => return None,
            libc::SYS_munmap if space.refuses_unmaps => Err(libc::ENOMEM),
            libc::SYS_munmap => space.unmap(address / PAGE, bytes / PAGE),
            libc::SYS_mremap => space.remap(address / PAGE, bytes / PAGE, third / PAGE, flags as i32, new / PAGE),
            libc::SYS_msync if space.is_mapped(address / PAGE, bytes / PAGE) => Ok(0),
            libc::SYS_msync => Err(libc::ENOMEM),
            libc::SYS_madvise if third as i32 == libc::MADV_DONTNEED => space.discard(address / PAGE, bytes / PAGE),
            libc::SYS_madvise | libc::SYS_mlock | libc::SYS_mprotect => Ok(0),
            _ => return None,
        };
        Some(result.map_or_else(|errno| -(errno as RawResult), usize::cast_signed))
    })
}

impl AddressSpace {
    pub(crate) fn page(&self, page: usize) -> Option<MappedPage> {
        self.pages.get(page).copied().flatten()
    }

    pub(crate) fn write(&mut self, page: usize, value: u32) {
        self.pages[page].as_mut().unwrap().value = value;
    }

    fn is_mapped(&self, first: usize, count: usize) -> bool {
        (first..first + count).all(|page| self.page(page).is_some())
    }

    pub(crate) fn is_free(&self, first: usize, count: usize) -> bool {
        first + count <= self.pages.len() && (first..first + count).all(|page| self.page(page).is_none())
    }

    /// mmap(2) with `MAP_FIXED` or `MAP_FIXED_NOREPLACE`.
    pub(crate) fn map(&mut self, first: usize, count: usize, is_noreplace: bool) -> Result<usize, i32> {
        if first + count > self.pages.len() {
            return Err(libc::ENOMEM);
        }
        if is_noreplace && !self.is_free(first, count) {
            return Err(libc::EEXIST);
        }
        self.mappings += 1;
        self.pages[first..first + count].fill(Some(MappedPage { mapping: self.mappings, value: 0 }));
        Ok(first * PAGE)
    }

    /// munmap(2).
    pub(crate) fn unmap(&mut self, first: usize, count: usize) -> Result<usize, i32> {
        let end = (first + count).min(self.pages.len());
        self.pages[first.min(end)..end].fill(None);
        Ok(0)
    }

    /// madvise(2) with `MADV_DONTNEED`.
    fn discard(&mut self, first: usize, count: usize) -> Result<usize, i32> {
        self.pages[first..first + count].iter_mut().flatten().for_each(|page| page.value = 0);
        Ok(0)
    }

    /// mremap(2).
    fn remap(&mut self, old: usize, count: usize, new: usize, flags: i32, target: usize) -> Result<usize, i32> {
        let first = self.page(old).ok_or(libc::EFAULT)?;
        let is_same = |page| self.page(page).is_some_and(|page| page.mapping == first.mapping);
        if !(old..old + count).all(is_same) {
            return Err(libc::EFAULT);
        }
        if flags & libc::MREMAP_FIXED != 0 {
            return self.remap_to(old, count, new, flags, target);
        }
        if flags & libc::MREMAP_DONTUNMAP != 0 {
            return self.map(old, count, false).map(|_| OUTSIDE_REGION);
        }
        if new <= count {
            return self.unmap(old + new, count - new).map(|_| old * PAGE);
        }
        if self.is_free(old + count, new - count) {
            self.pages[old + count..old + new].fill(Some(MappedPage { value: 0, ..first }));
            return Ok(old * PAGE);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(libc::ENOMEM);
        }
        self.unmap(old, count).map(|_| OUTSIDE_REGION)
    }

    /// With `MREMAP_FIXED`: replaces the mappings at the target.
    fn remap_to(&mut self, old: usize, count: usize, new: usize, flags: i32, target: usize) -> Result<usize, i32> {
        let moved = self.pages[old..old + count].to_vec();
        self.map(target, new, false)?;
        self.pages[target..target + count.min(new)].copy_from_slice(&moved[..count.min(new)]);
        self.unmap(old, count)?;
        if flags & libc::MREMAP_DONTUNMAP != 0 {
            self.map(old, count, true)?;
        }
        Ok(target * PAGE)
    }
}
