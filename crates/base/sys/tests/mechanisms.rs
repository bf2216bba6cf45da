//! Facts about the kernel that Fieldstone depends on: a kernel that differs fails here first.
//!
//! Permanent changes to a process are tested in another instance of this test program
//! (`in_child_process`).
#![allow(unsafe_code, reason = "memory is mapped, moved and trapped here")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod hugetlb_lock;
mod memory;
mod write_protect;

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use fieldstone_sys::knob::{PoolReservation, Restorer};
use fieldstone_sys::{Error, huge_pages, process, smaps};
use memory::{Mapped, map};
use rustix::fs::{FlockOperation, flock};

const MIB: u64 = 1 << 20;
const TASK: &str = "FIELDSTONE_TEST_TASK";

/// Runs a task in a child process, and returns the line that it prints.
fn in_child_process(task: &str, prepare: fn() -> io::Result<()>) -> String {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "task", "--ignored", "--nocapture"]).env(TASK, task);
    // SAFETY: `prepare` makes one system call and does not allocate.
    unsafe { program.pre_exec(prepare) };
    let output = String::from_utf8(program.output().unwrap().stdout).unwrap();
    let answer = output.lines().find_map(|line| line.strip_prefix("answer "));
    answer.unwrap_or_else(|| panic!("{task} did not answer: {output}")).to_owned()
}

#[test]
#[ignore = "run by the other tests, as a process of its own"]
fn task() {
    let answer = match std::env::var(TASK).expect("the name of a task").as_str() {
        "huge" => format!("{} {}", process::thp_disabled().unwrap(), advised_huge_bytes()),
        "address space" => address_space().to_owned(),
        other => panic!("no task {other}"),
    };
    println!("\nanswer {answer}");
}

fn mapping_of(mapped: &Mapped) -> smaps::Mapping {
    let all = smaps::read(std::process::id()).unwrap();
    all.into_iter().find(|mapping| mapping.range().contains(&mapped.range().start)).unwrap()
}

fn advised_huge_bytes() -> u64 {
    let mapped = Mapped::anonymous(8 * MIB, 2 * MIB);
    let _ = mapped.try_advise(libc::MADV_HUGEPAGE);
    mapped.touch();
    mapping_of(&mapped).anon_huge_bytes
}

#[test]
fn thp_disable_survives_exec_and_overrules_madvise() {
    let answer = in_child_process("huge", || Ok(()));
    if answer == "false 0" || answer.starts_with("true") {
        println!("SKIP no transparent huge page was given without the prctl either");
        return;
    }
    assert_eq!(in_child_process("huge", || process::set_thp_disabled(true)), "true 0");
}

/// Maps 1 GiB of inaccessible memory without a limit, then with a limit 64 MiB above the present
/// size.
fn address_space() -> &'static str {
    let gibibyte = 1 << 30;
    // SAFETY: the flags do not contain MAP_FIXED.
    if unsafe { map(gibibyte, libc::PROT_NONE, libc::MAP_NORESERVE) }.is_err() {
        return "no address space";
    }
    let used = process::stat(std::process::id()).unwrap().virtual_bytes;
    let limit = rustix::process::Rlimit { current: Some(used + 64 * MIB), maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    // SAFETY: the flags do not contain MAP_FIXED.
    match unsafe { map(gibibyte, libc::PROT_NONE, libc::MAP_NORESERVE) } {
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => "refused",
        _ => "granted",
    }
}

#[test]
fn inaccessible_memory_counts_against_the_address_space_limit() {
    assert_eq!(in_child_process("address space", || Ok(())), "refused");
}

#[test]
fn populate_write_makes_all_resident() {
    let mapped = Mapped::anonymous(4 * MIB, 2 * MIB);
    match mapped.try_advise(libc::MADV_POPULATE_WRITE) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            println!("SKIP this kernel has no MADV_POPULATE_WRITE");
        }
        result => {
            result.unwrap();
            // The mapping in smaps may be larger, if the kernel merged it with a neighbour.
            assert!(mapping_of(&mapped).resident_bytes >= 4 * MIB);
        }
    }
}

/// Another thread reads a page in a loop while copies are moved over it. It must read one copy or
/// another, and never an unmapped page, which would end this program by SIGSEGV.
#[test]
fn mremap_over_a_page_is_atomic_for_a_reader() {
    const MOVES: u8 = 200;
    let page = rustix::param::page_size();
    let target = Mapped::anonymous(page as u64, page as u64);
    target.write(0, 0);
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let seen = target.read(0);
                assert!(seen >= last, "saw {seen} after {last}");
                last = seen;
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        for round in (1..=MOVES).flat_map(|version| [version; 20]) {
            // SAFETY: a fresh mapping without MAP_FIXED; it is written, then moved away, and never
            // used under its old address.
            unsafe {
                let scratch = map(page, libc::PROT_READ | libc::PROT_WRITE, 0).unwrap();
                scratch.cast::<u8>().write(round);
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                let moved = libc::mremap(scratch, page, page, flags, target.as_ptr());
                assert_eq!(moved.cast(), target.as_ptr(), "{}", io::Error::last_os_error());
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(target.read(0), MOVES);
}

/// Pages of the 2 MiB pool; prints a SKIP line if there are none.
fn hugetlb_pages(pages: u64) -> Option<PoolReservation> {
    match Restorer::start().unwrap().raise_pool(2 * MIB, pages) {
        Ok(raised) if raised.pages() == pages => Some(raised),
        Ok(_) => {
            println!("SKIP memory was too scattered for {pages} hugetlb pages");
            None
        }
        Err(Error::KnobDenied { .. } | Error::File { .. }) => {
            println!("SKIP the pool of 2 MiB pages may not be raised here");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn hugetlb_memory_refuses_small_pieces() {
    let _alone = hugetlb_lock::lock();
    let Some(_pages) = hugetlb_pages(2) else { return };
    let mapped = Mapped::hugetlb(4 * MIB, 2 * MIB).unwrap();
    mapped.touch();
    let small = 4096;
    let inside = mapped.as_ptr().wrapping_add(small).cast();
    // SAFETY: if a call succeeded, it would change a page of this test's own mapping, and the test
    // fails.
    let results = unsafe {
        [
            libc::munmap(inside, small),
            libc::mprotect(inside, small, libc::PROT_NONE),
            libc::madvise(inside, small, libc::MADV_DONTNEED),
        ]
    };
    assert_eq!(results, [-1, -1, -1], "munmap, mprotect, MADV_DONTNEED");
    assert_eq!(mapped.read(4096), 1, "nothing was dropped");
    let mapping = mapping_of(&mapped);
    assert!(mapping.is_hugetlb() && mapping.is_private_anonymous() && mapping.hugetlb_private_bytes == 4 * MIB);
    assert_eq!(mapping.kernel_page_bytes, 2 * MIB);
    let frames = fieldstone_sys::pagemap::read(std::process::id(), &[mapped.range()]).unwrap();
    let frames = frames.exact().expect("a user who may raise a pool can read frames");
    assert_eq!(frames.bytes_in(2 * MIB, true), 4 * MIB, "{frames:?}");
}

#[test]
fn huge_page_knobs_can_be_locked() {
    let Some(pool) = huge_pages::pools().into_iter().next() else {
        println!("SKIP this kernel has no hugetlb pool");
        return;
    };
    let _alone = hugetlb_lock::lock();
    let path = huge_pages::pool_pages_path(pool.page_bytes);
    let (one, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    flock(&one, FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&other, FlockOperation::NonBlockingLockExclusive), Err(rustix::io::Errno::WOULDBLOCK));
    drop(one);
    // A child that another test is starting may hold a copy briefly.
    flock(&other, FlockOperation::LockExclusive).unwrap();
}
