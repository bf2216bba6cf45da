//! Programs that close or replace descriptors, or drop privileges: faults are still served, or the
//! process ends with a message.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control; changes the process")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(clippy::single_range_in_vec_init, reason = "one range is what is expected")]
mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use common::{PAGE, TRAPS, alone, cloned, ended_by, forked, limit, no_core_file, read, refuse, write};
use fieldstone_pages::{Error, Fault, Filling, Loss, Mechanism, Memory, Outcome, Tracking, Trapping, Watch};

const PAGES: usize = 8;

fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
}

fn fill(fault: &Fault<'_>) -> Outcome {
    static CONTENTS: [u8; PAGE] = [9; PAGE];
    if fault.fill(&CONTENTS).is_err() { Outcome::Chain } else { Outcome::Resolved }
}

/// A region of each kind, used once.
struct Stage {
    trapping: Trapping,
    filling: Filling,
    tracking: Tracking,
}

impl Stage {
    fn new(mechanism: Mechanism) -> Self {
        let memory = || Memory::shared(PAGES * PAGE).unwrap();
        // SAFETY: the handler only makes a system call, which is async-signal-safe.
        let trapping = unsafe { Trapping::with(memory(), Watch::Writes, mechanism, open) }.unwrap();
        // SAFETY: the handler only makes a system call, which is async-signal-safe.
        let filling = unsafe { Filling::with(memory(), false, mechanism, fill) }.unwrap();
        let stage = Self { trapping, filling, tracking: Tracking::new(memory()).unwrap() };
        stage.works(0);
        stage
    }

    /// Protects, fills and tracks unused pages from `first`.
    fn works(&self, first: usize) {
        self.trapping.protect(0..PAGES * PAGE).unwrap();
        for page in first..first + 2 {
            write(self.trapping.memory(), page * PAGE, 3);
            assert_eq!(read(self.filling.memory(), page * PAGE + 7), 9, "page {page} is filled");
            write(self.tracking.memory(), page * PAGE, 1);
            let dirty: Vec<_> = self.tracking.dirty().unwrap().map(Result::unwrap).collect();
            assert_eq!(dirty, [page * PAGE..(page + 1) * PAGE]);
        }
        self.filling.zero((first + 2) * PAGE).unwrap();
        assert_eq!(read(self.filling.memory(), (first + 2) * PAGE), 0);
    }
}

/// The numbers at which this process has a userfaultfd or a page map.
fn numbers() -> Vec<RawFd> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |target: &str| target.contains("userfaultfd") || target.ends_with("/pagemap");
    let ours = entries.filter(|path| fs::read_link(path).is_ok_and(|target| is_ours(target.to_str().unwrap())));
    ours.map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

fn close_from(first: u32) {
    // SAFETY: a child of the test owns all descriptors.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }, 0);
}

#[test]
fn faults_are_served_after_all_descriptors_were_closed() {
    alone("faults_are_served_after_all_descriptors_were_closed", || {
        for mechanism in TRAPS {
            let status = forked(|| {
                let stage = Stage::new(mechanism);
                close_from(3);
                stage.works(3);
                // A second time, and by another thread.
                close_from(3);
                std::thread::scope(|scope| scope.spawn(|| write(stage.trapping.memory(), 5 * PAGE, 4)).join().unwrap());
                assert_eq!(read(stage.trapping.memory(), 5 * PAGE), 4);
                let view = stage.filling.memory().alias().unwrap();
                // SAFETY: the first byte of the alias, whose page is filled.
                assert_eq!(unsafe { view.as_ptr().read() }, 9, "an alias needs no descriptor");
                stage.filling.evict(0..PAGE).unwrap();
                assert_eq!(read(stage.filling.memory(), 0), 9);
                drop(stage);
                // Regions created afterwards are served too.
                Stage::new(mechanism).works(3);
                true
            });
            assert_eq!(status, 0, "{mechanism}");
        }
    });
}

#[test]
fn a_file_at_the_librarys_number_keeps_its_data_and_faults_are_served() {
    alone("a_file_at_the_librarys_number_keeps_its_data_and_faults_are_served", || {
        for mechanism in TRAPS {
            for is_foreign_userfaultfd in [false, true] {
                let status = forked(|| {
                    let stage = Stage::new(mechanism);
                    let (mut reader, mut writer) = std::io::pipe().unwrap();
                    // SAFETY: a userfaultfd without registered memory traps no access.
                    let own = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
                    let other = if is_foreign_userfaultfd { RawFd::try_from(own).unwrap() } else { reader.as_raw_fd() };
                    writer.write_all(&[7; 64]).unwrap();
                    for number in numbers().into_iter().filter(|&number| i64::from(number) != own) {
                        // SAFETY: replacing descriptors is what the test imitates; the process owns
                        // all of them.
                        assert_eq!(unsafe { libc::dup2(other, number) }, number);
                    }
                    stage.works(3);
                    drop(stage);
                    drop(writer);
                    let mut data = Vec::new();
                    reader.read_to_end(&mut data).unwrap();
                    data == [7; 64]
                });
                assert_eq!(status, 0, "{mechanism}, a userfaultfd: {is_foreign_userfaultfd}");
            }
        }
    });
}

#[test]
fn a_forked_child_closes_no_file_of_the_program() {
    alone("a_forked_child_closes_no_file_of_the_program", || {
        let _stage = Stage::new(Mechanism::UserfaultThread);
        let (_reader, writer) = std::io::pipe().unwrap();
        let ours = numbers();
        // SAFETY: replacing descriptors is what the test imitates; the process owns all of them.
        ours.iter().for_each(|&number| assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), number) }, number));
        // SAFETY: F_GETFD takes an integer and only reads a flag.
        let status = forked(|| ours.iter().all(|&number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0));
        assert!(status == 0 && !ours.is_empty(), "{status}, {ours:?}");
    });
}

#[test]
fn a_filter_for_one_thread_leaves_the_calls_to_the_keeper() {
    alone("a_filter_for_one_thread_leaves_the_calls_to_the_keeper", || {
        for errno in [libc::EPERM, libc::ENOSYS] {
            for mechanism in [Mechanism::UserfaultThread, Mechanism::UserfaultSignal] {
                let status = forked(|| {
                    let stage = Stage::new(mechanism);
                    refuse(libc::SYS_ioctl, errno, false);
                    stage.works(3);
                    true
                });
                assert_eq!(status, 0, "{mechanism}, {errno}");
            }
        }
    });
}

#[test]
fn a_filter_for_all_threads_ends_the_process_or_is_an_error() {
    alone("a_filter_for_all_threads_ends_the_process_or_is_an_error", || {
        no_core_file();
        for call in [libc::SYS_ioctl, libc::SYS_read] {
            let status = forked(|| {
                let stage = Stage::new(Mechanism::UserfaultThread);
                refuse(call, libc::EPERM, true);
                if call == libc::SYS_ioctl {
                    let refused = stage.trapping.protect(0..PAGE);
                    assert!(refused.is_err_and(|error| error.errno() == Some(libc::EPERM)));
                }
                // The worker is in its read and serves at least the first fault.
                (4..PAGES).for_each(|page| _ = read(stage.filling.memory(), page * PAGE));
                false
            });
            let ended = ended_by(status);
            assert!(matches!(ended, Some(libc::SIGABRT | libc::SIGSEGV)), "call {call}: {status}");
        }
    });
}

#[test]
fn privileges_dropped_later_change_nothing() {
    alone("privileges_dropped_later_change_nothing", || {
        for mechanism in TRAPS {
            let status = forked(|| {
                let stage = Stage::new(mechanism);
                // SAFETY: the system calls take integers and no pointer.
                unsafe {
                    if libc::geteuid() == 0 {
                        assert_eq!((libc::setgid(65534), libc::setuid(65534)), (0, 0));
                    }
                }
                stage.works(3);
                true
            });
            assert_eq!(status, 0, "{mechanism}");
        }
    });
}

#[test]
fn low_limits_select_another_mechanism_or_are_an_error() {
    alone("low_limits_select_another_mechanism_or_are_an_error", || {
        let by_descriptors = forked(|| {
            let memory = Memory::anonymous(PAGES * PAGE).unwrap();
            limit(libc::RLIMIT_NOFILE, 3);
            let trapping = Trapping::new(memory, Watch::Writes, open).unwrap();
            trapping.protect(0..PAGES * PAGE).unwrap();
            write(trapping.memory(), 0, 1);
            trapping.mechanism() == Mechanism::ProtectThread
                && Memory::shared(PAGE).is_err_and(|error| error.errno() == Some(libc::EMFILE))
        });
        assert_eq!(by_descriptors, 0);
        let by_address_space = forked(|| {
            limit(libc::RLIMIT_AS, 0);
            let made = Memory::anonymous(PAGES * PAGE);
            made.is_err_and(|error| error.errno() == Some(libc::ENOMEM) && error.to_string().contains("ulimit -v"))
        });
        assert_eq!(by_address_space, 0);
        let no_thread = forked(|| {
            let memory = Memory::anonymous(PAGES * PAGE).unwrap();
            refuse(libc::SYS_clone3, libc::EAGAIN, false);
            refuse(libc::SYS_clone, libc::EAGAIN, false);
            let refused = Trapping::new(memory.share(), Watch::Writes, open);
            assert!(refused.is_err_and(|error| error.errno() == Some(libc::EAGAIN)));
            Tracking::new(memory).unwrap().mechanism() == Mechanism::UserfaultSignal
                || Tracking::new(Memory::anonymous(PAGE).unwrap()).unwrap().mechanism() == Mechanism::ProtectSignal
        });
        assert_eq!(no_thread, 0);
        let locked = forked(|| {
            limit(libc::RLIMIT_MEMLOCK, 0);
            Stage::new(Mechanism::UserfaultThread).works(3);
            true
        });
        assert_eq!(locked, 0);
    });
}

#[test]
fn a_thread_that_blocks_all_signals_is_served_or_killed_as_in_losses() {
    alone("a_thread_that_blocks_all_signals_is_served_or_killed_as_in_losses", || {
        no_core_file();
        for mechanism in TRAPS {
            // SAFETY: the handler only makes a system call, which is async-signal-safe.
            let made = unsafe { Trapping::with(Memory::anonymous(PAGE).unwrap(), Watch::Writes, mechanism, open) };
            let is_lost = made.unwrap().losses().contains(&Loss::BlockedSignals);
            let status = forked(|| {
                let stage = Stage::new(mechanism);
                // SAFETY: the set is a live local, initialised before it is read.
                unsafe {
                    let mut all = std::mem::zeroed::<libc::sigset_t>();
                    libc::sigfillset(&raw mut all);
                    libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
                }
                stage.trapping.protect(0..PAGE).unwrap();
                write(stage.trapping.memory(), 0, 8);
                read(stage.filling.memory(), 7 * PAGE) == 9
            });
            let ended = ended_by(status);
            let expected = match mechanism {
                Mechanism::UserfaultThread => None,
                Mechanism::UserfaultSignal => Some(libc::SIGBUS),
                _ => Some(libc::SIGSEGV),
            };
            assert_eq!((ended, is_lost), (expected, expected.is_some()), "{mechanism}: {status}");
        }
    });
}

#[test]
fn the_child_of_a_bare_clone_has_plain_memory() {
    alone("the_child_of_a_bare_clone_has_plain_memory", || {
        for mechanism in TRAPS {
            let stage = Stage::new(mechanism);
            stage.trapping.protect(0..PAGES * PAGE).unwrap();
            let by_fault = cloned(|| {
                write(stage.trapping.memory(), 5 * PAGE, 4);
                read(stage.filling.memory(), 6 * PAGE) == 0 && read(stage.trapping.memory(), 5 * PAGE) == 4
            });
            assert_eq!(by_fault, 0, "{mechanism}");
            let by_operation = cloned(|| {
                assert!(matches!(stage.trapping.protect(0..PAGE), Err(Error::Forked)));
                assert!(matches!(stage.tracking.dirty(), Err(Error::Forked)));
                Stage::new(mechanism).works(3);
                true
            });
            assert_eq!(by_operation, 0, "{mechanism}");
        }
    });
}

/// Runs `body` in a child that shares this process's memory, and its descriptors on request.
/// Returns the child's status.
fn sharing_child(body: fn(&Stage), stage: &Stage, flags: libc::c_int) -> libc::c_int {
    extern "C" fn enter(argument: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is to the pair below, whose owner waits for the child.
        let (body, stage) = unsafe { &*argument.cast::<(fn(&Stage), &Stage)>() };
        body(stage);
        0
    }
    let mut stack = vec![0_u128; 16 << 10];
    let mut argument = (body, stage);
    let mut status = 0;
    // SAFETY: the stack and the argument live until the child has ended, because CLONE_VFORK waits
    // for it.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | flags;
        let child = libc::clone(enter, top, flags, (&raw mut argument).cast());
        assert!(child > 0 && libc::waitpid(child, &raw mut status, 0) == child);
    }
    status
}

#[test]
fn a_child_that_shares_memory_is_served_and_may_close_its_descriptors() {
    alone("a_child_that_shares_memory_is_served_and_may_close_its_descriptors", || {
        for mechanism in TRAPS {
            for flags in [0, libc::CLONE_FILES] {
                let status = forked(|| {
                    let stage = Stage::new(mechanism);
                    let ended = sharing_child(
                        |stage| {
                            close_from(3);
                            write(stage.trapping.memory(), 6 * PAGE, 5);
                            assert_eq!(read(stage.filling.memory(), 6 * PAGE), 9);
                        },
                        &stage,
                        flags,
                    );
                    stage.works(3);
                    ended == 0 && read(stage.trapping.memory(), 6 * PAGE) == 5
                });
                assert_eq!(status, 0, "{mechanism}, {flags}");
            }
        }
    });
}

#[test]
fn a_handler_that_ends_its_thread_ends_the_process() {
    alone("a_handler_that_ends_its_thread_ends_the_process", || {
        no_core_file();
        for mechanism in [Mechanism::UserfaultThread, Mechanism::ProtectThread] {
            let status = forked(|| {
                // SAFETY: the thread belongs to the library, and its end runs no destructors.
                let ends = |_: &Fault<'_>| unsafe {
                    libc::syscall(libc::SYS_exit, 0);
                    Outcome::Chain
                };
                // SAFETY: the mechanism runs the handler in a thread, where any code is permitted.
                let made = unsafe { Trapping::with(Memory::anonymous(PAGE).unwrap(), Watch::Writes, mechanism, ends) };
                let trapping = made.unwrap();
                trapping.protect(0..PAGE).unwrap();
                write(trapping.memory(), 0, 1);
                false
            });
            let ended = ended_by(status);
            assert!(matches!(ended, Some(libc::SIGABRT | libc::SIGSEGV)), "{mechanism}: {status}");
        }
    });
}

/// Registers memory as a buffer of io_uring. Closing the returned ring releases the buffer.
fn registered(memory: &Memory) -> Option<fs::File> {
    use std::os::fd::FromRawFd;
    const REGISTER_BUFFERS: libc::c_uint = 0;
    let (mut parameters, iovec) =
        ([0_u64; 15], libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: memory.bytes() });
    // SAFETY: `struct io_uring_params` has 120 bytes; the iovec is a live local.
    unsafe {
        let ring = RawFd::try_from(libc::syscall(libc::SYS_io_uring_setup, 4, &raw mut parameters)).unwrap();
        if ring < 0 {
            println!("SKIP no io_uring: {}", std::io::Error::last_os_error());
            return None;
        }
        let done = libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_BUFFERS, &raw const iovec, 1);
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        Some(fs::File::from_raw_fd(ring))
    }
}

#[test]
fn pinned_pages_and_shared_memory_are_losses_of_tracking() {
    alone("pinned_pages_and_shared_memory_are_losses_of_tracking", || {
        let private = Tracking::new(Memory::anonymous(PAGES * PAGE).unwrap()).unwrap();
        assert!(!private.losses().contains(&Loss::PinnedPages) && !private.losses().contains(&Loss::SharedMemory));
        let shared = Tracking::new(Memory::shared(PAGES * PAGE).unwrap()).unwrap();
        assert!(shared.losses().contains(&Loss::SharedMemory), "{:?}", shared.losses());
        let Some(ring) = registered(private.memory()) else { return };
        assert!(private.losses().contains(&Loss::PinnedPages), "{:?}", private.losses());
        let filling = Filling::tracked(Memory::anonymous(PAGE).unwrap(), fill).unwrap();
        assert!(filling.losses().contains(&Loss::PinnedPages));
        let untracked = Filling::new(Memory::shared(PAGE).unwrap(), fill).unwrap();
        assert!(!untracked.losses().contains(&Loss::PinnedPages) && !untracked.losses().contains(&Loss::SharedMemory));
        drop(ring);
    });
}

#[test]
fn tracked_memory_that_was_mapped_over_is_an_error() {
    let tracking = Tracking::with(Memory::anonymous(PAGES * PAGE).unwrap(), Mechanism::Scan).unwrap();
    write(tracking.memory(), 0, 1);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page belongs to the tracked memory, and no reference to it exists.
    let over =
        unsafe { libc::mmap(tracking.memory().as_ptr().add(4 * PAGE).cast(), PAGE, libc::PROT_READ, flags, -1, 0) };
    assert_ne!(over, libc::MAP_FAILED);
    let error = tracking.dirty().unwrap().find_map(Result::err).unwrap();
    assert!(error.errno() == Some(libc::EPERM) && error.to_string().contains("mapped other memory over"), "{error}");
    let look = |range| tracking.dirty_in(range).unwrap().flat_map(Result::unwrap).step_by(PAGE).collect::<Vec<_>>();
    let last = PAGES - 5;
    assert_eq!((look(0..4 * PAGE).len(), look(5 * PAGE..PAGES * PAGE).len()), (4, last), "the whole rest is dirty");
    write(tracking.memory(), 2 * PAGE, 1);
    assert_eq!((look(0..4 * PAGE), look(5 * PAGE..PAGES * PAGE)), (vec![2 * PAGE], vec![]), "and tracked as before");
}
