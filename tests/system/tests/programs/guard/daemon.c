/* A child that outlives the program. It waits until the file of the argument exists, then executes
   the second argument, or accesses a freed object. */
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline)) static void use(volatile char *object) { object[3] = 1; }

int main(int argc, char **argv) {
    if (fork())
        return 0;
    char *volatile object = malloc(64);
    free(object);
    for (int i = 0; i < 1000 && access(argv[1], F_OK); i++)
        usleep(10000);
    if (argc > 2)
        execv(argv[2], argv + 2);
    use(object);
    return 0;
}
