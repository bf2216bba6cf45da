//! Programs whose threads fight for a line, remapped while they run: the same results, in clones of their loops, whatever else they do.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod stage;

use fieldstone_remap::{RemapEvent, Why};
use stage::{Stage, apart, put_back, redirected};

#[test]
fn loops_go_on_in_clones() {
    for options in [&["-O0"][..], &["-O1"], &["-O2"], &["-O3"], &["-O2", "-static"]] {
        let Some(then) = Stage::of("usleep(100000);").options(options).right_all_the_same() else { return };
        assert_eq!(put_back(&then), None, "{options:?}");
    }
}

/// As gcc makes it of an `if` with an `else`: neither side jumps over the other.
#[test]
fn a_loop_that_goes_two_ways_round_its_head_has_one_clone() {
    let lap = "static uint64_t lap(volatile uint64_t *own) { uint64_t n = 1000000; __asm__ volatile(\"jmp 2f\\n 1: addq $1, (%1)\\n decq %0\\n\"
        \"2: testb $1, %b0\\n jne 1b\\n addq $1, (%1)\\n decq %0\\n jg 2b\" : \"+c\"(n) : \"r\"(own) : \"memory\", \"cc\"); return 1000001; }";
    Stage::of("").counting(lap).right_all_the_same();
}

#[test]
fn a_page_is_put_back_when_that_is_asked() {
    let mut running = Stage::of("usleep(1000);").start();
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    assert_eq!(process.put_all_back().unwrap(), [RemapEvent::PutBack { page: running.page, why: Why::Asked }]);
    process.move_page(&apart(running.page)).unwrap();
    let again = running.settle(&mut process);
    assert!(redirected(&again) >= 2, "{again:?}");
    process.put_all_back().unwrap();
    running.go_on(&mut process);
    let (then, told) = running.finish(&mut process);
    assert_eq!((redirected(&then), told.last().map(String::as_str)), (0, Some("right right")));
}

#[test]
fn each_access_to_watched_bytes_is_told() {
    let globals = "static __attribute__((noinline)) void add(volatile uint64_t *word, int n) { for (int i = 0; i < n; i++) ++*word; }";
    // The same loop over others, first: it has a clone then, which must not take the watched ones along.
    let body = "add(counters + 80, 100000); add(counters + 60, 100000); add(counters + 70, 100);
        int i; for (i = 0; i < 50; i++) (void)counters[71]; counters[72] = 5;";
    let mut running = Stage::of(body).with(globals).start();
    let Some(mut process) = running.hold() else { return };
    let (page, watched) = (running.page, running.page + 70 * 8..running.page + 72 * 8);
    let wanted = fieldstone_remap::Wanted { watched: vec![watched.clone()], ..apart(page) };
    process.move_page(&wanted).unwrap();
    running.settle(&mut process);
    let then = running.go_on(&mut process);
    process.put_all_back().unwrap();
    let (_, told) = running.finish(&mut process);
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
    let touches: Vec<fieldstone_remap::Touch> = then
        .iter()
        .filter_map(|done| if let RemapEvent::Touched(touch) = done { Some(*touch) } else { None })
        .collect();
    assert!(touches.iter().all(|touch| watched.contains(&touch.address) && touch.bytes == 8), "{touches:?}");
    let at = |word: u64| touches.iter().filter(move |touch| touch.address == page + word * 8);
    let (written, read) = (at(70).filter(|touch| touch.write).count(), at(71).filter(|touch| touch.read).count());
    assert_eq!((written, read, at(71).filter(|touch| touch.write).count()), (100, 50, 0));
    assert!(touches.windows(2).all(|two| two[0].thread == two[1].thread), "one thread touches them");
}

/// A page with nothing on lines of its own, only looked at.
#[test]
fn a_page_may_be_watched_alone() {
    let body = "int i; for (i = 0; i < 20; i++) second[100 + i] = i;";
    let mut running = Stage::of(body).start();
    let Some(mut process) = running.hold() else { return };
    let watched = std::iter::once(running.second + 100..running.second + 110).collect();
    process
        .move_page(&fieldstone_remap::Wanted { page: running.second, owners: Vec::new(), consolidated: false, watched })
        .unwrap();
    let then = running.go_on(&mut process);
    let mut byte = [0];
    assert_eq!((fieldstone_rewrite::Memory::read(&process.as_seen(), running.second + 105, &mut byte), byte), (1, [5]));
    process.put_all_back().unwrap();
    let (_, told) = running.finish(&mut process);
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
    assert!(then.iter().filter(|done| matches!(done, RemapEvent::Touched(_))).count() >= 1, "{then:?}");
}

/// What each thread uses on several lines comes together on one, and goes back to where it was.
#[test]
fn words_of_several_lines_are_consolidated() {
    let globals = "static __attribute__((noinline)) void add(volatile uint64_t *page, int n) { for (int i = 0; i < n; i++) { page[1]++; page[10]++; page[19]++; page[28]++; } }";
    let before = "for (int i = 0; i < 512; i++) ((uint64_t *)second)[i] = i;";
    let body = "static int more; more += 1000; volatile uint64_t *page = (volatile uint64_t *)second; add(page, 1000);
        for (int i = 0; i < 512; i++) CHECK(page[i] == i + (i == 1 || i == 10 || i == 19 || i == 28 ? more : 0));";
    for options in [&["-O2"][..], &["-O0"]] {
        let mut running = Stage::of(body).with(globals).before(before).options(options).start();
        let Some(mut process) = running.remap() else { return };
        let word = |number: u64| running.second + number * 8..running.second + number * 8 + 8;
        let owner = [1, 10, 19, 28].map(word).to_vec();
        let wanted = fieldstone_remap::Wanted {
            page: running.second,
            owners: vec![owner],
            consolidated: true,
            watched: Vec::new(),
        };
        let moved = process.move_page(&wanted).unwrap();
        let lines: std::collections::BTreeSet<u64> =
            moved.page.rules.iter().map(|rule| rule.bytes.start.wrapping_add_signed(rule.delta) / 64).collect();
        assert_eq!(lines.len(), 1, "{moved:?}");
        running.go_on(&mut process);
        process.put_all_back().unwrap();
        let (_, told) = running.finish(&mut process);
        assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
    }
}
