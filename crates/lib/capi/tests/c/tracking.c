/* Dirty pages, listed in arrays of sufficient and insufficient size. */
#include "check.h"

static void tracks(enum fs_mechanism mechanism)
{
    fs_memory *memory = pages_of(fs_memory_anonymous);
    fs_tracking *tracking;
    int code = mechanism == 0 ? fs_tracking_new(memory, &tracking) : fs_tracking_with(memory, mechanism, &tracking);
    if (lacks(mechanism, code)) {
        fs_memory_free(memory);
        return;
    }
    CHECK(code == FS_OK);
    CHECK(mechanism == 0 || fs_tracking_mechanism(tracking) == mechanism);
    CHECK(!(fs_tracking_losses(tracking) & FS_LOSS_MAPPINGS) == (fs_tracking_mechanism(tracking) != FS_PROTECT_SIGNAL));
    volatile char *start = fs_memory_start(fs_tracking_memory(tracking));
    const fs_range all = {0, PAGES * PAGE};
    fs_range rest = all, found[PAGES];
    size_t count = 99;
    CHECK(fs_tracking_dirty(tracking, &rest, found, PAGES, &count) == FS_OK && count == 0 && rest.bytes == 0);

    start[PAGE] = start[3 * PAGE] = start[6 * PAGE] = 1;
    rest = all;
    CHECK(fs_tracking_peek(tracking, &rest, found, PAGES, &count) == FS_OK && count == 3 && rest.bytes == 0);
    CHECK(is(found[0], 1, 1) && is(found[1], 3, 1) && is(found[2], 6, 1));

    /* A part, and an array that is too small: ranges that are not listed stay dirty. */
    rest = (fs_range){2 * PAGE, 3 * PAGE};
    CHECK(fs_tracking_dirty(tracking, &rest, found, PAGES, &count) == FS_OK && count == 1 && is(found[0], 3, 1));
    start[5 * PAGE] = 0, start[3 * PAGE] = 2;
    rest = all;
    CHECK(fs_tracking_dirty(tracking, &rest, found, 1, &count) == FS_OK && count == 1);
    CHECK(is(found[0], 1, 1) && is(rest, 2, 6));
    start[PAGE] = 3; /* dirty again, and before the rest */
    char seen[PAGES] = {0};
    while (rest.bytes > 0) {
        CHECK(fs_tracking_dirty(tracking, &rest, found, 1, &count) == FS_OK && count <= 1);
        for (size_t at = 0; count > 0 && at < found[0].bytes; at += PAGE)
            seen[(found[0].offset + at) / PAGE]++;
    }
    CHECK(memcmp(seen, "\0\0\0\1\0\1\1\0", PAGES) == 0);
    rest = all;
    CHECK(fs_tracking_dirty(tracking, &rest, found, PAGES, &count) == FS_OK && count == 1 && is(found[0], 1, 1));
    CHECK(fs_tracking_mark(tracking, 4 * PAGE, PAGE) == FS_OK);
    rest = all;
    CHECK(fs_tracking_dirty(tracking, &rest, found, PAGES, &count) == FS_OK && count == 1 && is(found[0], 4, 1));

    rest = (fs_range){1, PAGE};
    CHECK(fs_tracking_dirty(tracking, &rest, found, PAGES, &count) == FS_ERROR_RANGE && count == 0);
    CHECK(rest.offset == 1 && rest.bytes == PAGE);
    rest = all;
    CHECK(fs_tracking_peek(tracking, &rest, found, 0, &count) == FS_ERROR_ARGUMENT);
    CHECK(fs_tracking_dirty(tracking, &rest, NULL, 1, &count) == FS_ERROR_ARGUMENT);
    CHECK(fs_tracking_dirty(tracking, NULL, found, 1, &count) == FS_ERROR_ARGUMENT);
    CHECK(fs_tracking_dirty(tracking, &rest, found, 1, NULL) == FS_ERROR_ARGUMENT);
    fs_tracking_free(tracking);
}

/* Other mappings can write to shared memory, for every mechanism. */
static void shared(void)
{
    fs_tracking *private, *shared;
    CHECK(fs_tracking_new(pages_of(fs_memory_anonymous), &private) == FS_OK);
    CHECK(fs_tracking_new(pages_of(fs_memory_shared), &shared) == FS_OK);
    CHECK(!(fs_tracking_losses(private) & (FS_LOSS_SHARED_MEMORY | FS_LOSS_PINNED_PAGES)));
    CHECK(fs_tracking_losses(shared) & FS_LOSS_SHARED_MEMORY);
    fs_tracking_free(private);
    fs_tracking_free(shared);
}

int main(void)
{
    shared();
    for (int mechanism = 0; mechanism <= FS_SCAN; mechanism++)
        if (mechanism != FS_PROTECT_THREAD) /* as FS_PROTECT_SIGNAL, with the same losses */
            tracks((enum fs_mechanism)mechanism);
    return 0;
}
