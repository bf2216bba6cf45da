/* Missing pages: filled by copy, zeros and moves, evicted, tracked, lost. */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char contents[PAGES][PAGE];
static fs_memory *staging;

/* Fills a page with its number plus 1, page 2 with zeros; refuses page 7. */
static enum fs_outcome fill(const fs_fault *fault, void *user)
{
    (void)user;
    size_t page = fs_fault_offset(fault) / PAGE;
    if (page == 7)
        return FS_CHAIN;
    if (fs_fault_fill(fault, contents[page], 5) != FS_ERROR_FILL || fs_fault_fill(fault, NULL, PAGE) != FS_ERROR_ARGUMENT)
        return FS_CHAIN;
    int code = page == 2 ? fs_fault_zero(fault) : fs_fault_fill(fault, contents[page], PAGE);
    return code == FS_OK ? FS_RESOLVED : FS_CHAIN;
}

static void fills(fs_filling *filling)
{
    volatile unsigned char *start = fs_memory_start(fs_filling_memory(filling));
    CHECK(fs_filling_fill(filling, PAGE, contents[5], PAGE) == FS_OK && fs_filling_zero(filling, 0) == FS_OK);
    CHECK(start[0] == 0 && start[PAGE] == 6 && start[2 * PAGE] == 0 && start[3 * PAGE] == 4);
    start[3 * PAGE] = 99;
    CHECK(fs_filling_evict(filling, 0, 4 * PAGE) == FS_OK);
    CHECK(start[0] == 1 && start[PAGE] == 2 && start[3 * PAGE] == 4);
    CHECK(fs_filling_fill(filling, 1, contents[0], PAGE) == FS_ERROR_RANGE);
    CHECK(fs_filling_fill(filling, 0, contents[0], 1) == FS_ERROR_FILL);

    fs_range rest = {0, PAGES * PAGE}, found[PAGES];
    size_t count;
    CHECK(fs_filling_dirty(filling, &rest, found, PAGES, &count) == FS_ERROR_UNSUPPORTED);
}

static void tracked(fs_filling *filling)
{
    volatile unsigned char *start = fs_memory_start(fs_filling_memory(filling));
    fs_range rest = {0, PAGES * PAGE}, found[PAGES];
    size_t count;
    CHECK(start[PAGE] == 2 && start[4 * PAGE] == 5);
    CHECK(fs_filling_dirty(filling, &rest, found, PAGES, &count) == FS_OK && count == 0);
    start[4 * PAGE] = start[6 * PAGE] = 1;
    rest = (fs_range){0, PAGES * PAGE};
    CHECK(fs_filling_dirty(filling, &rest, found, 1, &count) == FS_OK && count == 1 && is(found[0], 4, 1) && is(rest, 5, 3));
    CHECK(fs_filling_dirty(filling, &rest, found, 2, &count) == FS_OK && count == 1 && is(found[0], 6, 1) && rest.bytes == 0);
}

static enum fs_outcome move(const fs_fault *fault, void *user)
{
    (void)user;
    return fs_fault_move(fault, fs_memory_start(staging)) == FS_OK ? FS_RESOLVED : FS_CHAIN;
}

static enum fs_outcome poison(const fs_fault *fault, void *user)
{
    *(volatile int *)user = fs_fault_poison(fault);
    return *(volatile int *)user == FS_OK ? FS_RESOLVED : FS_CHAIN;
}

/* Whether the signal ends a new process that accesses a page with this handler. */
static int ends_by(int signal_number, fs_handler handler, int *user)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fs_filling *filling;
        if (fs_filling_new(pages_of(fs_memory_shared), handler, user, &filling) != FS_OK)
            _exit(3);
        ((volatile char *)fs_memory_start(fs_filling_memory(filling)))[7 * PAGE] = 1;
        _exit(4);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == signal_number;
}

int main(void)
{
    for (int page = 0; page < PAGES; page++)
        memset(contents[page], page + 1, PAGE);
    fs_filling *filling;
    CHECK(fs_filling_new(pages_of(fs_memory_shared), fill, NULL, &filling) == FS_OK);
    fills(filling);
    int has_userfault = fs_filling_mechanism(filling) == FS_USERFAULT_THREAD;
    fs_filling_free(filling);
    CHECK(fs_filling_in_signal(pages_of(fs_memory_shared), fill, NULL, &filling) == FS_OK);
    CHECK(fs_filling_losses(filling) & FS_LOSS_KERNEL_ACCESSES);
    fills(filling);
    fs_filling_free(filling);
    CHECK(fs_filling_with(pages_of(fs_memory_shared), false, FS_PROTECT_THREAD, fill, NULL, &filling) == FS_OK);
    fills(filling);
    fs_filling_free(filling);
    CHECK(fs_filling_tracked(pages_of(fs_memory_shared), fill, NULL, &filling) == FS_OK);
    tracked(filling);
    fs_filling_free(filling);
    CHECK(fs_filling_with(pages_of(fs_memory_shared), true, FS_PROTECT_THREAD, fill, NULL, &filling) == FS_OK);
    tracked(filling);
    fs_filling_free(filling);
    CHECK(ends_by(SIGSEGV, fill, NULL));

    if (has_userfault) {
        staging = pages_of(fs_memory_anonymous);
        memset(fs_memory_start(staging), 42, PAGE);
        CHECK(fs_filling_new(pages_of(fs_memory_anonymous), move, NULL, &filling) == FS_OK);
        CHECK(*(char *)fs_memory_start(fs_filling_memory(filling)) == 42);
        CHECK(*(char *)fs_memory_start(staging) == 0);
        fs_filling_free(filling);
        fs_memory_free(staging);
        int code = 1;
        CHECK(ends_by(SIGBUS, poison, &code));
    } else {
        puts("SKIP no userfaultfd: pages are neither moved nor poisoned");
    }
    return 0;
}
