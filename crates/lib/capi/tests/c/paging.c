/* Memory with a bound: contents, advice, bounds, a forked child, lost pages, refusals. */
#include "check.h"
#include <fcntl.h>
#include <fieldstone/paging.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 4 << 20, RESIDENT = 1 << 20, WORDS = BYTES / sizeof(unsigned) };

static fs_paging *paging;

static fs_paging_counts counts(void)
{
    fs_paging_counts counts;
    CHECK(fs_paging_stats(paging, &counts) == FS_OK);
    return counts;
}

static unsigned *words(void)
{
    return fs_paging_address(paging);
}

static void fill(void)
{
    for (unsigned i = 0; i < WORDS; i++)
        words()[i] = i * 2654435761u;
}

static int is_right(void)
{
    for (unsigned i = 0; i < WORDS; i++)
        if (words()[i] != i * 2654435761u)
            return 0;
    return 1;
}

static void advice_and_bounds(void)
{
    CHECK(fs_paging_advise(paging, 0, BYTES, FS_PAGING_COLD) == FS_OK && counts().resident == 0);
    uint64_t faults = counts().faults;
    CHECK(fs_paging_advise(paging, PAGE, 10, FS_PAGING_SOON) == FS_OK && counts().resident == PAGE);
    unsigned index = PAGE / sizeof(unsigned);
    CHECK(words()[index] == index * 2654435761u && counts().faults == faults);
    CHECK(fs_paging_set_resident(paging, RESIDENT / 2) == FS_OK && is_right());
    CHECK(counts().resident <= RESIDENT / 2 && counts().resident_limit == RESIDENT / 2);
    CHECK(fs_paging_advise(paging, 0, BYTES, FS_PAGING_DROP) == FS_OK && words()[0] == 0 && words()[WORDS - 1] == 0);
    CHECK(counts().stored == 0);
}

/* The status of a child that accesses the memory. */
static int status_of_child(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int is_refused = fs_paging_address(paging) &&
                         fs_paging_set_resident(paging, BYTES) == FS_ERROR_FORKED && errno == ECHILD;
        _exit(is_refused && words()[0] == 1 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static unsigned asked;

static enum fs_paging_loss on_loss(size_t page, const char *message, void *user)
{
    asked += page == 0 && strstr(message, "from the store file") && user == &asked;
    return FS_PAGING_FAULT;
}

/* Damages the file of pages, whose descriptor is found by its name. */
static void damage(void)
{
    char path[64], target[256];
    static const char bytes[PAGE];
    for (int fd = 3; fd < 100; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0)
            continue;
        target[length] = 0;
        if (strncmp(target, "/tmp/", 5) == 0 && strstr(target, "(deleted)"))
            CHECK(pwrite(fd, bytes, PAGE, 0) == PAGE);
    }
}

static void lost_pages(void)
{
    fs_paging_options options = {.bytes = PAGE, .resident = RESIDENT, .directory = "/tmp", .without_lz4 = true,
                                 .on_loss = on_loss, .user = &asked};
    CHECK(fs_paging_open(&options, &paging) == FS_OK);
    words()[0] = 42;
    CHECK(fs_paging_advise(paging, 0, PAGE, FS_PAGING_COLD) == FS_OK);
    damage();
    CHECK(fs_paging_advise(paging, 0, PAGE, FS_PAGING_SOON) == FS_OK && asked == 1 && counts().lost == 1);
    fs_paging_free(paging);
}

static void refusals(void)
{
    fs_paging *other = paging;
    fs_paging_options options = {.resident = 1};
    CHECK(fs_paging_open(&options, &other) == FS_ERROR_ARGUMENT && other == NULL && errno == EINVAL);
    CHECK(strstr(fs_error_message(), "at least 256 KiB"));
    options = (fs_paging_options){.without_lz4 = true, .without_file = true};
    CHECK(fs_paging_open(&options, &other) == FS_ERROR_ARGUMENT);
    options = (fs_paging_options){.directory = "/no such directory"};
    CHECK(fs_paging_open(&options, &other) == FS_ERROR_SYSTEM && errno == ENOENT);
    CHECK(fs_paging_open(NULL, NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_paging_advise(paging, 0, BYTES + 1, FS_PAGING_COLD) == FS_ERROR_RANGE);
    CHECK(fs_paging_advise(paging, 1, SIZE_MAX, FS_PAGING_COLD) == FS_ERROR_RANGE);
    CHECK(fs_paging_advise(paging, 1, PAGE, FS_PAGING_DROP) == FS_ERROR_RANGE);
    CHECK(fs_paging_advise(paging, 0, PAGE, (enum fs_paging_advice)3) == FS_ERROR_ARGUMENT);
    CHECK(fs_paging_set_resident(paging, 1) == FS_ERROR_ARGUMENT);
    CHECK(fs_paging_set_resident(NULL, BYTES) == FS_ERROR_ARGUMENT);
    CHECK(fs_paging_stats(paging, NULL) == FS_ERROR_ARGUMENT && fs_paging_address(NULL) == NULL);
    fs_paging_free(NULL);
}

int main(void)
{
    fs_paging_options options = {.bytes = BYTES, .resident = RESIDENT};
    int code = fs_paging_open(&options, &paging);
    if (code == FS_ERROR_SYSTEM && (errno == EPERM || errno == ENOSYS || errno == EOPNOTSUPP)) {
        printf("SKIP no userfaultfd: %s\n", fs_error_message());
        return 0;
    }
    CHECK(code == FS_OK);
    fill();
    CHECK(is_right() && counts().evicted > 0 && counts().loaded > 0 && counts().lost == 0);
    CHECK(counts().resident_peak <= RESIDENT && counts().bytes == BYTES);
    int status = status_of_child();
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(is_right());
    refusals();
    advice_and_bounds();
    fs_paging_free(paging);
    lost_pages();
    CHECK(fs_paging_open(NULL, &paging) == FS_OK && counts().bytes == 1 << 30 && counts().resident_limit == 1 << 28);
    fs_paging_free(paging);
    return 0;
}
