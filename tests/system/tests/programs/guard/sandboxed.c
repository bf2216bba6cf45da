/* Installs a seccomp filter that kills the process for each system call that is not in the list of docs/guard.md, and
 * then allocates in two threads. With "error" it ends with an error. */
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_barrier_t ready;
static const int allowed[] = {
    /* of the agent */
    SYS_madvise, SYS_mprotect, SYS_mmap, SYS_munmap, SYS_rt_sigprocmask, SYS_sched_yield, SYS_gettid, SYS_clock_gettime,
    SYS_futex, SYS_getpid, SYS_rt_sigaction, SYS_write,
    /* of the program */
    SYS_exit, SYS_exit_group, SYS_brk, SYS_set_robust_list, SYS_rt_sigreturn, SYS_newfstatat, SYS_openat, SYS_read, SYS_close,
    SYS_getrandom, SYS_sched_getaffinity,
};

static void *work(void *argument) {
    if (argument) {
        char *volatile first = malloc(100); /* the C library prepares the memory of the thread */
        free(first);
        pthread_barrier_wait(&ready);
        pthread_barrier_wait(&ready);
    }
    for (int i = 0; i < 20000; i++) {
        char *p = malloc(i % 3000 + 1);
        p[i % 3000] = 1;
        p = realloc(p, i % 3000 + 100);
        free(p);
    }
    return 0;
}

int main(int argc, char **argv) {
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[COUNT + 3] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < COUNT; i++)
        filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], COUNT - i, 0);
    filter[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {COUNT + 3, filter};
    pthread_t thread;
    pthread_barrier_init(&ready, 0, 2);
    if (pthread_create(&thread, 0, work, &ready)) return 2;
    pthread_barrier_wait(&ready);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 3;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) return 4;
    pthread_barrier_wait(&ready);
    work(0);
    pthread_join(thread, 0);
    char *p = malloc(64); /* sandboxed allocated */
    if (argc > 1) ((volatile char *)p)[64] = 1; /* sandboxed error */
    write(1, "ok\n", 3);
    _exit(0);
}
