// Adjacent objects, as in C++ programs: each thread works on its own objects, through calls, and
// they share cache lines.
//
//     plain      | account 0 | account 1 | …        one line for two threads
//     --padded   | account 0 |    …     | account 1 |    …        each on lines of its own
//
// They are harder to repair than a counter in a loop, because of how the accesses are reached:
//
//     virtual    a counter, incremented in a virtual function that the loop calls
//     mutexes    a value and its mutex, locked and unlocked by the C library
//     deques     the ends of a deque of tasks, pushed and popped by functions that are not inlined
//     list       list nodes, allocated alternately for both threads, over several pages
//     table      256 buckets over several pages, each with its own lock
//     recursion  counters of a tree walk, updated in each call
//     swaps      a word, updated by compare-and-exchange in a loop
//
// The threads do the same work with and without padding, so the checksum is the same.

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>

static const char *const program = "objects";
static const char *const usage_text =
    "Usage: objects [OPTIONS]\n"
    "  --kind K        virtual, mutexes, deques, list, table, recursion or swaps (virtual)\n"
    "  --iterations N  per thread (10000000)\n"
    "  --padded        put each object on lines of its own\n";

#include "threads.h"

static const char *const kinds[] = {"virtual", "mutexes", "deques", "list", "table", "recursion", "swaps", nullptr};

static struct {
    uint64_t kind, iterations, padded;
} asked = {0, 10000000, 0};

static const struct option options[] = {
    {"--kind", &asked.kind, 0, 0, 0, kinds},
    {"--iterations", &asked.iterations, 1, uint64_t{1} << 48, 0, nullptr},
    {"--padded", &asked.padded, 0, 0, 0, nullptr},
    {nullptr, nullptr, 0, 0, 0, nullptr},
};

// The result of each thread, far from the others.
static struct alignas(APART) {
    uint64_t sum;
} found[MAX_THREADS];

// `Bytes` is the alignment of an object: two lines with padding, else its natural alignment.
template <size_t Bytes> struct Objects {
    struct Statistic {
        virtual void hit(uint64_t value) = 0;
        virtual uint64_t get() const = 0;
        virtual ~Statistic() = default;
    };
    struct alignas(Bytes) Count final : Statistic {
        uint64_t sum = 0;
        __attribute__((noinline)) void hit(uint64_t value) override { sum += value & 3; }
        uint64_t get() const override { return sum; }
    };
    struct alignas(Bytes) Account {
        std::mutex mutex;
        uint64_t balance = 0;
    };
    struct alignas(Bytes) Deque {
        std::atomic<int64_t> top{0}, bottom{0};
        uint64_t *tasks = new uint64_t[256];
        __attribute__((noinline)) void push(uint64_t task);
        __attribute__((noinline)) bool pop(uint64_t *task);
    };
    struct alignas(Bytes) Node {
        Node *next = nullptr;
        uint32_t visits = 0, value = 0;
    };
    struct alignas(Bytes) Bucket {
        std::atomic<uint32_t> lock{0};
        uint32_t count = 0;
        uint64_t sum = 0;
    };
    struct alignas(Bytes) Walk {
        uint64_t depth = 0, nodes = 0;
        uint32_t deepest = 0;
    };
    struct alignas(Bytes) Word {
        std::atomic<uint64_t> value{0};
    };

    static constexpr unsigned NODES = 400, BUCKETS = 128;
    static inline Count *counts;
    static inline Account *accounts;
    static inline Deque *deques;
    static inline Node **lists;
    static inline Bucket *buckets;
    static inline Walk *walks;
    static inline Word *words;

    static uint64_t count(unsigned index);
    static uint64_t lock(unsigned index);
    static uint64_t steal(unsigned index);
    static uint64_t follow(unsigned index);
    static uint64_t look_up(unsigned index);
    static uint64_t recurse(unsigned index);
    static uint64_t swap(unsigned index);
    __attribute__((noinline)) static void visit(Walk *walk, unsigned number, unsigned below);
    static void make();
    static void work(unsigned index);
};

template <size_t Bytes> uint64_t Objects<Bytes>::count(unsigned index) {
    Statistic *const own = &counts[index];
    for (uint64_t i = 0; i < asked.iterations; ++i) own->hit(i);
    return own->get();
}

template <size_t Bytes> uint64_t Objects<Bytes>::lock(unsigned index) {
    for (uint64_t i = 0; i < asked.iterations; ++i) {
        const std::lock_guard<std::mutex> guard(accounts[index].mutex);
        accounts[index].balance += i;
    }
    return accounts[index].balance;
}

template <size_t Bytes> void Objects<Bytes>::Deque::push(uint64_t task) {
    const int64_t end = bottom.load(std::memory_order_relaxed);
    tasks[end & 255] = task;
    bottom.store(end + 1, std::memory_order_release);
}

template <size_t Bytes> bool Objects<Bytes>::Deque::pop(uint64_t *task) {
    const int64_t last = bottom.load(std::memory_order_relaxed) - 1;
    bottom.store(last, std::memory_order_seq_cst);
    int64_t first = top.load(std::memory_order_acquire);
    if (first > last) {
        bottom.store(last + 1);
        return false;
    }
    *task = tasks[last & 255];
    if (first < last) return true;
    const bool is_ours = top.compare_exchange_strong(first, first + 1);
    bottom.store(last + 1);
    return is_ours;
}

template <size_t Bytes> uint64_t Objects<Bytes>::steal(unsigned index) {
    Deque &own = deques[index];
    uint64_t sum = 0, task = 0;
    for (uint64_t i = 0; i < asked.iterations; ++i) {
        own.push(i);
        if (i & 1) own.push(i * 7);
        if (own.pop(&task)) sum = sum * 3 + task;
        while ((i & 63) == 63 && own.pop(&task)) sum ^= task;
    }
    return sum;
}

template <size_t Bytes> uint64_t Objects<Bytes>::follow(unsigned index) {
    for (uint64_t i = 0; i < asked.iterations / NODES; ++i) {
        for (Node *node = lists[index]; node != nullptr; node = node->next) {
            node->visits += node->value & 3;
            asm volatile("" ::: "memory");
        }
    }
    uint64_t sum = 0;
    for (const Node *node = lists[index]; node != nullptr; node = node->next) sum = sum * 3 + node->visits;
    return sum;
}

template <size_t Bytes> uint64_t Objects<Bytes>::look_up(unsigned index) {
    uint64_t key = index * 77 + 1, sum = 0;
    for (uint64_t i = 0; i < asked.iterations; ++i) {
        key = key * 6364136223846793005u + 1442695040888963407u;
        Bucket &bucket = buckets[(key >> 40) % BUCKETS * common.threads + index];
        uint32_t open = 0;
        while (!bucket.lock.compare_exchange_weak(open, 1, std::memory_order_acquire)) open = 0;
        bucket.count++;
        bucket.sum += key;
        bucket.lock.store(0, std::memory_order_release);
    }
    for (unsigned i = 0; i < BUCKETS; ++i) {
        const Bucket &bucket = buckets[i * common.threads + index];
        sum = sum * 3 + bucket.sum + bucket.count;
    }
    return sum;
}

template <size_t Bytes> void Objects<Bytes>::visit(Walk *walk, unsigned number, unsigned below) {
    walk->depth++;
    walk->nodes += number;
    if (walk->depth > walk->deepest) walk->deepest = static_cast<uint32_t>(walk->depth);
    if (below > 0) {
        visit(walk, number * 3, below - 1);
        visit(walk, number * 5 + 1, below - 1);
    }
    walk->depth--;
}

template <size_t Bytes> uint64_t Objects<Bytes>::recurse(unsigned index) {
    for (uint64_t i = 0; i < asked.iterations / 64; ++i) visit(&walks[index], static_cast<unsigned>(i), 5);
    return walks[index].nodes * 3 + walks[index].deepest + walks[index].depth;
}

template <size_t Bytes> uint64_t Objects<Bytes>::swap(unsigned index) {
    std::atomic<uint64_t> &own = words[index].value;
    for (uint64_t i = 0; i < asked.iterations; ++i) {
        uint64_t old = own.load(std::memory_order_relaxed);
        while (!own.compare_exchange_weak(old, old + (i & 3))) {
        }
    }
    return own.load();
}

// Creates the objects of all kinds, which take little memory, on separate pages.
template <size_t Bytes> void Objects<Bytes>::make() {
    const auto threads = static_cast<size_t>(common.threads);
    counts = new Count[threads];
    accounts = new Account[threads];
    deques = new Deque[threads];
    walks = new Walk[threads];
    words = new Word[threads];
    buckets = new (std::align_val_t{PAGE}) Bucket[threads * BUCKETS];
    lists = new Node *[threads]();
    for (unsigned node = 0; node < NODES; ++node) {
        for (size_t i = 0; i < threads; ++i) {
            Node *const first = new Node;
            first->next = lists[i];
            first->value = node;
            lists[i] = first;
        }
    }
}

template <size_t Bytes> void Objects<Bytes>::work(unsigned index) {
    static uint64_t (*const by_kind[])(unsigned) = {count, lock, steal, follow, look_up, recurse, swap};
    found[index].sum = by_kind[asked.kind](index);
}

template <size_t Bytes> static void run() {
    Objects<Bytes>::make();
    run_together(Objects<Bytes>::work);
    uint64_t sum = 0;
    for (unsigned i = 0; i < common.threads; ++i) sum = mix(sum + found[i].sum);
    conclude(sum);
}

int main(int argc, char **argv) {
    parse(argc, argv, options);
    if (asked.padded) {
        run<2 * APART>();
    } else {
        run<sizeof(uint64_t)>();
    }
    return 0;
}
