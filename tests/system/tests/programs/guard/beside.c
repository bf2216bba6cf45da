/* One error: a loop that writes into the padding behind an object, and then past it. */
#include <stdlib.h>

__attribute__((noinline, noipa)) static void fill(volatile char *p) {
    for (int i = 0; i < 40; i++)
        p[i] = (char)i;
}
int main(void) {
    for (int round = 0; round < 4; round++) {
        char *p = malloc(20);
        fill(p);
        free(p);
    }
    return 0;
}
