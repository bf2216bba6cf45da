/*
 * A write barrier for a toy generational collector.
 *
 * New objects are allocated in a nursery. When it is full, reachable objects move to the old
 * generation. To find them without reading all old objects, the collector must know which old
 * objects point to young ones; compilers usually emit code at each store for that. Here the stores
 * stay unchanged: the old generation is write-protected, the first write to a page traps, and the
 * handler adds the page to the remembered set (Appel and Li 1991, "Generational collection"). The
 * cost is one trap per page and collection, and nothing for other stores.
 *
 *     cc write_barrier.c $(pkg-config --cflags --libs fieldstone)
 *
 * The program checks its lists against plain sums. Built with -DFORGET the barrier drops pages, and
 * the check fails.
 */
#include <fieldstone/pages.h>
#include <stdio.h>
#include <stdlib.h>

enum { LISTS = 20000, NURSERY = 4096, OLD = 1 << 20, COLLECTIONS = 40 };

/* In the nursery, `moved` is the new address of a moved object. */
struct object {
    struct object *next, *moved;
    long value;
    long unused;
};

static struct object nursery[NURSERY];
static size_t young;
static struct object *old;
static size_t old_count;
static fs_trapping *barrier;
static size_t page_bytes, remembered_count, remembered_total;
static size_t *remembered;

static void check(int code)
{
    if (code != FS_OK) {
        fprintf(stderr, "%s\n", fs_error_message());
        exit(2);
    }
}

/* The barrier: runs in a signal handler of the storing thread, the only thread. */
static enum fs_outcome remember(const fs_fault *fault, void *user)
{
    (void)user;
    if (fs_fault_unprotect(fault) != FS_OK)
        return FS_CHAIN;
#ifndef FORGET
    remembered[remembered_count++] = fs_fault_page(fault).offset;
#endif
    return FS_RESOLVED;
}

/* Moves the object that a field points to into the old generation, and updates the field. */
static void promote(struct object **field)
{
    struct object *object = *field;
    if (object < nursery || object >= nursery + NURSERY)
        return;
    if (object->moved == NULL) {
        if (old_count == OLD) {
            fprintf(stderr, "the old generation is full\n");
            exit(2);
        }
        old[old_count] = *object;
        object->moved = &old[old_count++];
    }
    *field = object->moved;
}

/* The only roots are the fields of the remembered pages. */
static void collect(void)
{
    size_t bytes = OLD * sizeof(struct object), scanned = old_count, roots = remembered_count;
    check(fs_trapping_unprotect(barrier, 0, bytes));
    for (size_t i = 0; i < roots; i++) {
        struct object *page = (struct object *)((char *)old + remembered[i]);
        for (size_t j = 0; j < page_bytes / sizeof *page && &page[j] < &old[scanned]; j++)
            promote(&page[j].next);
    }
    /* Moved objects may point to objects that are not moved yet: Cheney's scan. */
    for (; scanned < old_count; scanned++)
        promote(&old[scanned].next);
    young = 0;
    remembered_total += roots;
    remembered_count = 0;
    check(fs_trapping_protect(barrier, 0, bytes));
}

static struct object *new_object(long value, struct object *next)
{
    nursery[young] = (struct object){next, NULL, value, 0};
    return &nursery[young++];
}

int main(void)
{
    static long sums[LISTS];
    fs_memory *memory;
    check(fs_memory_anonymous(OLD * sizeof(struct object), &memory));
    page_bytes = fs_memory_page_bytes(memory);
    old = fs_memory_start(memory);
    remembered = malloc(fs_memory_bytes(memory) / page_bytes * sizeof *remembered);
    if (remembered == NULL)
        return 2;
    check(fs_trapping_in_signal(memory, FS_WATCH_WRITES, remember, NULL, &barrier));
    old_count = LISTS; /* The heads of the lists: old objects, few of which are written per collection. */
    check(fs_trapping_protect(barrier, 0, OLD * sizeof(struct object)));

    unsigned long long random = 1;
    for (int collection = 0; collection < COLLECTIONS; collection++) {
        while (young < NURSERY) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t list = (collection * 500 + (random >> 40) % 700) % LISTS;
            struct object *object = new_object((long)(random >> 50), old[list].next);
            if (random >> 63) { /* the other half is garbage */
                old[list].next = object; /* a plain store: the barrier is in the page */
                sums[list] += object->value;
            }
        }
        collect();
    }

    size_t wrong = 0, live = 0;
    for (size_t list = 0; list < LISTS; list++) {
        long sum = 0;
        /* A pointer that was not updated may form a cycle. */
        for (struct object *object = old[list].next; object != NULL && live <= OLD; object = object->next, live++)
            sum += object->value;
        wrong += sum != sums[list];
    }
    bool right = wrong == 0 && live == old_count - LISTS;
    printf("%d collections, %zu objects moved, %zu pages remembered of %zu, by %s: %s\n", COLLECTIONS, old_count - LISTS,
           remembered_total, COLLECTIONS * ((old_count * sizeof(struct object) + page_bytes - 1) / page_bytes),
           fs_mechanism_name(fs_trapping_mechanism(barrier)), right ? "correct" : "WRONG");
    fs_trapping_free(barrier);
    free(remembered);
    return right ? 0 : 1;
}
