//! `/proc/PID/smaps`: a process's mappings, their resident bytes, and the page sizes that map them.
//!
//! The file is streamed line by line, because a process may have 100,000 mappings. Unknown lines
//! are skipped, because kernels add new ones. Source: proc_pid_smaps(5). Limits:
//! - `Rss` excludes hugetlb pages; `Private_Hugetlb` and `Shared_Hugetlb` count them.
//! - `AnonHugePages` counts bytes that 2 MiB entries *map*. It excludes huge folios mapped by small
//!   entries and all smaller folios: [`crate::pagemap`] reports those.
//! - `KernelPageSize` is the base page size for transparent huge pages, and the real size for
//!   hugetlb.
//! - A process that has ended but is not reaped has an empty file. That returns
//!   [`Error::NoSuchProcess`], as for a reaped one.
//! - It is no snapshot: the process can map and unmap memory during the read.

mod parse;

use std::fs::File;
use std::io::{self, BufReader};
use std::ops::Range;
use std::path::PathBuf;

pub use parse::parse;

use crate::{Error, Result, kernel_file};

/// The permissions of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "four independent bits, as the kernel shows them")]
pub struct Permissions {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Shared (`s`), not private (`p`).
    pub shared: bool,
}

impl std::fmt::Display for Permissions {
    /// In the kernel's format: `rw-p`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter = |set, letter| if set { letter } else { '-' };
        let kind = if self.shared { 's' } else { 'p' };
        write!(f, "{}{}{}{kind}", letter(self.read, 'r'), letter(self.write, 'w'), letter(self.execute, 'x'))
    }
}

/// One mapping and its resident bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address past the end.
    pub end: u64,
    /// Its permissions.
    pub permissions: Permissions,
    /// Offset of its start in the file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// The file's inode; 0 without a file.
    pub inode: u64,
    /// The file's path, or a name such as `[heap]` or `[anon:arena]`; empty for plain anonymous
    /// memory.
    pub name: String,
    /// Resident bytes, without hugetlb pages.
    pub resident_bytes: u64,
    /// Of them, anonymous.
    pub anonymous_bytes: u64,
    /// Bytes swapped out.
    pub swap_bytes: u64,
    /// Anonymous bytes mapped by transparent huge page entries.
    pub anon_huge_bytes: u64,
    /// Bytes of hugetlb pages that only this process maps.
    pub hugetlb_private_bytes: u64,
    /// Bytes of hugetlb pages that other processes map too.
    pub hugetlb_shared_bytes: u64,
    /// Base page size, or a hugetlb mapping's page size.
    pub kernel_page_bytes: u64,
    /// Whether the kernel may use transparent huge pages here; `None` if the kernel does not report
    /// it.
    pub thp_eligible: Option<bool>,
    /// The kernel's two-letter flags: `hg` advised huge, `nh` advised not, `ht` hugetlb, `nr` no
    /// reserve, ...
    pub flags: Vec<[u8; 2]>,
}

impl Mapping {
    /// The address range.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Its size in bytes, resident or not.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Resident bytes, hugetlb pages included.
    #[must_use]
    pub const fn present_bytes(&self) -> u64 {
        self.resident_bytes + self.hugetlb_private_bytes + self.hugetlb_shared_bytes
    }

    /// Whether the kernel shows this two-letter flag, for instance `hg`.
    #[must_use]
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|have| have.as_slice() == flag.as_bytes())
    }

    /// Whether it is on pages of the hugetlb pool.
    #[must_use]
    pub fn is_hugetlb(&self) -> bool {
        self.has_flag("ht") || self.name.starts_with("/anon_hugepage")
    }

    /// Whether it is private memory without a file: the heap, and anonymous mmap memory, named or
    /// not, hugetlb or not. Stacks from the kernel, its own pages, and files are not.
    #[must_use]
    pub fn is_private_anonymous(&self) -> bool {
        let anonymous =
            self.inode == 0 && (self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:"));
        !self.permissions.shared && (anonymous || self.name.starts_with("/anon_hugepage"))
    }

    /// Whether a file backs it; a memfd is a file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        self.inode != 0
    }

    /// Whether it has these permissions, in the kernel's format: `rw-p`.
    #[must_use]
    pub fn has_permissions(&self, letters: &str) -> bool {
        parse::letters(letters) == Some(self.permissions)
    }

    /// Whether it is code of a file and not writable here, so that it does not change while it is
    /// mapped.
    #[must_use]
    pub fn is_lasting_code(&self) -> bool {
        self.has_permissions("r-xp") && self.is_file() && !self.name.starts_with("/memfd:")
    }

    /// Whether writes to this mapping change the file of `other`.
    #[must_use]
    pub fn writes_file_of(&self, other: &Self) -> bool {
        let is_shared = self.permissions.write && self.permissions.shared;
        is_shared && self.is_file() && (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether it is readable and writable, like most of a program's data.
    #[must_use]
    pub const fn is_read_write(&self) -> bool {
        self.permissions.read && self.permissions.write
    }
}

/// Reads all mappings of a process, lowest address first. Costs a walk of its page tables.
///
/// # Errors
/// [`Error::NoSuchProcess`] when it has ended (reaped or not) or is a kernel thread,
/// [`Error::ProcessDenied`] for another user's process.
pub fn read(pid: u32) -> Result<Vec<Mapping>> {
    let path = PathBuf::from(format!("/proc/{pid}/smaps"));
    let failed = |operation| move |source: io::Error| (operation, source);
    let to_error = |(operation, source)| Error::process_file(pid, operation, &path, source);
    let file = File::open(&path).map_err(failed("open")).map_err(to_error)?;
    let mappings = parse(BufReader::with_capacity(1 << 16, file)).map_err(failed("read")).map_err(to_error)?;
    if mappings.is_empty() { Err(Error::NoSuchProcess { pid }) } else { Ok(mappings) }
}

/// Reads all mappings of a process, lowest address first, from `/proc/PID/maps`: without a walk of
/// its page tables, so all sizes of pages are 0. Empty for a process that has ended.
///
/// # Errors
/// As open(2) and read(2) of that file.
pub fn read_addresses(pid: u32) -> io::Result<Vec<Mapping>> {
    parse(BufReader::new(File::open(format!("/proc/{pid}/maps"))?))
}

/// Sums over all mappings of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rollup {
    /// Resident bytes, without hugetlb pages.
    pub resident_bytes: u64,
    /// The same, each page divided by the number of processes that map it.
    pub proportional_bytes: u64,
    /// Resident anonymous bytes.
    pub anonymous_bytes: u64,
    /// Bytes swapped out.
    pub swap_bytes: u64,
    /// Bytes mapped by transparent huge page entries.
    pub anon_huge_bytes: u64,
    /// Bytes of hugetlb pages that only this process maps.
    pub hugetlb_private_bytes: u64,
    /// Bytes of hugetlb pages that other processes map too.
    pub hugetlb_shared_bytes: u64,
}

/// Reads the sums over all mappings: less text than [`read`], the same page table walk.
///
/// # Errors
/// As [`read`]; [`Error::NoSuchProcess`] also on kernels before 4.14, which lack the file.
pub fn read_rollup(pid: u32) -> Result<Rollup> {
    let path = PathBuf::from(format!("/proc/{pid}/smaps_rollup"));
    let text = std::fs::read_to_string(&path).map_err(|source| Error::process_file(pid, "read", &path, source))?;
    let bytes = |name| kernel_file::field_bytes(&text, name).unwrap_or(0);
    Ok(Rollup {
        resident_bytes: bytes("Rss"),
        proportional_bytes: bytes("Pss"),
        anonymous_bytes: bytes("Anonymous"),
        swap_bytes: bytes("Swap"),
        anon_huge_bytes: bytes("AnonHugePages"),
        hugetlb_private_bytes: bytes("Private_Hugetlb"),
        hugetlb_shared_bytes: bytes("Shared_Hugetlb"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_listed() {
        let on_heap = Box::new(17_u64);
        let on_stack = 17_u64;
        let mappings = read(std::process::id()).unwrap();
        let of = |address: u64| mappings.iter().find(|mapping| mapping.range().contains(&address)).unwrap();
        let heap = of(std::ptr::from_ref(&*on_heap).addr() as u64);
        assert!(heap.is_private_anonymous() && heap.is_read_write() && heap.resident_bytes > 0);
        let stack = of(std::ptr::from_ref(&on_stack).addr() as u64);
        assert!(stack.is_read_write() && !stack.permissions.shared);
        let code = of(read as *const () as u64);
        assert_eq!(code.name, std::env::current_exe().unwrap().to_str().unwrap());
        assert!(code.permissions.execute && code.inode != 0 && !code.is_private_anonymous());
        assert!(mappings.iter().any(|mapping| mapping.name == "[vdso]" && !mapping.is_private_anonymous()));
        assert!(
            mappings.iter().all(|mapping| mapping.start < mapping.end && mapping.resident_bytes <= mapping.bytes())
        );
    }

    #[test]
    fn code_that_does_not_change_and_its_writers_are_recognised() {
        let mapping = |line: &str| parse(line.as_bytes()).unwrap().remove(0);
        let code = mapping("7f0000000000-7f0000001000 r-xp 00002000 08:01 1234    /a file with spaces");
        assert!(code.is_lasting_code() && code.device == (8, 1));
        for line in [
            "7f0000000000-7f0000001000 rwxp 00002000 08:01 1234 /a/library that can be written",
            "7f0000000000-7f0000001000 r-xp 00000000 00:00 0",
            "7f0000000000-7f0000001000 r-xp 00000000 00:01 9 /memfd:code (deleted)",
        ] {
            assert!(!mapping(line).is_lasting_code(), "{line}");
        }
        for (line, writes) in [
            ("7f0000002000-7f0000003000 rw-s 00002000 08:01 1234 /a file with spaces", true),
            ("7f0000002000-7f0000003000 rw-p 00002000 08:01 1234 /a file with spaces", false),
            ("7f0000002000-7f0000003000 r--s 00002000 08:01 1234 /a file with spaces", false),
            ("7f0000002000-7f0000003000 rw-s 00002000 08:02 1234 /another", false),
        ] {
            assert_eq!(mapping(line).writes_file_of(&code), writes, "{line}");
        }
    }

    #[test]
    fn the_rollup_is_the_sum() {
        use crate::process::{State, stat};
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let settled = |stat: crate::process::Stat| stat.comm == "sleep" && stat.state == State::Sleeping;
        while !settled(stat(child.id()).unwrap()) {
            std::thread::yield_now();
        }
        let (rollup, mappings) = (read_rollup(child.id()).unwrap(), read(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        let sum = |of: fn(&Mapping) -> u64| mappings.iter().map(of).sum::<u64>();
        assert_eq!(rollup.resident_bytes, sum(|mapping| mapping.resident_bytes));
        assert_eq!(rollup.anonymous_bytes, sum(|mapping| mapping.anonymous_bytes));
        assert!(rollup.anonymous_bytes > 0 && rollup.proportional_bytes <= rollup.resident_bytes, "{rollup:?}");
    }

    #[test]
    fn a_zombie_and_a_missing_process_are_errors() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !crate::process::stat(child.id()).unwrap().state.has_ended() {
            std::thread::yield_now();
        }
        assert!(matches!(read(child.id()), Err(Error::NoSuchProcess { .. })), "not reaped");
        assert!(matches!(read_rollup(child.id()), Err(Error::NoSuchProcess { .. })), "not reaped");
        child.wait().unwrap();
        assert!(matches!(read(0x7fff_fff0), Err(Error::NoSuchProcess { pid: 0x7fff_fff0 })), "reaped");
    }
}
