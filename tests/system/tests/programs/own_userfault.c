/* Handles faults on missing pages of its own buffers, whose neighbours are in use. "early": opens the userfaultfd before it maps
 * the buffers; "late": after that, with four pages in use. Exit code 77: userfaultfd is not permitted. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, BYTES = 256 << 10, PAGES = BYTES / PAGE, BUFFERS = 24, USED = 4 };
static int fd;
static volatile long served;
static char *current;

static void *serve(void *unused) {
    static char page[PAGE] __attribute__((aligned(PAGE)));
    for (;;) {
        struct pollfd wait = {fd, POLLIN, 0};
        struct uffd_msg message;
        poll(&wait, 1, -1);
        if (read(fd, &message, sizeof message) != sizeof message) continue;
        unsigned long at = message.arg.pagefault.address & ~(PAGE - 1UL);
        memset(page, 1 + (at - (unsigned long)current) / PAGE, PAGE);
        struct uffdio_copy copy = {.dst = at, .src = (unsigned long)page, .len = PAGE};
        __sync_fetch_and_add(&served, 1);
        ioctl(fd, UFFDIO_COPY, &copy);
    }
    return unused;
}

static char *map(void) { return mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

static int open_early(void) {
    struct uffdio_api api = {.api = UFFD_API};
    pthread_t thread;
    fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    return fd >= 0 && !ioctl(fd, UFFDIO_API, &api) && !pthread_create(&thread, 0, serve, 0);
}

int main(int count, char **words) {
    int late = count > 1 && !strcmp(words[1], "late");
    char *buffers[BUFFERS];
    if (!late && !open_early()) return 77;
    for (int i = 0; i < 16; i++) memset(map(), 7, BYTES);
    for (int i = 0; i < BUFFERS; i++) memset(map(), 7, BYTES), buffers[i] = map();
    if (late) memset(buffers[0], 99, USED * PAGE);
    if (late && !open_early()) return 77;
    long wrong = 0;
    for (int i = 0; i < BUFFERS; i++) {
        current = buffers[i];
        struct uffdio_register want = {.range = {(unsigned long)current, BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (ioctl(fd, UFFDIO_REGISTER, &want)) return 2;
        for (int page = 0; page < PAGES; page++)
            wrong += *(volatile char *)(current + page * PAGE) != (late && i == 0 && page < USED ? 99 : 1 + page);
        ioctl(fd, UFFDIO_UNREGISTER, &want.range);
    }
    printf("%ld asked, %ld wrong\n", served + (late ? USED : 0), wrong);
    return 0;
}
