/*
 * fieldstone/guard.h: objects that fault when a program accesses memory beside them, or after
 * their free.
 *
 * Each object has pages of its own, between inaccessible pages. An access past its end, before its
 * start, or after its free raises SIGSEGV. fs_slots_explain then names the object.
 *
 * Example: explain an address past the end of an object.
 *
 *     #include <fieldstone/guard.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         fs_slots *slots;
 *         fs_slots_options options = {.memory = 16 << 20, .side = FS_SIDE_RIGHT};
 *         if (fs_slots_open(&options, &slots)) {
 *             fprintf(stderr, "%s\n", fs_error_message());
 *             return 1;
 *         }
 *         char *text = fs_slots_alloc(slots, 24, 8); // text[24] = 0 would raise SIGSEGV
 *         fs_finding finding;
 *         if (text && fs_slots_explain(slots, text + 24, &finding) == 0)
 *             printf("%s, %td bytes after %zu bytes\n", fs_finding_name(finding.kind), finding.offset,
 *                    finding.object_bytes); // heap-buffer-overflow, 0 bytes after 24 bytes
 *         fs_slots_free_object(slots, text);
 *         fs_slots_free(slots);
 *         return 0;
 *     }
 *
 *     cc example.c $(pkg-config --cflags --libs fieldstone)
 *
 * Errors and handles are as in <fieldstone/pages.h>. All functions may be called in any thread, and
 * in several at a time. fs_slots_owns, fs_slots_explain and fs_finding_name are async-signal-safe.
 *
 * After fork(), parent and child have separate copies of all objects, with their guards. A child
 * that was forked while another thread allocated cannot allocate: fs_slots_alloc returns NULL.
 */
#ifndef FIELDSTONE_GUARD_H
#define FIELDSTONE_GUARD_H

#include <fieldstone/pages.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fs_slots fs_slots;

/* The side of its pages at which an object lies. */
enum fs_side {
    FS_SIDE_BOTH = 0,  /* one of them, chosen for each allocation */
    FS_SIDE_RIGHT = 1, /* at the end: overflows fault */
    FS_SIDE_LEFT = 2   /* at the start: underflows fault */
};

/* Zero is the default of each option. */
typedef struct fs_slots_options {
    size_t memory;     /* limit in bytes for objects, records and page tables; default 64 MiB */
    size_t quarantine; /* freed objects of a size class that stay inaccessible; default memory / 16 KiB */
    unsigned side;     /* enum fs_side */
} fs_slots_options;

enum fs_finding_kind {
    FS_HEAP_BUFFER_OVERFLOW = 1,
    FS_HEAP_BUFFER_UNDERFLOW = 2,
    FS_USE_AFTER_FREE = 3,
    FS_DOUBLE_FREE = 4,
    FS_INVALID_FREE = 5
};

/* A memory error. */
typedef struct fs_finding {
    unsigned kind;       /* enum fs_finding_kind */
    void *address;       /* the explained address */
    void *object;        /* the first byte of the object */
    size_t object_bytes; /* its size as requested */
    /* FS_HEAP_BUFFER_OVERFLOW: bytes from the object's end to the address, 0 for the first byte past
     * the end. Else: bytes from the object's start, negative for an underflow. */
    ptrdiff_t offset;
    unsigned allocated_thread; /* gettid() of the thread that allocated it */
    unsigned freed_thread;     /* and of the thread that freed it; 0 if it is live */
} fs_finding;

/* Creates slots. `options` may be NULL. FS_ERROR_SYSTEM if the address space is too small. */
int fs_slots_open(const fs_slots_options *options, fs_slots **slots);

/* Unmaps all objects. */
void fs_slots_free(fs_slots *slots);

/* Allocates an object; its memory is zero. `alignment` is a power of two, or 0 for 16. NULL if the
 * memory limit is reached (ENOMEM), or the alignment is not valid (EINVAL). */
void *fs_slots_alloc(const fs_slots *slots, size_t bytes, size_t alignment);

/* Frees an object: its pages become inaccessible. Accepts NULL. FS_ERROR_FINDING for a double free,
 * for an address at which no object starts, and if a byte beside the object was written. In the last
 * case the object is freed. fs_error_message() describes the error. */
int fs_slots_free_object(const fs_slots *slots, void *object);

/* Whether an address is in the range of the slots. */
bool fs_slots_owns(const fs_slots *slots, const void *address);

/* Explains an access to an address, for example si_addr of a SIGSEGV. FS_ERROR_NOT_EXPLAINED in a
 * live object and in memory without an object; `finding` is unchanged then, and may be NULL. It may
 * run in a signal handler, so it does not change fs_error_message(). */
int fs_slots_explain(const fs_slots *slots, const void *address, fs_finding *finding);

/* The name of an enum fs_finding_kind, for example "heap-buffer-overflow". */
const char *fs_finding_name(unsigned kind);

#ifdef __cplusplus
}
#endif

#endif
