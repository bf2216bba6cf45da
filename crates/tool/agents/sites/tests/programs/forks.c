// A child and its parent both allocate, while other threads of the parent allocate all the time.
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
static void *volatile kept;
static volatile int done;

APART void in_child(void) { for (int i = 0; i < 10; i++) kept = malloc(100); }
APART void in_childs_thread(void) { for (int i = 0; i < 10; i++) kept = malloc(100); }
APART void in_parent(void) { for (int i = 0; i < 10; i++) kept = malloc(200); }
static void *childs_thread(void *unused) { in_childs_thread(); return NULL; }
static void *busy(void *unused) { while (!done) { void *volatile b = malloc(9); free(b); } return NULL; }

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, busy, NULL);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t own[3];
            in_child();
            for (int k = 0; k < 3; k++) pthread_create(&own[k], NULL, childs_thread, NULL);
            for (int k = 0; k < 3; k++) pthread_join(own[k], NULL);
            _exit(3);
        }
        int status;
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 3) return 1;
        in_parent();
    }
    done = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return 0;
}
