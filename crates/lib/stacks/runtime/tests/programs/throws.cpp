/* Exceptions through hundreds of segments: destructors run in order, and afterwards the stack is at its former place.
 * Threads of the standard library; backtraces. */
#include "check.h"
#include <execinfo.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static long destroyed;

struct Counted {
    int number;
    explicit Counted(int number) : number(number) {}
    ~Counted() { destroyed++; }
};

KEEP static long descend(int depth, int throw_at) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    frame[0] = static_cast<char>(depth);
    Counted counted(depth);
    if (depth == throw_at) throw std::runtime_error("at " + std::to_string(depth));
    long below = depth ? descend(depth - 1, throw_at) + 1 : 0;
    CHECK(frame[0] == static_cast<char>(depth) && counted.number == depth);
    return below;
}

/* Throws through large segments: a frame of 618 KB takes one of its own. */
KEEP static long large(int depth) {
    volatile char frame[618 << 10];
    USE(frame);
    frame[0] = frame[sizeof frame - 1] = static_cast<char>(depth);
    Counted counted(depth);
    if (depth == 0) throw depth;
    long below = large(depth - 1);
    CHECK(frame[0] == frame[sizeof frame - 1]);
    return below;
}

KEEP static int frames(int depth) {
    volatile char frame[FRAME_BYTES * 8];
    USE(frame);
    frame[0] = 1;
    if (depth == 0) {
        static void *addresses[2000];
        return backtrace(addresses, 2000);
    }
    return frames(depth - 1) + (frame[0] - 1);
}

static void run() {
    for (int round = 0; round < 200; round++) {
        long before = destroyed;
        bool caught = false;
        try {
            descend(600, round);
        } catch (const std::runtime_error &error) {
            caught = error.what() == "at " + std::to_string(round);
        }
        CHECK(caught && destroyed - before == 601 - round);
    }
    CHECK(descend(5000, -1) == 5000);
    long before = destroyed;
    bool caught = false;
    try {
        large(200);
    } catch (int depth) {
        caught = depth == 0;
    }
    CHECK(caught && destroyed - before == 201);
    int found = frames(606);
    CHECK(found >= 607 && found < 607 + 200);
}

int main() {
    run();
    std::vector<std::thread> threads;
    for (int at = 0; at < 4; at++) threads.emplace_back([] { CHECK(descend(2000, -1) == 2000); });
    for (auto &thread : threads) thread.join();
    printf("caught\n");
}
