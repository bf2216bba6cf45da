/* Each kind of memory, guards, aliases. */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* The signal that ends a child which accesses an address; 0 if none. */
static int touched(volatile char *address)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *address = 1;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void guards(void)
{
    fs_memory *memory = pages_of(fs_memory_anonymous);
    char *start = fs_memory_start(memory);
    start[PAGE] = 5;
    enum fs_guard how;
    CHECK(fs_memory_guard(memory, PAGE, 2 * PAGE, &how) == FS_OK);
    CHECK(how == FS_GUARD_MARKER || how == FS_GUARD_PROTECT);
    CHECK(touched(start) == 0 && touched(start + PAGE) == SIGSEGV && touched(start + 2 * PAGE) == SIGSEGV);
    CHECK(fs_memory_unguard(memory, PAGE, 2 * PAGE) == FS_OK);
    CHECK(start[PAGE] == 0);
    CHECK(fs_memory_guard_with(memory, 0, PAGE, FS_GUARD_PROTECT) == FS_OK);
    CHECK(touched(start) == SIGSEGV);
    CHECK(fs_memory_guard(memory, 1, PAGE, NULL) == FS_ERROR_RANGE && errno == EINVAL);
    CHECK(fs_memory_guard(memory, PAGE, (size_t)-PAGE, NULL) == FS_ERROR_RANGE);
    fs_memory_free(memory);
}

static void views(void)
{
    fs_memory *memory = pages_of(fs_memory_shared);
    fs_alias *alias;
    CHECK(fs_memory_alias(memory, &alias) == FS_OK);
    CHECK(fs_alias_bytes(alias) == PAGES * PAGE && fs_alias_start(alias) != fs_memory_start(memory));
    ((char *)fs_alias_start(alias))[PAGE] = 7;
    CHECK(((char *)fs_memory_start(memory))[PAGE] == 7);
    fs_memory_free(memory);
    CHECK(((char *)fs_alias_start(alias))[PAGE] == 7);
    fs_alias_free(alias);

    memory = pages_of(fs_memory_anonymous);
    CHECK(fs_memory_alias(memory, &alias) == FS_ERROR_UNSUPPORTED && errno == ENOTSUP && alias == NULL);
    fs_memory_free(memory);
}

static void files(void)
{
    FILE *file = tmpfile();
    CHECK(file != NULL);
    for (int i = 0; i < 2 * PAGE; i++)
        CHECK(fputc(i / PAGE + 1, file) != EOF);
    CHECK(fflush(file) == 0);
    fs_memory *shared, *private;
    CHECK(fs_memory_file(fileno(file), PAGE, PAGE, &shared) == FS_OK);
    CHECK(fs_memory_file_private(fileno(file), 0, 2 * PAGE, &private) == FS_OK);
    char *of_shared = fs_memory_start(shared), *of_private = fs_memory_start(private), read = 0;
    CHECK(of_shared[0] == 2 && of_private[0] == 1 && of_private[PAGE] == 2);
    of_private[0] = 9;
    of_shared[1] = 8;
    CHECK(pread(fileno(file), &read, 1, 0) == 1 && read == 1);
    CHECK(pread(fileno(file), &read, 1, PAGE + 1) == 1 && read == 8);
    fs_memory *beyond;
    CHECK(fs_memory_file(fileno(file), PAGE, 2 * PAGE, &beyond) == FS_ERROR_RANGE && beyond == NULL);
    CHECK(fs_memory_file(-1, 0, PAGE, &beyond) == FS_ERROR_ARGUMENT);
    CHECK(fclose(file) == 0);
    CHECK(of_shared[1] == 8);
    fs_memory_free(shared);
    fs_memory_free(private);
}

static void huge(void)
{
    fs_memory *memory;
    int code = fs_memory_hugetlb(1, &memory);
    if (code == FS_ERROR_SYSTEM && errno == ENOMEM) {
        CHECK(memory == NULL && strstr(fs_error_message(), "2097152 bytes") != NULL);
        puts("SKIP no hugetlb pool");
        return;
    }
    CHECK(code == FS_OK && fs_memory_page_bytes(memory) == 2 << 20 && fs_memory_bytes(memory) == 2 << 20);
    fs_memory_free(memory);
}

int main(void)
{
    guards();
    views();
    files();
    huge();
    fs_memory *memory = pages_of(fs_memory_anonymous);
    CHECK(fs_memory_advise_huge(memory) == FS_OK && fs_memory_populate(memory) == FS_OK);
    fs_memory_free(memory);
    CHECK(fs_memory_anonymous((size_t)1 << 62, &memory) == FS_ERROR_SYSTEM && errno == ENOMEM && memory == NULL);
    CHECK(strstr(fs_error_message(), "ulimit") != NULL);
    return 0;
}
