// String match: which words of a text are among four keys; each thread searches a part of the text.
//
// After the Phoenix suite's program of this name, written from its description. Each word is
// scrambled and compared with the scrambled keys. The scrambled word is in the thread's own element
// of one array, 32 bytes per element: two threads per line, written for each word.

#define _GNU_SOURCE
#include "threads.h"

static const char *const program = "string_match";
static const char *const usage_text =
    "Usage: string_match [OPTIONS]\n"
    "  --words N       in total (20000000)\n"
    "  --rounds N      passes over the text (1)\n"
    "  --padded        give each thread's word two lines of its own\n";

#define LETTERS 8
#define KEYS 4

typedef struct {
    char scrambled[LETTERS];
    uint64_t found[2]; // the number, and the sum of their positions
    uint64_t done;
} state;

_Static_assert(sizeof(state) == LINE / 2, "two threads a line");

static struct {
    uint64_t words, rounds, padded;
} asked = {.words = 20000000, .rounds = 1};

static const struct option options[] = {
    {.name = "--words", .value = &asked.words, .least = 1, .most = 1000000000},
    {.name = "--rounds", .value = &asked.rounds, .least = 1, .most = 1000000},
    {.name = "--padded", .value = &asked.padded},
    {.name = NULL},
};

static char *array, *text;
// Words that occur in the generated text.
static const char keys[KEYS][LETTERS + 1] = {"aaaaaaaa", "abcabcab", "cccccccc", "babababa"};

static state *element(unsigned index) {
    return (state *)(array + index * (asked.padded ? APART : sizeof(state)));
}

static void scramble(const char *word, char *into) {
    for (unsigned i = 0; i < LETTERS; ++i) into[i] = (char)(word[i] + 5);
}

__attribute__((noinline)) static void match(state *own, uint64_t first, uint64_t last) {
    char scrambled_keys[KEYS][LETTERS];
    for (unsigned key = 0; key < KEYS; ++key) scramble(keys[key], scrambled_keys[key]);
    for (uint64_t word = first; word < last; ++word) {
        scramble(text + word * LETTERS, own->scrambled);
        for (unsigned key = 0; key < KEYS; ++key) {
            if (memcmp(own->scrambled, scrambled_keys[key], LETTERS) != 0) continue;
            ++own->found[0];
            own->found[1] += word;
        }
        ++own->done;
    }
}

static void work(unsigned index) {
    const uint64_t share = asked.words / common.threads;
    const uint64_t last = index + 1 == common.threads ? asked.words : (index + 1) * share;
    for (uint64_t round = 0; round < asked.rounds; ++round) {
        match(element(index), index * share, last);
        did(index, share);
    }
}

int main(int argc, char **argv) {
    parse(argc, argv, options);
    text = malloc(asked.words * LETTERS);
    if (text == NULL) cannot("no memory for the text", ENOMEM);
    // Three letters, so that one word in 1600 is a key.
    for (uint64_t i = 0; i < asked.words * LETTERS; ++i) text[i] = (char)('a' + mix(i + 1) % 3);
    array = lines(MAX_THREADS * APART, 0);
    run_together(work);

    uint64_t found[2] = {0}, expected[2] = {0}, done = 0;
    for (unsigned i = 0; i < common.threads; ++i) {
        found[0] += element(i)->found[0], found[1] += element(i)->found[1], done += element(i)->done;
    }
    for (uint64_t word = 0; word < asked.words; ++word) {
        for (unsigned key = 0; key < KEYS; ++key) {
            if (memcmp(text + word * LETTERS, keys[key], LETTERS) != 0) continue;
            expected[0] += asked.rounds;
            expected[1] += word * asked.rounds;
        }
    }
    expect("the number of words", done, asked.words * asked.rounds);
    expect("the number of matches", found[0], expected[0]);
    expect("the sum of their positions", found[1], expected[1]);
    conclude(mix(mix(mix(found[0]) ^ found[1]) ^ done));
}
