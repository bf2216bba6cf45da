// Allocates and frees at the end of threads and of the process: destructors of static and thread-local variables,
// of keys of pthread, and functions of atexit. The output is the same with and without guards.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <string>
#include <thread>
#include <vector>

static pthread_key_t key;

static void use(const char *where) {
    auto *text = new std::string(std::string("allocated ") + where);
    char *block = static_cast<char *>(std::realloc(std::malloc(40), 400));
    std::snprintf(block, 400, "%s, %zu", text->c_str(), text->size());
    std::puts(block);
    std::free(block);
    delete text;
}

struct Holder {
    const char *where;
    std::vector<int> all = std::vector<int>(100, 1);
    explicit Holder(const char *where) : where(where) {}
    ~Holder() { use(where); }
};

static Holder first_static("in a static destructor");
static thread_local Holder of_thread("in a thread-local destructor");

// The destructor of a key allocates, and sets the key again: it is called in several rounds.
static void end_thread(void *value) {
    use("in a destructor of a key");
    char *round = static_cast<char *>(value);
    char *next = static_cast<char *>(std::malloc(8));
    *next = static_cast<char>(*round + 1);
    std::free(round);
    if (*next < 3) pthread_setspecific(key, next);
    else std::free(next);
}

int main() {
    pthread_key_create(&key, end_thread);
    std::atexit([] { use("in atexit"); });
    for (int i = 0; i < 3; i++)
        std::thread([] {
            of_thread.all.push_back(2);
            pthread_setspecific(key, std::calloc(8, 1));
        }).join();
    static Holder second_static("in a local static destructor");
    of_thread.all.push_back(3);
    at_quick_exit([] { use("never"); });
    return 0;
}
