//! The mechanisms for each user: root, an ordinary user, and a process to which userfaultfd(2) is
//! refused. Losses are reported, and are real.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control; changes the process")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;

use std::fs::File;
use std::os::fd::AsRawFd;

use common::{PAGE, TRAPS, alone, read, write};
use fieldstone_pages::{
    Error, Fault, Filling, GuardMechanism, Loss, Mechanism, Memory, Outcome, Tracking, Trapping, Watch,
};
use fieldstone_sys::userfault::userfault;

const PAGES: usize = 4;

fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
}

fn memory() -> Memory {
    Memory::anonymous(PAGES * PAGE).unwrap()
}

/// Reads a file of sevens into the memory: the result of read(2), or the errno.
fn read_into(memory: &Memory, pages: usize) -> Result<usize, i32> {
    let file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &file, &[7; PAGES * PAGE]).unwrap();
    // SAFETY: the kernel writes at most the memory's size, or fails.
    let got = unsafe { libc::pread(file.as_raw_fd(), memory.as_ptr().cast(), pages * PAGE, 0) };
    usize::try_from(got).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())
}

/// A system call that writes to protected pages waits for the handler, or fails, as `losses`
/// reports.
fn kernel_accesses_match_losses(mechanism: Mechanism) -> bool {
    // SAFETY: the handler only makes a system call, which is async-signal-safe.
    let trapping = unsafe { Trapping::with(memory(), Watch::Writes, mechanism, open) }.unwrap();
    let tracking = Tracking::with(memory(), mechanism).unwrap();
    let is_lost = trapping.losses().contains(&Loss::KernelAccesses);
    assert_eq!(tracking.losses(), trapping.losses(), "{mechanism}");
    for pages in [1, PAGES] {
        trapping.protect(0..PAGES * PAGE).unwrap();
        assert!(tracking.dirty().unwrap().all(|range| range.is_ok()));
        let expected = if is_lost { Err(libc::EFAULT) } else { Ok(pages * PAGE) };
        assert_eq!(read_into(trapping.memory(), pages), expected, "{mechanism}, {pages} pages");
        assert_eq!(read_into(tracking.memory(), pages), expected, "{mechanism}, {pages} pages");
        if !is_lost {
            assert!((0..pages).all(|page| read(trapping.memory(), page * PAGE) == 7), "{mechanism}");
            let dirty: usize = tracking.dirty().unwrap().map(|range| range.unwrap().len()).sum();
            assert_eq!(dirty, pages * PAGE, "{mechanism}: the kernel's writes are recorded");
        }
        // The advice of the losses: touch the page first.
        (0..pages).for_each(|page| write(trapping.memory(), page * PAGE, 1));
        assert_eq!(read_into(trapping.memory(), pages), Ok(pages * PAGE), "{mechanism}: after touching the page");
    }
    is_lost
}

/// Uses each primitive by the best mechanism of this user.
fn everything_works() {
    let trapping = Trapping::new(memory(), Watch::Writes, open).unwrap();
    trapping.protect(0..PAGES * PAGE).unwrap();
    (0..PAGES).for_each(|page| write(trapping.memory(), page * PAGE, 1));
    let watching = Trapping::new(memory(), Watch::Accesses, open).unwrap();
    watching.protect(0..PAGE).unwrap();
    assert_eq!(read(watching.memory(), 0), 0);
    let tracking = Tracking::new(memory()).unwrap();
    write(tracking.memory(), PAGE, 1);
    let dirty: Vec<_> = tracking.dirty().unwrap().map(Result::unwrap).collect();
    assert!(dirty.len() == 1 && dirty[0] == (PAGE..2 * PAGE), "{dirty:?}");
    let fill = |fault: &Fault<'_>| if fault.fill(&[9; PAGE]).is_err() { Outcome::Chain } else { Outcome::Resolved };
    let filling = Filling::new(Memory::shared(PAGE).unwrap(), fill).unwrap();
    assert_eq!(read(filling.memory(), 5), 9);
    let tracked = Filling::tracked(Memory::shared(2 * PAGE).unwrap(), fill).unwrap();
    write(tracked.memory(), 0, 1);
    assert_eq!((read(tracked.memory(), 1), tracked.dirty().unwrap().count()), (9, 1));
    let plain = memory();
    plain.guard(0..PAGE).unwrap();
    assert_eq!(read_into(&plain, 1), Err(libc::EFAULT));
    plain.guard_with(0..PAGE, GuardMechanism::Protect).unwrap();
}

#[test]
fn this_user_has_the_reported_losses() {
    everything_works();
    let lost = TRAPS.map(kernel_accesses_match_losses);
    let support = userfault();
    let reaches = support.kernel_faults || support.device;
    assert_eq!(lost, [!reaches, true, true, true], "userfaultfd in a thread, if permitted, has no loss");
    assert_eq!(Tracking::new(memory()).unwrap().losses(), [], "pagemap-scan loses nothing");
    let filling =
        Filling::tracked(memory(), |fault| if fault.zero().is_ok() { Outcome::Resolved } else { Outcome::Chain });
    let filling = filling.unwrap();
    let served = read_into(filling.memory(), 1).is_ok();
    assert_eq!((served, filling.losses().is_empty()), (reaches, reaches), "missing pages wait for the handler");
}

/// Makes the process an ordinary user's, as if that user had started it.
fn become_nobody() {
    const NOBODY: u32 = 65534;
    // SAFETY: the calls take integers; glibc changes all threads.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setgid(NOBODY), 0);
            assert_eq!(libc::setuid(NOBODY), 0);
            // Otherwise its files in /proc would stay root's.
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
        }
    }
}

#[test]
fn an_ordinary_user_has_only_the_reported_losses() {
    alone("an_ordinary_user_has_only_the_reported_losses", || {
        become_nobody();
        let support = userfault();
        everything_works();
        let lost = TRAPS.map(kernel_accesses_match_losses);
        assert_eq!(lost, [!(support.kernel_faults || support.device), true, true, true]);
        let trapping = Trapping::new(memory(), Watch::Writes, open).unwrap();
        for loss in trapping.losses() {
            assert!(loss.to_string().contains("EFAULT"), "it names the effect: {loss}");
        }
    });
}

/// Makes the kernel refuse userfaultfd(2) and the device's request to this process, as a container
/// may.
fn refuse_userfaultfd() {
    /// `_IO(0xAA, 0x00)`.
    const IOC_NEW: u32 = 0xAA00;
    let statement = |code: u32, k: u32| libc::sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf: 0, k };
    let jump = |k: u32, jt, jf| libc::sock_filter {
        code: u16::try_from(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K).unwrap(),
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let answer = libc::BPF_RET | libc::BPF_K;
    // The call's number is at byte 0, the low half of its second argument at byte 24.
    let mut program = [
        statement(load, 0),
        jump(u32::try_from(libc::SYS_userfaultfd).unwrap(), 3, 0),
        jump(u32::try_from(libc::SYS_ioctl).unwrap(), 0, 3),
        statement(load, 24),
        jump(IOC_NEW, 0, 1),
        statement(answer, libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap()),
        statement(answer, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
    // SAFETY: the filter and its program are live locals, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let installed = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter);
        assert_eq!(installed, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn without_userfaultfd_mprotect_is_used_with_reported_losses() {
    alone("without_userfaultfd_mprotect_is_used_with_reported_losses", || {
        refuse_userfaultfd();
        let support = userfault();
        assert!(!support.user_faults && !support.kernel_faults && !support.device, "{support:?}");
        assert!(File::open("/dev/zero").is_ok(), "other calls pass");
        everything_works();
        let lost = [Loss::KernelAccesses, Loss::Mappings, Loss::BlockedSignals];
        let trapping = Trapping::new(memory(), Watch::Writes, open).unwrap();
        assert_eq!((trapping.mechanism(), trapping.losses()), (Mechanism::ProtectThread, lost.to_vec()));
        // SAFETY: the handler only makes a system call, which is async-signal-safe.
        let in_signal = unsafe { Trapping::in_signal(memory(), Watch::Writes, open) }.unwrap();
        assert_eq!((in_signal.mechanism(), in_signal.losses()), (Mechanism::ProtectSignal, lost.to_vec()));
        let tracking = Tracking::new(memory()).unwrap();
        assert_eq!((tracking.mechanism(), tracking.losses()), (Mechanism::ProtectSignal, lost.to_vec()));
        let filling = Filling::new(Memory::shared(PAGE).unwrap(), |_| Outcome::Chain).unwrap();
        assert_eq!((filling.mechanism(), filling.losses()), (Mechanism::ProtectThread, lost.to_vec()));
        let private = Filling::new(memory(), |_| Outcome::Chain);
        assert!(matches!(private, Err(Error::Unsupported { .. })), "{private:?}");
        let requested = Tracking::with(memory(), Mechanism::Scan);
        assert!(
            requested.is_err_and(|error| error.errno() == Some(libc::EPERM)),
            "a requested mechanism is not replaced"
        );
    });
}
