/*
 * fieldstone/pages.h: memory whose page faults the program handles.
 *
 * The six virtual-memory primitives of Appel and Li, each by the best mechanism of the machine:
 *
 *   fs_trapping   TRAP, PROT1, PROTN, UNPROT: an access to a protected page calls a handler
 *   fs_tracking   DIRTY: the pages written since the last call
 *   fs_filling    TRAP on missing pages: a handler fills pages at their first access
 *   fs_memory     the memory itself; MAP2 (a second mapping of it), and guards
 *
 * Example: list the pages that the program wrote.
 *
 *     #include <fieldstone/pages.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         fs_memory *memory;
 *         fs_tracking *tracking;
 *         if (fs_memory_anonymous(1 << 20, &memory) || fs_tracking_new(memory, &tracking)) {
 *             fprintf(stderr, "%s\n", fs_error_message());
 *             return 1;
 *         }
 *         char *start = fs_memory_start(fs_tracking_memory(tracking));
 *         start[5000] = 1;
 *
 *         fs_range rest = {0, 1 << 20}, dirty[64];
 *         size_t count;
 *         while (rest.bytes > 0 && fs_tracking_dirty(tracking, &rest, dirty, 64, &count) == 0)
 *             for (size_t i = 0; i < count; i++)
 *                 printf("%zu bytes at %zu\n", dirty[i].bytes, dirty[i].offset); // 4096 bytes at 4096
 *         fs_tracking_free(tracking);
 *         return 0;
 *     }
 *
 *     cc example.c $(pkg-config --cflags --libs fieldstone)
 *
 * Errors. A function that returns int returns 0, or a negative number of enum fs_error; errno is
 * then set, and fs_error_message() returns a message. Functions that return a size, an address or a
 * number return 0 for a null handle.
 *
 * Handles. A function with an `fs_x **` parameter creates a handle, or stores NULL if it fails;
 * fs_x_free frees it and accepts NULL. A function that takes a `const` handle may be called in any
 * thread, and in several at a time. No thread may use a handle during or after its free. A function
 * that takes a non-const `fs_memory *` consumes it ON SUCCESS: the old handle is invalid, and
 * freeing the new one unmaps the memory. On failure the old handle stays valid and unchanged.
 *
 * Offsets and sizes are bytes from the start of the memory. Those of protection, guards, dirty
 * pages and eviction must be multiples of fs_memory_page_bytes; otherwise FS_ERROR_RANGE.
 *
 * Handlers run for each fault, in several threads at a time if several threads fault. Two threads
 * that access the same page may each call the handler. The object behind `user` must allow that. A
 * handler must return; it must not longjmp out, throw, or end its thread, and must not free a
 * handle. There are two kinds:
 *   - In a thread of this library (`_new`, `_tracked`, mechanisms that end in _THREAD, and
 *     FS_SCAN): it may call any function, but must not wait for the faulting thread. System calls
 *     that access the memory wait for it too, if the mechanism supports that (fs_x_losses).
 *   - In a signal handler of the faulting thread (`_in_signal`, and mechanisms that end in
 *     _SIGNAL), about twice as fast. It may call only async-signal-safe functions; of this library
 *     these are all fs_fault_…, fs_memory_start, _bytes, _page_bytes, fs_x_memory and
 *     fs_error_name. No malloc, no printf, no lock that other threads hold. It runs on the thread's
 *     alternate stack, if any, which may be small.
 * Install handlers of SIGSEGV and SIGBUS before the first fs_trapping, fs_tracking or fs_filling is
 * created. They receive the faults outside this library's memory, and those with outcome FS_CHAIN.
 *
 * Blocked signals. Every mechanism except FS_USERFAULT_THREAD and FS_SCAN uses SIGSEGV or SIGBUS.
 * The kernel kills a thread that blocks them at a trapped page: "Segmentation fault" or "Bus
 * error". fs_x_losses reports that as FS_LOSS_BLOCKED_SIGNALS.
 *
 * Descriptors. The program may close all descriptors (close_range, closefrom) or replace them by
 * other files. A thread of the library keeps copies, and faults are still served, more slowly.
 * daemon() forks: see below.
 *
 * After fork(), the child's copy of all this memory is plain: no traps, no dirty pages, and missing
 * pages read as zeros. Its handles may be freed; protect, dirty and other operations return
 * FS_ERROR_FORKED. New memory can be controlled there.
 */
#ifndef FIELDSTONE_PAGES_H
#define FIELDSTONE_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; fs_version() returns the library's. Before 1.0 each minor version may
 * break the ABI. */
#define FS_VERSION "0.1.0"
const char *fs_version(void);


/* ---- Errors ---------------------------------------------------------------------------------- */

enum fs_error {
    FS_OK = 0,
    FS_ERROR_SYSTEM = -1,      /* a system call failed; errno is its own */
    FS_ERROR_RANGE = -2,       /* not page-aligned, or outside the memory; EINVAL */
    FS_ERROR_UNSUPPORTED = -3, /* no mechanism of this machine supports it; ENOTSUP */
    FS_ERROR_FORKED = -4,      /* this is a forked child, and the handle is older; ECHILD */
    FS_ERROR_FILL = -5,        /* the contents are not one page long; EINVAL */
    FS_ERROR_ARGUMENT = -6,    /* a pointer is null, or a number is not in its enum; EINVAL */
    FS_ERROR_INTERNAL = -7,    /* a bug in this library; ENOTRECOVERABLE */
    /* Of <fieldstone/guard.h>: */
    FS_ERROR_FINDING = -8,       /* a free found a memory error; EFAULT */
    FS_ERROR_NOT_EXPLAINED = -9, /* an address has no memory error to explain; ENOENT */
    /* Of <fieldstone/checkpoint.h> and <fieldstone/store.h>: */
    FS_ERROR_CORRUPT = -10, /* a file is damaged, or one that it needs is missing; EBADMSG */
    FS_ERROR_VERSION = -11, /* a later version wrote the file; ENOTSUP */
    FS_ERROR_FULL = -12,     /* the file system or the store has no room; ENOSPC */
    FS_ERROR_POISONED = -13, /* a write failed: read on, write after the store is opened again; EROFS */
    FS_ERROR_TYPE = -14,     /* a table has keys or values of another type; EINVAL */
    FS_ERROR_ABSENT = -15,  /* it does not exist; ENOENT */
    FS_ERROR_BUSY = -16,    /* another operation uses it; EBUSY or EEXIST */
    FS_ERROR_TOO_OLD = -17  /* the pages of a snapshot are no longer in memory; ESTALE */
};

/* The last failure in this thread: address, size, errno and remedy; "" if none. The text stays
 * until the next failure in this thread. fs_fault_… functions set no message, because they must not
 * allocate. Not callable in signal handlers. */
const char *fs_error_message(void);

/* The meaning of a code, as a static string. */
const char *fs_error_name(int code);


/* ---- Memory ---------------------------------------------------------------------------------- */

/* Memory mapped by this library: readable, writable, and not controlled yet. */
typedef struct fs_memory fs_memory;

/* A second mapping of an fs_memory, at another address. */
typedef struct fs_alias fs_alias;

/* A part of a memory, in bytes from its start. */
typedef struct fs_range {
    size_t offset;
    size_t bytes;
} fs_range;

/* These round `bytes` up to whole pages. Without memory they return FS_ERROR_SYSTEM with ENOMEM. */

/* Private memory of zeros, on small pages or on transparent huge pages if the kernel uses them. */
int fs_memory_anonymous(size_t bytes, fs_memory **memory);

/* Memory of zeros that can be mapped a second time (fs_memory_alias). */
int fs_memory_shared(size_t bytes, fs_memory **memory);

/* Private memory of zeros on 2 MiB pages of the hugetlb pool; ENOMEM if the pool has too few. */
int fs_memory_hugetlb(size_t bytes, fs_memory **memory);

/* A part of a file. Writes reach the file, or stay in memory (_private). `offset` must be
 * page-aligned, and the part inside the file; otherwise FS_ERROR_RANGE. The descriptor may be
 * closed afterwards. Shared writes need a file opened for reading and writing. */
int fs_memory_file(int fd, uint64_t offset, size_t bytes, fs_memory **memory);
int fs_memory_file_private(int fd, uint64_t offset, size_t bytes, fs_memory **memory);

/* Unmaps it. Not for the result of fs_x_memory, and not for controlled memory. */
void fs_memory_free(fs_memory *memory);

/* The first byte; the size; and the page size, the unit of protection, tracking and filling. */
void *fs_memory_start(const fs_memory *memory);
size_t fs_memory_bytes(const fs_memory *memory);
size_t fs_memory_page_bytes(const fs_memory *memory);

/* Requests transparent huge pages. Protecting a small page of a huge one splits it. */
int fs_memory_advise_huge(const fs_memory *memory);

/* Makes every page present, as a write to each would. */
int fs_memory_populate(const fs_memory *memory);

/* The implementation of a guard. */
enum fs_guard {
    FS_GUARD_MARKER = 0, /* a marker in the page table: Linux 6.13; 6.15 for shared memory and files */
    FS_GUARD_PROTECT = 1 /* a separate mapping, by mprotect(2); limited by vm.max_map_count */
};

/* Makes whole pages guards: contents of private pages are lost, and an access raises SIGSEGV, in a
 * forked child too. `how` may be NULL; otherwise it receives the implementation. _with uses the
 * given one only, and returns FS_ERROR_SYSTEM with EINVAL if the kernel lacks it. Controlled memory
 * is refused (FS_ERROR_UNSUPPORTED), because its traps would be lost. */
int fs_memory_guard(const fs_memory *memory, size_t offset, size_t bytes, enum fs_guard *how);
int fs_memory_guard_with(const fs_memory *memory, size_t offset, size_t bytes, enum fs_guard how);

/* Turns guards into plain pages, zeros in private memory. */
int fs_memory_unguard(const fs_memory *memory, size_t offset, size_t bytes);

/* Maps the same pages a second time. The alias is always accessible, and may outlive the memory's
 * handle. FS_ERROR_UNSUPPORTED for private memory. */
int fs_memory_alias(const fs_memory *memory, fs_alias **alias);
void fs_alias_free(fs_alias *alias);
void *fs_alias_start(const fs_alias *alias);
size_t fs_alias_bytes(const fs_alias *alias);


/* ---- Mechanisms ------------------------------------------------------------------------------ */

/* How faults are raised and delivered. */
enum fs_mechanism {
    FS_USERFAULT_THREAD = 1, /* userfaultfd, to a thread of this library */
    FS_USERFAULT_SIGNAL = 2, /* userfaultfd, as SIGBUS to the faulting thread */
    FS_PROTECT_THREAD = 3,   /* mprotect(2); the SIGSEGV handler forwards to a thread of this library */
    FS_PROTECT_SIGNAL = 4,   /* mprotect(2), as SIGSEGV to the faulting thread */
    FS_SCAN = 5              /* the kernel records writes, and no thread waits: Linux 6.7 */
};

/* What a handle does not support, as bits. The first three depend on the mechanism. The last two
 * concern dirty pages, depend on the memory and the process, and hold for every mechanism. */
enum fs_loss {
    FS_LOSS_KERNEL_ACCESSES = 1, /* a system call that accesses a trapped page fails with EFAULT */
    FS_LOSS_MAPPINGS = 2,        /* each separately protected range is a mapping; limited by vm.max_map_count */
    FS_LOSS_BLOCKED_SIGNALS = 4, /* the kernel kills a thread that blocks SIGSEGV and SIGBUS at a trapped page */
    FS_LOSS_PINNED_PAGES = 8,    /* the process has pinned pages now: writes to them may have been missed */
    FS_LOSS_SHARED_MEMORY = 16   /* the memory is shared or a file's: writes through other mappings are missed */
};

/* The mechanism's name, and a loss with its remedy, as static strings. */
const char *fs_mechanism_name(enum fs_mechanism mechanism);
const char *fs_loss_text(enum fs_loss loss);


/* ---- Faults ---------------------------------------------------------------------------------- */

/* An access to a protected or missing page. Valid in the handler's thread while it runs. */
typedef struct fs_fault fs_fault;

enum fs_access {
    FS_READ = 0, /* or the processor does not report the kind */
    FS_WRITE = 1
};

/* The result of a handler. */
enum fs_outcome {
    FS_RESOLVED = 0, /* the access is retried; it faults again if the page is unchanged */
    FS_CHAIN = 1     /* the program's own signal handler runs, or the signal ends the program */
};

typedef enum fs_outcome (*fs_handler)(const fs_fault *fault, void *user);

/* The address, the byte's offset, the page, and the kind of access. */
void *fs_fault_address(const fs_fault *fault);
size_t fs_fault_offset(const fs_fault *fault);
fs_range fs_fault_page(const fs_fault *fault);
enum fs_access fs_fault_access(const fs_fault *fault);

/* The waiting thread, as of gettid(2). */
int fs_fault_thread(const fs_fault *fault);

/* In a signal handler, the ucontext_t of the faulting thread; otherwise NULL. */
void *fs_fault_context(const fs_fault *fault);

/* For an fs_trapping: unprotects the page; protects or unprotects other pages of the memory. */
int fs_fault_unprotect(const fs_fault *fault);
int fs_fault_protect_others(const fs_fault *fault, size_t offset, size_t bytes);
int fs_fault_unprotect_others(const fs_fault *fault, size_t offset, size_t bytes);

/* For an fs_filling: fills the page with a copy, whose `bytes` must be the page size, or with
 * zeros. A page that another thread has filled meanwhile stays as it is. */
int fs_fault_fill(const fs_fault *fault, const void *contents, size_t bytes);
int fs_fault_zero(const fs_fault *fault);

/* Fills the page by moving the page at `from` there without a copy. `from` must be an unused page
 * of private anonymous memory; it is missing or zeros afterwards. Needs userfaultfd, private
 * anonymous memory without tracking, and Linux 6.8; otherwise FS_ERROR_UNSUPPORTED. */
int fs_fault_move(const fs_fault *fault, void *from);

/* Marks the contents as lost: this and each later access raises SIGBUS. Needs userfaultfd and Linux
 * 6.6; otherwise FS_ERROR_UNSUPPORTED. In a signal handler, FS_ERROR_SYSTEM with EEXIST means that
 * the page is poisoned already: return FS_CHAIN then. */
int fs_fault_poison(const fs_fault *fault);


/* ---- Trapping -------------------------------------------------------------------------------- */

/* Memory whose protected pages call a handler. All pages are accessible at first. */
typedef struct fs_trapping fs_trapping;

/* The accesses that a protected page refuses. */
enum fs_watch {
    FS_WATCH_WRITES = 0,
    FS_WATCH_ACCESSES = 1 /* reads too; by mprotect(2) only, otherwise FS_ERROR_UNSUPPORTED */
};

/* Consumes the memory on success. The handler runs in a thread (_new), in a signal (_in_signal), or
 * by the given mechanism only (_with): any except FS_SCAN. */
int fs_trapping_new(fs_memory *memory, enum fs_watch watch, fs_handler handler, void *user, fs_trapping **trapping);
int fs_trapping_in_signal(fs_memory *memory, enum fs_watch watch, fs_handler handler, void *user, fs_trapping **trapping);
int fs_trapping_with(fs_memory *memory, enum fs_watch watch, enum fs_mechanism mechanism, fs_handler handler, void *user,
                     fs_trapping **trapping);

/* Waits for running handlers, and unmaps the memory. */
void fs_trapping_free(fs_trapping *trapping);

/* The memory, valid as long as the handle; it must not be freed. */
const fs_memory *fs_trapping_memory(const fs_trapping *trapping);

/* Protects or unprotects whole pages. When protect returns, no thread can make a refused access.
 * Cheapest: protect long ranges at once, and unprotect single pages. ENOMEM when mprotect(2) has no
 * mappings left. */
int fs_trapping_protect(const fs_trapping *trapping, size_t offset, size_t bytes);
int fs_trapping_unprotect(const fs_trapping *trapping, size_t offset, size_t bytes);

/* The mechanism in use, and what it does not support: bits of enum fs_loss. */
enum fs_mechanism fs_trapping_mechanism(const fs_trapping *trapping);
unsigned fs_trapping_losses(const fs_trapping *trapping);


/* ---- Tracking -------------------------------------------------------------------------------- */

/* Memory that knows which of its pages were written. None is dirty at first. */
typedef struct fs_tracking fs_tracking;

/* Consumes the memory on success. _new uses FS_SCAN, else a trap on the first write to each page;
 * _with uses the given mechanism only. */
int fs_tracking_new(fs_memory *memory, fs_tracking **tracking);
int fs_tracking_with(fs_memory *memory, enum fs_mechanism mechanism, fs_tracking **tracking);

void fs_tracking_free(fs_tracking *tracking);
const fs_memory *fs_tracking_memory(const fs_tracking *tracking);

/* Lists the written pages in `rest`, lowest first, as at most `room` ranges of whole pages. `count`
 * receives their number, and `rest` the part that is not listed yet: 0 bytes unless the array is
 * full. So call it until rest.bytes is 0.
 *
 * A page is clean from the moment that it is listed: read its contents afterwards. A write in
 * between makes it dirty again; a write that was complete before the call is listed by it. Ranges
 * that do not fit into the array stay dirty. Adjacent pages may appear as two ranges. If the call
 * fails midway, `count` ranges are listed and clean nevertheless. Memory that the program has
 * mapped over fails with EPERM, and the rest of the range stays dirty.
 *
 * WRITES THAT NO MECHANISM DETECTS are those that bypass this memory's addresses. io_uring writes
 * to registered (fixed) buffers and devices write to pinned pages by their frames. Shared memory
 * and files can be written through a second mapping, by write(2), or by another process.
 * fs_tracking_losses() reports FS_LOSS_PINNED_PAGES while the process has pinned pages, and
 * FS_LOSS_SHARED_MEMORY. Call it after fs_tracking_dirty, and mark such pages by
 * fs_tracking_mark. */
int fs_tracking_dirty(const fs_tracking *tracking, fs_range *rest, fs_range *ranges, size_t room, size_t *count);

/* The same, but all pages stay dirty. */
int fs_tracking_peek(const fs_tracking *tracking, fs_range *rest, fs_range *ranges, size_t room, size_t *count);

/* Makes pages dirty: for writes that no mechanism detects, such as those through an alias, of
 * another process, or of io_uring to a registered buffer. */
int fs_tracking_mark(const fs_tracking *tracking, size_t offset, size_t bytes);

/* Each call reads the present losses, in about 20 us: pages may be pinned at any time. */
enum fs_mechanism fs_tracking_mechanism(const fs_tracking *tracking);
unsigned fs_tracking_losses(const fs_tracking *tracking);


/* ---- Filling --------------------------------------------------------------------------------- */

/* Memory whose pages a handler fills at their first access. The memory must be untouched: whether a
 * touched page counts as missing depends on the mechanism. */
typedef struct fs_filling fs_filling;

/* Consumes the memory on success. The handler runs in a thread (_new); in a thread, with tracked
 * writes to filled pages (_tracked, fs_filling_dirty); in a signal (_in_signal); or by the given
 * mechanism only (_with): FS_SCAN or FS_PROTECT_… with tracking, any except FS_SCAN without. Files
 * are refused (FS_ERROR_UNSUPPORTED or _SYSTEM). Without userfaultfd only memory of
 * fs_memory_shared works. */
int fs_filling_new(fs_memory *memory, fs_handler handler, void *user, fs_filling **filling);
int fs_filling_tracked(fs_memory *memory, fs_handler handler, void *user, fs_filling **filling);
int fs_filling_in_signal(fs_memory *memory, fs_handler handler, void *user, fs_filling **filling);
int fs_filling_with(fs_memory *memory, bool tracked, enum fs_mechanism mechanism, fs_handler handler, void *user,
                    fs_filling **filling);

void fs_filling_free(fs_filling *filling);
const fs_memory *fs_filling_memory(const fs_filling *filling);

/* Fills the page that starts at `offset` in advance, with a copy, whose `bytes` must be the page
 * size, or with zeros. A present page stays as it is. */
int fs_filling_fill(const fs_filling *filling, size_t offset, const void *contents, size_t bytes);
int fs_filling_zero(const fs_filling *filling, size_t offset);

/* Evicts pages: their contents are lost, and the next access calls the handler. A write during the
 * call may be lost too. */
int fs_filling_evict(const fs_filling *filling, size_t offset, size_t bytes);

/* As fs_tracking_dirty, for pages written since they were filled or last listed.
 * FS_ERROR_UNSUPPORTED without tracking. */
int fs_filling_dirty(const fs_filling *filling, fs_range *rest, fs_range *ranges, size_t room, size_t *count);

enum fs_mechanism fs_filling_mechanism(const fs_filling *filling);
unsigned fs_filling_losses(const fs_filling *filling);

#ifdef __cplusplus
}
#endif

#endif
