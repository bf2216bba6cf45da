/* A write far past the end of an object, or a vector of which a part is past the end. */
#include <emmintrin.h>
#include <stdlib.h>

int main(void) {
    volatile char *volatile object = malloc(64); /* far allocated */
#ifdef VECTOR
    _mm_storeu_si128((__m128i *)(object + 56), _mm_setzero_si128());
    __asm__ volatile("" ::: "memory");
#else
    object[100000] = 1; /* far error */
#endif
    free((void *)object);
    return 0;
}
