// new, delete and a container.
#include <cstdio>
#include <memory>
#include <vector>

struct Thing { long words[10]; };
static void *volatile kept;

extern "C" __attribute__((noinline)) void make_things() {
    for (int i = 0; i < 6; i++) { Thing *thing = new Thing(); kept = thing; delete thing; }
    for (int i = 0; i < 4; i++) { char *text = new char[50]; kept = text; delete[] text; }
}
extern "C" __attribute__((noinline)) void fill_container() {
    std::vector<int> numbers;
    for (int i = 0; i < 1000; i++) numbers.push_back(i);
    kept = numbers.data();
}

int main() {
    make_things();
    fill_container();
    try { throw std::unique_ptr<int>(new int(3)); } catch (std::unique_ptr<int> &three) { std::printf("%d\n", *three); }
    return 0;
}
