/* Two tables of one size, and a list made by a thread. One table is advised against huge pages before it is touched. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ROUNDS = 4, BYTES = 16 << 20, NODES = 1 << 14, PAGE = 4096 };
#define APART __attribute__((noinline, noclone))

struct node {
    struct node *next;
    char rest[248];
};

APART static void walk(volatile char *memory) {
    for (int round = 0; round < ROUNDS; round++)
        for (int at = 0; at < BYTES; at += PAGE) memory[at] += 1;
}

APART static char *table_new(void) {
    char *table = malloc(BYTES);
    return table ? table : (abort(), table);
}

APART static char *refused(void) {
    char *table = aligned_alloc(2 << 20, BYTES); /* malloc's own word before it is on another huge page */
    if (!table || madvise(table, BYTES, MADV_NOHUGEPAGE)) abort();
    return table;
}

APART static struct node *node_new(struct node *next) {
    struct node *node = malloc(sizeof *node);
    if (!node) abort();
    node->next = next;
    return node;
}

static void *list_new(void *list) {
    for (int at = 0; at < NODES; at++) list = node_new(list);
    return list;
}

int main(void) {
    pthread_t thread;
    void *list;
    if (pthread_create(&thread, NULL, list_new, NULL) || pthread_join(thread, &list)) abort();
    walk(table_new());
    walk(refused());
    long nodes = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (volatile struct node *node = list; node; node = node->next) nodes++;
    return nodes == (long)ROUNDS * NODES ? 0 : 1;
}
