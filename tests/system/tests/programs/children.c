/* Four children, one after another; each reads its parent's memory page by page, 10 times or as given. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 4, BYTES = 8 << 20, PAGE = 4096 };

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 10;
    volatile char *memory = malloc(BYTES);
    for (int at = 0; at < BYTES; at += PAGE) memory[at] = 1;
    for (int child = 0; child < CHILDREN; child++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (int round = 0; round < rounds; round++)
                for (int at = 0; at < BYTES; at += PAGE) memory[at] += 1;
            _exit(memory[0] == (char)(1 + rounds) ? 0 : 1);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) return 1;
    }
    return memory[0] == 1 ? 0 : 2;
}
