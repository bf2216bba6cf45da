//! Writes that the kernel does not record, and pages that programs discard.

use std::fs::File as Bytes;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_checkpoint::{Checkpointer, Directory, Error};
use fieldstone_pages::Memory;
use io_uring::{IoUring, opcode, types};

use crate::fixture::{MIB, PAGE, WORDS, contents, filled};

/// Reads a page of nines into a page of the memory, through a buffer that is registered with io_uring.
fn read_fixed(ring: &mut IoUring, memory: &Memory, page: usize) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[9; PAGE]).unwrap();
    let at = memory.as_ptr().wrapping_add(page * PAGE);
    let entry = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), at, PAGE as u32, 0).build();
    // SAFETY: the buffer is registered, and the file stays open until the request has ended.
    unsafe { ring.submission().push(&entry).unwrap() };
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().unwrap().result(), PAGE as i32);
}

/// A ring with the first 16 pages of a memory registered as a buffer.
fn ring(memory: &Memory) -> Option<IoUring> {
    let ring = match IoUring::new(4) {
        Ok(ring) => ring,
        Err(error) => {
            println!("SKIP no io_uring: {error}");
            return None;
        }
    };
    let buffer = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: 16 * PAGE };
    // SAFETY: the memory outlives the ring in these tests.
    unsafe { ring.submitter().register_buffers(&[buffer]).unwrap() };
    Some(ring)
}

/// One test, since pinned memory counts for the whole process; in a process of its own.
#[test]
fn pages_that_a_device_writes_are_refused_or_compared() {
    if !crate::fixture::is_alone("unrecorded::pages_that_a_device_writes_are_refused_or_compared") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut compares = Checkpointer::builder([&memory]).compare_pages(true).build().unwrap();
    let Some(mut ring) = ring(&memory) else { return };
    for page in [1, 2, 15] {
        compares.save(&saves, || ((), 0)).unwrap();
        memory.words()[100 * WORDS].fetch_add(1, Relaxed);
        read_fixed(&mut ring, &memory, page);
        let report = compares.save(&saves, || ((), 0)).unwrap();
        assert!(report.is_increment && report.missed_pages == 1 && report.to_string().contains("missed"), "{report}");
        assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory), "page {page}");
    }
    let report = compares.save(&saves, || ((), 0)).unwrap();
    assert_eq!((report.missed_pages, report.pages), (0, 0), "{report}");
    drop(compares);

    let mut plain = Checkpointer::builder([&memory]).build().unwrap();
    let refused = plain.save(&saves, || ((), 0)).unwrap_err();
    assert!(matches!(refused, Error::Pinned) && refused.to_string().contains("pinned_elsewhere"), "{refused}");
    drop(plain);
    let mut trusting = Checkpointer::builder([&memory]).pinned_elsewhere(true).build().unwrap();
    trusting.save(&saves, || ((), 0)).unwrap();
    read_fixed(&mut ring, &memory, 4);
    assert_eq!(trusting.save(&saves, || ((), 0)).unwrap().pages, 0, "the kernel records such writes now");
    drop(trusting);
    ring.submitter().unregister_buffers().unwrap();
    drop(ring);
    let mut plain = Checkpointer::builder([&memory]).build().unwrap();
    plain.save(&saves, || ((), 0)).unwrap();
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}

#[test]
fn discarded_pages_are_saved_as_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(4 * MIB);
    let mut saver = Checkpointer::builder([&memory]).build().unwrap();
    for (round, advice) in [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_DONTNEED].into_iter().enumerate() {
        saver.save(&saves, || ((), 0)).unwrap();
        let at = memory.as_ptr().wrapping_add((round * 100 + 10) * PAGE);
        // SAFETY: the pages are those of the memory, which nothing else uses.
        assert_eq!(unsafe { libc::madvise(at.cast(), 20 * PAGE, advice) }, 0);
        memory.words()[0].fetch_add(1, Relaxed);
        let report = saver.save(&saves, || ((), 0)).unwrap();
        assert!(report.is_increment, "{report}");
        assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory), "round {round}");
    }
    // What is written there later is recorded.
    memory.words()[10 * WORDS].store(5, Relaxed);
    saver.save(&saves, || ((), 0)).unwrap();
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}

#[test]
fn system_calls_and_debuggers_that_write_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut saver = Checkpointer::builder([&memory]).build().unwrap();
    saver.save(&saves, || ((), 0)).unwrap();
    let own = Bytes::options().write(true).open("/proc/self/mem").unwrap();
    std::os::unix::fs::FileExt::write_all_at(&own, &[3; 100], (memory.start() + 7 * PAGE) as u64).unwrap();
    assert_eq!(saver.save(&saves, || ((), 0)).unwrap().pages, 1);
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}
