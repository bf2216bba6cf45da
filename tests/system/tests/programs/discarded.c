/* Discarded initialised data is read from the file again; discarded zero-initialised data is zero. */
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (8 << 20)
__attribute__((aligned(4096))) static volatile char data[BYTES] = {[0 ... BYTES - 1] = 7};
__attribute__((aligned(4096))) static volatile char zeros[BYTES];

int main(void) {
    int lost = 0, status = 0;
    for (long at = 0; at < BYTES; at += 4096) {
        data[at] = zeros[at] = 8;
        if (at / 4096 % 2) madvise((char *)data + at, 4096, MADV_DONTNEED);
        else syscall(SYS_madvise, (char *)data + at, 4096, MADV_DONTNEED);
        madvise((char *)zeros + at, 4096, MADV_DONTNEED);
        lost += data[at] != 7 || zeros[at] != 0;
    }
    /* The kernel refuses this for a file mapping, so a child has its parent's data. */
    data[0] = zeros[0] = 9;
    int wiped = madvise((char *)data, BYTES, MADV_WIPEONFORK) == 0;
    madvise((char *)zeros, BYTES, MADV_WIPEONFORK);
    if (fork() == 0) _exit(data[0] != (wiped ? 0 : 9) || zeros[0] != 0);
    wait(&status);
    return lost || wiped || status;
}
