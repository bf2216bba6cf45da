/* The errors of a store whose snapshots are old, whose file cannot grow or be written, or which a later version
 * wrote. Each message names a remedy. */
#include "folder.h"
#include <fieldstone/store.h>
#include <signal.h>
#include <sys/resource.h>

enum { ENTRIES = 3000 };

static fs_bytes text(const char *text)
{
    return (fs_bytes){text, strlen(text)};
}

/* Whether the last message names the file, and has a remedy with these words. */
static int has_remedy(const char *name, const char *words)
{
    const char *remedy = strstr(fs_error_message(), "\ntry: ");
    return strstr(fs_error_message(), name) && remedy && strstr(remedy, words);
}

static fs_store *open_with(const char *name, uint64_t old_version_bytes)
{
    fs_store_options options = {0, 1 << 20, old_version_bytes};
    fs_store *store;
    CHECK(fs_store_open(in_folder(name), &options, &store) == FS_OK);
    return store;
}

static fs_store *open_store(const char *name)
{
    return open_with(name, 0);
}

/* Commits entries of a thousand bytes. */
static int put_many(fs_store *store, unsigned entries, char byte)
{
    fs_store_write *write;
    char contents[1000];
    memset(contents, byte, sizeof contents);
    int result = fs_store_write_open(store, &write);
    for (unsigned i = 0; i < entries && result == FS_OK; i++) {
        char key[16];
        snprintf(key, sizeof key, "%08u", i);
        result = fs_store_put(write, "many", text(key), (fs_bytes){contents, sizeof contents});
    }
    return result == FS_OK ? fs_store_commit(&write) : result;
}

/* The first byte of an entry, or 0 if it is absent. */
static char first_byte(fs_store *store, const char *key)
{
    fs_store_read *now;
    fs_bytes value;
    CHECK(fs_store_read_open(store, &now) == FS_OK);
    int result = fs_store_get(now, "many", text(key), &value);
    CHECK(result == FS_OK || result == FS_ERROR_ABSENT);
    char first = result == FS_OK ? *(const char *)value.start : 0;
    fs_store_read_free(now);
    return first;
}

/* Limits the size of the files that this process writes: larger ones are EFBIG. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void a_snapshot_that_is_too_old(void)
{
    fs_store *store = open_store("old.store");
    fs_store_read *old;
    fs_store_cursor *cursor;
    fs_bytes key, value;
    CHECK(put_many(store, ENTRIES, 'a') == FS_OK);
    CHECK(fs_store_read_open(store, &old) == FS_OK);
    CHECK(put_many(store, ENTRIES, 'b') == FS_OK && put_many(store, ENTRIES, 'c') == FS_OK);
    CHECK(fs_store_get(old, "many", text("00000007"), &value) == FS_ERROR_TOO_OLD && errno == ESTALE);
    CHECK(has_remedy("old.store", "a new snapshot"));
    CHECK(fs_store_cursor_open(old, "many", &cursor) == FS_ERROR_TOO_OLD && cursor == NULL);
    fs_store_read_free(old);
    CHECK(fs_store_read_open(store, &old) == FS_OK);
    CHECK(fs_store_cursor_open(old, "many", &cursor) == FS_OK);
    CHECK(fs_store_cursor_next(cursor, &key, NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_cursor_next(cursor, &key, &value) == FS_OK && memcmp(key.start, "00000000", 8) == 0);
    CHECK(fs_store_cursor_previous(cursor, &key, &value) == FS_OK && *(const char *)value.start == 'c');
    fs_store_cursor_free(cursor);
    fs_store_read_free(old);
    fs_store_free(store);
}

static void a_snapshot_with_memory_for_old_versions(void)
{
    fs_store *store = open_with("kept.store", 64 << 20);
    fs_store_read *old;
    fs_bytes value;
    CHECK(put_many(store, ENTRIES, 'a') == FS_OK);
    CHECK(fs_store_read_open(store, &old) == FS_OK);
    CHECK(put_many(store, ENTRIES, 'b') == FS_OK && put_many(store, ENTRIES, 'c') == FS_OK);
    CHECK(fs_store_get(old, "many", text("00000007"), &value) == FS_OK && *(const char *)value.start == 'a');
    fs_store_read_free(old);
    fs_store_free(store);
}

static void what_cannot_be_meant(void)
{
    fs_store *store;
    fs_store_write *write;
    fs_store_options options = {0, 0, 1000};
    fs_bytes nowhere = {NULL, 1};
    CHECK(fs_store_open(in_folder("absent/a.store"), NULL, &store) == FS_ERROR_SYSTEM && errno == ENOENT);
    CHECK(fs_store_open(in_folder("meant.store"), &options, &store) == FS_ERROR_ARGUMENT);
    store = open_store("meant.store");
    CHECK(fs_store_write_open(store, &write) == FS_OK);
    CHECK(fs_store_remove_range(write, "many", text("0"), nowhere) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_put(write, "fieldstone.roots", text("0"), text("0")) == FS_ERROR_TYPE);
    fs_store_write_free(write);
    fs_store_free(store);
}

static void a_file_that_cannot_grow(void)
{
    fs_store *store = open_store("full.store");
    struct stat before;
    CHECK(put_many(store, 1, 'a') == FS_OK);
    CHECK(stat(in_folder("full.store"), &before) == 0);
    limit_files(before.st_size);
    CHECK(put_many(store, ENTRIES, 'b') == FS_ERROR_FULL && errno == ENOSPC);
    CHECK(has_remedy("full.store", "ulimit -f"));
    limit_files(RLIM_INFINITY);
    CHECK(first_byte(store, "00000000") == 'a' && first_byte(store, "00000001") == 0);
    CHECK(put_many(store, ENTRIES, 'c') == FS_OK && first_byte(store, "00000001") == 'c');
    fs_store_free(store);
}

static void a_write_that_fails(void)
{
    fs_store *store = open_store("failed.store");
    fs_store_write *write;
    CHECK(put_many(store, 1, 'a') == FS_OK);
    // The log begins there.
    limit_files(8192);
    CHECK(put_many(store, 1, 'b') == FS_ERROR_POISONED && errno == EROFS);
    CHECK(has_remedy("failed.store", "ulimit -f") && has_remedy("failed.store", "open it again"));
    limit_files(RLIM_INFINITY);
    CHECK(fs_store_write_open(store, &write) == FS_ERROR_POISONED && write == NULL);
    CHECK(has_remedy("failed.store", "open it again"));
    CHECK(first_byte(store, "00000000") == 'a');
    fs_store_free(store);
    store = open_store("failed.store");
    CHECK(first_byte(store, "00000000") == 'a');
    CHECK(put_many(store, 1, 'c') == FS_OK && first_byte(store, "00000000") == 'c');
    fs_store_free(store);
}

/* Sets the version in the copies of the header. */
static void set_version(const char *path, int version)
{
    FILE *file = fopen(path, "r+");
    CHECK(file);
    for (long copy = 0; copy < 2; copy++)
        CHECK(fseek(file, copy * PAGE + 8, SEEK_SET) == 0 && fputc(version, file) != EOF);
    CHECK(fclose(file) == 0);
}

static void a_file_of_a_later_version(void)
{
    fs_store *store = open_store("later.store");
    CHECK(put_many(store, 1, 'a') == FS_OK);
    fs_store_free(store);
    set_version(in_folder("later.store"), 2);
    CHECK(fs_store_open(in_folder("later.store"), NULL, &store) == FS_ERROR_VERSION && store == NULL);
    CHECK(errno == ENOTSUP && has_remedy("later.store", "newer"));
    set_version(in_folder("later.store"), 1);
    store = open_store("later.store");
    CHECK(first_byte(store, "00000000") == 'a');
    fs_store_free(store);
}

int main(void)
{
    make_folder();
    // A write behind the limit is an error then, and no signal.
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    a_snapshot_that_is_too_old();
    a_snapshot_with_memory_for_old_versions();
    what_cannot_be_meant();
    a_file_that_cannot_grow();
    a_write_that_fails();
    a_file_of_a_later_version();
    return 0;
}
