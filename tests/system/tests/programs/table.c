/* Appends the KiB of this process on huge pages, after filling a table, to a file. The table is "plain", "asked" (advised to
 * huge pages), or "sparse" (little of it is used). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BYTES = 64 << 20 };

int main(int count, char **arguments) {
    if (count != 3) return 2;
    int sparse = !strcmp(arguments[2], "sparse"), asked = !strcmp(arguments[2], "asked");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (sparse ? MAP_NORESERVE : 0);
    char *table = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (table == MAP_FAILED || (asked && madvise(table, BYTES, MADV_HUGEPAGE))) abort();
    memset(table, 1, BYTES);

    FILE *memory = fopen("/proc/self/smaps_rollup", "r"), *output = fopen(arguments[1], "a");
    char line[256];
    long kilobytes;
    if (!memory || !output) abort();
    while (fgets(line, sizeof line, memory))
        if (sscanf(line, "AnonHugePages: %ld", &kilobytes) == 1) fprintf(output, "%ld\n", kilobytes);
    return fclose(output);
}
