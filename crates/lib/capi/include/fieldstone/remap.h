/*
 * fieldstone/remap.h: requests for bytes on separate cache lines.
 *
 * A program that knows which of its words will be falsely shared lists them here. `fieldstone run
 * --repair -- PROGRAM`, or `fieldstone attach --repair PID` at any later time, then moves these
 * bytes to separate cache lines without waiting to detect the contention. Without a repairer
 * nothing happens: a call writes 16 bytes into a table.
 *
 *     #include <fieldstone/remap.h>
 *
 *     static struct { long reads, writes; } stats;      // two threads, one line
 *
 *     remapper_isolate(&stats.reads, sizeof stats.reads);
 *     remapper_isolate(&stats.writes, sizeof stats.writes);
 *
 * The functions may be called in any thread at any time, in signal handlers too. Call
 * remapper_restore before the memory is freed.
 *
 * Source: Taylor, Cachekata (2013), figure 5.1.
 */
#ifndef FIELDSTONE_REMAP_H
#define FIELDSTONE_REMAP_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Requests that these bytes share no cache line with others. Returns 0, EINVAL if the address is
 * null or `bytes` is 0, or ENOSPC if 255 ranges are requested already.
 */
int remapper_isolate(const volatile void *address, size_t bytes);

/* Withdraws a request with exactly this range. Returns 0, or ENOENT if there is none. */
int remapper_restore(const volatile void *address, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
