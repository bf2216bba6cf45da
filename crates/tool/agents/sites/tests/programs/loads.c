// Allocates before main, and in a library that it loads and unloads three times.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *volatile kept;
__attribute__((constructor, noinline, noclone)) void before_main(void) { kept = malloc(222); }

int main(int argc, char **argv) {
    for (int i = 0; i < 3; i++) {
        void *library = dlopen(argv[1], RTLD_NOW);
        if (!library) { puts(dlerror()); return 1; }
        ((void (*)(void))dlsym(library, "late_work"))();
        dlclose(library);
    }
    puts(getenv("LD_PRELOAD") || getenv("FIELDSTONE_SITES") ? "seen" : "unseen");
    return 0;
}
