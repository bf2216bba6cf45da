// Word count: how often each word occurs in a text, of which each thread counts a part.
//
// After the Phoenix suite's program of this name, written from its description. Each thread has its
// own table of counts on the heap. Its position and its number of words, updated for every word,
// are adjacent to the others' in one array. Most of its time goes into its own table, so false
// sharing costs only a part of it.

#define _GNU_SOURCE
#include "threads.h"

static const char *const program = "word_count";
static const char *const usage_text =
    "Usage: word_count [OPTIONS]\n"
    "  --words N       in total (20000000)\n"
    "  --rounds N      passes over the text (1)\n"
    "  --padded        give each thread's position two lines of its own\n";

#define LETTERS 8
#define TABLE 4096

typedef struct {
    uint64_t at;
    uint64_t words;
} place;

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
static uint64_t *tables[MAX_THREADS];

static place *element(unsigned index) {
    return (place *)(array + index * (asked.padded ? APART : sizeof(place)));
}

// Words of three letters of sixteen, padded with blanks: 4096 words, each with a number.
static unsigned number_of(const char *word) {
    return (unsigned)(word[0] - 'a') | (unsigned)(word[1] - 'a') << 4 | (unsigned)(word[2] - 'a') << 8;
}

__attribute__((noinline)) static void count(place *own, uint64_t *table, uint64_t first, uint64_t last) {
    for (own->at = first; own->at < last; ++own->at) {
        ++table[number_of(text + own->at * LETTERS)];
        ++own->words;
    }
}

static void work(unsigned index) {
    const uint64_t share = asked.words / common.threads;
    const uint64_t last = index + 1 == common.threads ? asked.words : (index + 1) * share;
    for (uint64_t round = 0; round < asked.rounds; ++round) {
        count(element(index), tables[index], index * share, last);
        did(index, share);
    }
}

int main(int argc, char **argv) {
    parse(argc, argv, options);
    text = malloc(asked.words * LETTERS);
    if (text == NULL) cannot("no memory for the text", ENOMEM);
    memset(text, ' ', asked.words * LETTERS);
    for (uint64_t word = 0; word < asked.words; ++word) {
        // Small numbers are more frequent than large ones.
        uint64_t draw = mix(word + 1);
        draw = (draw & 0xfff) * (draw >> 12 & 0xfff) >> 12;
        for (unsigned i = 0; i < 3; ++i) text[word * LETTERS + i] = (char)('a' + (draw >> 4 * i & 15));
    }
    array = lines(MAX_THREADS * APART, 0);
    for (unsigned i = 0; i < common.threads; ++i) tables[i] = lines(TABLE * sizeof(uint64_t), 0);
    run_together(work);

    static uint64_t expected[TABLE];
    for (uint64_t word = 0; word < asked.words; ++word) expected[number_of(text + word * LETTERS)] += asked.rounds;
    uint64_t checksum = 0, words = 0;
    for (unsigned i = 0; i < common.threads; ++i) words += element(i)->words;
    expect("the number of words", words, asked.words * asked.rounds);
    for (unsigned word = 0; word < TABLE; ++word) {
        uint64_t found = 0;
        for (unsigned i = 0; i < common.threads; ++i) found += tables[i][word];
        expect("a count", found, expected[word]);
        checksum = mix(checksum ^ found);
    }
    conclude(checksum);
}
