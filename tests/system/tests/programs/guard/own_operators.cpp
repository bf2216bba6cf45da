// The program has its own operator new and delete, with a header before each object. The forms of
// the library must call them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

static int calls, bad;

void *operator new(std::size_t bytes) {
    auto *block = static_cast<std::size_t *>(std::malloc(bytes + 16));
    if (!block) throw std::bad_alloc();
    *block = 77;
    calls++;
    return block + 2;
}
void operator delete(void *object) noexcept {
    if (!object) return;
    auto *block = static_cast<std::size_t *>(object) - 2;
    bad += *block != 77;
    std::free(block);
}
void operator delete(void *object, std::size_t) noexcept { operator delete(object); }

int main() {
    std::vector<int> values(1000);
    for (int at = 0; at < 1000; at++) values[at] = at * 7919 % 1000;
    std::stable_sort(values.begin(), values.end());
    for (int at = 0; at < 20; at++) {
        delete new (std::nothrow) int(at);
        delete[] new int[10];
        delete[] new (std::nothrow) char[33];
        volatile std::size_t wrong = 3;
        try {
            operator delete(operator new(10, std::align_val_t(wrong)), std::align_val_t(wrong));
            std::puts("aligned to 3");
        } catch (const std::bad_alloc &) {
        }
    }
    std::printf("%d calls, %d bad, %d\n", calls, bad, values[3]);
}
