/* Recursion of a given depth; each frame is filled, and checked after the call below it has returned. */
#ifndef DESCEND_H
#define DESCEND_H

#include "check.h"
#include <string.h>

#ifndef DESCEND_BYTES
#define DESCEND_BYTES FRAME_BYTES
#endif

KEEP static long descend(int depth) {
    volatile char frame[DESCEND_BYTES];
    USE(frame);
    memset((char *)frame, depth, sizeof frame);
    long below = depth ? descend(depth - 1) + 1 : 0;
    CHECK(frame[0] == (char)depth && frame[DESCEND_BYTES - 1] == (char)depth);
    return below;
}

#endif
