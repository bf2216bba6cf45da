//! Blocks of glibc's malloc, stacks and other mappings.

use super::super::AddressKind;
use super::program::TestProgram;

#[test]
fn blocks_are_found_in_all_kinds_of_heaps() {
    for options in ["-O0 -g", "-O2 -no-pie -s", "-O2 -static"] {
        let Some(running) = TestProgram::start("cc", options, &[]) else { continue };
        let mut objects = running.objects();
        for name in ["sums", "in_main", "behind", "in_thread", "mapped"] {
            let all = running.all(name);
            assert!(!all.is_empty());
            for (start, bytes) in all {
                let block = |address| objects.heap_block(address);
                let ends = [start, start + bytes / 2, start + bytes - 1].map(block);
                assert_eq!(ends, [0; 3].map(|_| Some(start..start + bytes)), "{options}: {name} {start:#x}");
                assert_ne!(objects.heap_block(start - 1), Some(start..start + bytes));
                assert_ne!(objects.heap_block(start + bytes), Some(start..start + bytes));
            }
        }
        let (start, bytes) = running.reported("sums");
        let info = objects.describe(start + 20, 64);
        assert_eq!((info.kind, info.offset, info.unknown_reason), (AddressKind::Heap, 20, None));
        let object = info.object.unwrap();
        assert_eq!((object.address, object.stride, object.on_heap), (start, bytes, true));

        let info = objects.describe(running.reported("freed").0 + 40_000, 64);
        assert_eq!((info.kind, info.object), (AddressKind::Heap, None));
        assert!(info.unknown_reason.is_some());
        let (start, bytes) = running.reported("plain");
        for at in [0, bytes / 2, bytes - 1] {
            let info = objects.describe(start + at, 64);
            assert_eq!((info.kind, info.object), (AddressKind::Mapping, None), "{options}");
            assert!(info.range.start <= start && info.range.end >= start + bytes);
        }
    }
}

#[test]
fn a_stack_is_attributed_to_its_thread() {
    for options in ["-O0", "-O2 -static"] {
        let Some(running) = TestProgram::start("cc", options, &[]) else { continue };
        let mut objects = running.objects();
        let info = objects.describe(running.reported("main_stack").0, 64);
        assert_eq!((info.kind, info.name), (AddressKind::Stack, format!("stack of thread {}", running.pid())));
        let threads = running.all("thread");
        assert_eq!(threads.len(), 3);
        for (address, thread) in threads {
            // The thread may still be running.
            let mut tries = 0;
            while objects.describe(address, 64).kind != AddressKind::Stack && tries < 200 {
                std::thread::sleep(std::time::Duration::from_millis(10));
                objects.refresh().unwrap();
                tries += 1;
            }
            let info = objects.describe(address, 64);
            assert_eq!(info.kind, AddressKind::Stack, "{info:?}");
            assert!(info.name.ends_with(&format!("stack of thread {thread}")), "{info:?}");
            assert_eq!(objects.heap_block(address), None);
        }
    }
}

/// As in Go's heap: the mapping contains a stack pointer and has a guard below it.
#[test]
fn a_mapping_without_a_thread_descriptor_is_no_stack_of_a_thread() {
    let Some(running) = TestProgram::start("cc", "-O1", &[]) else { return };
    let mut objects = running.objects();
    let (address, _) = running.reported("coroutine");
    let words = " with stacks of goroutines or coroutines in it";
    let mut tries = 0;
    while !objects.describe(address, 64).name.ends_with(words) && tries < 200 {
        // The thread may still be running.
        std::thread::sleep(std::time::Duration::from_millis(10));
        objects.refresh().unwrap();
        tries += 1;
    }
    let info = objects.describe(address, 64);
    assert_eq!(info.kind, AddressKind::Mapping, "{info:?}");
    assert!(info.name.starts_with("mapping of ") && info.name.ends_with(words), "{info:?}");
}

#[test]
fn blocks_are_correct_while_the_program_allocates() {
    use std::io::{BufRead, BufReader};
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("churn.c"), directory.path().join("churn"));
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
    let mut objects = super::super::Objects::open(child.id()).unwrap();
    let mut answers = 0;
    for _ in 0..5 {
        objects.refresh().unwrap();
        for &(start, bytes) in &kept {
            if let Some(block) = objects.heap_block(start + bytes / 2) {
                assert_eq!(block, start..start + bytes);
                answers += 1;
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answers > 0, "no block was found");
}
