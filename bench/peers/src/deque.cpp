// Deques for the comparison: std::deque, and boost::container::deque with blocks of 32 KiB. The
// random numbers equal those of the `random` module of fieldstone-workloads: a counter through
// splitmix64's mixing function, scaled by a multiplication.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>

#ifdef HAS_BOOST
#include <boost/container/deque.hpp>
#endif

namespace {

std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

template <class Deque> void *make(std::uint64_t len) try {
    auto *deque = new Deque;
    for (std::uint64_t value = 0; value < len; ++value) deque->push_back(value);
    return deque;
} catch (const std::exception &) {
    return nullptr;
}

template <class Deque> std::uint64_t get(const Deque &deque, std::uint64_t gets, std::uint64_t seed) {
    std::uint64_t sum = 0;
    for (std::uint64_t at = 0; at < gets; ++at) {
        auto index = static_cast<std::uint64_t>((static_cast<unsigned __int128>(mix(seed + at)) * deque.size()) >> 64);
        sum += deque[index];
    }
    return sum;
}

template <class Deque> std::uint64_t sum(const Deque &deque) {
    std::uint64_t all = 0;
    for (std::uint64_t value : deque) all += value;
    return all;
}

} // namespace

#define DEQUE(name, type)                                                                                              \
    extern "C" void *name##_make(std::uint64_t len) { return make<type>(len); }                                        \
    extern "C" std::uint64_t name##_get(void *raw, std::uint64_t gets, std::uint64_t seed) {                           \
        return get(*static_cast<type *>(raw), gets, seed);                                                             \
    }                                                                                                                  \
    extern "C" std::uint64_t name##_sum(void *raw) { return sum(*static_cast<type *>(raw)); }                          \
    extern "C" void name##_free(void *raw) { delete static_cast<type *>(raw); }

DEQUE(std_deque, std::deque<std::uint64_t>)

#ifdef HAS_BOOST
using Options = boost::container::deque_options<boost::container::block_bytes<32768>>::type;
using BoostDeque = boost::container::deque<std::uint64_t, void, Options>;
DEQUE(boost_deque, BoostDeque)
#endif
