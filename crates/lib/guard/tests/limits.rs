//! Many objects, small limits, and kernels without markers. Limits of the process are set in a
//! child.

#![allow(unsafe_code, reason = "sets limits, and frees objects")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes in tests are small"
)]

mod common;

use std::ptr::NonNull;

use common::*;
use fieldstone_guard::{Kind, Side, Slots};

fn limit(resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the kernel reads a live local.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Allocates, fills and frees objects of several sizes.
fn exercise(slots: &Slots) {
    for bytes in [1, 100, 4096, 20_000, 300_000] {
        let objects: Vec<_> = (0..4).map(|_| alloc(slots, bytes)).collect();
        for &object in &objects {
            fill(object, bytes, 1);
        }
        for object in objects {
            let finding = slots.explain(object.as_ptr().expose_provenance() + bytes).unwrap();
            assert_eq!((finding.kind, finding.offset), (Kind::HeapBufferOverflow, 0));
            free(slots, object);
            assert!(!is_accessible(object.as_ptr().expose_provenance()));
        }
    }
}

#[test]
fn the_memory_limit_holds_and_freed_memory_is_usable_again() {
    let slots = Slots::builder().memory(4 << 20).build().unwrap();
    for round in 0..3 {
        let objects: Vec<_> = std::iter::from_fn(|| slots.alloc(layout(100, 8))).collect();
        assert!((700..1024).contains(&objects.len()), "round {round}: {} objects", objects.len());
        assert!(slots.stats().memory <= 4 << 20 && slots.stats().memory_peak <= 4 << 20);
        objects.into_iter().for_each(|object| free(&slots, object));
    }
    assert_eq!(slots.stats().refused, 3);
    assert_eq!(slots.alloc(layout(8 << 20, 8)), None, "larger than the limit");
    let large = alloc(&slots, 2 << 20);
    free(&slots, large);
    assert_eq!(slots.alloc(layout(isize::MAX as usize, 1)), None);
}

#[test]
fn records_count_in_the_limit() {
    // Live objects of a few sizes after another: each class keeps its records.
    let slots = Slots::builder().memory(1 << 20).quarantine(usize::MAX).build().unwrap();
    for round in 0..20_000 {
        let object = alloc(&slots, 1 + round % 9000);
        free(&slots, object);
        assert!(slots.stats().memory <= 1 << 20, "round {round}");
    }
}

#[test]
fn two_hundred_thousand_objects_take_few_mappings() {
    // In a child, because other tests map memory too.
    assert_eq!(in_child(many_objects), 0);
}

fn many_objects() {
    let slots = Slots::builder().memory(1 << 30).side(Side::Right).build().unwrap();
    if !slots.stats().has_markers {
        println!("SKIP guard markers: Linux 6.13 has them");
        return;
    }
    let before = mappings();
    let objects: Vec<_> = (0..200_000).map(|_| slots.alloc(layout(16, 16)).unwrap()).collect();
    let added = mappings() - before;
    assert!(added < 10, "{added} mappings");
    let is_guarded = |object: &NonNull<u8>| !is_accessible(object.as_ptr().expose_provenance() + 16);
    assert!(objects.iter().step_by(1000).all(is_guarded));
    objects.iter().step_by(2).for_each(|&object| free(&slots, object));
    let added = mappings() - before;
    assert!(added < 10, "{added} mappings after frees");
    assert_eq!(slots.stats().live, 100_000);
}

#[test]
fn without_markers_mprotect_does_the_same() {
    let slots = Slots::builder().force_protect().build().unwrap();
    assert!(!slots.stats().has_markers);
    exercise(&slots);
    let objects: Vec<_> = std::iter::from_fn(|| slots.alloc(layout(16, 16))).collect();
    assert_eq!(objects.len(), 8192, "the program keeps most of its mappings");
    assert!(mappings() < 20_000);
    objects.into_iter().for_each(|object| free(&slots, object));
    assert!(mappings() < 1000, "freed slots are one mapping with their guards");
    exercise(&slots);
}

#[test]
fn a_small_address_space_gives_a_smaller_range() {
    let status = in_child(|| {
        limit(libc::RLIMIT_AS, 1 << 30);
        let slots = Slots::builder().build().unwrap();
        assert!(slots.span() <= 1 << 27, "at most an eighth");
        exercise(&slots);
        assert_eq!(slots.stats().reserved, slots.span());
    });
    assert_eq!(status, 0);
    let unlimited = Slots::builder().build().unwrap();
    assert!(unlimited.span() > 1 << 30);
}

#[test]
fn a_small_limit_of_data_gives_smaller_tables() {
    let status = in_child(|| {
        limit(libc::RLIMIT_DATA, 64 << 20);
        let slots = Slots::builder().memory(1 << 30).build().unwrap();
        exercise(&slots);
        // The limit also bounds the accessible part of the range: requests fail, nothing else does.
        let objects: Vec<_> = std::iter::from_fn(|| slots.alloc(layout(16, 16))).collect();
        assert!(objects.len() > 500, "{}", objects.len());
        objects.into_iter().for_each(|object| free(&slots, object));
        exercise(&slots);
    });
    assert_eq!(status, 0);
}

#[test]
fn no_address_space_is_an_error_that_names_the_limit() {
    let status = in_child(|| {
        limit(libc::RLIMIT_AS, 1 << 20);
        let error = Slots::builder().build().unwrap_err();
        assert!(error.to_string().contains("ulimit -v"), "{error}");
    });
    assert_eq!(status, 0);
}

/// Locked memory has no markers, so mprotect(2) takes over.
#[test]
fn locked_memory_is_guarded_too() {
    let status = in_child(|| {
        let slots = Slots::builder().memory(16 << 20).build().unwrap();
        exercise(&slots);
        // SAFETY: locks memory, which changes no contents.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) } != 0 {
            println!("SKIP mlockall: it is not permitted");
            return;
        }
        exercise(&slots);
        let other = Slots::builder().memory(16 << 20).build().unwrap();
        exercise(&other);
        assert_eq!(slots.stats().unprotected + other.stats().unprotected, 0);
    });
    assert_eq!(status, 0);
}

/// Installs a seccomp filter that kills the process at process_madvise(2).
fn kill_at_process_madvise() {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call is the first word.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_process_madvise as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads a live filter of four instructions.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn without_batches_no_call_is_made_that_filters_kill() {
    let reuse = |slots: &Slots| {
        kill_at_process_madvise();
        for _ in 0..300 {
            exercise(slots);
        }
    };
    let builder = || Slots::builder().memory(16 << 20).quarantine(100);
    let single = builder().without_batches().build().unwrap();
    assert_eq!(in_child(|| reuse(&single)), 0);
    if single.stats().has_markers {
        let batched = builder().build().unwrap();
        assert_eq!(in_child(|| reuse(&batched)), -libc::SIGSYS, "batches use process_madvise");
    }
}
