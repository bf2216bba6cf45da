/* A program and the shared library that it loads, both with stacks of blocks, use one run time. */
#include "check.h"
#include <dlfcn.h>

using Descend = long (*)(int, long (*)(int), int);

KEEP static long back(int depth) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    frame[0] = static_cast<char>(depth);
    return depth ? back(depth - 1) + 1 + frame[0] - static_cast<char>(depth) : 0;
}

KEEP static long from(int depth, Descend descend) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    frame[0] = 0;
    if (depth > 0) return from(depth - 1, descend) + frame[0];
    long sum = descend(3000, back, 0);
    try {
        descend(3000, back, 7);
    } catch (int thrown) {
        sum += thrown;
    }
    return sum;
}

int main(int, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    auto descend = reinterpret_cast<Descend>(dlsym(library, "library_descend"));
    CHECK(descend);
    for (int round = 0; round < 20; round++) CHECK(from(round * 30, descend) == 3507);
    puts("loaded");
}
