//! Programs with false sharing, remapped while they run: their results do not change, and their
//! loops run in clones.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod program;

use fieldstone_remap::{RemapEvent, RestoreReason};
use program::{ProgramBuilder, redirect_count, restore_reason, split_words};

#[test]
fn loops_continue_in_clones() {
    for options in [&["-O0"][..], &["-O1"], &["-O2"], &["-O3"], &["-O2", "-static"]] {
        let Some(then) = ProgramBuilder::new("usleep(100000);").options(options).assert_same_results() else { return };
        assert_eq!(restore_reason(&then), None, "{options:?}");
    }
}

/// As gcc compiles an `if` with an `else`: neither branch jumps over the other.
#[test]
fn a_loop_with_two_paths_to_its_head_has_one_clone() {
    let lap = "static uint64_t lap(volatile uint64_t *own) { uint64_t n = 1000000; __asm__ volatile(\"jmp 2f\\n 1: addq $1, (%1)\\n decq %0\\n\"
        \"2: testb $1, %b0\\n jne 1b\\n addq $1, (%1)\\n decq %0\\n jg 2b\" : \"+c\"(n) : \"r\"(own) : \"memory\", \"cc\"); return 1000001; }";
    ProgramBuilder::new("").lap(lap).assert_same_results();
}

#[test]
fn a_program_runs_while_it_is_open_and_no_page_is_moved() {
    let mut running = ProgramBuilder::new("").start();
    // The creation of a thread stops its creator until the next `serve`.
    let tasks = format!("/proc/{}/task", running.child.id());
    while std::fs::read_dir(&tasks).unwrap().count() < 3 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let Some(mut process) = running.open() else { return };
    running.send_input();
    running.wait_for("done");
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn a_page_is_restored_on_request() {
    let mut running = ProgramBuilder::new("usleep(1000);").start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    assert_eq!(
        process.restore_all(&RestoreReason::Requested).unwrap(),
        [RemapEvent::Restored { page: running.page, why: RestoreReason::Requested }]
    );
    process.move_page(&split_words(running.page)).unwrap();
    let again = running.serve_until_quiet(&mut process);
    assert!(redirect_count(&again) >= 2, "{again:?}");
    process.restore_all(&RestoreReason::Requested).unwrap();
    running.run_phase(&mut process);
    let (then, output) = running.finish(&mut process);
    assert_eq!((redirect_count(&then), output.last().map(String::as_str)), (0, Some("right right")));
}

#[test]
fn each_access_to_watched_bytes_is_reported() {
    let globals = "static __attribute__((noinline)) void add(volatile uint64_t *word, int n) { for (int i = 0; i < n; i++) ++*word; }";
    // The loop runs over other words first. Its clone must not redirect the watched ones.
    let body = "add(counters + 80, 100000); add(counters + 60, 100000); add(counters + 70, 100);
        int i; for (i = 0; i < 50; i++) (void)counters[71]; counters[72] = 5;";
    let mut running = ProgramBuilder::new(body).globals(globals).start();
    let Some(mut process) = running.open() else { return };
    let (page, watched) = (running.page, running.page + 70 * 8..running.page + 72 * 8);
    let wanted = fieldstone_remap::PageRequest { watched: vec![watched.clone()], ..split_words(page) };
    process.move_page(&wanted).unwrap();
    running.serve_until_quiet(&mut process);
    let then = running.run_phase(&mut process);
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
    let touches: Vec<fieldstone_remap::WatchedAccess> = then
        .iter()
        .filter_map(|done| if let RemapEvent::Watched(touch) = done { Some(*touch) } else { None })
        .collect();
    assert!(touches.iter().all(|touch| watched.contains(&touch.address) && touch.bytes == 8), "{touches:?}");
    let at = |word: u64| touches.iter().filter(move |touch| touch.address == page + word * 8);
    let (written, read) = (at(70).filter(|touch| touch.write).count(), at(71).filter(|touch| touch.read).count());
    assert_eq!((written, read, at(71).filter(|touch| touch.write).count()), (100, 50, 0));
    assert!(touches.windows(2).all(|two| two[0].thread == two[1].thread), "one thread touches them");
}

/// A page without owners, only watched.
#[test]
fn a_page_can_be_watched_without_moving_bytes() {
    let body = "int i; for (i = 0; i < 20; i++) second[100 + i] = i;";
    let mut running = ProgramBuilder::new(body).start();
    let Some(mut process) = running.open() else { return };
    let watched = std::iter::once(running.second + 100..running.second + 110).collect();
    process
        .move_page(&fieldstone_remap::PageRequest {
            page: running.second,
            owners: Vec::new(),
            consolidated: false,
            watched,
        })
        .unwrap();
    let then = running.run_phase(&mut process);
    let mut byte = [0];
    assert_eq!(
        (fieldstone_rewrite::ReadableMemory::read(&process.as_seen(), running.second + 105, &mut byte), byte),
        (1, [5])
    );
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
    assert!(then.iter().filter(|done| matches!(done, RemapEvent::Watched(_))).count() >= 1, "{then:?}");
}

/// The words of a thread on several lines are packed into one line, and restored to their
/// addresses.
#[test]
fn words_of_several_lines_are_consolidated() {
    let globals = "static __attribute__((noinline)) void add(volatile uint64_t *page, int n) { for (int i = 0; i < n; i++) { page[1]++; page[10]++; page[19]++; page[28]++; } }";
    let before = "for (int i = 0; i < 512; i++) ((uint64_t *)second)[i] = i;";
    let body = "static int more; more += 1000; volatile uint64_t *page = (volatile uint64_t *)second; add(page, 1000);
        for (int i = 0; i < 512; i++) CHECK(page[i] == i + (i == 1 || i == 10 || i == 19 || i == 28 ? more : 0));";
    for options in [&["-O2"][..], &["-O0"]] {
        let mut running = ProgramBuilder::new(body).globals(globals).before(before).options(options).start();
        let Some(mut process) = running.open_and_move() else { return };
        let word = |number: u64| running.second + number * 8..running.second + number * 8 + 8;
        let owner = [1, 10, 19, 28].map(word).to_vec();
        let wanted = fieldstone_remap::PageRequest {
            page: running.second,
            owners: vec![owner],
            consolidated: true,
            watched: Vec::new(),
        };
        let moved = process.move_page(&wanted).unwrap();
        let lines: std::collections::BTreeSet<u64> =
            moved.page.rules.iter().map(|rule| rule.bytes.start.wrapping_add_signed(rule.delta) / 64).collect();
        assert_eq!(lines.len(), 1, "{moved:?}");
        running.run_phase(&mut process);
        process.restore_all(&RestoreReason::Requested).unwrap();
        let (_, output) = running.finish(&mut process);
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
    }
}
