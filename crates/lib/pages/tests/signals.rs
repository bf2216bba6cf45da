//! Faults and signals: the program's own handlers, faults inside handlers, handlers that panic,
//! poisoned pages.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control; changes the process")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use common::{PAGE, TRAPS, alone, doomed, ended_by, forked, no_core_file, read, text_of, write};
use fieldstone_pages::{Fault, Filling, Loss, Mechanism, Memory, Outcome, Trapping, Watch};
use fieldstone_sys::userfault::userfault;

/// Calls of the program's own handler.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static MASKED: AtomicBool = AtomicBool::new(false);
/// The page that the program's own handler makes accessible.
static OWN: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// The program's own handler: makes its own inaccessible page accessible.
fn make_own_page_accessible() {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the page belongs to the program; the sets are live locals.
    unsafe {
        libc::mprotect(OWN.load(Ordering::Relaxed).cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE);
        let mut mask = std::mem::zeroed::<libc::sigset_t>();
        libc::pthread_sigmask(libc::SIG_SETMASK, null(), &raw mut mask);
        MASKED.store(libc::sigismember(&raw const mask, libc::SIGUSR1) == 1, Ordering::Relaxed);
    }
}

extern "C" fn with_information(_signal: c_int, information: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a live siginfo_t.
    ADDRESS.store(unsafe { (*information).si_addr() }.addr(), Ordering::Relaxed);
    make_own_page_accessible();
}

extern "C" fn without_information(_signal: c_int) {
    make_own_page_accessible();
}

/// Installs the program's own handler, whose mask has `SIGUSR1`.
fn install(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: the action is a live local; the handlers here are async-signal-safe.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0);
    }
}

fn close_own(memory: &Memory) {
    OWN.store(memory.as_ptr(), Ordering::Relaxed);
    // SAFETY: the page belongs to the program, and only its handler accesses it.
    assert_eq!(unsafe { libc::mprotect(memory.as_ptr().cast(), PAGE, libc::PROT_NONE) }, 0);
}

fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
}

fn trapping(mechanism: Mechanism, handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static) -> Trapping {
    // SAFETY: the handlers of mechanisms in signals are async-signal-safe, or end the process.
    unsafe { Trapping::with(Memory::anonymous(4 * PAGE).unwrap(), Watch::Writes, mechanism, handler) }.unwrap()
}

fn own_handler_still_works(handler: usize, flags: c_int) {
    let own = Memory::anonymous(PAGE).unwrap();
    for (number, mechanism) in TRAPS.into_iter().enumerate() {
        if number == 0 {
            install(libc::SIGSEGV, handler, flags);
        }
        let trapping = trapping(mechanism, open);
        trapping.protect(0..PAGE).unwrap();
        write(trapping.memory(), 1, 1);
        assert_eq!(CALLS.swap(0, Ordering::Relaxed), 0, "{mechanism}: the region's handler ran");
        close_own(&own);
        write(&own, 77, 3);
        assert!(CALLS.swap(0, Ordering::Relaxed) == 1 && MASKED.load(Ordering::Relaxed), "{mechanism}");
        if flags & libc::SA_SIGINFO != 0 {
            assert_eq!(ADDRESS.load(Ordering::Relaxed), own.start() + 77, "{mechanism}");
        }
        // SAFETY: the set is a live local.
        let masked = unsafe {
            let mut mask = std::mem::zeroed::<libc::sigset_t>();
            libc::pthread_sigmask(libc::SIG_SETMASK, null(), &raw mut mask);
            libc::sigismember(&raw const mask, libc::SIGUSR1)
        };
        assert_eq!(masked, 0, "{mechanism}: the mask is restored");
    }
}

#[test]
fn faults_elsewhere_reach_the_programs_handler() {
    alone("faults_elsewhere_reach_the_programs_handler", || {
        own_handler_still_works(with_information as *const () as usize, libc::SA_SIGINFO);
    });
}

#[test]
fn faults_elsewhere_reach_the_programs_plain_handler() {
    alone("faults_elsewhere_reach_the_programs_plain_handler", || {
        own_handler_still_works(without_information as *const () as usize, 0);
    });
}

/// The region whose fault the program's own handler resolves.
static CHAINED: OnceLock<Trapping> = OnceLock::new();

extern "C" fn resolves_the_fault(_signal: c_int, information: *mut libc::siginfo_t, _context: *mut c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel or the library passes a live siginfo_t with an address.
    ADDRESS.store(unsafe { (*information).si_addr() }.addr(), Ordering::Relaxed);
    if let Some(trapping) = CHAINED.get() {
        let _ = trapping.unprotect(0..4 * PAGE);
    }
}

#[test]
fn a_chained_fault_reaches_the_programs_handler_with_its_address() {
    alone("a_chained_fault_reaches_the_programs_handler_with_its_address", || {
        // userfaultfd in signals raises SIGBUS.
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            install(signal, resolves_the_fault as *const () as usize, libc::SA_SIGINFO);
        }
        for mechanism in TRAPS {
            let status = forked(|| {
                let trapping = CHAINED.get_or_init(|| trapping(mechanism, |_| Outcome::Chain));
                trapping.protect(0..4 * PAGE).unwrap();
                write(trapping.memory(), 2 * PAGE + 9, 6);
                assert_eq!(ADDRESS.load(Ordering::Relaxed), trapping.memory().start() + 2 * PAGE + 9, "{mechanism}");
                read(trapping.memory(), 2 * PAGE + 9) == 6 && CALLS.load(Ordering::Relaxed) == 1
            });
            assert_eq!(status, 0, "{mechanism}");
        }
    });
}

extern "C" fn counts(_signal: c_int) {
    // SAFETY: the buffer is a static of seven bytes.
    unsafe { libc::write(2, c"called\n".as_ptr().cast(), 7) };
    if CALLS.fetch_add(1, Ordering::Relaxed) > 5 {
        // SAFETY: _exit ends the process and returns to no caller.
        unsafe { libc::_exit(77) };
    }
}

#[test]
fn a_one_time_handler_is_called_once() {
    let ended = doomed("a_one_time_handler_is_called_once", || {
        install(libc::SIGSEGV, counts as *const () as usize, libc::SA_RESETHAND);
        let trapping = trapping(Mechanism::ProtectSignal, |_| Outcome::Chain);
        trapping.protect(0..PAGE).unwrap();
        write(trapping.memory(), 0, 1);
    });
    if let Some(output) = ended {
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{}", text_of(&output));
        assert_eq!(text_of(&output).matches("called").count(), 1, "{}", text_of(&output));
    }
}

#[test]
fn without_a_handler_the_process_ends_as_usual() {
    alone("without_a_handler_the_process_ends_as_usual", || {
        no_core_file();
        for action in [libc::SIG_DFL, libc::SIG_IGN] {
            for signal in [libc::SIGSEGV, libc::SIGBUS] {
                install(signal, action, 0);
            }
            for mechanism in TRAPS {
                for elsewhere in [true, false] {
                    let status = forked(|| {
                        let trapping = trapping(mechanism, |_| Outcome::Chain);
                        trapping.protect(0..PAGE).unwrap();
                        let own = Memory::anonymous(PAGE).unwrap();
                        close_own(&own);
                        write(if elsewhere { &own } else { trapping.memory() }, 0, 1);
                        false
                    });
                    let by_bus = !elsewhere && mechanism == Mechanism::UserfaultSignal;
                    let expected = if by_bus { libc::SIGBUS } else { libc::SIGSEGV };
                    let ended = ended_by(status);
                    assert_eq!(ended, Some(expected), "{mechanism}, {action}, elsewhere {elsewhere}: {status}");
                }
            }
        }
    });
}

#[test]
fn a_chained_fault_of_a_system_call_ends_the_process() {
    let output = doomed("a_chained_fault_of_a_system_call_ends_the_process", || {
        install(libc::SIGSEGV, resolves_the_fault as *const () as usize, libc::SA_SIGINFO);
        let trapping = trapping(Mechanism::UserfaultThread, |_| Outcome::Chain);
        trapping.protect(0..PAGE).unwrap();
        let zero = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: the kernel writes a byte to the memory, or fails with EFAULT.
        let got = unsafe { libc::read(zero.as_raw_fd(), trapping.memory().as_ptr().cast(), 1) };
        assert_eq!((got, trapping.losses()), (-1, vec![Loss::KernelAccesses]), "refused only if losses report it");
        // SAFETY: abort takes no argument and does not return.
        unsafe { libc::abort() };
    });
    let Some(output) = output else { return };
    let text = text_of(&output);
    assert!(output.status.signal() == Some(libc::SIGABRT) && !text.contains("refused only"), "{text}");
    let reaches = userfault().kernel_faults || userfault().device;
    assert_eq!(text.contains("which the fault handler refused"), reaches, "{text}");
}

/// Runs `body` in a thread with an alternate stack for faults inside handlers; that of a Rust
/// thread is too small.
fn on_a_large_alternate_stack(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stack = vec![0_u8; 256 << 10];
            let large = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
            let mut before = libc::stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
            // SAFETY: the stack lives until the former one is restored.
            unsafe {
                assert_eq!(libc::sigaltstack(&raw const large, &raw mut before), 0);
                body();
                libc::sigaltstack(&raw const before, null_mut());
            }
        });
    });
}

#[test]
fn faults_inside_handlers_are_served() {
    on_a_large_alternate_stack(|| {
        for mechanism in TRAPS {
            let other = Arc::new(trapping(mechanism, open));
            let (touched, start) = (other.clone(), Arc::new(AtomicPtr::new(null_mut::<u8>())));
            let own = start.clone();
            let same = trapping(mechanism, move |fault| {
                if fault.page().start == 0 {
                    write(touched.memory(), PAGE, 5);
                    // SAFETY: the second page of this region, which is mapped and protected.
                    unsafe { own.load(Ordering::Relaxed).add(PAGE).write_volatile(6) };
                }
                open(fault)
            });
            start.store(same.memory().as_ptr(), Ordering::Relaxed);
            for _ in 0..20 {
                other.protect(0..4 * PAGE).unwrap();
                same.protect(0..4 * PAGE).unwrap();
                write(same.memory(), 0, 7);
            }
            let got = (read(same.memory(), 0), read(same.memory(), PAGE), read(other.memory(), PAGE));
            assert_eq!(got, (7, 6, 5), "{mechanism}");
        }
    });
}

fn panics(mechanism: Mechanism) {
    on_a_large_alternate_stack(move || {
        let trapping = trapping(mechanism, |_| panic!("the handler is broken"));
        trapping.protect(0..PAGE).unwrap();
        write(trapping.memory(), 0, 1);
    });
}

fn ends_with_a_message(test: &str, mechanism: Mechanism) {
    let Some(output) = doomed(test, || panics(mechanism)) else { return };
    let text = text_of(&output);
    assert!(output.status.signal() == Some(libc::SIGABRT) && text.contains("the handler is broken"), "{text}");
    assert!(mechanism.is_in_signal() || text.contains("a fault handler panicked"), "{text}");
}

#[test]
fn a_panic_in_a_thread_of_userfaultfd_ends_the_process() {
    ends_with_a_message("a_panic_in_a_thread_of_userfaultfd_ends_the_process", Mechanism::UserfaultThread);
}

#[test]
fn a_panic_in_a_thread_of_mprotect_ends_the_process() {
    ends_with_a_message("a_panic_in_a_thread_of_mprotect_ends_the_process", Mechanism::ProtectThread);
}

#[test]
fn a_panic_in_a_signal_of_userfaultfd_ends_the_process() {
    ends_with_a_message("a_panic_in_a_signal_of_userfaultfd_ends_the_process", Mechanism::UserfaultSignal);
}

#[test]
fn a_panic_in_a_signal_of_mprotect_ends_the_process() {
    ends_with_a_message("a_panic_in_a_signal_of_mprotect_ends_the_process", Mechanism::ProtectSignal);
}

extern "C" fn exits_with_the_code(signal: c_int, information: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a live siginfo_t; the forked child ends here.
    unsafe { libc::_exit(if signal == libc::SIGBUS { 40 + (*information).si_code } else { 1 }) };
}

#[test]
fn a_poisoned_page_raises_a_hardware_error() {
    alone("a_poisoned_page_raises_a_hardware_error", || {
        // `BUS_MCEERR_AR`; a kernel without memory-failure support reports `BUS_ADRERR`.
        let lost = if std::path::Path::new("/proc/sys/vm/memory_failure_recovery").exists() { 4 } else { 2 };
        install(libc::SIGBUS, exits_with_the_code as *const () as usize, libc::SA_SIGINFO);
        for mechanism in [Mechanism::UserfaultThread, Mechanism::UserfaultSignal] {
            let status = forked(|| {
                let memory = Memory::anonymous(2 * PAGE).unwrap();
                // SAFETY: the handler only makes a system call, which is async-signal-safe.
                let filling = unsafe {
                    Filling::with(memory, false, mechanism, |fault| {
                        if fault.poison().is_err() { Outcome::Chain } else { Outcome::Resolved }
                    })
                };
                let filling = filling.unwrap();
                filling.zero(PAGE).unwrap();
                assert_eq!(read(filling.memory(), PAGE), 0, "the other page is present");
                read(filling.memory(), 0) == 0
            });
            let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
            assert_eq!(code, Some(40 + lost), "{mechanism}: {status}");
        }
    });
}

#[test]
fn regions_are_dropped_while_others_fault() {
    for mechanism in TRAPS {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let own = trapping(mechanism, open);
                    while !stop.load(Ordering::Relaxed) {
                        own.protect(0..4 * PAGE).unwrap();
                        (0..4).for_each(|page| write(own.memory(), page * PAGE, 1));
                    }
                });
            }
            for round in 0..300_usize {
                let passing: Vec<_> = (0..4).map(|_| trapping(mechanism, open)).collect();
                passing[round % 4].protect(0..4 * PAGE).unwrap();
                write(passing[round % 4].memory(), PAGE, 1);
                drop(passing);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_waiting_thread_continues_when_its_region_is_dropped() {
    for round in 0..200 {
        let memory = Memory::anonymous(8 * PAGE).unwrap();
        let kept = memory.share();
        let trapping = Trapping::new(memory, Watch::Writes, open).unwrap();
        if trapping.mechanism() != Mechanism::UserfaultThread {
            println!("SKIP no userfaultfd: nobody waits in the kernel");
            return;
        }
        trapping.protect(0..8 * PAGE).unwrap();
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            (0..8).for_each(|page| write(&kept, page * PAGE, 1));
            sender.send(()).unwrap();
        });
        if round % 2 == 0 {
            std::thread::yield_now();
        }
        drop(trapping);
        assert!(done.recv_timeout(std::time::Duration::from_secs(20)).is_ok(), "round {round}");
    }
}
