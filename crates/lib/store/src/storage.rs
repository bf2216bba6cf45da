//! The file of a store: reads, writes that are durable when they return, and syncs.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZero;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::{Errno, ReadWriteFlags, pwritev, pwritev2};

use crate::extent::Extent;
use crate::page::{Page, is_sealed, offset_of, u32_at};

/// The calls that a store makes on its file. Tests replace it by one that fails, tears and forgets.
pub(crate) trait Storage: Send + Sync + std::fmt::Debug {
    /// Bytes of the file.
    fn bytes(&self) -> io::Result<u64>;

    /// The permissions of the file.
    fn mode(&self) -> io::Result<u32> {
        Ok(0o600)
    }

    /// Makes the file at least so large, with room on the disk.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Makes the file smaller, if it is larger.
    fn cut(&self, bytes: u64) -> io::Result<()>;

    /// Reads exactly these bytes.
    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Announces that these bytes will be read soon.
    fn will_read(&self, _bytes: u64, _offset: u64) {}

    /// Writes; a crash may lose it, or parts of it, until the next sync.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes at most 1024 parts (`IOV_MAX`), which become adjacent, as [`Storage::write`] does.
    fn write_parts(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut offset = offset;
        parts.iter().try_for_each(|part| {
            self.write(part, offset)?;
            offset += part.len() as u64;
            Ok(())
        })
    }

    /// Writes, and returns when it is durable. Earlier writes need not be.
    fn write_durably(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all writes durable.
    fn sync(&self) -> io::Result<()>;
}

/// Why a page could not be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// A call failed.
    Io(io::Error),
    /// It is not the page that was written there.
    Wrong(&'static str),
}

/// Reads a page of the file of a store, and compares its number and its check.
pub(crate) fn read_page(storage: &dyn Storage, number: u32, store: u64, page: &mut Page) -> Result<(), Unreadable> {
    storage.read(page, offset_of(number)).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Unreadable::Wrong("the file ends before it"),
        _ => Unreadable::Io(error),
    })?;
    if is_sealed(page, number, store) {
        return Ok(());
    }
    Err(Unreadable::Wrong(match u32_at(page, 8) {
        _ if page.iter().all(|&byte| byte == 0) => "it contains zeros only",
        other if other != number && is_sealed(page, other, store) => "it contains another page of this store",
        _ => "its check is wrong",
    }))
}

/// Reads a large value of the file of a store into a buffer of its size, and compares its check.
pub(crate) fn read_extent(storage: &dyn Storage, extent: Extent, contents: &mut [u8]) -> Result<(), Unreadable> {
    storage.read(contents, extent.offset()).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Unreadable::Wrong("the file ends in the large value that begins here"),
        _ => Unreadable::Io(error),
    })?;
    if extent.has(contents) {
        return Ok(());
    }
    Err(Unreadable::Wrong("the check of the large value that begins here is wrong"))
}

/// Writes all bytes by `write`, which writes some of these bytes at this offset.
fn write_all(bytes: &[u8], offset: u64, mut write: impl FnMut(&[u8], u64) -> Result<usize, Errno>) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match write(&bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// A file.
#[derive(Debug)]
pub(crate) struct DiskFile {
    file: File,
    /// The same file without the page cache, if the file system can do that.
    direct: Option<File>,
}

impl DiskFile {
    pub(crate) fn new(file: File) -> Self {
        // Without the permission or the support, the page cache does.
        let direct = open_direct(&file).ok();
        Self { file, direct }
    }

    /// A file that is only read.
    pub(crate) const fn to_read(file: File) -> Self {
        Self { file, direct: None }
    }

    /// Makes the file at least so large by `allocate`, which is called with its size and with the bytes to
    /// add. After an error the file has its size from before: only the caller makes it larger.
    fn reserve_by(&self, bytes: u64, allocate: impl FnOnce(u64, u64) -> Result<(), Errno>) -> io::Result<()> {
        let now = self.bytes()?;
        if bytes <= now {
            return Ok(());
        }
        match allocate(now, bytes - now) {
            Ok(()) => Ok(()),
            // Where room cannot be reserved, a full disk is an error of a later write.
            Err(Errno::OPNOTSUPP) => self.file.set_len(bytes),
            Err(errno) => {
                // Some file systems have added a part of the room. The first error is the one to report.
                let _ = self.cut(now);
                Err(errno.into())
            }
        }
    }
}

/// Opens a file that is open already without the page cache. Its path may lead to another file by now, so
/// the path is not used.
///
/// # Errors
/// Without `/proc`, and if the file system cannot do that.
fn open_direct(file: &File) -> io::Result<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().write(true).custom_flags(flags).open(path)
}

impl Storage for DiskFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn mode(&self) -> io::Result<u32> {
        Ok(self.file.metadata()?.mode() & 0o777)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.reserve_by(bytes, |now, more| fallocate(&self.file, FallocateFlags::empty(), now, more))
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        if self.bytes()? > bytes { self.file.set_len(bytes) } else { Ok(()) }
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn will_read(&self, bytes: u64, offset: u64) {
        // Without the advice, the read waits longer.
        let _ = fadvise(&self.file, offset, NonZero::new(bytes), Advice::WillNeed);
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn write_parts(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let (mut slices, mut offset): (Vec<_>, _) = (parts.iter().map(|part| IoSlice::new(part)).collect(), offset);
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match pwritev(&self.file, rest, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn write_durably(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut file = self.direct.as_ref().unwrap_or(&self.file);
        write_all(bytes, offset, |rest, offset| {
            let write = |file| pwritev2(file, &[IoSlice::new(rest)], offset, ReadWriteFlags::DSYNC);
            match write(file) {
                // The buffer or the offset is not aligned as this disk needs it.
                Err(Errno::INVAL) if !std::ptr::eq(file, &raw const self.file) => {
                    file = &self.file;
                    write(file)
                }
                written => written,
            }
        })
    }

    /// A sync that a signal has interrupted is called again, by the standard library.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_writes_go_to_the_open_file_wherever_its_path_leads() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second, path] = ["first", "second", "link"].map(|name| folder.path().join(name));
        [&first, &second].iter().for_each(|path| std::fs::write(path, [0; 8192]).unwrap());
        std::os::unix::fs::symlink(&first, &path).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&second, &path).unwrap();
        let storage = DiskFile::new(file);
        let mut bytes = crate::aligned::AlignedBuffer::with_capacity(4096);
        bytes.resize(4096);
        bytes.fill(7);
        storage.write_durably(&bytes, 4096).unwrap();
        assert_eq!(std::fs::read(&first).unwrap()[4096..], [7; 4096]);
        assert_eq!(std::fs::read(&second).unwrap(), [0; 8192]);
    }

    #[test]
    fn a_failed_reservation_leaves_the_size_of_the_file() {
        let storage = DiskFile::new(tempfile::tempfile().unwrap());
        storage.reserve(5000).unwrap();
        let failed = storage.reserve_by(100_000, |now, more| {
            storage.file.set_len(now + more / 2).map_err(|_| Errno::IO)?;
            Err(Errno::NOSPC)
        });
        assert_eq!((failed.unwrap_err().kind(), storage.bytes().unwrap()), (io::ErrorKind::StorageFull, 5000));
        storage.reserve_by(9000, |_, _| Err(Errno::OPNOTSUPP)).unwrap();
        assert_eq!(storage.bytes().unwrap(), 9000);
    }

    #[test]
    fn short_and_interrupted_writes_go_on_where_they_ended() {
        let bytes: Vec<u8> = (0..=255).cycle().take(2000).collect();
        let (mut written, mut calls) = (vec![0; 5000], 0);
        let result = write_all(&bytes, 700, |rest, offset| {
            calls += 1;
            if calls % 3 == 0 {
                return Err(Errno::INTR);
            }
            let some = rest.len().min(37 * calls);
            written[offset as usize..][..some].copy_from_slice(&rest[..some]);
            Ok(some)
        });
        assert!(result.is_ok() && written[700..2700] == bytes && calls > 5);
        assert!(written[..700].iter().chain(&written[2700..]).all(|&byte| byte == 0));
        let error = |result: Result<usize, Errno>| write_all(&bytes, 0, |_, _| result).unwrap_err();
        assert_eq!(error(Err(Errno::NOSPC)).kind(), io::ErrorKind::StorageFull);
        assert_eq!(error(Ok(0)).kind(), io::ErrorKind::WriteZero);
    }
}
