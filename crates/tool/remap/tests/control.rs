//! Control flow into and out of cloned code: jumps into its middle, exceptions, long jumps, changed
//! code.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod program;

use std::time::Duration;

use fieldstone_remap::{PageRequest, RemapEvent, RestoreReason};
use program::{ProgramBuilder, redirect_count, restore_reason, split_words};

/// A loop that is entered at its condition, inside of the five bytes that a jump at its head
/// overwrites.
fn loop_entered_inside(how: &str) -> String {
    format!(
        "uint64_t lap_in_assembly(volatile uint64_t *own, long laps);
         __asm__(\".text\\n lap_in_assembly:\\n mov %rsi, %rax\\n add $1, %rsi\\n {how}\\n 2: addq $1, (%rdi)\\n 3: sub $1, %rsi\\n jne 2b\\n ret\\n\");
         static uint64_t lap(volatile uint64_t *own) {{ lap_in_assembly(own, 100000); return 100000; }}"
    )
}

#[test]
fn a_loop_can_be_entered_inside_the_overwritten_bytes() {
    for how in ["jmp 3f", "lea 3f(%rip), %rdx\\n jmp *%rdx", "lea 3f(%rip), %rdx\\n push %rdx\\n ret"] {
        let mut running = ProgramBuilder::new("usleep(50000);").lap(&loop_entered_inside(how)).start();
        let Some(mut process) = running.open_and_move() else { return };
        let then = running.serve_for_a_while(&mut process);
        assert!(redirect_count(&then) >= 2 && restore_reason(&then).is_none(), "{how}: {then:?}");
        // The entry is a trap now. The head is restored and patched repeatedly meanwhile.
        for _ in 0..10 {
            process.restore_all(&RestoreReason::Requested).unwrap();
            process.move_page(&split_words(running.page)).unwrap();
            running.serve_for_a_while(&mut process);
        }
        running.run_phase(&mut process);
        process.restore_all(&RestoreReason::Requested).unwrap();
        let (_, output) = running.finish(&mut process);
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{how}: {output:?}");
    }
}

#[test]
fn exceptions_are_thrown_through_functions_with_cloned_loops() {
    let lap = "struct Stop { int laps; };
        static __attribute__((noinline)) void spin(volatile uint64_t *own, int laps) { for (int i = 0; i < laps; i++) ++*own; throw Stop{laps}; }
        static uint64_t lap(volatile uint64_t *own) { try { spin(own, 1000); } catch (Stop &stop) { return stop.laps; } return 0; }";
    for options in [&["-O2"][..], &["-O0"]] {
        let Some(then) = ProgramBuilder::new("usleep(50000);").lap(lap).in_cpp().options(options).assert_same_results()
        else {
            return;
        };
        assert_eq!(restore_reason(&then), None);
    }
}

#[test]
fn accesses_of_a_loop_with_calls_get_clones_of_their_own() {
    let globals = "static __attribute__((noinline)) int one(int i) { __asm__ volatile(\"\"); return i & 1; }";
    let body = "uint64_t begin = counters[70]; int i; for (i = 0; i < 600; i++) counters[70] += one(i); CHECK(counters[70] == begin + 300);";
    let Some(then) = ProgramBuilder::new(body).globals(globals).assert_same_results() else { return };
    assert!(restore_reason(&then).is_none() && (8..60).contains(&redirect_count(&then)), "{}", redirect_count(&then));
}

#[test]
fn long_jumps_out_of_clones_reach_their_targets() {
    let lap = "static __thread sigjmp_buf back; static __thread volatile int may; static volatile int jumps; static volatile pthread_t threads[2];
        static void on(int s) { if (may) { may = 0; __sync_fetch_and_add(&jumps, 1); siglongjmp(back, 1); } }
        static __thread volatile uint64_t total;
        static uint64_t lap(volatile uint64_t *own) { threads[own - counters - 8] = pthread_self();
          if (!sigsetjmp(back, 1)) { may = 1; int i; for (i = 0; i < 1000; i++) ++*own; may = 0; total += 1000; return 1000; }
          uint64_t before = total; total = *own; return total - before; }";
    let body = "struct sigaction a; memset(&a, 0, sizeof a); a.sa_handler = on; sigaction(SIGUSR1, &a, 0); int begin = jumps, tries;
        for (tries = 0; jumps < begin + 40 && tries < 5000; tries++) { pthread_kill(threads[tries % 2], SIGUSR1); usleep(4000); } CHECK(jumps >= begin + 40);";
    for options in [&["-O2"][..], &["-O0"]] {
        if ProgramBuilder::new(body).lap(lap).options(options).assert_same_results().is_none() {
            return;
        }
    }
}

#[test]
fn a_thread_is_cancelled_in_its_clone() {
    let globals = "static volatile int cleaned, started;
        static void clean(void *own) { cleaned++; }
        static void *spins(void *own) { volatile uint64_t *word = (volatile uint64_t *)own; pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
          pthread_cleanup_push(clean, own); started = 1; for (;;) ++*word; pthread_cleanup_pop(0); return 0; }";
    let body = "int i, begin = cleaned; for (i = 0; i < 20; i++) { pthread_t t; void *how; started = 0; CHECK(!pthread_create(&t, 0, spins, (void *)(counters + 20)));
        while (!started) usleep(100); usleep(2000); CHECK(!pthread_cancel(t)); CHECK(!pthread_join(t, &how)); CHECK(how == PTHREAD_CANCELED); } CHECK(cleaned == begin + 20);";
    for options in [&["-O2"][..], &["-O0"]] {
        if ProgramBuilder::new(body).globals(globals).options(options).assert_same_results().is_none() {
            return;
        }
    }
}

/// Two libraries with different loops at the same address.
fn libraries(folder: &std::path::Path) {
    for (name, sum) in [("one", "addq $1, (%rdi)"), ("three", "addq $3, (%rdi)")] {
        let source = format!(
            ".globl work\n .text\n work: mov %rsi, %rcx\n 1: {sum}\n sub $1, %rcx\n jne 1b\n mov %rsi, %rax\n ret\n .section .note.GNU-stack,\"\",@progbits\n"
        );
        let file = folder.join(format!("{name}.s"));
        std::fs::write(&file, source).unwrap();
        let built = std::process::Command::new("cc")
            .args(["-shared", "-nostdlib", "-o"])
            .arg(folder.join(format!("{name}.so")))
            .arg(&file)
            .status();
        assert!(built.unwrap().success());
    }
}

#[test]
fn a_library_with_a_cloned_loop_is_replaced_by_another() {
    let folder = tempfile::tempdir().unwrap();
    libraries(folder.path());
    let folder = folder.path().to_str().unwrap();
    let globals = "#include <dlfcn.h>\nstatic int same; static void *last;
        static void with(const char *file, uint64_t each) { void *library = dlopen(file, RTLD_NOW); CHECK(library);
          void (*work)(volatile uint64_t *, long) = (void (*)(volatile uint64_t *, long))dlsym(library, \"work\"); CHECK(work);
          same += last == (void *)work; last = (void *)work;
          for (int i = 0; i < 20; i++) { uint64_t begin = counters[20]; work(counters + 20, 1000); CHECK(counters[20] == begin + 1000 * each); }
          CHECK(!dlclose(library)); }";
    let body = format!(
        "for (int i = 0; i < 5; i++) {{ with(\"{folder}/one.so\", 1); with(\"{folder}/three.so\", 3); }} CHECK(same > 2);"
    );
    ProgramBuilder::new(&body).globals(globals).assert_same_results();
}

#[test]
fn rewritten_anonymous_code_runs_in_its_new_form() {
    let globals = "static unsigned char *code;
        static void write_code(unsigned char sum) { unsigned char loop[] = { 0x48, 0x89, 0xf1, 0x48, 0x83, 0x07, sum, 0x48, 0xff, 0xc9, 0x75, 0xf7, 0xc3 };
          CHECK(!mprotect(code, 4096, PROT_READ | PROT_WRITE)); memcpy(code, loop, sizeof loop); CHECK(!mprotect(code, 4096, PROT_READ | PROT_EXEC)); }";
    let before = "code = (unsigned char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);";
    let body = "for (int sum = 1; sum < 10; sum++) { write_code(sum); uint64_t begin = counters[20]; ((void (*)(volatile uint64_t *, long))code)(counters + 20, 20);
        CHECK(counters[20] == begin + 20 * sum); }";
    ProgramBuilder::new(body).globals(globals).before(before).assert_same_results();
}

/// As programs that patch their own text: code of a file, made writable for the change.
#[test]
fn rewritten_file_code_runs_in_its_new_form() {
    let globals = "static unsigned char *code; static void run(long n) { ((void (*)(volatile uint64_t *, long))code)(counters + 20, n); }";
    // mov %rsi, %rcx; nop; 1: nopl 0(%rax); addq $sum, (%rdi); dec %rcx; jne 1b; ret. The written
    // byte is behind the overwritten ones.
    let before = "unsigned char loop[] = { 0x48, 0x89, 0xf1, 0x90, 0x0f, 0x1f, 0x40, 0x00, 0x90, 0x48, 0x83, 0x07, 0x01, 0x48, 0xff, 0xc9, 0x75, 0xf2, 0xc3 };
        FILE *file = tmpfile(); CHECK(file); CHECK(write(fileno(file), loop, sizeof loop) == sizeof loop); CHECK(!ftruncate(fileno(file), 4096));
        code = (unsigned char *)mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(file), 0); CHECK(code != (unsigned char *)MAP_FAILED);";
    let body = "for (int sum = 1; sum < 10; sum++) { CHECK(!mprotect(code, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)); code[12] = sum;
        CHECK(!mprotect(code, 4096, PROT_READ | PROT_EXEC)); uint64_t begin = counters[20]; run(20000); run(20000); CHECK(counters[20] == begin + 40000 * sum); usleep(20000); }";
    let mut running = ProgramBuilder::new(body).globals(globals).before(before).start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    running.send_input();
    let mut done = Vec::new();
    // The page is moved again after each restore.
    let begun = std::time::Instant::now();
    while !running.has_ended() && !done.contains(&RemapEvent::Ended) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it hangs");
        let then = process.serve(Duration::from_millis(1)).unwrap();
        if then.iter().any(|done| matches!(done, RemapEvent::Restored { .. })) {
            let _ = process.move_page(&split_words(running.page));
        }
        done.extend(then);
        if running.has_printed("done") {
            break;
        }
    }
    let gone = |done: &&RemapEvent| matches!(done, RemapEvent::Restored { why: RestoreReason::Removed, .. });
    assert!(done.iter().filter(gone).count() >= 3, "{done:?}");
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

/// A rewritelet continues in the copy of the following head. The copy's place is reused once it is
/// freed.
#[test]
fn rewritelets_that_continue_in_a_head_copy_are_freed_with_it() {
    // The jump over the first sum overwrites a part of the second one.
    let globals = r#"static int times; static volatile uint64_t sum;
        static __attribute__((noinline)) void both(volatile uint64_t *one, volatile uint64_t *other, long n) {
          __asm__ volatile("1: addq $1, (%0)\n addq $1, (%1)\n dec %2\n jnz 1b" : "+D"(one), "+S"(other), "+c"(n) :: "memory", "cc"); }
        static __attribute__((noinline)) void third(volatile uint64_t *word, long n) {
          for (long i = 0; i < n; i++) { *word += 3; *word ^= 5; *word -= i; *word ^= 9; } }"#;
    let body = "volatile uint64_t *first = (uint64_t *)second + 8, *watched = (uint64_t *)(second + 4096) + 8; uint64_t begin = *watched; sum = 0;
        if (!times++) both(first, &sum, 100000); else { uint64_t own = *first; third(first, 100000); volatile uint64_t same = own; third(&same, 100000); CHECK(same == *first); }
        uint64_t before = sum; both(watched, &sum, 50); CHECK(*watched == begin + 50); CHECK(sum == before + 50);";
    let mut running = ProgramBuilder::new(body).globals(globals).start();
    let Some(mut process) = running.open_and_move() else { return };
    let (page, watched) = (running.second, running.second + 4096);
    process.move_page(&split_words(page)).unwrap();
    process
        .move_page(&PageRequest { watched: std::iter::once(watched..watched + 4096).collect(), ..split_words(watched) })
        .unwrap();
    let then = running.run_phase(&mut process);
    assert!(then.iter().filter(|done| matches!(done, RemapEvent::Watched(_))).count() >= 50, "{then:?}");
    process.restore_page(page, RestoreReason::Requested).unwrap();
    process.move_page(&split_words(page)).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}
