// Memory allocated by operator new and by a container, accessed page by page.
#include <cstddef>
#include <vector>

constexpr std::size_t BYTES = 1 << 20, PAGE = 4096;
#define APART __attribute__((noinline, noclone))

APART static void walk(volatile char *memory, int rounds) {
    for (int round = 0; round < rounds; round++)
        for (std::size_t at = 0; at < BYTES; at += PAGE) memory[at] = memory[at] + 1;
}

struct Table {
    char *cells;
    APART explicit Table(std::size_t bytes) : cells(new char[bytes]) {}
};

APART static std::vector<char> filled() {
    std::vector<char> all;
    all.resize(BYTES, 1);
    return all;
}

int main() {
    Table table(BYTES);
    walk(table.cells, 40);
    std::vector<char> all = filled();
    walk(all.data(), 20);
    return 0;
}
