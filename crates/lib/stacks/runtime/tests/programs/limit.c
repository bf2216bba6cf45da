/* Endless recursion, with the limit in the first argument, if there is one. */
#include "check.h"
#include <pthread.h>

KEEP static long forever(long depth) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    frame[0] = (char)depth;
    return forever(depth + 1) + frame[0];
}

static void *thread(void *limit) {
    pthread_setname_np(pthread_self(), "deep-one");
    if (limit) fieldstone_stack_set_limit((size_t)limit);
    printf("%ld\n", forever(0));
    return NULL;
}

int main(int count, char **words) {
    pthread_t made;
    CHECK(pthread_create(&made, NULL, thread, count > 1 ? (void *)atol(words[1]) : NULL) == 0);
    return pthread_join(made, NULL);
}
