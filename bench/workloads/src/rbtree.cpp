// Red-black tree: std::map of N random keys: insert, look up, iterate in order, erase half.
//
// The nodes are 48 bytes, allocated one by one: the tree is a pointer chase with a comparison at
// each step. Key i is the i-th number of splitmix64 (a bijection of i, so all keys differ) and its
// value is i. So the expected results of look-ups and of the iteration are known without a copy of
// the keys.
//
// Like the other programs: phases on stderr, checksum on stdout, exit 1 if the result is wrong, 2
// if it cannot run.

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

namespace {

using Tree = std::map<std::uint64_t, std::uint64_t>;

constexpr std::uint64_t gamma = 0x9e3779b97f4a7c15;
constexpr std::uint64_t max_nodes = std::uint64_t{1} << 40;

std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

std::uint64_t key(std::uint64_t i) { return mix((i + 1) * gamma); }

template <typename Work> auto timed(const char *name, Work work) {
    const auto start = std::chrono::steady_clock::now();
    const auto result = work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "%s: %.6f\n", name, seconds.count());
    return result;
}

void expect(const char *what, std::uint64_t found, std::uint64_t expected) {
    if (found == expected) return;
    std::fprintf(stderr, "rbtree: wrong result: %s is %llu, expected %llu\n", what,
                 static_cast<unsigned long long>(found), static_cast<unsigned long long>(expected));
    std::exit(1);
}

// The sum of the values, or an impossible sum if the keys are not in order.
std::uint64_t ordered_sum(const Tree &tree) {
    std::uint64_t sum = 0, last = 0;
    bool first = true;
    for (const auto &[k, value] : tree) {
        if (!first && k <= last) return ~std::uint64_t{0};
        first = false;
        last = k;
        sum += value;
    }
    return sum;
}

void run(std::uint64_t n) {
    Tree tree;
    const auto inserted = timed("init", [&] {
        for (std::uint64_t i = 0; i < n; ++i) tree.emplace(key(i), i);
        return tree.size();
    });
    expect("the number of nodes", inserted, n);

    std::uint64_t wanted = 0;
    const auto found = timed("lookup", [&] {
        std::uint64_t sum = 0;
        for (std::uint64_t i = 0; i < n; ++i) {
            const std::uint64_t which = mix(i * gamma ^ 0x6c6f6f6b) % n;
            wanted += which;
            const auto node = tree.find(key(which));
            if (node != tree.end()) sum += node->second;
        }
        return sum;
    });
    expect("the sum of the values looked up", found, wanted);

    const auto walked = timed("iterate", [&] { return ordered_sum(tree); });
    expect("the sum of the values in order", walked, n * (n - 1) / 2);

    timed("erase", [&] {
        for (std::uint64_t i = 0; i < n; i += 2) tree.erase(key(i));
        return 0;
    });
    const std::uint64_t odd = n / 2;
    expect("the number of nodes left", tree.size(), odd);
    expect("the sum of the values left", ordered_sum(tree), odd * odd);

    std::printf("checksum: %016llx\n", static_cast<unsigned long long>(mix(found) ^ mix(walked) ^ mix(odd * odd)));
}

[[noreturn]] void usage(const char *why) {
    std::fprintf(stderr, "rbtree: %s\nUsage: rbtree N\n  N  number of keys, for example 3000000\n", why);
    std::exit(2);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) usage("give one argument");
    char *end = nullptr;
    errno = 0;
    const std::uint64_t n = std::strtoull(argv[1], &end, 10);
    if (errno != 0 || *end != '\0' || std::strchr("0123456789", argv[1][0]) == nullptr || n == 0 || n > max_nodes)
        usage("N is not a number of keys");
    try {
        run(n);
    } catch (const std::bad_alloc &) {
        std::fprintf(stderr, "rbtree: no memory for %llu nodes\n", static_cast<unsigned long long>(n));
        return 2;
    }
}
