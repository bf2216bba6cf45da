/*
 * fieldstone/paging.h: memory with a bound on its resident size.
 *
 * Pages above the bound are compressed by lz4, or written to a file without a name. They come back
 * at their next access, also when the kernel accesses them. The memory can be larger than RAM.
 *
 * Example: 64 MiB of memory, of which at most 8 MiB are resident.
 *
 *     #include <fieldstone/paging.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         fs_paging *paging;
 *         fs_paging_options options = {.bytes = 64 << 20, .resident = 8 << 20};
 *         if (fs_paging_open(&options, &paging)) {
 *             fprintf(stderr, "%s\n", fs_error_message());
 *             return 1;
 *         }
 *         unsigned *words = fs_paging_address(paging); // use it like any memory
 *         for (unsigned i = 0; i < (64 << 20) / sizeof *words; i++)
 *             words[i] = i / 9;
 *         fs_paging_counts counts;
 *         if (words[900] == 100 && fs_paging_stats(paging, &counts) == 0)
 *             printf("at most %zu MiB resident\n", counts.resident_peak >> 20); // at most 8 MiB resident
 *         fs_paging_free(paging);
 *         return 0;
 *     }
 *
 *     cc example.c $(pkg-config --cflags --libs fieldstone)
 *
 * Errors and handles are as in <fieldstone/pages.h>. All functions may be called in any thread, and
 * in several at a time. A thread of the library serves the faults of each fs_paging. Needs x86-64
 * and Linux 6.8 or later.
 *
 * Privileges. Without CAP_SYS_PTRACE and access to /dev/userfaultfd, and with
 * vm.unprivileged_userfaultfd=0, system calls that access pages that are not resident fail with
 * EFAULT: has_kernel_faults of fs_paging_counts is false. If a filter of system calls refuses
 * userfaultfd(2), fs_paging_open fails.
 *
 * After fork(), the child does not have the memory: its accesses raise SIGSEGV. fs_paging_advise and
 * fs_paging_set_resident return FS_ERROR_FORKED there. The child's handle may be freed.
 *
 * Do not unmap, move or protect the memory, and do not close descriptors of the library: the process
 * then ends with a message, because pages that are not resident would be lost.
 */
#ifndef FIELDSTONE_PAGING_H
#define FIELDSTONE_PAGING_H

#include <fieldstone/pages.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fs_paging fs_paging;

/* What happens at a page that its store does not return, or not with the stored contents. */
enum fs_paging_loss {
    FS_PAGING_FAULT = 0, /* each thread that accesses the page gets SIGBUS; system calls: EFAULT */
    FS_PAGING_RETRY = 1  /* the store is asked again at once */
};

/* Decides about a page: its first byte from the start of the memory, and a message with the store
 * and the error, which is valid during the call. It runs in the thread that serves faults, or in one
 * that gives advice, and must not access the memory or call functions on its handle. */
typedef enum fs_paging_loss (*fs_paging_on_loss)(size_t page, const char *message, void *user);

/* Zero is the default of each option. */
typedef struct fs_paging_options {
    size_t bytes;              /* size, rounded up to pages; default 1 GiB */
    size_t resident;           /* bound in bytes, at least 256 KiB; default a quarter of the memory */
    size_t lz4;                /* limit in bytes for compressed pages; default a quarter of the bound */
    const char *directory;     /* of the file for pages that lz4 does not take; default $TMPDIR, or /tmp */
    bool without_lz4;          /* pages go to the file at once */
    bool without_file;         /* pages that lz4 does not take stay resident, above the bound */
    fs_paging_on_loss on_loss; /* default: a message on standard error, and FS_PAGING_FAULT */
    void *user;                /* passed to `on_loss` */
} fs_paging_options;

/* Maps memory of zeros. `options` may be NULL. FS_ERROR_ARGUMENT for a bound that is too small and
 * without a store; FS_ERROR_SYSTEM without a userfaultfd (EPERM; EOPNOTSUPP before Linux 6.8), memory
 * (ENOMEM), or the file. */
int fs_paging_open(const fs_paging_options *options, fs_paging **paging);

/* Unmaps the memory, and ends the thread. No thread may access the memory any more. */
void fs_paging_free(fs_paging *paging);

/* The first byte of the memory. */
void *fs_paging_address(const fs_paging *paging);

/* What a program knows about a range of its memory. */
enum fs_paging_advice {
    FS_PAGING_SOON = 0, /* it accesses the range soon: stored pages come back before the call returns */
    FS_PAGING_COLD = 1, /* not for some time: the pages leave memory before the call returns */
    FS_PAGING_DROP = 2  /* it does not need the contents: whole pages become zeros, also in the stores */
};

/* Advises on the use of a range. FS_ERROR_RANGE if it is not inside the memory; for FS_PAGING_DROP
 * also if it is not whole pages. */
int fs_paging_advise(const fs_paging *paging, size_t offset, size_t bytes, enum fs_paging_advice advice);

/* Changes the bound. Pages above the new one leave memory before the call returns. */
int fs_paging_set_resident(const fs_paging *paging, size_t bytes);

/* Counts since the start. */
typedef struct fs_paging_counts {
    size_t bytes;            /* of the memory */
    size_t resident;         /* bytes now */
    size_t resident_peak;    /* the largest value of it */
    size_t resident_limit;   /* the bound */
    size_t stored;           /* bytes that pages take in the stores */
    uint64_t evicted;        /* pages that left memory */
    uint64_t evicted_zero;   /* pages among them that contained zeros only and are stored nowhere */
    uint64_t loaded;         /* pages that came back from a store */
    uint64_t load_ns;        /* time to bring them back, in nanoseconds */
    uint64_t faults;         /* faults that were served */
    uint64_t first_accesses; /* faults among them at pages that were stored nowhere */
    uint64_t unmovable;      /* failed attempts to move a page: locked or pinned */
    uint64_t refused;        /* attempts to store a page that no store took */
    uint64_t lost;           /* faults at pages that no store returned with their contents */
    bool has_kernel_faults;  /* system calls can access pages that are not resident; else EFAULT */
} fs_paging_counts;

int fs_paging_stats(const fs_paging *paging, fs_paging_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
