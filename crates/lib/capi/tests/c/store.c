/* The persistent store: entries, cursors, transactions, errors, and a process that is killed. */
#include "folder.h"
#include <fieldstone/store.h>
#include <signal.h>
#include <sys/wait.h>

static fs_bytes text(const char *text)
{
    return (fs_bytes){text, strlen(text)};
}

static int equals(fs_bytes bytes, const char *expected)
{
    return bytes.bytes == strlen(expected) && memcmp(bytes.start, expected, bytes.bytes) == 0;
}

static fs_store *open_store(const char *name)
{
    fs_store *store;
    CHECK(fs_store_open(in_folder(name), NULL, &store) == FS_OK);
    return store;
}

static void put(fs_store *store, const char *key, const char *value)
{
    fs_store_write *write;
    CHECK(fs_store_write_open(store, &write) == FS_OK);
    CHECK(fs_store_put(write, "names", text(key), text(value)) == FS_OK);
    CHECK(fs_store_commit(&write) == FS_OK && write == NULL);
}

static void entries_and_cursors(void)
{
    fs_store *store = open_store("entries"), *other;
    fs_store_read *before, *now;
    fs_store_cursor *cursor;
    fs_bytes key, value = {NULL, 77};
    CHECK(fs_store_open(in_folder("entries"), NULL, &other) == FS_ERROR_BUSY && other == NULL && errno == EBUSY);
    CHECK(fs_store_read_open(store, &before) == FS_OK);
    put(store, "b", "second");
    put(store, "a", "first");
    put(store, "c", "third");
    CHECK(fs_store_get(before, "names", text("a"), &value) == FS_ERROR_ABSENT && value.bytes == 77);
    CHECK(fs_store_read_open(store, &now) == FS_OK);
    CHECK(fs_store_get(now, "names", text("a"), &value) == FS_OK && equals(value, "first"));
    CHECK(fs_store_cursor_open(now, "names", &cursor) == FS_OK);
    CHECK(fs_store_cursor_next(cursor, &key, &value) == FS_OK && equals(key, "a") && equals(value, "first"));
    CHECK(fs_store_cursor_seek(cursor, text("bb")) == FS_OK);
    CHECK(fs_store_cursor_next(cursor, &key, &value) == FS_OK && equals(key, "c"));
    CHECK(fs_store_cursor_next(cursor, &key, &value) == FS_ERROR_ABSENT);
    CHECK(fs_store_backup(store, in_folder("copy")) == FS_OK);
    CHECK(fs_store_backup(store, in_folder("copy")) == FS_ERROR_BUSY && errno == EEXIST);
    fs_store_read_free(before);
    fs_store_read_free(now);
    fs_store_free(store);
    // What the cursor uses lives on.
    CHECK(fs_store_cursor_seek(cursor, text("")) == FS_OK);
    CHECK(fs_store_cursor_next(cursor, &key, &value) == FS_OK && equals(value, "first"));
    fs_store_cursor_free(cursor);
    store = open_store("copy");
    CHECK(fs_store_read_open(store, &now) == FS_OK);
    CHECK(fs_store_get(now, "names", text("c"), &value) == FS_OK && equals(value, "third"));
    fs_store_read_free(now);
    fs_store_free(store);
}

/* Checks the entry to which a step leads. */
static void steps_to(int (*step)(fs_store_cursor *, fs_bytes *, fs_bytes *), fs_store_cursor *cursor, const char *expected)
{
    fs_bytes key, value;
    int result = step(cursor, &key, &value);
    if (expected)
        CHECK(result == FS_OK && equals(key, expected) && equals(value, expected));
    else
        CHECK(result == FS_ERROR_ABSENT && errno == ENOENT);
}

#define NEXT(expected) steps_to(fs_store_cursor_next, cursor, expected)
#define PREVIOUS(expected) steps_to(fs_store_cursor_previous, cursor, expected)

static void a_cursor_in_both_directions(void)
{
    fs_store *store = open_store("directions");
    fs_store_read *now;
    fs_store_cursor *cursor;
    const char *names[] = {"a", "c", "e"};
    for (size_t i = 0; i < 3; i++)
        put(store, names[i], names[i]);
    CHECK(fs_store_read_open(store, &now) == FS_OK);
    CHECK(fs_store_cursor_open(now, "absent", &cursor) == FS_OK);
    PREVIOUS(NULL), NEXT(NULL);
    fs_store_cursor_free(cursor);
    CHECK(fs_store_cursor_open(now, "names", &cursor) == FS_OK);
    PREVIOUS(NULL), NEXT("a"), PREVIOUS("a"), PREVIOUS(NULL), NEXT("a");
    NEXT("c"), NEXT("e"), NEXT(NULL), PREVIOUS("e"), PREVIOUS("c"), NEXT("c"), NEXT("e"), NEXT(NULL), NEXT(NULL);
    CHECK(fs_store_cursor_seek(cursor, text("c")) == FS_OK);
    PREVIOUS("a"), PREVIOUS(NULL), PREVIOUS(NULL), NEXT("a"), NEXT("c");
    CHECK(fs_store_cursor_seek(cursor, text("d")) == FS_OK);
    PREVIOUS("c"), NEXT("c"), NEXT("e");
    CHECK(fs_store_cursor_seek(cursor, text("f")) == FS_OK);
    NEXT(NULL), PREVIOUS("e"), PREVIOUS("c"), PREVIOUS("a");
    fs_store_cursor_free(cursor);
    fs_store_read_free(now);
    fs_store_free(store);
}

static void a_cursor_goes_back_through_many_pages(void)
{
    enum { ENTRIES = 2000 };
    fs_store *store = open_store("many");
    fs_store_write *write;
    fs_store_read *now;
    fs_store_cursor *cursor;
    char name[16];
    CHECK(fs_store_write_open(store, &write) == FS_OK);
    for (int i = 0; i < ENTRIES; i++) {
        snprintf(name, sizeof name, "%08d", i);
        CHECK(fs_store_put(write, "names", text(name), text(name)) == FS_OK);
    }
    CHECK(fs_store_commit(&write) == FS_OK);
    CHECK(fs_store_read_open(store, &now) == FS_OK && fs_store_cursor_open(now, "names", &cursor) == FS_OK);
    CHECK(fs_store_cursor_seek(cursor, text("1")) == FS_OK);
    for (int i = ENTRIES; i-- > 0;) {
        snprintf(name, sizeof name, "%08d", i);
        PREVIOUS(name);
    }
    PREVIOUS(NULL);
    fs_store_cursor_free(cursor);
    fs_store_read_free(now);
    fs_store_free(store);
}

static void a_transaction_reads_its_changes(void)
{
    fs_store *store = open_store("changes");
    fs_store_write *write;
    fs_bytes value = {NULL, 77};
    put(store, "a", "before");
    CHECK(fs_store_write_open(store, &write) == FS_OK);
    CHECK(fs_store_write_get(write, "names", text("a"), &value) == FS_OK && equals(value, "before"));
    CHECK(fs_store_put(write, "names", text("a"), text("after")) == FS_OK);
    CHECK(fs_store_put(write, "names", text("b"), text("")) == FS_OK);
    CHECK(fs_store_write_get(write, "names", text("a"), &value) == FS_OK && equals(value, "after"));
    CHECK(fs_store_write_get(write, "names", text("b"), &value) == FS_OK && value.bytes == 0);
    CHECK(fs_store_remove(write, "names", text("a")) == FS_OK);
    value.bytes = 77;
    CHECK(fs_store_write_get(write, "names", text("a"), &value) == FS_ERROR_ABSENT && value.bytes == 77);
    CHECK(fs_store_write_get(write, "others", text("a"), &value) == FS_ERROR_ABSENT && value.bytes == 77);
    // An error of its arguments is none of the transaction.
    CHECK(fs_store_write_get(write, "names", (fs_bytes){NULL, 3}, &value) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_write_get(write, "names", text("b"), NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_commit(&write) == FS_OK);
    fs_store_free(store);
}

static void transactions(void)
{
    fs_store *store = open_store("transactions");
    fs_store_write *write;
    fs_store_read *now;
    fs_bytes value;
    char large[200000];
    memset(large, 7, sizeof large);
    put(store, "kept", "1");
    CHECK(fs_store_write_open(store, &write) == FS_OK);
    CHECK(fs_store_put(write, "names", text("dropped"), text("1")) == FS_OK);
    fs_store_write_free(write);
    CHECK(fs_store_write_open(store, &write) == FS_OK);
    CHECK(fs_store_put(write, "names", (fs_bytes){large, 600}, text("")) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_put(write, "names", text("large"), (fs_bytes){large, sizeof large}) == FS_OK);
    CHECK(fs_store_put(write, "names", (fs_bytes){NULL, 3}, text("")) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_remove(write, "names", text("none")) == FS_ERROR_ABSENT);
    CHECK(fs_store_remove(write, "names", text("kept")) == FS_OK);
    for (int i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "%04d", i);
        CHECK(fs_store_put(write, "numbers", text(name), text(name)) == FS_OK);
    }
    CHECK(fs_store_remove_range(write, "numbers", text("0100"), text("0900")) == FS_OK);
    CHECK(fs_store_remove_range(write, "numbers", text("0990"), (fs_bytes){NULL, 0}) == FS_OK);
    CHECK(fs_store_commit(&write) == FS_OK);
    CHECK(fs_store_commit(&write) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_read_open(store, &now) == FS_OK);
    const char *present[] = {"0000", "0099", "0900", "0989"}, *removed[] = {"0100", "0899", "0990"};
    for (size_t i = 0; i < 4; i++)
        CHECK(fs_store_get(now, "numbers", text(present[i]), &value) == FS_OK && equals(value, present[i]));
    for (size_t i = 0; i < 3; i++)
        CHECK(fs_store_get(now, "numbers", text(removed[i]), &value) == FS_ERROR_ABSENT);
    CHECK(fs_store_get(now, "names", text("kept"), &value) == FS_ERROR_ABSENT);
    CHECK(fs_store_get(now, "names", text("dropped"), &value) == FS_ERROR_ABSENT);
    CHECK(fs_store_get(now, "names", text("large"), &value) == FS_OK && value.bytes == sizeof large);
    CHECK(memcmp(value.start, large, sizeof large) == 0);
    fs_store_read_free(now);
    fs_store_free(store);
}

static void a_killed_process(void)
{
    int committed[2];
    CHECK(pipe(committed) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fs_store *store = open_store("killed");
        for (unsigned i = 0;; i++) {
            char name[16];
            snprintf(name, sizeof name, "%08u", i);
            put(store, name, name);
            if (write(committed[1], &i, sizeof i) < 0)
                _exit(1);
        }
    }
    unsigned last = 0;
    while (last < 300)
        CHECK(read(committed[0], &last, sizeof last) == sizeof last);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    fs_store *store = open_store("killed");
    fs_store_read *now;
    CHECK(fs_store_read_open(store, &now) == FS_OK);
    for (unsigned i = 0; i <= last; i++) {
        char name[16];
        fs_bytes value;
        snprintf(name, sizeof name, "%08u", i);
        CHECK(fs_store_get(now, "names", text(name), &value) == FS_OK && equals(value, name));
    }
    fs_store_read_free(now);
    fs_store_free(store);
}

static void damaged_files(void)
{
    fs_store *store = open_store("damaged");
    put(store, "a", "b");
    fs_store_free(store);
    // The only node of the table.
    CHECK(truncate(in_folder("damaged"), 4096) == 0);
    CHECK(fs_store_open(in_folder("damaged"), NULL, &store) == FS_ERROR_CORRUPT && errno == EBADMSG);
    CHECK(strstr(fs_error_message(), "damaged"));
    CHECK(fs_store_open("/nowhere/a", NULL, &store) == FS_ERROR_SYSTEM);
    CHECK(fs_store_open(NULL, NULL, &store) == FS_ERROR_ARGUMENT);
    CHECK(fs_store_read_open(NULL, NULL) == FS_ERROR_ARGUMENT);
}

int main(void)
{
    make_folder();
    entries_and_cursors();
    a_cursor_in_both_directions();
    a_cursor_goes_back_through_many_pages();
    a_transaction_reads_its_changes();
    transactions();
    a_killed_process();
    damaged_files();
    return 0;
}
