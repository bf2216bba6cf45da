/*
 * fieldstone/pages.h: memory under the program's own control.
 *
 * The six virtual-memory primitives of Appel and Li, each by the best mechanism that this machine has:
 *
 *   fs_trapping   TRAP, PROT1, PROTN, UNPROT: an access to a protected page calls a handler
 *   fs_tracking   DIRTY: which pages were written since the last look
 *   fs_filling    TRAP on what is not there: pages come when they are touched
 *   fs_memory     the memory itself; MAP2 (a second view of it), and guards
 *
 * An example: which pages did the program write?
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
 *                 printf("%zu bytes at %zu\n", dirty[i].bytes, dirty[i].offset);     // 4096 bytes at 4096
 *         fs_tracking_free(tracking);
 *         return 0;
 *     }
 *
 *     cc example.c $(pkg-config --cflags --libs fieldstone)
 *
 * Errors. A function that gives an int gives 0, or a negative number of enum fs_error; errno is set then, and
 * fs_error_message() has the words. Functions that give a size, an address or a number give 0 for a null handle.
 *
 * Handles are made by a function that ends in `fs_x **`, which is set to NULL where the call fails, and freed by fs_x_free, which
 * takes NULL. A function that takes a `const` handle may be called in any thread, and in several at a time; nobody may use a
 * handle while or after it is freed. Where a function takes a `fs_memory *` that is not const, the memory belongs to the new
 * handle IF IT SUCCEEDS: the old handle is gone, and what was mapped is unmapped when the new one is freed. If it fails, the
 * memory is yours and as it was.
 *
 * Offsets and sizes are bytes from the start of the memory. Those of protection, guards, dirty pages and eviction are whole pages
 * of fs_memory_page_bytes; else FS_ERROR_RANGE.
 *
 * Handlers are called for each fault, by several threads at a time if several fault; two threads that touch the same page may
 * each call it. What `user` points to must bear that. A handler returns; it must not longjmp out, throw, or end its thread, and
 * no handle may be freed in one. There are two kinds:
 *   - in a thread of this library (`_new`, `_tracked`, and mechanisms that end in _THREAD, and FS_SCAN): it may call anything,
 *     as long as it does not wait for who faulted. System calls that touch the memory wait for it too, where the mechanism
 *     can do that (fs_x_losses).
 *   - in a signal handler of who faulted (`_in_signal`, and mechanisms that end in _SIGNAL), about twice as fast. Only what is
 *     async-signal-safe may be called: of this library, all fs_fault_…, fs_memory_start, _bytes, _page_bytes, fs_x_memory,
 *     fs_error_name. No malloc, no printf, no lock that others hold. It runs on the thread's alternate stack, if it has one,
 *     which may be small.
 * Install handlers of SIGSEGV and SIGBUS before the first fs_trapping, fs_tracking or fs_filling is made. They get the faults
 * that are none of this library's, and those that a handler answers by FS_CHAIN.
 *
 * Blocked signals. Every mechanism but FS_USERFAULT_THREAD and FS_SCAN uses SIGSEGV or SIGBUS. The kernel kills a thread that
 * blocks them at a trapped page: "Segmentation fault" or "Bus error". fs_x_losses reports that as FS_LOSS_BLOCKED_SIGNALS.
 *
 * Descriptors. The program may close all descriptors (close_range, closefrom) or put other files at their numbers: a thread of
 * the library keeps copies of those that it needs, and faults are still served, more slowly. daemon() forks: see below.
 *
 * After fork(), the child's copy of all this memory is plain: no traps, no dirty pages, missing pages are zeros. Its handles may
 * be freed; protect, dirty and the like return FS_ERROR_FORKED. New memory can be put under control there.
 */
#ifndef FIELDSTONE_PAGES_H
#define FIELDSTONE_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. fs_version() is that of the library. Before 1.0 each minor version may break the ABI. */
#define FS_VERSION "0.1.0"
const char *fs_version(void);


/* ---- Errors ---------------------------------------------------------------------------------------------------------------- */

enum fs_error {
    FS_OK = 0,
    FS_ERROR_SYSTEM = -1,      /* a system call failed; errno is its own */
    FS_ERROR_RANGE = -2,       /* not whole pages, or not inside; EINVAL */
    FS_ERROR_UNSUPPORTED = -3, /* no mechanism here can do it; ENOTSUP */
    FS_ERROR_FORKED = -4,      /* the handle was made before a fork, and this is the child; ECHILD */
    FS_ERROR_FILL = -5,        /* what is to fill a page is not as long as one; EINVAL */
    FS_ERROR_ARGUMENT = -6,    /* a pointer is null, or a number not of its enum; EINVAL */
    FS_ERROR_INTERNAL = -7     /* a mistake in this library; ENOTRECOVERABLE */
};

/* What failed last in this thread, with the address, the size, the errno and what to do about it; "" if nothing has. The text
 * stays until the next failure in this thread. fs_fault_… functions leave no message, as they must not allocate. Not in signals.
 * */
const char *fs_error_message(void);

/* What a code means, in a few words that never change or go. */
const char *fs_error_name(int code);


/* ---- Memory ---------------------------------------------------------------------------------------------------------------- */

/* Memory that this library mapped: readable, writable, and not under control yet. */
typedef struct fs_memory fs_memory;

/* A second view of an fs_memory, at another address. */
typedef struct fs_alias fs_alias;

/* A part of a memory, in bytes from its start. */
typedef struct fs_range {
    size_t offset;
    size_t bytes;
} fs_range;

/* All of these round `bytes` up to whole pages, and fail by FS_ERROR_SYSTEM with ENOMEM where there is no memory. */

/* Private memory of zeros, on small pages, or transparent huge ones where the system gives them. */
int fs_memory_anonymous(size_t bytes, fs_memory **memory);

/* Memory of zeros that can be mapped a second time (fs_memory_alias). */
int fs_memory_shared(size_t bytes, fs_memory **memory);

/* Private memory of zeros on 2 MiB pages of the hugetlb pool; ENOMEM where the pool has too few. */
int fs_memory_hugetlb(size_t bytes, fs_memory **memory);

/* A part of a file. What is written reaches the file, or stays in memory (_private). `offset` is of whole pages, and the part
 * lies within the file, else FS_ERROR_RANGE. The descriptor may be closed afterwards. Writes need a file opened for both. */
int fs_memory_file(int fd, uint64_t offset, size_t bytes, fs_memory **memory);
int fs_memory_file_private(int fd, uint64_t offset, size_t bytes, fs_memory **memory);

/* Unmaps it. Not for what fs_x_memory gives, nor for memory that is under control. */
void fs_memory_free(fs_memory *memory);

/* The first byte; the size; and the size of a page, which is what is protected, noted and filled at a time. */
void *fs_memory_start(const fs_memory *memory);
size_t fs_memory_bytes(const fs_memory *memory);
size_t fs_memory_page_bytes(const fs_memory *memory);

/* Asks for transparent huge pages. Protecting a small page of a huge one splits it. */
int fs_memory_advise_huge(const fs_memory *memory);

/* Has every page there, as a write to each would. */
int fs_memory_populate(const fs_memory *memory);

/* How a guard is made. */
enum fs_guard {
    FS_GUARD_MARKER = 0, /* a mark in the page table: Linux 6.13; 6.15 for shared memory and files */
    FS_GUARD_PROTECT = 1 /* a mapping of its own, by mprotect(2); vm.max_map_count bounds them */
};

/* Makes whole pages guards: what private ones held is lost, an access is a SIGSEGV, in a forked child too. `how` may be NULL; else it is
 * set to what was done. _with does it in one way only, and gives FS_ERROR_SYSTEM, EINVAL, where the kernel cannot. Memory
 * under control is refused, FS_ERROR_UNSUPPORTED: its traps would be lost. */
int fs_memory_guard(const fs_memory *memory, size_t offset, size_t bytes, enum fs_guard *how);
int fs_memory_guard_with(const fs_memory *memory, size_t offset, size_t bytes, enum fs_guard how);

/* Makes guards plain pages, of zeros in private memory. */
int fs_memory_unguard(const fs_memory *memory, size_t offset, size_t bytes);

/* Maps the same pages a second time. The view is always open, whatever is protected in the first, and lives as long as it likes.
 * FS_ERROR_UNSUPPORTED for private memory. */
int fs_memory_alias(const fs_memory *memory, fs_alias **alias);
void fs_alias_free(fs_alias *alias);
void *fs_alias_start(const fs_alias *alias);
size_t fs_alias_bytes(const fs_alias *alias);


/* ---- Mechanisms ------------------------------------------------------------------------------------------------------------ */

/* How faults are made and told. */
enum fs_mechanism {
    FS_USERFAULT_THREAD = 1, /* userfaultfd, to a thread of this library */
    FS_USERFAULT_SIGNAL = 2, /* userfaultfd, as a SIGBUS to who faults */
    FS_PROTECT_THREAD = 3,   /* mprotect(2), whose SIGSEGV is passed on to a thread of this library */
    FS_PROTECT_SIGNAL = 4,   /* mprotect(2), as a SIGSEGV to who faults */
    FS_SCAN = 5              /* the kernel notes writes, and nobody waits: Linux 6.7 */
};

/* What a handle does not give: bits. The first three come with the mechanism, and another one may give what this one lacks. The
 * last two concern dirty pages, come with the memory and the process, and hold for every mechanism. */
enum fs_loss {
    FS_LOSS_KERNEL_ACCESSES = 1, /* a system call that touches a trapped page fails with EFAULT */
    FS_LOSS_MAPPINGS = 2,        /* each protected piece is a mapping of its own; vm.max_map_count bounds them */
    FS_LOSS_BLOCKED_SIGNALS = 4, /* the kernel kills a thread that blocks SIGSEGV and SIGBUS at a trapped page */
    FS_LOSS_PINNED_PAGES = 8,    /* the process has pinned pages now: writes to them may have been missed */
    FS_LOSS_SHARED_MEMORY = 16   /* the memory is shared or a file's: writes by other mappings are missed */
};

/* The mechanism's name, and one loss with its remedy, for people. The texts never change or go. */
const char *fs_mechanism_name(enum fs_mechanism mechanism);
const char *fs_loss_text(enum fs_loss loss);


/* ---- Faults ---------------------------------------------------------------------------------------------------------------- */

/* An access to a page that is protected, or missing. It lives while its handler runs, in the handler's thread. */
typedef struct fs_fault fs_fault;

enum fs_access {
    FS_READ = 0, /* or the processor does not tell */
    FS_WRITE = 1
};

/* What comes after a handler. */
enum fs_outcome {
    FS_RESOLVED = 0, /* the access is tried again; if the page is as it was, it faults again */
    FS_CHAIN = 1     /* a mistake of the program's: its own handler of the signal gets it, or it ends by the signal */
};

typedef enum fs_outcome (*fs_handler)(const fs_fault *fault, void *user);

/* The address, the byte, the page, and how it was accessed. */
void *fs_fault_address(const fs_fault *fault);
size_t fs_fault_offset(const fs_fault *fault);
fs_range fs_fault_page(const fs_fault *fault);
enum fs_access fs_fault_access(const fs_fault *fault);

/* Who waits, as of gettid(2). */
int fs_fault_thread(const fs_fault *fault);

/* In a signal handler, the ucontext_t of who faulted; else NULL. */
void *fs_fault_context(const fs_fault *fault);

/* Answers of an fs_trapping. Opens the page; protects or opens other pages of the same memory. */
int fs_fault_unprotect(const fs_fault *fault);
int fs_fault_protect_others(const fs_fault *fault, size_t offset, size_t bytes);
int fs_fault_unprotect_others(const fs_fault *fault, size_t offset, size_t bytes);

/* Answers of an fs_filling. Fills the page with a copy, for which `bytes` is its size, or with zeros. A page that another thread
 * filled meanwhile stays as it is. */
int fs_fault_fill(const fs_fault *fault, const void *contents, size_t bytes);
int fs_fault_zero(const fs_fault *fault);

/* Fills the page by moving the page at `from` there, without a copy: one of private anonymous memory that nobody uses any more,
 * and that is missing or zeros afterwards. FS_ERROR_UNSUPPORTED but with userfaultfd, in private anonymous memory, untracked;
 * Linux 6.8. */
int fs_fault_move(const fs_fault *fault, void *from);

/* The contents are lost: this and every later access is a SIGBUS. FS_ERROR_UNSUPPORTED without userfaultfd; Linux 6.6.
 * In a signal handler FS_ERROR_SYSTEM with EEXIST means that it is poisoned already: answer FS_CHAIN then. */
int fs_fault_poison(const fs_fault *fault);


/* ---- Trapping -------------------------------------------------------------------------------------------------------------- */

/* Memory whose protected pages call a handler. All pages are open at first. */
typedef struct fs_trapping fs_trapping;

/* What a protected page refuses. */
enum fs_watch {
    FS_WATCH_WRITES = 0,
    FS_WATCH_ACCESSES = 1 /* reads too; by mprotect(2) only, FS_ERROR_UNSUPPORTED else */
};

/* Takes the memory if it succeeds. The handler runs in a thread; in a signal; or by the mechanism that is asked for, where
 * nothing else is tried: any but FS_SCAN. */
int fs_trapping_new(fs_memory *memory, enum fs_watch watch, fs_handler handler, void *user, fs_trapping **trapping);
int fs_trapping_in_signal(fs_memory *memory, enum fs_watch watch, fs_handler handler, void *user, fs_trapping **trapping);
int fs_trapping_with(fs_memory *memory, enum fs_watch watch, enum fs_mechanism mechanism, fs_handler handler, void *user,
                     fs_trapping **trapping);

/* Waits for handlers that run, and unmaps the memory. */
void fs_trapping_free(fs_trapping *trapping);

/* The memory, which lives as long as the handle and is not to be freed. */
const fs_memory *fs_trapping_memory(const fs_trapping *trapping);

/* Protects or opens whole pages. When protect returns, no thread can do what they refuse. Protect long pieces at once, and open
 * single pages: that is cheapest. ENOMEM where mprotect(2) has no mappings left. */
int fs_trapping_protect(const fs_trapping *trapping, size_t offset, size_t bytes);
int fs_trapping_unprotect(const fs_trapping *trapping, size_t offset, size_t bytes);

/* What was got, and what it does not give: bits of enum fs_loss. */
enum fs_mechanism fs_trapping_mechanism(const fs_trapping *trapping);
unsigned fs_trapping_losses(const fs_trapping *trapping);


/* ---- Tracking -------------------------------------------------------------------------------------------------------------- */

/* Memory that knows which of its pages were written. None is dirty at first. */
typedef struct fs_tracking fs_tracking;

/* Takes the memory if it succeeds. By FS_SCAN, else by a trap on the first write to each page; or by the mechanism that is asked
 * for, where nothing else is tried. */
int fs_tracking_new(fs_memory *memory, fs_tracking **tracking);
int fs_tracking_with(fs_memory *memory, enum fs_mechanism mechanism, fs_tracking **tracking);

void fs_tracking_free(fs_tracking *tracking);
const fs_memory *fs_tracking_memory(const fs_tracking *tracking);

/* Lists the written pages in `rest`, lowest first, as ranges of whole pages, `room` of them at most. `count` is set to how many
 * there are, and `rest` to what was not looked at: nothing, of 0 bytes, unless the array is full. So call it until
 * rest.bytes is 0.
 *
 * A page counts as clean from the moment that it is listed: read its contents after that. A write that comes in between makes it
 * dirty again; a write that was done before the call is listed by it. What did not fit into the array stays dirty. Neighbours may
 * come as two ranges. If it fails midway, `count` ranges are listed all the same, and clean. Memory that the program has mapped
 * over fails with EPERM, and all that is left of the range stays dirty.
 *
 * WRITES THAT NO MECHANISM SEES: those that do not go through this memory's addresses. io_uring writes registered (fixed) buffers,
 * and devices write pinned pages, by their frames; shared memory and files are written through a second mapping, by write(2),
 * or by another process. fs_tracking_losses() reports FS_LOSS_PINNED_PAGES while the process has pinned pages, and
 * FS_LOSS_SHARED_MEMORY. Call it after fs_tracking_dirty, and mark such pages by fs_tracking_mark. */
int fs_tracking_dirty(const fs_tracking *tracking, fs_range *rest, fs_range *ranges, size_t room, size_t *count);

/* The same, but all stays dirty. */
int fs_tracking_peek(const fs_tracking *tracking, fs_range *rest, fs_range *ranges, size_t room, size_t *count);

/* Makes pages dirty: for writes that no mechanism sees, such as those through an alias, of another process, or of io_uring to a
 * registered buffer. */
int fs_tracking_mark(const fs_tracking *tracking, size_t offset, size_t bytes);

/* The losses are looked up at each call, in some 20 us: pages may be pinned at any time. */
enum fs_mechanism fs_tracking_mechanism(const fs_tracking *tracking);
unsigned fs_tracking_losses(const fs_tracking *tracking);


/* ---- Filling --------------------------------------------------------------------------------------------------------------- */

/* Memory whose pages a handler fills when they are touched. Give it memory that nobody has touched: whether a page that was
 * counts as missing depends on the mechanism. */
typedef struct fs_filling fs_filling;

/* Takes the memory if it succeeds. The handler runs in a thread; in a thread, and writes to what was filled are noted
 * (fs_filling_dirty); in a signal; or by the mechanism that is asked for, where nothing else is tried. Tracked is FS_SCAN or one
 * of FS_PROTECT_…, untracked any but FS_SCAN. FS_ERROR_UNSUPPORTED, or _SYSTEM, for files; without userfaultfd it takes
 * memory of fs_memory_shared. */
int fs_filling_new(fs_memory *memory, fs_handler handler, void *user, fs_filling **filling);
int fs_filling_tracked(fs_memory *memory, fs_handler handler, void *user, fs_filling **filling);
int fs_filling_in_signal(fs_memory *memory, fs_handler handler, void *user, fs_filling **filling);
int fs_filling_with(fs_memory *memory, bool tracked, enum fs_mechanism mechanism, fs_handler handler, void *user,
                    fs_filling **filling);

void fs_filling_free(fs_filling *filling);
const fs_memory *fs_filling_memory(const fs_filling *filling);

/* Fills the page that starts at `offset` before anybody asks, with a copy, for which `bytes` is its size, or zeros. A page that
 * is there stays as it is. */
int fs_filling_fill(const fs_filling *filling, size_t offset, const void *contents, size_t bytes);
int fs_filling_zero(const fs_filling *filling, size_t offset);

/* Gives pages back to the system: what they hold is lost, and the next access calls the handler. A write that comes meanwhile is
 * lost too. */
int fs_filling_evict(const fs_filling *filling, size_t offset, size_t bytes);

/* As fs_tracking_dirty: what was written since it was filled or last listed. FS_ERROR_UNSUPPORTED unless tracked. */
int fs_filling_dirty(const fs_filling *filling, fs_range *rest, fs_range *ranges, size_t room, size_t *count);

enum fs_mechanism fs_filling_mechanism(const fs_filling *filling);
unsigned fs_filling_losses(const fs_filling *filling);

#ifdef __cplusplus
}
#endif

#endif
