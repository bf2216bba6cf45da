/* Allocations at 200 sites, among which an error is to be found. */
#include <stdlib.h>

#define SITE(n) \
    static __attribute__((noinline, noipa)) void *allocate_##n(size_t bytes) { \
        char *block = (char *)malloc(bytes); \
        block[0] = 1; \
        return block; \
    }
#define TEN(m, n) m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7) m(n##8) m(n##9)
#define HUNDRED(m, n) \
    TEN(m, n##0) TEN(m, n##1) TEN(m, n##2) TEN(m, n##3) TEN(m, n##4) \
    TEN(m, n##5) TEN(m, n##6) TEN(m, n##7) TEN(m, n##8) TEN(m, n##9)
#define NAME(n) allocate_##n,
HUNDRED(SITE, 1)
HUNDRED(SITE, 2)

static void allocate_others(long count) {
    static void *(*const sites[])(size_t) = {HUNDRED(NAME, 1) HUNDRED(NAME, 2)};
    static void *live[256];
    static unsigned seed = 1;
    for (long i = 0; i < count; i++) {
        seed = seed * 1103515245 + 12345;
        unsigned random = seed >> 8;
        void **place = &live[random % 256];
        free(*place);
        *place = sites[random / 256 % 200](16 + random % 500);
    }
}
