/* Shared by the C tests: a check that prints the failed condition and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fieldstone/pages.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                \
    do {                                                                                                           \
        if (!(what)) {                                                                                             \
            fprintf(stderr, "%s:%d: %s; errno %d, \"%s\"\n", __FILE__, __LINE__, #what, errno, fs_error_message()); \
            exit(1);                                                                                               \
        }                                                                                                          \
    } while (0)

enum { PAGE = 4096, PAGES = 8 };

/* Eight pages of the kind that `make` creates. */
static inline fs_memory *pages_of(int (*make)(size_t, fs_memory **))
{
    fs_memory *memory;
    CHECK(make(PAGES * PAGE, &memory) == FS_OK);
    CHECK(fs_memory_page_bytes(memory) == PAGE && fs_memory_bytes(memory) == PAGES * PAGE);
    return memory;
}

/* Whether a machine without userfaultfd refuses a mechanism; prints a SKIP line then. */
static inline int lacks(enum fs_mechanism mechanism, int code)
{
    if (code == FS_OK || mechanism == 0 || mechanism == FS_PROTECT_THREAD || mechanism == FS_PROTECT_SIGNAL)
        return 0;
    CHECK(code == FS_ERROR_SYSTEM);
    CHECK(errno == EPERM || errno == EACCES || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL);
    printf("SKIP no userfaultfd: %s: %s\n", fs_mechanism_name(mechanism), fs_error_message());
    return 1;
}

static inline int is(fs_range range, size_t first_page, size_t pages)
{
    return range.offset == first_page * PAGE && range.bytes == pages * PAGE;
}

#endif
