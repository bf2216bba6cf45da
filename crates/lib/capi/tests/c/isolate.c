/* Requests for ranges and their results; tests of `fieldstone run --repair` cover the effect. */
#include <errno.h>
#include <fieldstone/remap.h>

#include "check.h"

static long words[256];

int main(void)
{
    CHECK(remapper_isolate(NULL, 8) == EINVAL);
    CHECK(remapper_isolate(words, 0) == EINVAL);
    CHECK(remapper_restore(words, sizeof *words) == ENOENT);
    for (int i = 0; i < 255; i++)
        CHECK(remapper_isolate(&words[i], sizeof *words) == 0);
    CHECK(remapper_isolate(&words[255], sizeof *words) == ENOSPC);
    CHECK(remapper_restore(&words[7], 4) == ENOENT);
    CHECK(remapper_restore(&words[7], sizeof *words) == 0);
    CHECK(remapper_restore(&words[7], sizeof *words) == ENOENT);
    CHECK(remapper_isolate(&words[255], sizeof *words) == 0);
    return 0;
}
