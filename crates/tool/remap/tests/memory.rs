//! Memory that goes away while its bytes are elsewhere, memory of children, and pages that must not
//! move.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod program;

use fieldstone_remap::{Error, RemapEvent, RestoreReason};
use program::{CHILD, ProgramBuilder, move_and_restore_repeatedly, redirect_count, split_words};

/// Runs a program whose first two pages of `second` are moved too, with a phase that uses them.
fn move_more_pages(meanwhile: &str) -> Option<Vec<RemapEvent>> {
    move_more_pages_with("", meanwhile)
}

/// The same with functions and variables of its own.
fn move_more_pages_with(more: &str, meanwhile: &str) -> Option<Vec<RemapEvent>> {
    let globals = "static int times; static __attribute__((noinline)) void add(volatile uint64_t *word, int n) { for (int i = 0; i < n; i++) ++*word; }
        static void fresh(char *at, unsigned char byte) { for (int i = 0; i < 8192; i++) CHECK((unsigned char)at[i] == byte); }";
    let mut running = ProgramBuilder::new(meanwhile).globals(globals).globals(more).start();
    let mut process = running.open_and_move()?;
    running.serve_until_quiet(&mut process);
    for page in [running.second, running.second + 4096] {
        process.move_page(&split_words(page)).unwrap();
    }
    let then = running.run_phase(&mut process);
    if !running.is_over() {
        process.restore_all(&RestoreReason::Requested).unwrap();
    }
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?} {then:?}");
    Some(then)
}

/// Moves only the first page of `second`; the results must be right.
fn move_second_page(builder: &ProgramBuilder) {
    let mut running = builder.start();
    let Some(mut process) = running.open_and_move() else { return };
    process.move_page(&split_words(running.second)).unwrap();
    running.run_phase(&mut process);
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

/// Counts in words of both pages, so that there are clones and rewritelets for them.
const USE: &str = "uint64_t *one = (uint64_t *)second, *other = (uint64_t *)(second + 4096); add(one + 8, 1000); add(other + 9, 500);
    CHECK(one[8] == 0x0707070707070707 + 1000); CHECK(other[9] == 0x0707070707070707 + 500); CHECK(one[100] == 0x0707070707070707);";

#[test]
fn unmapped_pages_are_replaced_by_new_ones() {
    let body = format!(
        "if (times++) return; {USE} for (int i = 0; i < 20; i++) {{ CHECK(!munmap(second, 8192));
         CHECK(mmap(second, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == second);
         fresh(second, 0); add(one + 8, 1000); CHECK(one[8] == 1000); }}"
    );
    let Some(then) = move_more_pages(&body) else { return };
    let gone = then.iter().filter(|done| matches!(done, RemapEvent::Restored { why: RestoreReason::Removed, .. }));
    assert_eq!(gone.count(), 2, "{then:?}");
}

#[test]
fn mremap_moves_the_bytes_of_moved_pages() {
    let body = format!(
        "if (times++) return; {USE} char *to = (char *)mmap(0, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
         CHECK(mremap(second, 8192, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to); one = (uint64_t *)to; other = (uint64_t *)(to + 4096);
         CHECK(one[8] == 0x0707070707070707 + 1000); CHECK(other[9] == 0x0707070707070707 + 500); CHECK(one[100] == 0x0707070707070707 && other[511] == 0x0707070707070707);
         add(one + 8, 1000); CHECK(one[8] == 0x0707070707070707 + 2000);"
    );
    move_more_pages(&body);
}

#[test]
fn mremap_grows_memory_with_a_moved_page() {
    let before = "second = (char *)mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 8192; memset(second - 8192, 7, 65536);";
    let body = "if (times++) return; volatile uint64_t *word = (volatile uint64_t *)second + 8; for (int i = 0; i < 1000; i++) ++*word;
        char *to = (char *)mremap(second - 8192, 65536, 1 << 20, MREMAP_MAYMOVE); CHECK(to != (char *)MAP_FAILED); word = (volatile uint64_t *)(to + 8192) + 8;
        CHECK(*word == 0x0707070707070707 + 1000); for (int i = 0; i < 65536; i++) CHECK(to[i] == 7 || i - 8192 - 64 < 8);";
    move_second_page(&ProgramBuilder::new(body).globals("static int times;").before(before));
}

#[test]
fn realloc_keeps_the_bytes_of_a_moved_page() {
    // realloc(3) of a large block calls mremap(2).
    let globals = "static char *block; static int times;";
    let before = "block = (char *)malloc(1 << 20); memset(block, 7, 1 << 20); second = (char *)(((uintptr_t)block + 8192) & -4096);";
    let body = "if (times++) return; uint64_t offset = second - block; volatile uint64_t *word = (volatile uint64_t *)second + 8; for (int i = 0; i < 1000; i++) ++*word;
        block = (char *)realloc(block, 1 << 26); CHECK(block); word = (volatile uint64_t *)(block + offset) + 8; CHECK(*word == 0x0707070707070707 + 1000);
        for (int i = 0; i < 1 << 20; i++) CHECK(block[i] == 7 || (uint64_t)i - offset - 64 < 8);";
    move_second_page(&ProgramBuilder::new(body).globals(globals).before(before));
}

#[test]
fn pages_of_a_file_are_moved_and_restored() {
    let globals = "static char initialised[16384] __attribute__((aligned(4096))) = { 7 }; static int times;
        static __attribute__((noinline)) void add(volatile uint64_t *word, int n) { for (int i = 0; i < n; i++) ++*word; }";
    let before = "memset(initialised, 7, sizeof initialised); second = initialised;";
    let body = format!("if (times++) return; {USE} CHECK(initialised[16383] == 7);");
    let mut running = ProgramBuilder::new(&body).globals(globals).before(before).start();
    let Some(mut process) = running.open_and_move() else { return };
    for _ in 0..5 {
        process.move_page(&split_words(running.second)).unwrap();
        process.restore_page(running.second, RestoreReason::Requested).unwrap();
    }
    for page in [running.second, running.second + 4096] {
        process.move_page(&split_words(page)).unwrap();
    }
    let then = running.run_phase(&mut process);
    assert!(redirect_count(&then) >= 2, "{then:?}");
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

/// A handler that counts faults and jumps back.
const FAULTS: &str = "static sigjmp_buf back; static volatile int faults; static void on(int s) { faults++; siglongjmp(back, 1); }
    static void heed(void) { struct sigaction a; memset(&a, 0, sizeof a); a.sa_handler = on; sigaction(SIGSEGV, &a, 0); faults = 0; }";

#[test]
fn a_page_made_read_only_is_not_written() {
    for call in ["mprotect(second, 4096, PROT_READ)", "mprotect(second, 1, PROT_READ)"] {
        let body = format!(
            "if (times++) return; {USE} heed(); CHECK(!{call}); CHECK(one[8] == 0x0707070707070707 + 1000);
             if (!sigsetjmp(back, 1)) {{ add(one + 8, 10); CHECK(0); }} CHECK(faults == 1); CHECK(one[8] == 0x0707070707070707 + 1000);
             add(other + 9, 500); CHECK(other[9] == 0x0707070707070707 + 1000);
             CHECK(!mprotect(second, 4096, PROT_READ | PROT_WRITE)); add(one + 8, 10); CHECK(one[8] == 0x0707070707070707 + 1010);"
        );
        let Some(then) = move_more_pages_with(FAULTS, &body) else { return };
        let gone = then.iter().filter(|done| matches!(done, RemapEvent::Restored { why: RestoreReason::Removed, .. }));
        assert_eq!(gone.count(), 1, "one page, and no other: {then:?}");
    }
}

#[test]
fn mprotect_of_other_memory_works() {
    let body = format!(
        "if (times++) return; {USE} char *own = (char *)mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); heed();
         for (int i = 0; i < 1000; i++) {{ CHECK(!mprotect(own, 4096, PROT_NONE)); CHECK(!mprotect(own, 4096, PROT_READ | PROT_WRITE)); own[0] = i; }}
         CHECK(!mprotect(own, 4096, PROT_NONE)); if (!sigsetjmp(back, 1)) {{ own[0] = 1; CHECK(0); }} CHECK(faults == 1);
         errno = 0; CHECK(mprotect(own + 1, 4096, PROT_READ) == -1 && errno == EINVAL); CHECK(mprotect(own, -4096, PROT_READ) == -1 && errno == ENOMEM);
         add(one + 8, 10); CHECK(one[8] == 0x0707070707070707 + 1010);"
    );
    let Some(then) = move_more_pages_with(FAULTS, &body) else { return };
    assert!(!then.iter().any(|done| matches!(done, RemapEvent::Restored { .. })), "{then:?}");
}

#[test]
fn mprotect_works_while_pages_move() {
    let body = "volatile uint64_t *word = (volatile uint64_t *)second + 8; uint64_t begin = *word; for (int i = 1; i <= 3000; i++) {
        CHECK(!mprotect(second, 16384, PROT_READ)); CHECK(*word == begin + i - 1); CHECK(!mprotect(second, 16384, PROT_READ | PROT_WRITE)); ++*word; }";
    let mut running = ProgramBuilder::new(body).start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    running.send_input();
    let mut moved = 0;
    for _ in 0..200 {
        // The page may be protected at the moment.
        moved += u32::from(process.move_page(&split_words(running.second)).is_ok());
        process.serve(std::time::Duration::from_millis(1)).unwrap();
        process.restore_page(running.second, RestoreReason::Requested).unwrap();
    }
    running.serve_until(&mut process, |line| line == "done");
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
    assert!(moved > 0, "it was never moved");
}

#[test]
fn pages_emptied_by_madvise_are_empty() {
    for advice in ["MADV_DONTNEED", "MADV_FREE"] {
        let body = format!(
            "if (times++) return; {USE} CHECK(!madvise(second, 8192, {advice})); if ({advice} == MADV_DONTNEED) fresh(second, 0);
             one[8] = 5; add(one + 8, 1000); CHECK(one[8] == 1005); CHECK(second[8192] == 7);"
        );
        move_more_pages(&body);
    }
}

#[test]
fn a_freed_object_and_its_thread_leave_no_trace() {
    let globals = "static char *block; static int times;
        static void *uses(void *object) { volatile uint64_t *word = (volatile uint64_t *)object; for (int i = 0; i < 1000; i++) ++*word; return 0; }";
    let before =
        "block = (char *)malloc(12288); memset(block, 7, 12288); second = (char *)(((uintptr_t)block + 4095) & -4096);";
    // The whole page of the block is moved. The block is freed, and the next one of its size gets
    // the same memory.
    let body = "if (times++) return; for (int i = 0; i < 20; i++) { pthread_t t; uint64_t *word = (uint64_t *)second + 8; *word = i;
        CHECK(!pthread_create(&t, 0, uses, (void *)word)); CHECK(!pthread_join(t, 0)); CHECK(*word == (uint64_t)i + 1000);
        char *was = block; free(block); block = (char *)malloc(12288); CHECK(block == was); memset(block, i, 12288);
        for (int at = 0; at < 12288; at++) CHECK(block[at] == i); }";
    let mut running = ProgramBuilder::new(body).globals(globals).before(before).start();
    let Some(mut process) = running.open_and_move() else { return };
    process.move_page(&split_words(running.second)).unwrap();
    let then = running.run_phase(&mut process);
    assert!(redirect_count(&then) > 0, "{then:?}");
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn pages_are_restored_in_forked_children() {
    let globals = format!(
        "{CHILD} static void *forks(void *none) {{ for (int i = 0; i < 10; i++) {{ pid_t pid = fork(); CHECK(pid >= 0); if (!pid) _exit(child());
         int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(status == 0); }} return 0; }}"
    );
    // Two threads fork at the same time.
    let body = "counters[100] = 7; pthread_t t; CHECK(!pthread_create(&t, 0, forks, 0)); forks(0); pthread_join(t, 0);";
    let Some(then) = ProgramBuilder::new(body).globals(&globals).assert_same_results() else { return };
    assert!(then.iter().filter(|done| matches!(done, RemapEvent::ChildRestored(_))).count() >= 20, "{then:?}");
}

/// A page is restored during a fork. The fork copies much memory, so it takes long.
#[test]
fn pages_are_restored_in_children_forked_during_a_restore() {
    let globals = format!("{CHILD} static char *much;");
    let before = "much = (char *)malloc(256 << 20); memset(much, 1, 256 << 20);";
    let body = "counters[100] = 7; for (int i = 0; i < 60; i++) { pid_t pid = fork(); CHECK(pid >= 0); if (!pid) _exit(child());
        int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(status == 0); }";
    move_and_restore_repeatedly(&ProgramBuilder::new(body).globals(&globals).before(before));
}

#[test]
fn vfork_children_write_to_shared_memory() {
    let globals = "#include <spawn.h>\nextern char **environ;";
    let body = "uint64_t begin = counters[100]; for (int i = 0; i < 10; i++) { pid_t pid = vfork(); if (!pid) { counters[100]++; _exit(0); } int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(!status); }
        CHECK(counters[100] == begin + 10); pid_t pid; char *arguments[] = { (char *)\"true\", 0 }; CHECK(!posix_spawnp(&pid, \"true\", 0, 0, arguments, environ));
        int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(!status); CHECK(!system(\"true\"));";
    let Some(then) = ProgramBuilder::new(body).globals(globals).assert_same_results() else { return };
    assert!(redirect_count(&then) > 0);
}

/// Another process in the same memory, which the program does not wait for meanwhile.
#[test]
fn processes_that_share_memory_run_concurrently() {
    let globals = "static int beside(void *none) { for (int i = 0; i < 3000000; i++) ++counters[100]; return 0; }";
    let body = "uint64_t begin = counters[100]; char *stack = (char *)mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < 5; i++) { pid_t pid = clone(beside, stack + 65536, CLONE_VM | SIGCHLD, 0); CHECK(pid > 0); int status;
            CHECK(waitpid(pid, &status, 0) == pid); CHECK(!status); CHECK(counters[100] == begin + (i + 1) * 3000000UL); }";
    let Some(then) = ProgramBuilder::new(body).globals(globals).assert_same_results() else { return };
    assert!(
        redirect_count(&then) > 0 && !then.iter().any(|done| matches!(done, RemapEvent::ChildRestored(_))),
        "{then:?}"
    );
}

#[test]
fn a_program_that_executes_another_is_released() {
    for body in [
        "execlp(\"echo\", \"echo\", \"another\", (char *)0);",
        "pthread_t t; pthread_create(&t, 0, execs, 0); pthread_join(t, 0);",
    ] {
        let globals =
            "static void *execs(void *none) { execlp(\"echo\", \"echo\", \"another\", (char *)0); return 0; }";
        let mut running = ProgramBuilder::new(body).globals(globals).start();
        let Some(mut process) = running.open_and_move() else { return };
        running.serve_until_quiet(&mut process);
        running.send_input();
        let done = running.serve_until(&mut process, |_| false);
        assert!(done.contains(&RemapEvent::Ended), "{done:?}");
        let (_, output) = running.finish(&mut process);
        assert_eq!(output, ["another"]);
    }
}

#[test]
fn the_heap_can_grow() {
    let before = "second = (char *)(((uintptr_t)sbrk(8192) + 4095) & -4096);";
    let body =
        "for (int i = 0; i < 100; i++) { char *end = (char *)sbrk(0); CHECK(sbrk(1 << 20) == end); end[5] = 1; }";
    let mut running = ProgramBuilder::new(body).before(before).start();
    let Some(mut process) = running.open() else { return };
    process.move_page(&split_words(running.second)).unwrap();
    running.run_phase(&mut process);
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

/// What a program does to its page `second` before the move, and a word of the reason for the
/// refusal.
const UNMOVABLE: [(&str, &str, &str); 11] = [
    ("a stack", "char local; second = (char *)((uintptr_t)&local & -4096);", "stack"),
    ("a thread's own block", "char *self; __asm__(\"mov %%fs:0, %0\" : \"=r\"(self)); second = (char *)((uintptr_t)self & -4096);", "block"),
    ("code", "second = (char *)((uintptr_t)&lap & -4096);", "private"),
    ("shared memory", "second = (char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); second[0] = 1;", "private"),
    ("what cannot be written", "CHECK(!mprotect(second, 4096, PROT_READ));", "private"),
    ("locked memory", "CHECK(!mlock(second, 4096));", "locked"),
    ("a file's, where all is locked", "static char of_the_file[8192] = { 1 }; second = (char *)(((uintptr_t)of_the_file + 4095) & -4096); CHECK(!mlockall(MCL_FUTURE));", "locked"),
    ("what children are to find empty", "CHECK(!madvise(second, 4096, MADV_WIPEONFORK));", "WIPEONFORK"),
    // Without protection keys, the page is one that children find empty.
    ("a protection key", "int key = pkey_alloc(0, 0); CHECK(key < 0 ? !madvise(second, 4096, MADV_WIPEONFORK) : !pkey_mprotect(second, 4096, PROT_READ | PROT_WRITE, key));", "key|WIPEONFORK"),
    ("asynchronous reads", "uint64_t context = 0; CHECK(!syscall(SYS_io_setup, 8, &context));", "by itself"),
    ("a robust mutex that is held", "pthread_mutexattr_t a; pthread_mutexattr_init(&a); pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_t *m = (pthread_mutex_t *)(second + 512); pthread_mutex_init(m, &a); CHECK(!pthread_mutex_lock(m));", "robust"),
];

#[test]
fn pages_that_cannot_move_are_refused() {
    for (name, before, word) in UNMOVABLE {
        let mut running = ProgramBuilder::new("usleep(1000);").before(before).start();
        let Some(mut process) = running.open() else { return };
        let mut tries = 0;
        loop {
            match process.move_page(&split_words(running.second)) {
                // A thread may be in the kernel for longer, for example while its stack is filled.
                Err(Error::Page { why, .. }) if why.contains("try again") && tries < 100 => tries += 1,
                Err(Error::Page { why, .. }) => {
                    break assert!(word.split('|').any(|word| why.contains(word)), "{name}: {why}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        running.run_phase(&mut process);
        let (_, output) = running.finish(&mut process);
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{name}: {output:?}");
    }
}

#[test]
fn a_move_fails_at_the_address_space_limit() {
    let body = "if (!full) { full = 1; struct rlimit l = { 4096, 4096 }; CHECK(!setrlimit(RLIMIT_AS, &l)); }";
    let mut running = ProgramBuilder::new(body).globals("#include <sys/resource.h>\nstatic int full;").start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    running.run_phase(&mut process);
    assert!(
        matches!(process.move_page(&split_words(running.second)), Err(Error::Page { why, .. }) if why.contains("memory"))
    );
    process.restore_all(&RestoreReason::Requested).unwrap();
    assert!(matches!(process.move_page(&split_words(running.page)), Err(Error::Page { .. })));
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn a_move_fails_at_the_mapping_limit() {
    // Alternating protections make as many mappings as the kernel permits.
    let body = "if (!full) { full = 1; size_t bytes = 4096UL * 300000; char *at = (char *)mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(at != (char *)MAP_FAILED); size_t i; for (i = 0; i < bytes; i += 8192) if (mprotect(at + i, 4096, PROT_READ)) break;
        many = i < bytes; for (i = 0; i < 1000; i++) if (mmap(0, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break; }";
    let mut running = ProgramBuilder::new(body).globals("static int full, many;").start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    running.run_phase(&mut process);
    let table = fieldstone_remap::space::mappings(running.child.id()).unwrap();
    if table.len() < 60_000 {
        println!("SKIP vm.max_map_count is more than the test makes");
    } else {
        assert!(matches!(process.move_page(&split_words(running.second)), Err(Error::Page { .. })));
    }
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}
