//! A buffer that grows in steps gets the same pages as one of its final size.

use fieldstone_sys::smaps;

use crate::common::{ReservedPool, wait_until};
use crate::fixture::{Waiting, child, compiled, has_transparent, region};

/// `grow STEP BYTES`: grows a buffer by STEP bytes, or by a tenth if STEP is 0, up to BYTES, and
/// fills each step. `grow brk BYTES`: the same by sbrk(2). Each page holds its number. Prints the
/// address of the buffer and the processor time of growing in microseconds, and waits for stdin.
/// Checks that errno is unchanged.
const SOURCE: &str = "#include <errno.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <time.h>\n\
    #include <unistd.h>\n\
    #define PAGE 4096UL\n\
    static void fill(char *at, size_t from, size_t to) { size_t i;\n\
        for (i = (from + PAGE - 1) / PAGE * PAGE; i + sizeof i <= to; i += PAGE) memcpy(at + i, &i, sizeof i); }\n\
    static int holds(char *at, size_t all) { size_t i, is;\n\
        for (i = 0; i + sizeof i <= all; i += PAGE) { memcpy(&is, at + i, sizeof i); if (is != i) return 0; } return 1; }\n\
    int main(int n, char **a) { int heap = n > 1 && a[1][0] == 'b'; char c, *buffer = 0; clock_t since = clock();\n\
        size_t all = strtoul(a[2], 0, 0), step = heap ? 1 << 16 : strtoul(a[1], 0, 0), bytes = 0, more;\n\
        if (heap) buffer = sbrk(0);\n\
        errno = 77;\n\
        while (bytes < all) { more = step ? step : bytes / 10 + PAGE; if (more > all - bytes) more = all - bytes;\n\
            if (heap) { if (sbrk(more) == (void *)-1) return 2; }\n\
            else if (!(buffer = realloc(buffer, bytes + more))) return 2;\n\
            fill(buffer, bytes, bytes + more); bytes += more; }\n\
        since = clock() - since;\n\
        if (errno != 77) return 3;\n\
        if (!holds(buffer, all)) return 4;\n\
        printf(\"%lu %ld\\n\", (unsigned long)buffer, (long)since); fflush(stdout);\n\
        while (read(0, &c, 1) > 0) {}\n\
        return holds(buffer, all) ? 0 : 5; }\n";
const BUFFER_BYTES: u64 = 58 << 20;
/// 4/5: without up to 2 MiB at either end, and a few chunks without a free huge page.
const MIN_HUGE_BYTES: u64 = BUFFER_BYTES / 5 * 4;
/// While memory is fragmented by other processes, a single run may fail.
const ATTEMPTS: usize = 5;

/// The pages of a buffer that has grown, after its contents were checked.
#[derive(Debug)]
struct GrownBuffer {
    /// Bytes on transparent huge pages.
    huge_bytes: u64,
    /// Bytes on pages of a hugetlb pool.
    pool_bytes: u64,
    processor_us: u64,
}

/// `None`, printed as a skip, without a compiler.
fn grow(pages: &str, step: &str, bytes: u64) -> Option<GrownBuffer> {
    let (_directory, program) = compiled(SOURCE, &["-O1"])?;
    let waiting = Waiting::start(region(&format!("--pages {pages}"), &[&program, step, &bytes.to_string()]));
    let pid = wait_until("the program", || child(waiting.running.id(), "program"));
    let numbers: Vec<u64> = waiting.line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [start, processor_us] = numbers[..] else { panic!("{pages}, by {step}: {:?}", waiting.line) };
    let mut grown = GrownBuffer { huge_bytes: 0, pool_bytes: 0, processor_us };
    for mapping in smaps::read(pid).unwrap() {
        if mapping.start < start + bytes && start < mapping.end {
            grown.huge_bytes += mapping.anon_huge_bytes;
            grown.pool_bytes += mapping.hugetlb_private_bytes;
        }
    }
    assert!(waiting.end().success(), "{pages}, by {step}: the contents");
    Some(grown)
}

/// The most bytes of a grown buffer on larger pages, of either kind.
fn most_huge_bytes(pages: &str, step: &str) -> Option<u64> {
    let mut best = 0;
    for _ in 0..ATTEMPTS {
        if best < MIN_HUGE_BYTES {
            let grown = if has_transparent() { grow(pages, step, BUFFER_BYTES)? } else { return None };
            best = best.max(grown.huge_bytes + grown.pool_bytes);
        }
    }
    Some(best)
}

#[test]
fn a_buffer_grown_by_any_step_is_on_huge_pages() {
    for step in ["65536", "4096", "1000000", "3000000", "0", "brk"] {
        let Some(best) = most_huge_bytes("thp", step) else { return };
        assert!(best >= MIN_HUGE_BYTES, "by {step}: {best} of {BUFFER_BYTES}");
    }
}

#[test]
fn a_buffer_grown_on_small_pages_stays_on_them() {
    for step in ["65536", "0", "brk"] {
        let Some(grown) = grow("4k", step, BUFFER_BYTES) else { return };
        assert_eq!(grown.huge_bytes, 0, "by {step}: {grown:?}");
    }
}

#[test]
fn a_grown_buffer_in_a_mosaic_is_partly_huge() {
    if !has_transparent() {
        return;
    }
    // By chance more or fewer than a quarter of the 120 chunks are selected; the others stay
    // small.
    let Some(grown) = grow("thp:25%", "65536", 240 << 20) else { return };
    assert!((24 << 20..100 << 20).contains(&grown.huge_bytes), "{grown:?}");
}

/// The first step is 1.9 pages of the pool, rounded up.
#[test]
fn a_buffer_on_hugetlb_pages_grows_by_whole_pages() {
    let Some(_pool) = ReservedPool::with_free(100) else { return };
    for step in ["4000000", "brk"] {
        let Some(grown) = grow("hugetlb", step, BUFFER_BYTES) else { return };
        assert!(grown.pool_bytes >= MIN_HUGE_BYTES, "by {step}: {grown:?}");
    }
}

/// The first step is too small for the pool, or ends on ordinary pages, by which pages of the pool
/// cannot grow.
#[test]
fn a_buffer_partly_on_hugetlb_pages_grows_on_transparent_pages() {
    let Some(_pool) = ReservedPool::with_free(100) else { return };
    for step in ["65536", "3000000"] {
        let Some(best) = most_huge_bytes("hugetlb", step) else { return };
        assert!(best >= MIN_HUGE_BYTES, "by {step}: {best} of {BUFFER_BYTES}");
    }
}

#[test]
fn the_cost_of_growth_is_not_quadratic() {
    let least = |bytes| {
        let runs: Option<Vec<GrownBuffer>> = (0..5).map(|_| grow("thp", "65536", bytes)).collect();
        runs.and_then(|runs| runs.iter().map(|grown| grown.processor_us).min())
    };
    let (Some(one), Some(eight)) = (least(32 << 20), least(256 << 20)) else { return };
    // Quadratic work would take 64 times as long; first touches alone took 25 times on a busy
    // machine.
    assert!(eight < 40 * one, "{one} us for 32 MiB, {eight} us for 256 MiB");
}
