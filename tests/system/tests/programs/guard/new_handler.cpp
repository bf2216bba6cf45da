// The new handler, bad_alloc and errno when the address space is used up. The limit is set while the program runs.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/resource.h>
#include <unistd.h>

static char *reserve;
static int calls;

static void release_reserve() {
    calls++;
    if (reserve) {
        delete[] reserve;
        reserve = nullptr;
    } else {
        std::set_new_handler(nullptr);
    }
}

int main() {
    const std::size_t block = 64 << 20;
    reserve = new char[block];
    long pages = 0;
    if (FILE *file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%ld", &pages) != 1) return 2;
        std::fclose(file);
    }
    rlim_t bytes = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (256 << 20);
    rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit)) return 3;
    std::set_new_handler(release_reserve);
    bool is_thrown = false;
    int allocated = 0;
    try {
        // More than the limit of guarded memory too.
        for (; allocated < 1000; allocated++)
            if (char *p = new char[block]; !p) return 4;
    } catch (const std::bad_alloc &) {
        is_thrown = true;
    }
    errno = 0;
    void *volatile none = std::malloc(block);
    std::printf("thrown %d, handler called %d times, malloc %s, errno %d\n", is_thrown, calls, none ? "succeeded" : "failed", errno == ENOMEM);
    std::printf("nothrow %d, small blocks %d\n", new (std::nothrow) char[block] == nullptr, std::malloc(100) != nullptr);
    return allocated > 0 && allocated < 1000 ? 0 : 5;
}
