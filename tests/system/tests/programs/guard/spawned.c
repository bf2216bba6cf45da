/* Children by vfork, posix_spawn, system and popen. With "error" the child of a vfork has an error, and with
 * "spawn PROGRAM ARGUMENT" it starts a program. */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *volatile object;

static int status_of(pid_t pid) {
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR);
    return status;
}
static int start(char **arguments) {
    pid_t pid;
    return posix_spawnp(&pid, arguments[0], 0, 0, arguments, environ) ? -1 : status_of(pid);
}

int main(int argc, char **argv) {
    object = malloc(64); /* spawned allocated */
    if (argc > 2) return WTERMSIG(start(argv + 2));
    for (int i = 0; i < 20; i++) {
        char *before = malloc(i + 1);
        pid_t pid = vfork();
        if (!pid) {
            execlp("true", "true", (char *)0);
            _exit(1);
        }
        if (status_of(pid)) return 2;
        free(before);
        free(malloc(100));
    }
    char *words[] = {"sh", "-c", "exit 3", 0};
    if (WEXITSTATUS(start(words)) != 3 || WEXITSTATUS(system("exit 4")) != 4) return 3;
    char line[100] = "";
    FILE *pipe = popen("echo from the child", "r");
    if (!fgets(line, sizeof line, pipe) || pclose(pipe)) return 4;
    fputs(line, stdout);
    fflush(stdout);
    if (argc > 1) {
        pid_t pid = vfork();
        if (!pid) {
            object[64] = 1; /* spawned error */
            _exit(0);
        }
        if (WTERMSIG(status_of(pid)) != 11) return 5;
        free(malloc(100));
        puts("the parent continues");
    }
    return 0;
}
