//! Each allocation is counted once, at its site, with its bytes.

use std::path::Path;

use fieldstone_wire::sites::{LossReason, NO_MODULE};

use crate::fixture::{ProgramDirectory, Recording};

#[test]
fn each_allocation_function_is_counted_exactly() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("counts.c", "counts", "");
    recording.run(&program, &[]);
    check_counts(&recording, &program);
}

#[test]
fn counts_in_the_emulator_are_equal() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("counts.c", "counts", "");
    let Some(mut command) = recording.emulated(&program) else { return };
    assert!(command.status().unwrap().success());
    check_counts(&recording, &program);
    let program = programs.compile("announcements.c", "announcements", "");
    let status = recording.emulated(&program).unwrap().status().unwrap();
    assert!(status.success(), "{status}");
}

fn check_counts(recording: &Recording, program: &Path) {
    let count = |stack| recording.count(program, stack);
    assert_eq!(count("innermost outer_one main"), (100, 2400));
    assert_eq!(count("innermost outer_two main"), (30, 30_000));
    assert_eq!(count("innermost"), (130, 32_400), "and by no other caller");
    assert_eq!(count("by_calloc main"), (50, 1200));
    // 16, 32, ... 1 MiB: 17 blocks; then one that fails, after which the last is announced again by
    // its usable size.
    let (blocks, bytes) = count("by_realloc main");
    assert_eq!(blocks, 18);
    let grown = (1 << 21) - 16;
    assert!((grown + (1 << 20)..grown + (1 << 20) + 8192).contains(&bytes), "{bytes}");
    assert_eq!(count("by_reallocarray main"), (1, 40));
    assert_eq!(count("by_alignment main"), (5, 100 + 256 + 300 + 500 + 1));
    for lost in [LossReason::TableFull, LossReason::Nested, LossReason::NoFreeMailbox, LossReason::MailboxesUnmapped] {
        assert_eq!(recording.lost(lost), 0, "{lost:?}");
    }
}

#[test]
fn each_block_is_announced_when_allocated_and_freed() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("announcements.c", "announcements", "");
    recording.run(&program, &[]);
}

#[test]
fn eight_threads_count_together() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("threads.c", "threads", "");
    recording.run(&program, &[]);
    let mut stack = "leaf deeper".to_owned();
    for depth in 0..4 {
        let expected = (8 * 2500, 8 * 2500 * (16 + depth));
        assert_eq!(recording.count(&program, &format!("{stack} worker")), expected, "{:?}", recording.stacks(&program));
        stack += " deeper";
    }
    assert_eq!(recording.lost(LossReason::Nested), 0);
}

#[test]
fn callers_at_one_stack_address_are_distinguished() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("alloca.c", "alloca", "");
    recording.run(&program, &[]);
    assert_eq!(recording.count(&program, "leaf left main").0, 666);
    assert_eq!(recording.count(&program, "leaf right main").0, 334);
    assert_eq!(recording.count(&program, "leaf varied main").0, 1000);
}

#[test]
fn operator_new_is_a_frame_of_the_stack() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("objects.cpp", "objects", "");
    let output = recording.run(&program, &[]);
    assert_eq!(output.stdout, b"3\n");
    let with = |function: &str| {
        let stacks = recording.stacks(&program);
        let these = stacks.iter().filter(|(names, _)| names.split(' ').any(|name| name == function));
        these.fold((0, 0), |sum, (_, counts)| (sum.0 + counts.0, sum.1 + counts.1))
    };
    assert_eq!(with("make_things"), (10, 6 * 80 + 4 * 50));
    let (blocks, bytes) = with("fill_container");
    assert_eq!((blocks, bytes), (11, 4 * ((1 << 11) - 1)), "1, 2, 4, ... 1024 numbers");
    let stacks = recording.stacks(&program);
    assert!(stacks.keys().any(|names| names.starts_with("- make_things main")), "{stacks:?}");
}

#[test]
fn children_count_in_the_same_record() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("forks.c", "forks", "");
    recording.run(&program, &[]);
    let all = |function: &str| recording.count(&program, function);
    assert_eq!(all("in_parent main"), (200, 40_000));
    assert_eq!(all("in_child main"), (200, 20_000));
    assert_eq!(
        all("in_childs_thread childs_thread"),
        (600, 60_000),
        "no mailbox stays busy because of a thread before the fork"
    );
    assert_eq!(recording.sites().programs.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn allocations_before_main_and_in_late_libraries_are_recorded() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("loads.c", "loads", "");
    let library = programs.compile("late.c", "late.so", "-shared -fPIC");
    let output = recording.run(&program, &[library.to_str().unwrap()]);
    assert_eq!(output.stdout, b"unseen\n", "the program sees its own environment");
    assert_eq!(recording.count(&program, "before_main"), (1, 222));
    assert_eq!(recording.count(&library, "at_load"), (3, 3 * 333));
    assert_eq!(recording.count(&library, "late_work"), (15, 15 * 444));
    let nowhere = recording.sites().sites().filter(|(_, site)| site.frames().any(|(_, module)| module == NO_MODULE));
    assert_eq!(nowhere.count(), 0, "each frame has its file");
}
