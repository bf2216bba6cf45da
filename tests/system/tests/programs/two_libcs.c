/* A second libc (dlmopen) allocates beside the first. Prints the number of wrong bytes in blocks of both. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4000, ROUNDS = 60000, STEP = 500 };
struct block { unsigned char *at; size_t bytes; };

int main(void) {
    static struct block held[2][SLOTS];
    void *other = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    if (!other) return 2;
    void *(*take[2])(size_t) = {malloc, dlsym(other, "malloc")};
    void (*drop[2])(void *) = {free, dlsym(other, "free")};
    long wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int who = rand() & 1, slot = rand() % SLOTS;
        struct block *block = &held[who][slot];
        unsigned char value = slot + who;
        if (block->at) {
            for (size_t i = 0; i < block->bytes; i += STEP) wrong += block->at[i] != value;
            drop[who](block->at);
            block->at = 0;
            continue;
        }
        block->bytes = 1 + rand() % (rand() % 50 ? 3000 : 400000);
        block->at = take[who](block->bytes);
        if (!block->at) return 2;
        memset(block->at, value, block->bytes);
    }
    printf("%ld wrong\n", wrong);
    return 0;
}
