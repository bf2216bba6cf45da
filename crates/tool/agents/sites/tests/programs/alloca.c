// Several callers allocate with one return address at one stack pointer, repeatedly.
#include <alloca.h>
#include <stdlib.h>
#include <string.h>

#define APART __attribute__((noinline, noclone))
static void *volatile kept;

APART void leaf(void) { kept = malloc(5); free(kept); __asm__ volatile(""); }
APART void left(void) { leaf(); __asm__ volatile(""); }
APART void right(void) { leaf(); __asm__ volatile(""); }
APART void varied(int bytes) { volatile char *room = alloca(bytes); room[0] = 1; leaf(); room[0] = 2; }

int main(void) {
    for (int i = 0; i < 1000; i++) {
        if (i % 3) left(); else right();
        varied(16 << i % 7);
    }
    return 0;
}
