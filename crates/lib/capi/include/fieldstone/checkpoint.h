/*
 * fieldstone/checkpoint.h: saves memory as of one instant while the program writes to it, and
 * restores it.
 *
 * The pages are copied while the program runs. The program stops only while the pages that it wrote
 * last are copied: for milliseconds, whatever the size of the memory.
 *
 * Example: save memory to a file, and restore it.
 *
 *     #include <fieldstone/checkpoint.h>
 *     #include <pthread.h>
 *     #include <stdio.h>
 *     #include <string.h>
 *
 *     static uint64_t writes; // changed with the lock held
 *
 *     static uint64_t enter(void *lock) { pthread_mutex_lock((pthread_mutex_t *)lock); return writes; }
 *     static void leave(void *lock) { pthread_mutex_unlock((pthread_mutex_t *)lock); }
 *
 *     int main(void)
 *     {
 *         static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // each thread holds it while it writes
 *         fs_checkpoint_safe_point safe_point = {enter, leave, &lock};
 *         fs_memory *heap, *restored;
 *         fs_checkpoint *saver;
 *         fs_checkpoint_sink *file;
 *         if (fs_memory_anonymous(1 << 20, &heap) || fs_checkpoint_open(&heap, 1, NULL, &saver) ||
 *             fs_checkpoint_file("heap.save", &file)) {
 *             fprintf(stderr, "%s\n", fs_error_message());
 *             return 1;
 *         }
 *         strcpy((char *)fs_memory_start(heap), "contents");
 *         writes = 1;
 *         uint64_t value;
 *         if (fs_checkpoint_begin(saver, file, &safe_point) == 0 && // other threads may write from here on
 *             fs_checkpoint_wait(saver, NULL) == 0 && // the save is durable
 *             fs_checkpoint_restore(file, false, &restored, 1, &value) == 0) {
 *             printf("%s after write %d\n", (char *)fs_memory_start(restored), (int)value); // contents after write 1
 *             fs_memory_free(restored);
 *         }
 *         fs_checkpoint_free(saver);
 *         fs_checkpoint_sink_free(file);
 *         fs_memory_free(heap);
 *         return 0;
 *     }
 *
 *     cc example.c $(pkg-config --cflags --libs fieldstone)
 *
 * Errors and handles are as in <fieldstone/pages.h>. All functions except _free may be called in any
 * thread, and in several at a time. Times are in nanoseconds. A page has 4 KiB.
 *
 * A save that fails leaves the last save in the sink as it is. The next save contains what the failed
 * one would have contained.
 *
 * Cost. From fs_checkpoint_open on, the first write to each page after a save takes about half a
 * microsecond more. Linux 6.7 or later; earlier kernels take a fault in a thread instead.
 *
 * Limits. Private memory only: FS_ERROR_UNSUPPORTED for memory of fs_memory_shared and
 * fs_memory_file. Writes by devices into pinned pages are not recorded: see compare_pages.
 *
 * After fork(), the child cannot use the fs_checkpoint of its parent: FS_ERROR_FORKED. It may free the
 * handle, and open another one; if a save ran at the fork, only for memory that the child has created.
 * It must not use object stores if its parent has used one.
 */
#ifndef FIELDSTONE_CHECKPOINT_H
#define FIELDSTONE_CHECKPOINT_H

#include <fieldstone/pages.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Saves one or more memories. */
typedef struct fs_checkpoint fs_checkpoint;

/* A place for saves. */
typedef struct fs_checkpoint_sink fs_checkpoint_sink;


/* ---- Memory that is saved -------------------------------------------------------------------- */

/* How the pages of a save are stored. Where they do not become smaller, they are stored as they are. */
enum fs_checkpoint_compression {
    FS_CHECKPOINT_NONE = 0, /* as they are */
    FS_CHECKPOINT_LZ4 = 1,
    FS_CHECKPOINT_ZSTD = 2 /* needs a library that was built with the feature `zstd` */
};

/* Zero is the default of each option. */
typedef struct fs_checkpoint_options {
    uint64_t stop_limit_ns;      /* how long writers may wait at the instant, about; default 5 ms */
    uint64_t memory_limit_bytes; /* of all buffers of a save; at least 4 MiB; default 256 MiB */
    uint64_t compression;        /* of enum fs_checkpoint_compression */
    bool compare_pages;          /* compares all pages with the last save at the instant. Finds pages that
                                  * changed without a recorded write, as of a device into pinned memory.
                                  * Writers wait meanwhile: about 0.1 s for each GiB. Takes 8 bytes a page */
    bool pinned_elsewhere;       /* saves also while the process has pinned memory: none of it is saved */
} fs_checkpoint_options;

/* Tracks writes to `count` memories from now on. `options` may be NULL. The program keeps its
 * handles, and uses the memory as before. A memory is unmapped when its handle and the fs_checkpoint
 * are both freed, in any order. Until the fs_checkpoint is freed, no other handle can control the
 * memory, such as an fs_tracking.
 * FS_ERROR_ARGUMENT without a memory, and for an unknown compression; FS_ERROR_UNSUPPORTED for memory
 * that is shared, of a file, controlled already or given twice, and without the feature `zstd`;
 * FS_ERROR_SYSTEM if writes cannot be tracked. */
int fs_checkpoint_open(fs_memory *const *regions, size_t count, const fs_checkpoint_options *options,
                       fs_checkpoint **saver);

/* Waits for a save that runs, and frees the handle. The memories stay. No thread may wait for the save
 * in fs_checkpoint_wait meanwhile. */
void fs_checkpoint_free(fs_checkpoint *saver);


/* ---- Saves ----------------------------------------------------------------------------------- */

/* What makes the memory consistent at the instant of a save. Both functions are called in a thread of
 * the library, `enter` first. They must return, and must not throw. They must not call functions on the
 * fs_checkpoint, except fs_checkpoint_cancel. */
typedef struct fs_checkpoint_safe_point {
    /* Takes the lock that all threads hold while they write, and returns a number that is kept in the
     * save, such as a position in a log. It is called after most pages are copied. If a thread writes
     * nevertheless, or faster than pages are copied, it is called a second time after `leave`. */
    uint64_t (*enter)(void *user);
    /* Releases the lock: the instant is taken. It follows each call of `enter`. May be NULL. */
    void (*leave)(void *user);
    void *user; /* passed to both; valid until fs_checkpoint_wait or fs_checkpoint_free returns */
} fs_checkpoint_safe_point;

/* Begins a save in a thread of the library, and returns at once. The save continues in the sink's copy:
 * `sink` may be freed meanwhile. `safe_point` may be NULL: then nothing is held, and the number is 0.
 * It is copied.
 *
 * A save to a directory or an object store contains what changed since the last save there, if this
 * fs_checkpoint made that one without copy before write. Otherwise it contains all pages that are not
 * empty.
 *
 * Copy before write is used if a thread writes without the lock, or faster than pages are copied: all
 * pages are protected, and the first write to each 256 KiB waits until they are copied.
 *
 * FS_ERROR_BUSY until fs_checkpoint_wait has returned for the save before; FS_ERROR_SYSTEM without a
 * thread. */
int fs_checkpoint_begin(fs_checkpoint *saver, fs_checkpoint_sink *sink, const fs_checkpoint_safe_point *safe_point);

/* What a save did. */
typedef struct fs_checkpoint_report {
    uint64_t pages;             /* that were written to the sink; a page counts each time */
    uint64_t bytes;             /* of the save */
    uint64_t stop_ns;           /* how long writers waited at the instant */
    uint64_t longest_wait_ns;   /* the longest wait of one write */
    uint64_t peak_buffer_bytes; /* the largest size of all buffers together */
    uint64_t total_ns;          /* from the begin to the end */
    uint64_t fell_back;         /* 1 if copy before write was used, otherwise 0 */
    uint64_t is_increment;      /* 1 if it contains only what changed since the last save, otherwise 0 */
    uint64_t missed_pages;      /* saved pages that changed without a recorded write: with compare_pages */
    uint64_t value;             /* the number of the safe point */
} fs_checkpoint_report;

/* Waits until the save that was begun is durable, or has failed. `report` may be NULL; it is unchanged
 * if the call fails. If several threads wait, one of them gets the result.
 * FS_ERROR_ARGUMENT if no save was begun since the last fs_checkpoint_wait. Errors of the save:
 * FS_ERROR_SYSTEM with ECANCELED after fs_checkpoint_cancel, or with the errno of the sink;
 * FS_ERROR_BUSY with EEXIST if another process saved to the sink at the same time;
 * FS_ERROR_UNSUPPORTED if copy before write is needed and not possible here, or the process has pinned
 * memory and neither option for it is set. */
int fs_checkpoint_wait(fs_checkpoint *saver, fs_checkpoint_report *report);

/* Ends the save early, unless it is almost durable. Returns at once; fs_checkpoint_wait returns soon.
 * Without a save that runs, nothing happens. */
int fs_checkpoint_cancel(fs_checkpoint *saver);


/* ---- Where saves go -------------------------------------------------------------------------- */

/* A directory, which is created if it does not exist: one file a save, each of which continues the one
 * before or contains all pages. FS_ERROR_SYSTEM if it cannot be created or read. */
int fs_checkpoint_directory(const char *path, fs_checkpoint_sink **sink);

/* One file, which always contains the last whole save. It need not exist; nothing is opened yet. */
int fs_checkpoint_file(const char *path, fs_checkpoint_sink **sink);

/* An object store, such as "s3://bucket/saves?region=eu-west-1" or "fs:///directory", with saves as in
 * a directory. A request that fails, or takes more than 60 s, is made up to five times more. All buffers
 * of the requests take up to 32 MiB more than the memory limit. FS_ERROR_UNSUPPORTED if the library was built without the feature `opendal`;
 * FS_ERROR_ARGUMENT for an unknown address; FS_ERROR_SYSTEM if the objects cannot be listed. */
int fs_checkpoint_objects(const char *uri, fs_checkpoint_sink **sink);

/* Frees the handle; the saves stay. Restored memory stays valid too, also memory that is restored
 * lazily. */
void fs_checkpoint_sink_free(fs_checkpoint_sink *sink);

/* Deletes what the last `saves` saves do not need; 0 counts as 1. The earliest save that is kept is
 * merged with those that it continues, if the increments among them are large. Nothing happens for
 * one file.
 * FS_ERROR_CORRUPT and FS_ERROR_VERSION if the earliest save that is kept cannot be restored;
 * FS_ERROR_SYSTEM if a save cannot be read, written or deleted. Nothing that the last save needs is deleted. */
int fs_checkpoint_keep(fs_checkpoint_sink *sink, unsigned saves);


/* ---- Restoring ------------------------------------------------------------------------------- */

/* Maps the memories of the last save, in the order of fs_checkpoint_open, at other addresses. `count`
 * is their number. `value` receives the number of the safe point, and may be NULL. If the call fails,
 * all `count` regions are NULL, and `value` is unchanged. Each memory is freed by fs_memory_free.
 *
 * With `lazily`, the call returns as soon as the memories are mapped, and each page is read and
 * verified at its first access. A page that cannot be read, or is damaged, raises SIGBUS in the thread
 * that accesses it, after a message on standard error. No handle can control such memory
 * (FS_ERROR_UNSUPPORTED): it cannot be tracked or saved again.
 *
 * FS_ERROR_ARGUMENT if the save has another number of regions; FS_ERROR_ABSENT without a save;
 * FS_ERROR_CORRUPT if it is damaged, or continues a save that is missing; FS_ERROR_VERSION if a later
 * version of the library wrote it; FS_ERROR_SYSTEM if it cannot be read, and without memory;
 * FS_ERROR_UNSUPPORTED with `lazily` without userfaultfd. */
int fs_checkpoint_restore(fs_checkpoint_sink *sink, bool lazily, fs_memory **regions, size_t count, uint64_t *value);

#ifdef __cplusplus
}
#endif

#endif
