/* A program against the declared interface, which is repeated here. It compiles as C and as C++. It reads a
 * store that Rust has written, and writes one that Rust reads. */
#include <errno.h>
#include <fieldstone/store.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#ifdef __cplusplus
extern "C" {
#endif
int fs_store_open(const char *path, const fs_store_options *or_null, fs_store **store);
int fs_store_read_open(fs_store *store, fs_store_read **read);
int fs_store_get(const fs_store_read *read, const char *table, fs_bytes key, fs_bytes *value);
int fs_store_cursor_open(const fs_store_read *read, const char *table, fs_store_cursor **cursor);
int fs_store_cursor_seek(fs_store_cursor *cursor, fs_bytes key);
int fs_store_cursor_next(fs_store_cursor *cursor, fs_bytes *key, fs_bytes *value);
int fs_store_cursor_previous(fs_store_cursor *cursor, fs_bytes *key, fs_bytes *value);
int fs_store_write_open(fs_store *store, fs_store_write **write);
int fs_store_put(fs_store_write *write, const char *table, fs_bytes key, fs_bytes value);
int fs_store_write_get(fs_store_write *write, const char *table, fs_bytes key, fs_bytes *value);
int fs_store_remove(fs_store_write *write, const char *table, fs_bytes key);
int fs_store_remove_range(fs_store_write *write, const char *table, fs_bytes from, fs_bytes to);
int fs_store_commit(fs_store_write **write);
int fs_store_backup(fs_store *store, const char *path);
void fs_store_write_free(fs_store_write *), fs_store_read_free(fs_store_read *), fs_store_cursor_free(fs_store_cursor *), fs_store_free(fs_store *);
#ifdef __cplusplus
}
#define IS_TRUE(what) static_assert(what, #what)
#else
#define IS_TRUE(what) _Static_assert(what, #what)
#endif

IS_TRUE(offsetof(fs_bytes, start) == 0 && offsetof(fs_bytes, bytes) == 8 && sizeof(fs_bytes) == 16);
IS_TRUE(FS_OK == 0 && FS_ERROR_SYSTEM == -1 && FS_ERROR_FORKED == -4 && FS_ERROR_ARGUMENT == -6);
IS_TRUE(FS_ERROR_CORRUPT == -10 && FS_ERROR_VERSION == -11 && FS_ERROR_FULL == -12);
IS_TRUE(FS_ERROR_POISONED == -13 && FS_ERROR_TYPE == -14);
/* -8 and -9 are codes of <fieldstone/guard.h>. */
IS_TRUE(FS_ERROR_ABSENT == -15 && FS_ERROR_BUSY == -16 && FS_ERROR_TOO_OLD == -17);

static const char *folder;
static const fs_bytes NOTHING = {NULL, 0};

/* The path of a file in the folder; valid until the next but one call. */
static const char *in_folder(const char *name)
{
    static char paths[2][4096];
    static unsigned calls;
    char *path = paths[calls++ % 2];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static fs_bytes text(const char *start)
{
    fs_bytes bytes = {start, strlen(start)};
    return bytes;
}

static int equals(fs_bytes bytes, const char *expected)
{
    return bytes.bytes == strlen(expected) && memcmp(bytes.start, expected, bytes.bytes) == 0;
}

static fs_store *open_store(const char *name)
{
    fs_store *store;
    CHECK(fs_store_open(in_folder(name), NULL, &store) == FS_OK && store != NULL);
    return store;
}

static fs_store_read *snapshot(fs_store *store)
{
    fs_store_read *now;
    CHECK(fs_store_read_open(store, &now) == FS_OK);
    return now;
}

/* The number of entries from `from` on. */
static unsigned count(const fs_store_read *now, const char *table, const char *from)
{
    fs_store_cursor *cursor;
    fs_bytes key, value;
    unsigned entries = 0;
    CHECK(fs_store_cursor_open(now, table, &cursor) == FS_OK && fs_store_cursor_seek(cursor, text(from)) == FS_OK);
    int result;
    while ((result = fs_store_cursor_next(cursor, &key, &value)) == FS_OK)
        entries++;
    CHECK(result == FS_ERROR_ABSENT && errno == ENOENT);
    /* The same entries backwards. */
    for (unsigned left = entries; left > 0; left--)
        CHECK(fs_store_cursor_previous(cursor, &key, &value) == FS_OK);
    CHECK(fs_store_cursor_seek(cursor, NOTHING) == FS_OK);
    CHECK(fs_store_cursor_previous(cursor, &key, &value) == FS_ERROR_ABSENT);
    fs_store_cursor_free(cursor);
    return entries;
}

/* Rust reads this store afterwards. */
static void write_for_rust(void)
{
    fs_store *store = open_store("c.store");
    fs_store_write *write;
    char large[5000];
    memset(large, 'x', sizeof large);
    fs_bytes value = {large, sizeof large};
    CHECK(fs_store_write_open(store, &write) == FS_OK);
    for (unsigned number = 0; number < 1000; number++) {
        char key[16];
        snprintf(key, sizeof key, "%04u", number);
        CHECK(fs_store_put(write, "numbers", text(key), text(key + 1)) == FS_OK);
    }
    CHECK(fs_store_write_get(write, "numbers", text("0007"), &value) == FS_OK && equals(value, "007"));
    CHECK(fs_store_remove_range(write, "numbers", text("0100"), text("0900")) == FS_OK);
    CHECK(fs_store_remove(write, "numbers", text("0007")) == FS_OK);
    CHECK(fs_store_write_get(write, "numbers", text("0007"), &value) == FS_ERROR_ABSENT);
    value.start = large;
    value.bytes = sizeof large;
    CHECK(fs_store_put(write, "large", text("value"), value) == FS_OK);
    CHECK(fs_store_put(write, "large", text("empty"), NOTHING) == FS_OK);
    CHECK(fs_store_commit(&write) == FS_OK && write == NULL);
    fs_store_read *now = snapshot(store);
    CHECK(count(now, "numbers", "") == 199 && count(now, "numbers", "0950") == 50);
    CHECK(fs_store_get(now, "large", text("empty"), &value) == FS_OK && value.bytes == 0);
    CHECK(fs_store_backup(store, in_folder("backup.store")) == FS_OK);
    fs_store_read_free(now);
    fs_store_free(store);
}

static void read_from_rust(void)
{
    fs_store *store = open_store("rust.store");
    fs_store_read *now = snapshot(store);
    fs_store_write *write;
    fs_bytes value;
    CHECK(fs_store_get(now, "names", text("ada"), &value) == FS_OK && equals(value, "Lovelace"));
    CHECK(fs_store_get(now, "names", text("alan"), &value) == FS_OK && value.bytes == 9000);
    CHECK(((const char *)value.start)[8999] == 't');
    CHECK(count(now, "names", "") == 2 && count(now, "absent", "") == 0);
    /* Its keys are numbers. */
    CHECK(fs_store_get(now, "years", text("ada"), &value) == FS_ERROR_TYPE && errno == EINVAL);
    CHECK(fs_store_write_open(store, &write) == FS_OK);
    CHECK(fs_store_put(write, "years", text("ada"), text("1815")) == FS_ERROR_TYPE);
    CHECK(fs_store_put(write, "names", text("grace"), text("Hopper")) == FS_OK);
    CHECK(fs_store_commit(&write) == FS_OK);
    fs_store_read_free(now);
    fs_store_free(store);
}

static void wrong_arguments(void)
{
    fs_store *store = open_store("arguments.store"), *none = store;
    fs_store_read *now = snapshot(store);
    fs_store_write *write;
    fs_store_cursor *cursor;
    fs_bytes key, value, wrong = {NULL, 3};
    CHECK(fs_store_open(NULL, NULL, &none) == FS_ERROR_ARGUMENT && none == NULL && errno == EINVAL);
    CHECK(fs_store_open(in_folder("a"), NULL, NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_read_open(NULL, &now) == FS_ERROR_ARGUMENT && now == NULL);
    CHECK(fs_store_read_open(store, NULL) == FS_ERROR_ARGUMENT);
    now = snapshot(store);
    CHECK(fs_store_get(NULL, "t", text("k"), &value) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_get(now, NULL, text("k"), &value) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_get(now, "\xFF", text("k"), &value) == FS_ERROR_ARGUMENT && strstr(fs_error_message(), "UTF-8"));
    CHECK(fs_store_get(now, "t", wrong, &value) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_cursor_open(now, "t", NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_cursor_open(NULL, "t", &cursor) == FS_ERROR_ARGUMENT && cursor == NULL);
    CHECK(fs_store_cursor_seek(NULL, text("k")) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_cursor_next(NULL, &key, &value) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_cursor_previous(NULL, &key, &value) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_write_get(NULL, "t", text("k"), &value) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_write_open(NULL, &write) == FS_ERROR_ARGUMENT && write == NULL);
    CHECK(fs_store_commit(NULL) == FS_ERROR_ARGUMENT && fs_store_commit(&write) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_put(NULL, "t", text("k"), text("v")) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_remove(NULL, "t", text("k")) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_remove_range(NULL, "t", text("k"), NOTHING) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_backup(NULL, in_folder("b")) == FS_ERROR_ARGUMENT && fs_store_backup(store, NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_write_open(store, &write) == FS_OK && fs_store_put(write, "t", text("k"), text("v")) == FS_OK);
    /* None of these changes the transaction. */
    CHECK(fs_store_put(write, NULL, text("k"), text("v")) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_put(write, "t", wrong, text("v")) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_put(write, "t", text("k"), wrong) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_remove(write, "t", text("none")) == FS_ERROR_ABSENT);
    CHECK(fs_store_commit(&write) == FS_OK);
    CHECK(count(now, "t", "") == 0);
    fs_store_read_free(now);
    now = snapshot(store);
    CHECK(fs_store_get(now, "t", text("k"), NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_get(now, "t", text("k"), &value) == FS_OK && equals(value, "v"));
    fs_store_read_free(now);
    fs_store_free(store);
    fs_store_free(NULL);
    fs_store_read_free(NULL);
    fs_store_write_free(NULL);
    fs_store_cursor_free(NULL);
}

static void error_codes(void)
{
    fs_store *store = open_store("codes.store"), *other;
    fs_store_write *write;
    CHECK(fs_store_open(in_folder("codes.store"), NULL, &other) == FS_ERROR_BUSY && errno == EBUSY);
    CHECK(fs_store_backup(store, in_folder("rust.store")) == FS_ERROR_BUSY && errno == EEXIST);
    CHECK(fs_store_open(in_folder("no/such/folder"), NULL, &other) == FS_ERROR_SYSTEM);
    FILE *file = fopen(in_folder("other.store"), "w");
    CHECK(file != NULL && fputs("not a store, but a text of some length\n", file) >= 0 && fclose(file) == 0);
    CHECK(fs_store_open(in_folder("other.store"), NULL, &other) == FS_ERROR_CORRUPT && errno == EBADMSG);
    CHECK(strstr(fs_error_message(), "other.store") != NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(fs_store_write_open(store, &write) == FS_ERROR_FORKED && errno == ECHILD ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    fs_store_free(store);
}

/* The argument is a folder with the store of Rust. */
int main(int arguments, char **words)
{
    CHECK(arguments == 2);
    folder = words[1];
    write_for_rust();
    read_from_rust();
    wrong_arguments();
    error_codes();
    return 0;
}
