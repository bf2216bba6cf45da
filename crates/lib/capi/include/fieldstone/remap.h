/*
 * fieldstone/remap.h: bytes that shall live on cache lines of their own.
 *
 * A program that knows which of its words threads will fight for says so. `fieldstone run --repair -- PROGRAM`, or `fieldstone attach
 * --repair PID` at any later time, then has these bytes on lines of their own without waiting to see them fight. Where nobody looks on
 * nothing happens: a call writes 16 bytes into a table.
 *
 *     #include <fieldstone/remap.h>
 *
 *     static struct { long reads, writes; } stats;      // two threads, one line
 *
 *     remapper_isolate(&stats.reads, sizeof stats.reads);
 *     remapper_isolate(&stats.writes, sizeof stats.writes);
 *
 * All may be called in any thread, at any time, in handlers of signals too. Memory that is freed has to be given back before.
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
 * Asks for these bytes to be on lines that they share with nothing else. 0; EINVAL where the address is null or there are no bytes;
 * ENOSPC where 255 ranges were asked for already.
 */
int remapper_isolate(const volatile void *address, size_t bytes);

/* Asks for it no longer: the very range that was given before. 0, or ENOENT where it was not. */
int remapper_restore(const volatile void *address, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
