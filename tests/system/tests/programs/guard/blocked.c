/* Writes past an object in a thread that has blocked all signals: "thread" by pthread_sigmask(3), "process" by
 * sigprocmask(2), "inherited" before exec. Without an argument it prints whether SIGUSR1 and SIGTERM are blocked. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sigset_t all;

static void overflow(void) {
    volatile char *object = malloc(16);
    object[16] = 1; /* blocked error */
}

static void *work(void *argument) {
    (void)argument;
    pthread_sigmask(SIG_SETMASK, &all, 0);
    overflow();
    return 0;
}

int main(int count, char **arguments) {
    sigfillset(&all);
    if (count == 1) {
        sigset_t now, empty;
        sigemptyset(&empty);
        sigprocmask(SIG_BLOCK, &all, 0);
        sigprocmask(SIG_BLOCK, 0, &now);
        int blocked = sigismember(&now, SIGUSR1) && sigismember(&now, SIGTERM);
        if (pthread_sigmask(SIG_SETMASK, &empty, &now) != 0 || pthread_sigmask(77, &all, 0) == 0) return 1;
        blocked = blocked && sigismember(&now, SIGUSR1);
        sigprocmask(SIG_BLOCK, 0, &now);
        puts(blocked && !sigismember(&now, SIGUSR1) ? "ok" : "wrong");
    } else if (!strcmp(arguments[1], "thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, work, 0);
        pthread_join(thread, 0);
    } else if (!strcmp(arguments[1], "inherited")) {
        sigprocmask(SIG_BLOCK, &all, 0);
        execl("/proc/self/exe", arguments[0], "now", (char *)0);
    } else {
        if (!strcmp(arguments[1], "process")) sigprocmask(SIG_SETMASK, &all, 0);
        overflow();
    }
    return 0;
}
