/* Every kind of argument and result across a border between segments: each call is made at many depths, so that some
 * cross. Prints a sum, which is the same in the plain build. */
#include "check.h"
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <alloca.h>
#include <immintrin.h>

struct large { long words[5]; };
struct pair { double real; long whole; };

KEEP static long many(long a, long b, long c, long d, long e, long f, long g, long h, long i) {
    volatile char frame[300];
    USE(frame);
    frame[0] = 1;
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + frame[0];
}

KEEP static struct large by_value(struct large given, int more) {
    volatile char frame[700];
    USE(frame);
    frame[0] = (char)more;
    for (int at = 0; at < 5; at++) given.words[at] += at * more;
    return given;
}

KEEP static struct pair both(double x, long y) {
    volatile char frame[500];
    USE(frame);
    frame[0] = 0;
    return (struct pair){x * 2 + frame[0], y * 3};
}

KEEP static long double extended(long double x, float y) {
    volatile char frame[600];
    USE(frame);
    frame[0] = 0;
    return x * 2 + y + frame[0];
}

KEEP static __m128 vector(__m128 a, __m128 b) {
    volatile char frame[400];
    USE(frame);
    frame[0] = 0;
    return _mm_add_ps(a, b);
}

KEEP VARIADIC static double variadic(int count, ...) {
    volatile char frame[450];
    USE(frame);
    va_list list;
    double sum = frame[0] = 0;
    va_start(list, count);
    for (int at = 0; at < count; at++) sum += at % 2 ? va_arg(list, double) : (double)va_arg(list, long);
    va_end(list);
    return sum;
}

KEEP static long arrays(int size) {
    char array[size];
    char *more = alloca((size_t)size * 3);
    memset(array, 1, (size_t)size);
    memset(more, 2, (size_t)size * 3);
    return array[size / 2] + more[size] + array[size - 1] + more[size * 3 - 1];
}

static long tail_target(long a, long b) { return a * b; }
KEEP static long tail(long a, long b) {
    volatile char frame[128];
    USE(frame);
    frame[0] = 0;
    return tail_target(b + frame[0], a);
}

KEEP static double once(int depth) {
    struct large given = {{depth, 1, 2, 3, 4}};
    given = by_value(given, depth % 7);
    struct pair pair = both(depth, depth + 1);
    __m128 sum = vector(_mm_set1_ps((float)depth), _mm_set_ps(1, 2, 3, 4));
    float lanes[4];
    _mm_storeu_ps(lanes, sum);
    char text[64];
    snprintf(text, sizeof text, "%d %.1f", depth, (double)lanes[2]);
    return (double)many(depth, 2, 3, 4, 5, 6, 7, 8, 9) + (double)(given.words[4] + given.words[0]) + pair.real + (double)pair.whole
        + (double)extended(depth, 1.5F) + variadic(9, 1L, 2.0, 3L, 4.0, 5L, 6.0, 7L, 8.0, (long)depth)
        + (double)arrays(100 + depth % 3000) + lanes[0] + lanes[3] + (double)tail(depth, 2) + (double)strlen(text);
}

KEEP static double descend(int depth) {
    volatile char frame[FRAME_BYTES / 8];
    USE(frame);
    frame[0] = (char)depth;
    double sum = once(depth);
    if (depth > 0) sum += descend(depth - 1);
    return sum + frame[0] - (char)depth;
}

int main(void) {
    double sum = 0;
    for (int round = 0; round < 3; round++) sum += descend(4000 + round);
    printf("%.3f\n", sum);
    return 0;
}
