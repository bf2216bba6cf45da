//! Changes of memory while another thread keeps the pager busy: no write is lost.

use crate::fixture::{Program, can_page, counted, stderr, stdout};

/// A thread scans 48 MiB of noise until the end. `main` does `body` in rounds, on 1024 pages that
/// begin with their number plus 1.
fn program(body: &str) -> Option<Program> {
    let source = r#"
        #define _GNU_SOURCE
        #include <pthread.h>
        #include <stdio.h>
        #include <sys/mman.h>
        #include <time.h>
        enum { PAGE = 4096, PAGES = 1024, WORDS = PAGE / sizeof(long), SECONDS = 3 };
        static volatile int has_ended;
        static const size_t noise_bytes = 48 << 20;
        static unsigned long state = 88172645463325252;
        static unsigned long draw(void) { state ^= state << 13; state ^= state >> 7; return state ^= state << 17; }
        static void *memory(size_t bytes) {
            return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }
        static void *scan(void *noise) {
            while (!has_ended)
                for (size_t at = 0; at < noise_bytes && !has_ended; at += PAGE) ++*((volatile char *)noise + at + 8);
            return NULL;
        }
        int main(void) {
            unsigned long *noise = memory(noise_bytes);
            for (size_t i = 0; i < noise_bytes / sizeof *noise; i++) noise[i] = draw();
            volatile long *pages = memory(PAGES * PAGE);
            for (int i = 0; i < PAGES * WORDS; i++) pages[i] = draw();
            for (int i = 0; i < PAGES; i++) pages[i * WORDS] = i + 1;
            pthread_t thread;
            pthread_create(&thread, NULL, scan, noise);
            long rounds = 0, wrong = 0;
            for (time_t end = time(NULL) + SECONDS; time(NULL) < end; rounds++) {
                BODY
            }
            has_ended = 1;
            pthread_join(thread, NULL);
            printf("%s %ld\n", wrong == 0 && rounds > 10 ? "right" : "wrong", wrong);
            return 0;
        }"#;
    Program::compile(&source.replace("BODY", body)).filter(|_| can_page())
}

fn is_right(body: &str, store: &str) {
    let Some(program) = program(body) else { return };
    let (output, stats) = counted(&format!("--resident 32M {store}"), &[program.path.to_str().unwrap()]);
    assert_eq!(stdout(&output), "right 0\n", "{}", stderr(&output));
    let is_busy = stats.processes.iter().any(|process| process.evicted_pages + process.refused_pages > 1000);
    assert!(is_busy, "{stats:?}");
}

const FULL: &str = "--page-store lz4:64K";

#[test]
fn a_write_after_a_lazy_free_stays() {
    let body = "for (int n = 0; n < 32; n++) {
            int i = draw() % PAGES;
            wrong += pages[i * WORDS] != i + 1;
            madvise((void *)(pages + i * WORDS), PAGE, MADV_FREE);
            pages[i * WORDS] = i + 1;
        }";
    is_right(body, "");
}

#[test]
fn pages_that_no_store_takes_follow_a_move() {
    let body = "pages = mremap((void *)pages, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory(PAGES * PAGE));
        for (int i = 0; i < PAGES; i++) wrong += pages[i * WORDS] != i + 1;";
    is_right(body, FULL);
}

#[test]
fn pages_that_no_store_takes_come_back_to_memory_that_was_locked_or_made_read_only() {
    let lock = "int from = draw() % (PAGES - 64);
        void *part = (void *)(pages + from * WORDS);
        mlock(part, 64 * PAGE);
        for (int i = from; i < from + 64; i++) wrong += pages[i * WORDS] != i + 1;
        munlock(part, 64 * PAGE);";
    is_right(lock, FULL);
    let protect = "int from = draw() % (PAGES - 64);
        void *part = (void *)(pages + from * WORDS);
        mprotect(part, 64 * PAGE, PROT_READ);
        for (int i = from; i < from + 64; i++) wrong += pages[i * WORDS] != i + 1;
        mprotect(part, 64 * PAGE, PROT_READ | PROT_WRITE);
        for (int i = from; i < from + 64; i++) pages[i * WORDS] = i + 1;";
    is_right(protect, FULL);
}
