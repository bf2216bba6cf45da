//! Blocks of a real malloc, and other memory that is no variable.

use super::super::Kind;
use super::program::Running;

#[test]
fn blocks_are_found_wherever_malloc_put_them() {
    for way in ["-O0 -g", "-O2 -no-pie -s", "-O2 -static"] {
        let Some(running) = Running::start("cc", way, &[]) else { continue };
        let mut objects = running.objects();
        for name in ["sums", "in_main", "behind", "in_thread", "mapped"] {
            let all = running.all(name);
            assert!(!all.is_empty());
            for (start, bytes) in all {
                let told = |address| objects.block(address);
                let ends = [start, start + bytes / 2, start + bytes - 1].map(told);
                assert_eq!(ends, [0; 3].map(|_| Some(start..start + bytes)), "{way}: {name} {start:#x}");
                assert_ne!(objects.block(start - 1), Some(start..start + bytes));
                assert_ne!(objects.block(start + bytes), Some(start..start + bytes));
            }
        }
        let (start, bytes) = running.said("sums");
        let place = objects.at(start + 20, 64);
        assert_eq!((place.kind, place.offset, place.untold), (Kind::Heap, 20, None));
        let object = place.object.unwrap();
        assert_eq!((object.address, object.stride, object.on_heap), (start, bytes, true));

        let place = objects.at(running.said("freed").0 + 40_000, 64);
        assert_eq!((place.kind, place.object), (Kind::Heap, None));
        assert!(place.untold.is_some());
        let (start, bytes) = running.said("plain");
        for at in [0, bytes / 2, bytes - 1] {
            let place = objects.at(start + at, 64);
            assert_eq!((place.kind, place.object), (Kind::Mapping, None), "{way}");
            assert!(place.range.start <= start && place.range.end >= start + bytes);
        }
    }
}

#[test]
fn stacks_have_threads() {
    for way in ["-O0", "-O2 -static"] {
        let Some(running) = Running::start("cc", way, &[]) else { continue };
        let mut objects = running.objects();
        let place = objects.at(running.said("main_stack").0, 64);
        assert_eq!((place.kind, place.name), (Kind::Stack, format!("stack of thread {}", running.pid())));
        let threads = running.all("thread");
        assert_eq!(threads.len(), 3);
        for (address, thread) in threads {
            // The thread may not wait yet.
            let mut tries = 0;
            while objects.at(address, 64).kind != Kind::Stack && tries < 200 {
                std::thread::sleep(std::time::Duration::from_millis(10));
                objects.look_again().unwrap();
                tries += 1;
            }
            let place = objects.at(address, 64);
            assert_eq!(place.kind, Kind::Stack, "{place:?}");
            assert!(place.name.ends_with(&format!("stack of thread {thread}")), "{place:?}");
            assert_eq!(objects.block(address), None);
        }
    }
}

/// As Go's heap: a thread's stack pointer is in it, and it has a guard below.
#[test]
fn memory_that_no_thread_began_in_is_no_stack_of_a_thread() {
    let Some(running) = Running::start("cc", "-O1", &[]) else { return };
    let mut objects = running.objects();
    let (address, _) = running.said("coroutine");
    let words = " with stacks of goroutines or coroutines in it";
    let mut tries = 0;
    while !objects.at(address, 64).name.ends_with(words) && tries < 200 {
        // The thread may not wait yet.
        std::thread::sleep(std::time::Duration::from_millis(10));
        objects.look_again().unwrap();
        tries += 1;
    }
    let place = objects.at(address, 64);
    assert_eq!(place.kind, Kind::Mapping, "{place:?}");
    assert!(place.name.starts_with("mapping of ") && place.name.ends_with(words), "{place:?}");
}

#[test]
fn a_program_that_goes_on_allocating_is_told_nothing_wrong() {
    use std::io::{BufRead, BufReader};
    let room = tempfile::tempdir().unwrap();
    let (source, program) = (room.path().join("churn.c"), room.path().join("churn"));
    let text = r#"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    static void *kept[4096], *moving[4096];
    for (int i = 0; i < 4096; ++i) kept[i] = malloc(24 + i % 300), moving[i] = malloc(40 + i % 500);
    for (int i = 0; i < 4096; i += 64) printf("%p %zu\n", kept[i], malloc_usable_size(kept[i]));
    printf("end\n");
    fflush(stdout);
    for (unsigned seed = 1;; seed = seed * 1103515245u + 12345u) {
        void **const one = &moving[(seed >> 8) % 4096];
        free(*one);
        *one = malloc(1 + (seed >> 16) % 3000);
    }
}
"#;
    std::fs::write(&source, text).unwrap();
    if !super::program::build("cc", "-O1", &source, &program) {
        return;
    }
    let mut child = std::process::Command::new(&program).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let kept: Vec<(u64, u64)> = lines
        .take_while(|line| line != "end")
        .map(|line| {
            let (start, bytes) = line.split_once(' ').unwrap();
            (u64::from_str_radix(start.trim_start_matches("0x"), 16).unwrap(), bytes.parse().unwrap())
        })
        .collect();
    let mut objects = super::super::Objects::of(child.id()).unwrap();
    let mut told = 0;
    for _ in 0..5 {
        objects.look_again().unwrap();
        for &(start, bytes) in &kept {
            if let Some(block) = objects.block(start + bytes / 2) {
                assert_eq!(block, start..start + bytes);
                told += 1;
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(told > 0, "nothing was told at all");
}
