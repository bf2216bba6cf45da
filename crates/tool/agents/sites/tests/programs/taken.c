// Allocates where there is no mailbox. Linked to taker.
#include <stdio.h>
#include <stdlib.h>

extern void taken(void);

int main(void) {
    taken();
    void *volatile b = malloc(10);
    free(b);
    puts("went on");
    return 0;
}
