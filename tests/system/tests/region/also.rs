//! `--also`: stacks, globals and hinted mappings on the requested pages, checked by the kernel's
//! tables.

use crate::common::wait_until;
use crate::fixture::{Waiting, child, compiled, counted, has_transparent, huge_at, outside, primary, region, stderr};

const MIB: u64 = 1 << 20;

/// Prints an address in its data, its zeroed data, a used thread stack and its used main stack, and
/// waits for stdin.
const SOURCE: &str = "#include <pthread.h>\n#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
    static unsigned data[2 << 20] = {[0 ... (2 << 20) - 1] = 7};\nstatic char zeroes[16 << 20];\n\
    static pthread_barrier_t used, done;\nstatic char *place;\n\
    __attribute__((constructor)) static void first(void) { data[5] = 8; zeroes[9] = 1; }\n\
    static void *thread(void *x) { volatile char mine[5 << 20]; for (int i = 0; i < 5 << 20; i += 512) mine[i] = 1;\n\
        place = (char *)mine + (3 << 20); pthread_barrier_wait(&used); pthread_barrier_wait(&done); return x; }\n\
    int main(void) { volatile char mine[6 << 20]; pthread_t t; char c;\n\
        for (int i = (6 << 20) - 1; i >= 0; i -= 512) mine[i] = 1;\n\
        for (int i = 0; i < 2 << 20; i++) if (data[i] != (i == 5 ? 8 : 7)) return 3;\n\
        for (int i = 0; i < 16 << 20; i++) if (zeroes[i] != (i == 9)) return 4;\n\
        memset(zeroes, 2, sizeof zeroes); data[77] = 9;\n\
        pthread_barrier_init(&used, 0, 2); pthread_barrier_init(&done, 0, 2);\n\
        if (pthread_create(&t, 0, thread, 0)) return 5;\n\
        pthread_barrier_wait(&used);\n\
        printf(\"%lu %lu %lu %lu\\n\", (long)&data[1 << 20], (long)&zeroes[8 << 20], (long)place, (long)&mine[1 << 20]);\n\
        fflush(stdout); while (read(0, &c, 1) > 0) {}\n\
        pthread_barrier_wait(&done); return data[77] + data[78] == 16 ? 0 : 6; }\n";

/// Bytes on huge pages at data, zeroed data, thread stack and main stack.
fn places(options: &str) -> Option<[u64; 4]> {
    let (_directory, program) = compiled(SOURCE, &["-O1", "-pthread"])?;
    let waiting = Waiting::start(region(options, &[&program]));
    let pid = wait_until("the program", || child(waiting.running.id(), "program"));
    let addresses: Vec<u64> = waiting.line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let found = [0, 1, 2, 3].map(|index| huge_at(pid, addresses[index]));
    let status = waiting.end();
    assert!(status.success(), "{options}: {status}");
    Some(found)
}

#[test]
fn exactly_the_requested_memory_is_on_huge_pages() {
    if !has_transparent() {
        return;
    }
    let Some(none) = places("--pages thp") else { return };
    let globals = places("--also globals").unwrap();
    let stacks = places("--also stacks").unwrap();
    let both = places("--also stacks,globals").unwrap();
    for [data, zeroes, _, _] in [globals, both] {
        assert!(data == 0 && zeroes >= 14 * MIB, "initialised data stays the file's: {globals:?} {both:?}");
    }
    for [_, _, thread, first] in [stacks, both] {
        assert!(thread >= 4 * MIB && first >= 4 * MIB, "{stacks:?} {both:?}");
    }
    let always = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
    if !always.contains("[always]") {
        assert_eq!((none, globals[2] + globals[3], stacks[0] + stacks[1]), ([0; 4], 0, 0));
    }
}

#[test]
fn a_program_with_also_runs_on_each_page_kind() {
    for options in ["--pages 4k --also stacks,globals", "--pages thp --reserve 32M --prefault --also stacks,globals"] {
        if places(options).is_none() {
            return;
        }
    }
}

#[test]
fn advised_and_skipped_memory_is_counted() {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1", "-pthread"]) else { return };
    let plain = primary("", &[&program]);
    assert!(outside(&plain, "thread stack") >= 8 * MIB, "{:?}", plain.outside);
    let both = primary("--also stacks,globals", &[&program]);
    assert_eq!(outside(&both, "thread stack"), 0, "{:?}", both.outside);
    assert!(both.served_bytes >= plain.served_bytes + 7 * MIB, "{} {}", both.served_bytes, plain.served_bytes);
    let advised = outside(&both, "zero-initialised globals, advised");
    assert!((14 * MIB..=16 * MIB).contains(&advised), "{:?}", both.outside);
    assert!(outside(&both, "globals with initial values") >= 6 * MIB, "{:?}", both.outside);
    assert!(outside(&both, "globals that fill no huge page") > 0, "{:?}", both.outside);
    assert!(outside(&both, "the first stack, advised") >= 4 * MIB, "{:?}", both.outside);
    // The stack limit applies to programs executed under it.
    let (output, stats) = counted("--also stacks", &["sh", "-c", "ulimit -s 1024; exec sleep 0"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let kept = stats
        .processes
        .iter()
        .any(|process| process.region.outside.iter().any(|one| one.reason.contains("keeps it from")));
    assert!(kept, "{stats:?}");
}

#[test]
fn discarded_data_is_read_from_the_file_again() {
    let Some((_directory, program)) = compiled(include_str!("../programs/discarded.c"), &["-O1"]) else { return };
    for options in ["", "--also globals", "--also globals --pages 4k"] {
        primary(options, &[&program]);
    }
}

#[test]
fn a_short_stack_stays_outside_the_region() {
    let source = "#include <pthread.h>\n static void *run(void *x) { return x; }\n\
        int main(void) { pthread_t t; pthread_attr_t a; void *r; pthread_attr_init(&a);\n\
        pthread_attr_setstacksize(&a, 256 << 10); for (int i = 0; i < 50; i++) {\n\
        if (pthread_create(&t, i % 2 ? &a : 0, run, &a) || pthread_join(t, &r) || r != &a) return 1; } return 0; }\n";
    let Some((_directory, program)) = compiled(source, &["-pthread"]) else { return };
    let stats = primary("--also stacks", &[&program]);
    assert!(outside(&stats, "holds no huge page") >= 256 << 10, "{:?}", stats.outside);
    assert_eq!(outside(&stats, "thread stack") - outside(&stats, "holds no huge page"), 0, "{:?}", stats.outside);
}

/// Maps memory with a hint, first at a new address, then at the first mapping; uses it, and waits
/// for stdin.
const HINTED: &str = "#include <stdio.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
    int main(void) { char c, *hint = (char *)0x200000000000, *m = 0; for (int i = 0; i < 2; i++) {\n\
        m = mmap(i ? m : hint, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
        if (m == MAP_FAILED) return 1;\n\
        for (int at = 0; at < 32 << 20; at += 4096) { if (m[at]) return 2; m[at] = 1; } }\n\
        printf(\"%lu\\n\", (long)m); fflush(stdout); while (read(0, &c, 1) > 0) {} return 0; }\n";

#[test]
fn memory_with_a_hint_is_in_the_region_only_on_request() {
    if !has_transparent() {
        return;
    }
    let Some((_directory, program)) = compiled(HINTED, &["-O1"]) else { return };
    let plain = primary("", &[&program]);
    assert!(outside(&plain, "in place") >= 32 * MIB, "{:?}", plain.outside);
    let served = primary("--also hinted", &[&program]);
    assert_eq!(outside(&served, "in place"), 0, "{:?}", served.outside);
    assert!(served.served_bytes >= plain.served_bytes + 32 * MIB, "{} {}", served.served_bytes, plain.served_bytes);
    let waiting = Waiting::start(region("--also hinted", &[&program]));
    let pid = wait_until("the program", || child(waiting.running.id(), "program"));
    let huge = huge_at(pid, waiting.line.trim().parse().unwrap());
    assert!(waiting.end().success());
    assert!(huge >= 30 * MIB, "{huge}");
}

#[test]
fn an_allocator_that_hints_has_its_memory_in_the_region() {
    let places = ["/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "/usr/lib/aarch64-linux-gnu/libmimalloc.so.2"];
    let Some(library) = places.into_iter().find(|library| std::path::Path::new(library).exists()) else {
        println!("SKIP mimalloc is not installed (apt-get install libmimalloc2.0)");
        return;
    };
    let source = "#include <stdlib.h>\nstruct node { struct node *next; long all[5]; };\n\
        int main(void) { struct node *last = 0; long sum = 0; for (long i = 0; i < 1 << 20; i++) {\n\
        struct node *n = malloc(sizeof *n); if (!n) return 1; n->next = last; n->all[4] = i; last = n; }\n\
        while (last) { struct node *n = last->next; sum += last->all[4]; free(last); last = n; }\n\
        return sum != ((1L << 20) - 1) * (1 << 19); }\n";
    let Some((_directory, program)) = compiled(source, &["-O0"]) else { return };
    let preload = format!("LD_PRELOAD={library}");
    let plain = primary("", &["env", &preload, &program]);
    assert!(plain.served_bytes < 4 * MIB, "mimalloc hints: {plain:?}");
    let served = primary("--also hinted", &["env", &preload, &program]);
    assert!(served.served_bytes >= 48 * MIB, "{served:?}");
}
