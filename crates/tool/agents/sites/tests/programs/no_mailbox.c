// Allocates while the range of the mailboxes is occupied. Linked to reserve_mailbox.
#include <stdio.h>
#include <stdlib.h>

extern void reserved(void);

int main(void) {
    reserved();
    void *volatile b = malloc(10);
    free(b);
    puts("continued");
    return 0;
}
