// A library that allocates when it is loaded, and when its function is called.
#include <stdlib.h>

static void *volatile kept;
__attribute__((constructor, noinline, noclone)) void at_load(void) { kept = malloc(333); }
__attribute__((noinline, noclone)) void late_work(void) { for (int i = 0; i < 5; i++) kept = malloc(444); }
