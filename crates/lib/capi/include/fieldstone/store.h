/*
 * fieldstone/store.h: a persistent store in one file. Tables have keys and values of bytes, in the order
 * of the keys. A snapshot reads what was committed at one moment while others write. A commit is durable
 * when it returns.
 *
 * Example: put an entry, and read it.
 *
 *     #include <fieldstone/store.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         fs_store *store;
 *         fs_store_write *write;
 *         fs_store_read *now;
 *         fs_bytes key = {"7", 1}, ada = {"Ada", 3}, value;
 *         if (fs_store_open("app.store", NULL, &store) || fs_store_write_open(store, &write) ||
 *             fs_store_put(write, "users", key, ada) || fs_store_commit(&write) || // durable here
 *             fs_store_read_open(store, &now) || fs_store_get(now, "users", key, &value)) {
 *             fprintf(stderr, "%s\n", fs_error_message());
 *             return 1;
 *         }
 *         printf("%.*s\n", (int)value.bytes, (const char *)value.start); // Ada
 *         fs_store_read_free(now);
 *         fs_store_free(store);
 *         return 0;
 *     }
 *
 *     cc example.c $(pkg-config --cflags --libs fieldstone)
 *
 * Errors and handles are as in <fieldstone/pages.h>. An fs_store and an fs_store_read may be used in
 * several threads at a time; an fs_store_write and an fs_store_cursor in any one at a time. Handles may be
 * freed in any order; the file is closed with the last of them.
 *
 * A key has at most 512 bytes, a value at most 127 MiB: otherwise FS_ERROR_ARGUMENT. A name of
 * a table is text in UTF-8. FS_ERROR_TYPE for a table whose keys or values have another type than bytes:
 * it was made by another interface. So is one whose name begins with "fieldstone.".
 *
 * The codes are in enum fs_error of <fieldstone/pages.h>:
 *     FS_ERROR_CORRUPT -10    FS_ERROR_VERSION -11    FS_ERROR_FULL -12    FS_ERROR_POISONED -13
 *     FS_ERROR_TYPE -14       FS_ERROR_ABSENT -15     FS_ERROR_BUSY -16
 *     FS_ERROR_TOO_OLD -17
 *
 * FS_ERROR_FORKED from any call in a forked child that needs more than is in memory. FS_ERROR_CORRUPT and
 * FS_ERROR_SYSTEM from any call that reads; FS_ERROR_TOO_OLD from one that reads by an old fs_store_read,
 * when others have replaced more pages than old_version_bytes: open a new one. After such an error, or
 * FS_ERROR_FULL, of a change, the fs_store_write cannot be committed.
 */
#ifndef FIELDSTONE_STORE_H
#define FIELDSTONE_STORE_H

#include <fieldstone/pages.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fs_store fs_store;               /* an open file */
typedef struct fs_store_read fs_store_read;     /* a snapshot */
typedef struct fs_store_write fs_store_write;   /* a transaction */
typedef struct fs_store_cursor fs_store_cursor; /* goes through a table of a snapshot */

/* Bytes of the caller, or lent by the library. */
typedef struct fs_bytes {
    const void *start;
    size_t bytes;
} fs_bytes;

/* Zero is the default of each option. */
typedef struct fs_store_options {
    uint64_t log_bytes;    /* of a store that is made now: 64 KiB to 1 GiB, default 4 MiB */
    uint64_t memory_bytes; /* for what was read: at least 1 MiB, default half of the memory. It is exceeded by
                            * what living snapshots have read, and by what a transaction changes */
    uint64_t old_version_bytes; /* for pages that were replaced and that a snapshot may still read: at least
                                 * 1 MiB, default half of memory_bytes; see FS_ERROR_TOO_OLD */
} fs_store_options;


/* ---- Stores ---------------------------------------------------------------------------------- */

/* Opens a file; makes it if it is absent, and recovers what was committed. `options` may be NULL.
 * FS_ERROR_BUSY if it is open elsewhere; FS_ERROR_CORRUPT; FS_ERROR_VERSION; FS_ERROR_SYSTEM;
 * FS_ERROR_ARGUMENT if an option is outside of its range: nothing is read or written then.
 * FS_ERROR_CORRUPT also if a damaged log has lost commits that were durable: fs_error_message has their
 * numbers. After FS_ERROR_CORRUPT the file is as before: use a backup, or save what can be read with
 * `fieldstone store dump --salvage`. */
int fs_store_open(const char *path, const fs_store_options *options, fs_store **store);

/* Closes the file, once all other handles are freed. */
void fs_store_free(fs_store *store);

/* Writes a store with what is committed now to a new file, while others read and write.
 * FS_ERROR_BUSY with EEXIST if there is such a file; FS_ERROR_FULL. */
int fs_store_backup(fs_store *store, const char *path);


/* ---- Reading --------------------------------------------------------------------------------- */

/* A snapshot of what is committed now. */
int fs_store_read_open(fs_store *store, fs_store_read **read);
void fs_store_read_free(fs_store_read *read);

/* The value of a key, lent until the snapshot is freed. FS_ERROR_ABSENT if there is none; `value` is
 * then unchanged. */
int fs_store_get(const fs_store_read *read, const char *table, fs_bytes key, fs_bytes *value);

/* A cursor before the first entry of a table; a table that is absent is empty. */
int fs_store_cursor_open(const fs_store_read *read, const char *table, fs_store_cursor **cursor);
void fs_store_cursor_free(fs_store_cursor *cursor);

/* Goes before the first entry whose key is at least `key`. */
int fs_store_cursor_seek(fs_store_cursor *cursor, fs_bytes key);

/* The next entry: its key is lent until the next call with this cursor, its value until the cursor and
 * the snapshot are freed. FS_ERROR_ABSENT at the end. */
int fs_store_cursor_next(fs_store_cursor *cursor, fs_bytes *key, fs_bytes *value);

/* The entry before, lent as by fs_store_cursor_next: after fs_store_cursor_seek, the last one whose key is
 * below `key`. After fs_store_cursor_next, it is the same entry again, and so is the next one after this call.
 * FS_ERROR_ABSENT at the start. */
int fs_store_cursor_previous(fs_store_cursor *cursor, fs_bytes *key, fs_bytes *value);


/* ---- Writing --------------------------------------------------------------------------------- */

/* Begins a transaction, once no other one is open. FS_ERROR_POISONED after a failed write: the store
 * takes no more until it is closed and opened again. */
int fs_store_write_open(fs_store *store, fs_store_write **write);

/* Undoes the transaction. */
void fs_store_write_free(fs_store_write *write);

/* Inserts an entry, or replaces its value. Makes the table if it is absent. */
int fs_store_put(fs_store_write *write, const char *table, fs_bytes key, fs_bytes value);

/* The value of a key with the changes so far, lent until the next call with this transaction. FS_ERROR_ABSENT
 * if there is none; `value` is then unchanged. Makes the table if it is absent. */
int fs_store_write_get(fs_store_write *write, const char *table, fs_bytes key, fs_bytes *value);

/* Removes an entry. FS_ERROR_ABSENT if there is none; the transaction goes on. */
int fs_store_remove(fs_store_write *write, const char *table, fs_bytes key);

/* Removes all entries with keys from `from` on and below `to`; to the end if the start of `to` is NULL. */
int fs_store_remove_range(fs_store_write *write, const char *table, fs_bytes from, fs_bytes to);

/* Makes the changes durable, then visible. The handle is NULL afterwards, in either case.
 * FS_ERROR_FULL: nothing has changed. FS_ERROR_SYSTEM, or FS_ERROR_POISONED on a full file system: a write
 * failed, and whether the changes are there is known when the store is open again. */
int fs_store_commit(fs_store_write **write);

#ifdef __cplusplus
}
#endif

#endif
