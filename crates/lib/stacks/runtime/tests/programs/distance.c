/* Counts the levels of recursion that fit before the address of a local variable is further than ALLOWED from the
 * thread's beginning: a guard that databases and interpreters use. In the first thread, in another one, and beyond
 * the system's stack.
 *
 *   distance LEVELS DEEP     prints the levels allowed of LEVELS in each thread; first descends DEEP levels unguarded */
#include "descend.h"
#include <pthread.h>

enum { ALLOWED = 2 << 20, LEVEL_BYTES = 320 };
static int levels, deep;
static __thread char *began;

static long distance(void) {
    char here;
    long distance = began - &here;
    return distance < 0 ? -distance : distance;
}

KEEP static int allowed(int level) {
    volatile char frame[LEVEL_BYTES];
    USE(frame);
    frame[0] = frame[LEVEL_BYTES - 1] = (char)level;
    if (level == levels || distance() > ALLOWED) return level;
    int below = allowed(level + 1);
    CHECK(frame[0] == (char)level && frame[LEVEL_BYTES - 1] == (char)level);
    return below;
}

static void *thread(void *name) {
    char here;
    began = &here;
    CHECK(!deep || descend(deep) == deep);
    printf("%s: %d\n", (char *)name, allowed(0));
    return NULL;
}

int main(int count, char **words) {
    levels = count > 1 ? atoi(words[1]) : 4000;
    deep = count > 2 ? atoi(words[2]) : 0;
    thread("first");
    pthread_attr_t attributes;
    pthread_t made;
    CHECK(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, 4 << 20));
    CHECK(!pthread_create(&made, &attributes, thread, "other") && !pthread_join(made, NULL));
    return 0;
}
