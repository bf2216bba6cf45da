/* A shared library whose functions recurse deeply, call back, and throw. */
#include "check.h"

extern "C" KEEP long library_descend(int depth, long (*back)(int), int thrown) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    frame[0] = static_cast<char>(depth);
    if (depth == 0) {
        if (thrown) throw thrown;
        return back(500);
    }
    return library_descend(depth - 1, back, thrown) + 1 + frame[0] - static_cast<char>(depth);
}
