/* The primitives by hand-written system calls, for one region. Kernel headers may be older than the kernel. */

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096UL
#define FEATURE_SIGBUS (1UL << 7)
#define FEATURE_WP_UNPOPULATED (1UL << 13)
#define FEATURE_WP_ASYNC (1UL << 15)
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

struct scan_region { uint64_t start, end, categories; };
struct scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN _IOWR('f', 16, struct scan_arg)
#define WRITTEN 2UL

/* The only region with a fault handler. */
static struct {
    char *start;
    size_t bytes;
    int uffd;             /* -1: mprotect */
    long futile;          /* faults that the handler does not resolve */
    unsigned char *log;   /* one byte per page, or null */
    struct sigaction before[2];
} at;

static int write_protect(int uffd, char *start, size_t bytes, int on)
{
    struct uffdio_writeprotect request = { .range = { (uintptr_t)start, bytes }, .mode = on ? 1 : 0 };
    return ioctl(uffd, UFFDIO_WRITEPROTECT, &request);
}

int bare_protect(int uffd, char *start, size_t bytes)
{
    return uffd >= 0 ? write_protect(uffd, start, bytes, 1) : mprotect(start, bytes, PROT_READ);
}

int bare_unprotect(int uffd, char *start, size_t bytes)
{
    return uffd >= 0 ? write_protect(uffd, start, bytes, 0) : mprotect(start, bytes, PROT_READ | PROT_WRITE);
}

/* One call per page. */
int bare_protect_each(int uffd, char *start, const size_t *order, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bare_protect(uffd, start + order[i] * PAGE, PAGE)) return -1;
    return 0;
}

int bare_unprotect_each(int uffd, char *start, const size_t *order, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bare_unprotect(uffd, start + order[i] * PAGE, PAGE)) return -1;
    return 0;
}

int bare_guard_each(char *start, const size_t *order, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (madvise(start + order[i] * PAGE, PAGE, GUARD_INSTALL)) return -1;
    return 0;
}

void bare_write_each(char *start, const size_t *order, size_t count)
{
    for (size_t i = 0; i < count; i++) ((volatile char *)start)[order[i] * PAGE] = 1;
}

/* Opens a userfaultfd and registers the memory. delivery: 0 to a thread, 1 as a signal, 2 none. */
int bare_open(int delivery, char *start, size_t bytes)
{
    int uffd = -1;
    if (delivery != 1) {
        int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        if (device >= 0) {
            uffd = ioctl(device, _IO(0xAA, 0), O_CLOEXEC);
            close(device);
        }
        if (uffd < 0) uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    }
    if (uffd < 0) uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    if (uffd < 0) return -1;
    static const uint64_t features[3] = { 0, FEATURE_SIGBUS, FEATURE_WP_ASYNC };
    struct uffdio_api api = { .api = UFFD_API, .features = features[delivery] | FEATURE_WP_UNPOPULATED };
    struct uffdio_register memory = { .range = { (uintptr_t)start, bytes }, .mode = UFFDIO_REGISTER_MODE_WP };
    if (ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &memory)) {
        close(uffd);
        return -1;
    }
    return uffd;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    char *address = info->si_addr;
    if (address < at.start || address >= at.start + at.bytes) abort();
    if (at.futile > 0) {
        at.futile--;
        return;
    }
    size_t page = (size_t)(address - at.start) / PAGE;
    if (at.log) at.log[page] = 1;
    int saved = errno;
    if (bare_unprotect(at.uffd, at.start + page * PAGE, PAGE)) abort();
    errno = saved;
}

/* Installs the handler for the signals of these faults, until bare_unlisten. */
int bare_listen(int uffd, char *start, size_t bytes, unsigned char *log)
{
    struct sigaction ours = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
    sigfillset(&ours.sa_mask);
    at.start = start, at.bytes = bytes, at.uffd = uffd, at.log = log, at.futile = 0;
    return sigaction(SIGSEGV, &ours, &at.before[0]) || sigaction(SIGBUS, &ours, &at.before[1]);
}

int bare_unlisten(void)
{
    return sigaction(SIGSEGV, &at.before[0], NULL) || sigaction(SIGBUS, &at.before[1], NULL);
}

/* One access with `futile` unresolved faults and a resolved one. */
void bare_trap(char *start, long futile)
{
    __atomic_store_n(&at.futile, futile, __ATOMIC_RELAXED);
    *(volatile char *)start = 1;
}

static void *serve(void *argument)
{
    int uffd = (int)(intptr_t)argument;
    struct uffd_msg message;
    while (read(uffd, &message, sizeof message) == sizeof message) {
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        char *page = (char *)(uintptr_t)(message.arg.pagefault.address & ~(PAGE - 1));
        if (at.futile > 0) {
            at.futile--;
            struct uffdio_range range = { (uintptr_t)page, PAGE };
            if (ioctl(uffd, UFFDIO_WAKE, &range)) abort();
        } else if (write_protect(uffd, page, PAGE, 0)) {
            abort();
        }
    }
    return NULL;
}

/* Starts a thread that handles the faults of a userfaultfd until the process ends. */
int bare_serve(int uffd)
{
    pthread_t thread;
    at.futile = 0;
    return pthread_create(&thread, NULL, serve, (void *)(intptr_t)uffd);
}

/* Counts the written pages and makes them clean; -1 on an error. */
long bare_dirty(int pagemap, char *start, size_t bytes)
{
    static struct scan_region found[1024];
    struct scan_arg scan = {
        .size = sizeof scan, .flags = 1 | 2, .start = (uintptr_t)start, .end = (uintptr_t)start + bytes,
        .vec = (uintptr_t)found, .vec_len = 1024, .category_mask = WRITTEN, .return_mask = WRITTEN,
    };
    long pages = 0;
    while (scan.start < scan.end) {
        int count = ioctl(pagemap, SCAN, &scan);
        if (count < 0) return -1;
        for (int i = 0; i < count; i++) pages += (long)((found[i].end - found[i].start) / PAGE);
        scan.start = scan.walk_end;
    }
    return pages;
}

/* Maps a second view, writes to each page, and unmaps it. */
int bare_map2(int memory, size_t bytes, const size_t *order, size_t count)
{
    char *view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (view == MAP_FAILED) return -1;
    bare_write_each(view, order, count);
    return munmap(view, bytes);
}
