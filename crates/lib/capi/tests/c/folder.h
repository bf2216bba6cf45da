/* Shared by the tests of checkpoints: a temporary folder, and the files in it. */
#ifndef FOLDER_H
#define FOLDER_H

#include "check.h"
#include <dirent.h>
#include <ftw.h>
#include <unistd.h>

static char folder[] = "/tmp/fieldstone-c-XXXXXX";

static inline int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status, (void)kind, (void)place;
    return remove(path);
}

static inline void remove_folder(void)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Creates the folder, which is removed at the exit. */
static inline void make_folder(void)
{
    CHECK(mkdtemp(folder));
    CHECK(atexit(remove_folder) == 0);
}

/* The path of a name in the folder, valid until the fourth call after this one. */
static inline const char *in_folder(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* The number of files in a directory. */
static inline int files_in(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    CHECK(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

/* Inverts a byte of a file, counted from its start or, if negative, from its end. */
static inline void damage(const char *path, long at)
{
    FILE *file = fopen(path, "r+");
    CHECK(file && fseek(file, at, at < 0 ? SEEK_END : SEEK_SET) == 0);
    int byte = fgetc(file);
    CHECK(byte != EOF && fseek(file, -1, SEEK_CUR) == 0 && fputc(~byte & 0xff, file) != EOF && fclose(file) == 0);
}

#endif
