//! Processes that may not have each kind of userfaultfd.

use fieldstone_paging::{Error, Paged, PagedStats};

use crate::fixture::{Kind, MIB, build, check, fill, passes_alone};

fn is_root() -> bool {
    // SAFETY: the call has no argument.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("SKIP not root");
    }
    is_root
}

/// Memory that works for user code; its counts, and the errno of a system call that accesses it.
fn used() -> Option<(Paged, PagedStats, i32)> {
    let memory = build(Paged::builder(4 * MIB).resident(MIB))?;
    fill(&memory, Kind::Noise);
    check(&memory, Kind::Noise);
    assert_eq!(memory.resident(0..4096), Ok(0), "the oldest page has left");
    let mut pipe = [0; 2];
    // SAFETY: the array has two places, and the byte is inside the memory.
    let written = unsafe {
        libc::pipe(pipe.as_mut_ptr());
        libc::write(pipe[1], memory.as_ptr().as_ptr().cast(), 1)
    };
    let errno = if written == 1 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() };
    let stats = memory.stats();
    Some((memory, stats, errno))
}

#[test]
#[ignore = "runs in a process of its own"]
fn without_root() {
    // SAFETY: the process gives up its privileges for the rest of its life.
    assert_eq!(unsafe { (libc::setgroups(0, std::ptr::null()), libc::setresuid(65534, 65534, 65534)) }, (0, 0));
    let Some((memory, stats, errno)) = used() else { return };
    if stats.has_kernel_faults {
        println!("SKIP vm.unprivileged_userfaultfd is 1");
        return;
    }
    assert_eq!(errno, libc::EFAULT);
    check(&memory, Kind::Noise);
}

#[test]
fn without_privileges_only_system_calls_cannot_access_the_memory() {
    if is_root() {
        passes_alone("privileges::without_root");
    }
}

/// Data of capset(2).
#[repr(C)]
struct Capabilities([u32; 6]);

#[test]
#[ignore = "runs in a process of its own"]
fn without_ptrace() {
    const CAP_SYS_PTRACE: u32 = 19;
    let header = [0x2008_0522_u32, 0];
    let mut data = Capabilities([0; 6]);
    // SAFETY: the header and the data have the sizes of version 3.
    let results = unsafe {
        let got = libc::syscall(libc::SYS_capget, header.as_ptr(), &raw mut data);
        data.0[0] &= !(1 << CAP_SYS_PTRACE);
        (got, libc::syscall(libc::SYS_capset, header.as_ptr(), &raw const data))
    };
    assert_eq!(results, (0, 0));
    let Some((_, stats, errno)) = used() else { return };
    if !stats.has_kernel_faults {
        println!("SKIP no /dev/userfaultfd");
        return;
    }
    assert_eq!(errno, 0);
}

#[test]
fn with_the_device_alone_system_calls_access_the_memory() {
    if is_root() {
        passes_alone("privileges::without_ptrace");
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn filtered() {
    let load_number = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let is_call = |number: i64, skip: u8| libc::sock_filter { code: 0x15, jt: skip, jf: 0, k: number as u32 };
    let returns = |value: u32| libc::sock_filter { code: 6, jt: 0, jf: 0, k: value };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // The number of the call is at offset 0, and the second argument of ioctl at offset 24.
    let load_request = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 24 };
    let filter = [
        load_number,
        is_call(libc::SYS_userfaultfd, 3),
        load_request,
        is_call(0xAA00, 1),
        returns(libc::SECCOMP_RET_ALLOW),
        returns(refuse),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program and its filter are live locals.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
    let error = Paged::builder(MIB).build().unwrap_err();
    assert!(matches!(error, Error::NoUserfaultfd { errno: libc::EPERM }), "{error}");
    assert!(error.to_string().contains("try: a system-call filter"), "{error}");
}

#[test]
fn a_system_call_filter_is_named_as_the_cause() {
    passes_alone("privileges::filtered");
}
