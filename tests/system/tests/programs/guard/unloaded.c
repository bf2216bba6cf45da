/* Allocates in a library that is unloaded, loaded again, and replaced by code without a file. With "library" this is
 * the library; the argument of the program is the path of the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void *allocate(void *(*)(size_t), size_t);
#ifdef LIBRARY
__attribute__((noinline, noipa)) void *allocate_inside(void *(*function)(size_t), size_t bytes) {
    char *block = function(bytes);
    block[0] = 0;
    return block;
}
#else
static void *volatile held;

static allocate *load(const char *path, void **handle) {
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*handle) { puts(dlerror()); exit(2); }
    return (allocate *)dlsym(*handle, "allocate_inside");
}

int main(int argc, char **argv) {
    void *handle;
    char *block = 0;
    allocate *inside = 0;
    for (int round = 0; round < 20; round++) {
        inside = load(argv[1], &handle);
        free(block);
        for (int i = 0; i < 20; i++) free(inside(malloc, 100));
        block = held = inside(malloc, 48);
        dlclose(handle);
    }
    /* code without unwind tables at the same address: mov %rdi, %rax; mov %rsi, %rdi; sub $8, %rsp; call *%rax;
     * add $8, %rsp; ret */
    static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x83, 0xec, 0x08,
                                         0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08, 0xc3};
    char *page = (char *)((size_t)inside & ~4095ul);
    if (mmap(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != page)
        return 3;
    memcpy(page, code, sizeof code);
    for (int i = 0; i < 20; i++) free(((allocate *)page)(malloc, 100));
    puts("ok");
    fflush(stdout);
    if (argc > 2) ((volatile char *)held)[48] = 1; /* unloaded error */
    return 0;
}
#endif
