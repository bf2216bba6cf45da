/*
 * Allocates, writes and frees objects of 16 to 512 bytes, a fixed number of them live.
 *
 *     pairs LIVE PAIRS WORK
 *
 * WORK is the number of steps of arithmetic for each pair of malloc and free. Prints nanoseconds of
 * processor time for a pair, and a checksum.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t state = 1;

/* xorshift64 */
static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static unsigned char *make(void)
{
    size_t bytes = 16 + draw() % 497;
    unsigned char *object = malloc(bytes);
    if (!object)
        abort();
    object[0] = object[bytes - 1] = (unsigned char)bytes;
    return object;
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    unsigned long live = strtoul(words[1], 0, 10), pairs = strtoul(words[2], 0, 10), work = strtoul(words[3], 0, 10);
    unsigned char **objects = calloc(live, sizeof *objects);
    if (!objects)
        abort();
    for (unsigned long i = 0; i < live; i++)
        objects[i] = make();
    uint64_t sum = 0;
    double since = seconds();
    for (unsigned long i = 0; i < pairs; i++) {
        unsigned char **object = &objects[draw() % live];
        free(*object);
        *object = make();
        sum += **object;
        for (unsigned long step = 0; step < work; step++)
            sum = (sum ^ step) * 0x9e3779b97f4a7c15u;
    }
    printf("%.1f %016llx\n", (seconds() - since) * 1e9 / (double)pairs, (unsigned long long)sum);
    return 0;
}
