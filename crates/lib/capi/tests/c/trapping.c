/* Traps by each mechanism, and the operations of their handlers. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static volatile int calls, wrong;
static const void *volatile expected;

static enum fs_outcome open_page(const fs_fault *fault, void *user)
{
    calls++;
    fs_range page = fs_fault_page(fault);
    int right = user == &calls && fs_fault_address(fault) == expected && fs_fault_access(fault) == FS_WRITE
        && fs_fault_offset(fault) == page.offset + 5 && page.bytes == PAGE && fs_fault_thread(fault) == getpid();
    if (!right)
        wrong++;
    /* Registers are available in signal handlers only. */
    if (fs_fault_context(fault) != NULL)
        wrong += 100;
    return fs_fault_unprotect(fault) == FS_OK ? FS_RESOLVED : FS_CHAIN;
}

static void traps(int (*make)(size_t, fs_memory **), enum fs_mechanism mechanism)
{
    fs_memory *memory = pages_of(make);
    fs_trapping *trapping;
    int code = mechanism == 0 ? fs_trapping_new(memory, FS_WATCH_WRITES, open_page, (void *)&calls, &trapping)
                              : fs_trapping_with(memory, FS_WATCH_WRITES, mechanism, open_page, (void *)&calls, &trapping);
    if (lacks(mechanism, code)) {
        fs_memory_free(memory);
        return;
    }
    CHECK(code == FS_OK);
    enum fs_mechanism got = fs_trapping_mechanism(trapping);
    CHECK(mechanism == 0 || got == mechanism);
    int in_signal = got == FS_USERFAULT_SIGNAL || got == FS_PROTECT_SIGNAL;
    int by_protect = got == FS_PROTECT_THREAD || got == FS_PROTECT_SIGNAL;
    unsigned losses = fs_trapping_losses(trapping);
    CHECK(!in_signal || (losses & FS_LOSS_KERNEL_ACCESSES));
    CHECK(!(losses & FS_LOSS_BLOCKED_SIGNALS) == !(in_signal || by_protect));
    CHECK(!(losses & FS_LOSS_MAPPINGS) == !by_protect);

    volatile char *start = fs_memory_start(fs_trapping_memory(trapping));
    CHECK(fs_trapping_protect(trapping, PAGE, 3 * PAGE) == FS_OK);
    CHECK(fs_trapping_unprotect(trapping, 2 * PAGE, PAGE) == FS_OK);
    calls = wrong = 0;
    for (int round = 0; round < 2; round++)
        for (int page = 0; page < PAGES; page++) {
            expected = (const void *)(start + page * PAGE + 5);
            start[page * PAGE + 5] = (char)page;
        }
    CHECK(calls == 2 && wrong == (in_signal ? 200 : 0));
    CHECK(start[3 * PAGE + 5] == 3);
    CHECK(fs_trapping_protect(trapping, 0, 9 * PAGE) == FS_ERROR_RANGE);
    CHECK(strstr(fs_error_message(), "36864") != NULL);
    fs_trapping_free(trapping);
}

/* Unprotects its page and protects all others: at most one page is accessible. */
static enum fs_outcome only_one(const fs_fault *fault, void *user)
{
    ++*(volatile int *)user;
    fs_range page = fs_fault_page(fault);
    size_t end = page.offset + page.bytes;
    int failed = fs_fault_protect_others(fault, 0, page.offset) | fs_fault_protect_others(fault, end, PAGES * PAGE - end)
        | fs_fault_unprotect_others(fault, page.offset, page.bytes);
    return failed ? FS_CHAIN : FS_RESOLVED;
}

static void others(void)
{
    volatile int count = 0;
    fs_trapping *trapping;
    CHECK(fs_trapping_in_signal(pages_of(fs_memory_anonymous), FS_WATCH_ACCESSES, only_one, (void *)&count, &trapping) == FS_OK);
    CHECK(fs_trapping_mechanism(trapping) == FS_PROTECT_SIGNAL);
    volatile char *start = fs_memory_start(fs_trapping_memory(trapping));
    CHECK(fs_trapping_protect(trapping, 0, PAGES * PAGE) == FS_OK);
    for (int i = 0; i < 3 * PAGES; i++)
        (void)start[i % PAGES * PAGE];
    CHECK(count == 3 * PAGES);

    /* A child has plain memory. */
    pid_t child = fork();
    if (child == 0) {
        start[0] = start[PAGE] = 1;
        int right = count == 3 * PAGES && fs_trapping_protect(trapping, 0, PAGE) == FS_ERROR_FORKED && errno == ECHILD;
        fs_trapping_free(trapping);
        _exit(right ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    fs_trapping_free(trapping);
}

int main(void)
{
    for (int mechanism = 0; mechanism <= FS_PROTECT_SIGNAL; mechanism++) {
        traps(fs_memory_anonymous, (enum fs_mechanism)mechanism);
        traps(fs_memory_shared, (enum fs_mechanism)mechanism);
    }
    others();

    /* A failed call does not consume the memory. */
    fs_memory *memory = pages_of(fs_memory_anonymous);
    fs_trapping *trapping;
    CHECK(fs_trapping_with(memory, FS_WATCH_WRITES, FS_SCAN, open_page, NULL, &trapping) == FS_ERROR_UNSUPPORTED);
    CHECK(trapping == NULL);
    CHECK(fs_trapping_with(memory, FS_WATCH_ACCESSES, FS_USERFAULT_THREAD, open_page, NULL, &trapping) == FS_ERROR_UNSUPPORTED);
    *(char *)fs_memory_start(memory) = 1;
    CHECK(fs_trapping_new(memory, FS_WATCH_WRITES, open_page, NULL, &trapping) == FS_OK);
    CHECK(*(char *)fs_memory_start(fs_trapping_memory(trapping)) == 1);
    fs_trapping_free(trapping);
    return 0;
}
