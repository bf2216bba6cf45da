/* 4,096 sites in a short time, which use up the budget. A little later, one more with an error. */
#include <stdlib.h>
#include <unistd.h>

#define SITE free(malloc(24));
#define TIMES8(x) x x x x x x x x
int main(void) {
    TIMES8(TIMES8(TIMES8(TIMES8(SITE))))
    usleep(100000);
    char *volatile object = malloc(64);
    free(object);
    object[3] = 1;
    return 0;
}
