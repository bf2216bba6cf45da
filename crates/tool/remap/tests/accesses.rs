//! Forms of access: those that are redirected, and those that restore the page.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod program;

use fieldstone_remap::RestoreReason;
use program::{ProgramBuilder, redirect_count, restore_reason, split_words};

/// Definitions for the bodies below.
const GLOBALS: &str = r#"
#include <immintrin.h>
static volatile uint64_t *w;
#define ASM __asm__ volatile
static void target(void) {}
__attribute__((target("avx2"))) static int gathered(void) {
  w[4] = 0x11; w[6] = 0x22; __m256i at = _mm256_set_epi64x(6, 4, 6, 4); uint64_t out[4];
  _mm256_storeu_si256((__m256i *)out, _mm256_i64gather_epi64((const long long *)w, at, 8));
  return out[0] == 0x11 && out[1] == 0x22 && out[3] == 0x22; }
__attribute__((target("avx"))) static void move32(void *to, const void *from) {
  ASM("vmovups (%1), %%ymm0\n vmovups %%ymm0, (%0)\n vzeroupper" :: "r"(to), "r"(from) : "memory", "xmm0"); }
"#;

/// Accesses to bytes in one place.
const REDIRECTED: [(&str, &str); 14] = [
    ("a load of its own pointer", "uint64_t p = (uint64_t)(w + 1); w[1] = 5; ASM(\"mov (%0), %0\" : \"+r\"(p)); CHECK(p == 5);"),
    ("conditional moves", "uint64_t r = 1; w[1] = 9; ASM(\"cmp %%rax, %%rax\\n cmove (%1), %0\" : \"+r\"(r) : \"r\"(w + 1) : \"cc\"); CHECK(r == 9);
        ASM(\"cmp %%rax, %%rax\\n cmovne (%1), %0\" : \"+r\"(r) : \"r\"(w + 2) : \"cc\"); CHECK(r == 9);"),
    ("push and pop of memory", "w[1] = 21; w[2] = 0; ASM(\"sub $128, %%rsp\\n pushq (%0)\\n popq (%1)\\n add $128, %%rsp\" :: \"r\"(w + 1), \"r\"(w + 2) : \"memory\", \"cc\"); CHECK(w[2] == 21);"),
    ("the red zone", "uint64_t r; w[1] = 4; ASM(\"movq $77, -8(%%rsp)\\n movq $78, -120(%%rsp)\\n addq $1, (%1)\\n movq -8(%%rsp), %0\\n addq -120(%%rsp), %0\" : \"=&r\"(r) : \"r\"(w + 1) : \"memory\", \"cc\"); CHECK(r == 155 && w[1] == 5);"),
    ("exchange", "uint64_t r = 3; w[1] = 4; ASM(\"xchg %0, (%1)\" : \"+r\"(r) : \"r\"(w + 1) : \"memory\"); CHECK(r == 4 && w[1] == 3);"),
    ("compare and exchange", "w[1] = 4; CHECK(__sync_bool_compare_and_swap(w + 1, 4, 6)); CHECK(!__sync_bool_compare_and_swap(w + 1, 4, 7)); CHECK(w[1] == 6);"),
    ("compare and exchange of sixteen bytes", "uint8_t ok; uint64_t low = 1, high = 2; w[2] = 1; w[3] = 2;
        ASM(\"lock cmpxchg16b (%4)\\n sete %0\" : \"=q\"(ok), \"+a\"(low), \"+d\"(high) : \"b\"(8L), \"r\"(w + 2), \"c\"(9L) : \"memory\", \"cc\"); CHECK(ok && w[2] == 8 && w[3] == 9);"),
    ("locked sums", "w[1] = 1; CHECK(__sync_fetch_and_add(w + 1, 5) == 1); ASM(\"lock incq (%0)\" :: \"r\"(w + 1) : \"memory\", \"cc\"); CHECK(w[1] == 7);"),
    ("bytes and words", "w[1] = 0; ASM(\"movb $1, (%0)\\n movw $0x203, 2(%0)\\n setc 7(%0)\\n rolb $4, (%0)\" :: \"r\"(w + 1) : \"memory\", \"cc\"); CHECK((w[1] & 0xffffffffffff) == 0x2030010);"),
    ("flags that live across", "uint8_t c; w[1] = 0; ASM(\"stc\\n movq $5, (%1)\\n adcq $0, (%1)\\n setc %0\" : \"=q\"(c) : \"r\"(w + 1) : \"memory\", \"cc\"); CHECK(w[1] == 6 && !c);"),
    ("sixteen bytes", "w[4] = 1; w[5] = 2; ASM(\"movups (%0), %%xmm1\\n movups %%xmm1, 8(%1)\\n movdqa (%0), %%xmm2\\n paddq (%0), %%xmm2\\n movdqa %%xmm2, (%0)\" :: \"r\"(w + 4), \"r\"(w + 6) : \"memory\", \"xmm1\", \"xmm2\"); CHECK(w[7] == 1 && w[8] == 2 && w[4] == 2 && w[5] == 4);"),
    ("thirty-two bytes", "if (__builtin_cpu_supports(\"avx\")) { for (int i = 0; i < 4; i++) w[8 + i] = i + 1; move32((void *)(w + 16), (void *)(w + 8)); CHECK(w[16] == 1 && w[19] == 4); }"),
    ("jumps", "ASM(\"lea 1f(%%rip), %%rax\\n mov %%rax, (%0)\\n jmp *(%0)\\n ud2\\n 1: lea 2f(%%rip), %%rax\\n mov %%rax, 16(%0)\\n mov $4, %%eax\\n\"
        \"jmp *-16(%0,%%rax,8)\\n ud2\\n 2:\" :: \"r\"(w + 1) : \"rax\", \"memory\");"),
    ("a sum of registers", "uint64_t r; w[3] = 8; ASM(\"mov -16(%1,%2,8), %0\" : \"=r\"(r) : \"r\"(w), \"r\"(5L) : \"memory\"); CHECK(r == 8);"),
];

/// Accesses to several places, and accesses that no displacement can redirect, with a word of the
/// reason.
const RESTORED: [(&str, &str, &str); 9] = [
    (
        "eight bytes of two owners",
        "uint64_t seen; ASM(\"mov (%1), %0\" : \"=r\"(seen) : \"r\"((char *)(counters + 8) + 4) : \"memory\");",
        "two places",
    ),
    (
        "sixteen bytes of two owners",
        "ASM(\"movups (%0), %%xmm1\" :: \"r\"(counters + 8) : \"xmm1\", \"memory\");",
        "two places",
    ),
    (
        "thirty-two bytes of owners and others",
        "if (__builtin_cpu_supports(\"avx\")) ASM(\"vmovups (%0), %%ymm0\\n vzeroupper\" :: \"r\"(counters + 7) : \"xmm0\", \"memory\");
         else ASM(\"movups (%0), %%xmm0\" :: \"r\"(counters + 7) : \"xmm0\", \"memory\");",
        "two places",
    ),
    (
        "rep movsb",
        "char *to = (char *)(w + 8); const char *from = \"strings\"; long n = 8; ASM(\"rep movsb\" : \"+D\"(to), \"+S\"(from), \"+c\"(n) :: \"memory\"); CHECK(!memcmp((char *)(w + 8), \"strings\", 8));",
        "string instruction",
    ),
    (
        "rep stosq",
        "void *to = (void *)(w + 8); long n = 4; ASM(\"rep stosq\" : \"+D\"(to), \"+c\"(n) : \"a\"(7L) : \"memory\"); CHECK(w[8] == 7 && w[11] == 7);",
        "string instruction",
    ),
    (
        "repe cmpsb",
        "w[8] = 5; uint64_t five = 5; const void *one = (void *)(w + 8), *other = &five; long n = 8; uint8_t same; ASM(\"repe cmpsb\\n sete %0\" : \"=q\"(same), \"+S\"(one), \"+D\"(other), \"+c\"(n) :: \"memory\", \"cc\"); CHECK(same);",
        "string instruction",
    ),
    (
        "gather",
        "if (__builtin_cpu_supports(\"avx2\")) CHECK(gathered()); else ASM(\"rep stosb\" :: \"D\"(w), \"c\"(1L), \"a\"(0L) : \"memory\");",
        "undo the rules",
    ),
    (
        "a call through it",
        "w[1] = (uint64_t)target; ASM(\"sub $128, %%rsp\\n call *(%0)\\n add $128, %%rsp\" :: \"r\"(w + 1) : \"memory\", \"cc\", \"rax\", \"rcx\", \"rdx\", \"rsi\", \"rdi\", \"r8\", \"r9\", \"r10\", \"r11\");",
        "jump or call through memory",
    ),
    (
        "a bit string",
        "w[1] = 0; ASM(\"btsq %1, (%0)\" :: \"r\"(w), \"r\"(65L) : \"memory\", \"cc\"); CHECK(w[1] == 2);",
        "bit string",
    ),
];

fn builder(body: &str) -> ProgramBuilder {
    ProgramBuilder::new(body).globals(GLOBALS).before("w = counters + 64;").options(&["-O1", "-mcx16"])
}

#[test]
fn accesses_to_one_place_are_redirected() {
    // All run in one program: each result is right, and no access restores the page.
    let all: String = REDIRECTED.iter().map(|(_, body)| format!("{{ {body} }}\n")).collect();
    let Some(then) = builder(&all).assert_same_results() else { return };
    assert_eq!(restore_reason(&then), None, "{then:?}");
}

#[test]
fn an_access_that_cannot_be_redirected_restores_the_page() {
    for (name, body, word) in RESTORED {
        let Some(then) = builder(body).assert_same_results() else { return };
        let is_why = |why: &RestoreReason| matches!(why, RestoreReason::Access { reason, .. } if reason.contains(word));
        assert!(restore_reason(&then).is_some_and(is_why), "{name}: {then:?}");
    }
}

#[test]
fn rip_relative_accesses_are_redirected() {
    for options in [&["-O2"][..], &["-O2", "-no-pie"], &["-O0"], &["-O2", "-static"]] {
        let lap = "static volatile uint64_t global[512] __attribute__((aligned(4096)));
            static uint64_t lap(volatile uint64_t *own) { int i; if (own == counters + 8) for (i = 0; i < 1000; i++) ++global[8];
                else for (i = 0; i < 1000; i++) ++global[9]; *own += 1000; return 1000; }";
        let check = "uint64_t begin = global[8]; for (int i = 0; i < 10000 && global[8] == begin; i++) usleep(1000); CHECK(global[8] > begin);";
        let builder = ProgramBuilder::new(check).lap(lap).before("second = (char *)global;").options(options);
        let mut running = builder.start();
        let Some(mut process) = running.open() else { return };
        process.move_page(&split_words(running.second)).unwrap();
        let then = running.serve_for_a_while(&mut process);
        assert!(redirect_count(&then) >= 2, "{options:?}: {then:?}");
        let now = running.run_phase(&mut process);
        process.restore_all(&RestoreReason::Requested).unwrap();
        let (_, output) = running.finish(&mut process);
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{options:?} {output:?} {now:?}");
    }
}

#[test]
fn a_loop_across_two_owners_reads_the_words_of_both() {
    let body = "uint64_t found[4], last[2] = { 0, 0 }, i, n; counters[7] = 70; counters[10] = 100;
        for (n = 0; n < 1000; n++) { for (i = 0; i < 4; i++) found[i] = counters[7 + i];
            CHECK(found[0] == 70 && found[3] == 100); CHECK(found[1] >= last[0] && found[2] >= last[1]);
            CHECK(counters[8] >= found[1] && counters[9] >= found[2]); last[0] = found[1]; last[1] = found[2]; }
        CHECK(last[0] > 0 && last[1] > 0);";
    for options in [&["-O1", "-mcx16"], &["-O0", "-mcx16"]] {
        let Some(then) = builder(body).options(options).assert_same_results() else { return };
        assert!(redirect_count(&then) > 0, "{then:?}");
    }
}

#[test]
fn an_access_through_fs_restores_the_page() {
    let globals = "static __thread volatile char own[12288];";
    let before = "second = (char *)(((uintptr_t)own + 4095) & -4096); own[5000] = 1; own[6000] = 1;";
    let running = ProgramBuilder::new("int i; for (i = 0; i < 8192; i++) own[i + 2000]++; CHECK(own[2000] > 0);")
        .globals(globals)
        .before(before)
        .options(&["-O1"]);
    let mut running = running.start();
    let Some(mut process) = running.open_and_move() else { return };
    process.move_page(&split_words(running.second)).unwrap();
    let then = running.run_phase(&mut process);
    assert!(matches!(restore_reason(&then), Some(RestoreReason::Access { .. })), "fs: {then:?}");
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}
