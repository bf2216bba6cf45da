// Maps memory in several ways, each in a separate function, also other memory than private anonymous. Linked to a library
// whose malloc maps its pool.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
static void *volatile kept;

APART void *page_by_page(size_t bytes, int access, int flags, int fd, off_t offset) {
    char *mapped = mmap(NULL, bytes, access, flags, fd, offset);
    if (mapped == MAP_FAILED) abort();
    if (access & PROT_WRITE) for (size_t at = 0; at < bytes; at += 4096) mapped[at] = 1;
    kept = mapped;
    return mapped;
}
APART void plain(void) { for (int i = 0; i < 20; i++) { munmap(page_by_page(1 << 16, 3, ANONYMOUS, -1, 0), 1 << 16); kept = 0; } }
APART void reserved(void) { page_by_page(1 << 20, PROT_NONE, ANONYMOUS | MAP_NORESERVE, -1, 0); kept = 0; }
APART void shared(void) { page_by_page(1 << 16, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0); kept = 0; }
APART void file(void) {
    int fd = memfd_create("file", 0);
    if (ftruncate(fd, 1 << 16)) abort();
    char *second = page_by_page(4096, PROT_READ, MAP_PRIVATE, fd, 8192);
    if (pwrite(fd, "x", 1, 8193) != 1 || second[1] != 'x') abort(); // the offset was passed
    kept = 0;
}
APART void failed(void) { kept = mmap(NULL, 0, 3, ANONYMOUS, -1, 0); if (kept != MAP_FAILED) abort(); }
APART void at(void) {
    void *place = page_by_page(8192, 0, ANONYMOUS, -1, 0);
    if (mmap64(place, 4096, PROT_READ, ANONYMOUS | MAP_FIXED, -1, 0) != place) abort();
    kept = 0;
}
APART void allocated(void) { for (int i = 0; i < 50; i++) kept = malloc(100000); kept = 0; }
static void *in_thread(void *unused) { plain(); return NULL; }
__attribute__((constructor)) static void before_main(void) { page_by_page(12288, 3, ANONYMOUS, -1, 0); kept = 0; }

int main(void) {
    plain();
    reserved();
    shared();
    file();
    failed();
    at();
    allocated();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, in_thread, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return 0;
}
