/* Recurses over 40 MiB of the main stack, before and after mapping memory. Prints the depths. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static long deep(int left, volatile char *above) {
    volatile char frame[4000];
    frame[0] = left;
    frame[3999] = above ? above[0] : 0;
    long below = left ? deep(left - 1, frame) : 0;
    return below + (frame[0] == (char)left);
}

int main(void) {
    long frames = deep(10000, 0);
    for (int i = 0; i < 80; i++) {
        size_t bytes = i % 3 ? (3 << 20) + 4096 : 200 << 10;
        char *block = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) return 2;
        memset(block, 1, bytes);
    }
    printf("%ld and %ld frames\n", frames, deep(10000, 0));
    return 0;
}
