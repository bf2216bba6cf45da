/* An unprivileged daemon that locks its memory under a limit of 8 MiB. Prints what fits, and which unused memory is resident. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static long resident(void) {
    char line[200];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file)) sscanf(line, "VmRSS: %ld", &kib);
    fclose(file);
    return kib;
}
static void *map(size_t bytes) { return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

int main(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    struct rlimit limit = {8 << 20, 8 << 20};
    if (syscall(SYS_capget, &header, data)) return 2;
    data[0].effective &= ~(1U << CAP_IPC_LOCK), data[0].permitted &= ~(1U << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, data) || setrlimit(RLIMIT_MEMLOCK, &limit)) return 2;

    void *kept = map(300 << 10);
    if (!kept || mlockall(MCL_CURRENT | MCL_FUTURE)) return perror("mlockall"), 1;
    int fit = 0, more = 0;
    for (int i = 0; i < 8; i++) fit += malloc(100 << 10) != 0;
    for (int i = 0; i < 2; i++) fit += map(1200 << 10) != MAP_FAILED;
    while (more < 64 && map(256 << 10) != MAP_FAILED) more++;
    printf("%d of 10 blocks, then %s, %s\n", fit, more >= 3 && more <= 12 ? "up to 3 MiB" : "not up to 3 MiB", strerror(errno));

    munlockall();
    if (mlockall(MCL_FUTURE | MCL_ONFAULT)) return perror("mlockall"), 1;
    long before = resident();
    for (int i = 0; i < 4; i++) map(200 << 10);
    printf("%s\n", resident() - before < 512 ? "nothing resident" : "resident");
    return 0;
}
