/* Saves of several memories: contents, increments, compression, threads that write, cancelling, kept saves. */
#include "folder.h"
#include <fieldstone/checkpoint.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { REGIONS = 3 };

static const size_t sizes[REGIONS] = {4 << 20, 16 << 10, 1 << 20};
static fs_memory *regions[REGIONS];

/* A number for each word, which differs in each region and generation. */
static uint64_t word(size_t region, size_t index, uint64_t generation)
{
    return (index * 2654435761u + region + 1) * (generation + 1);
}

static uint64_t *words(const fs_memory *memory)
{
    return fs_memory_start(memory);
}

static void fill(size_t region, size_t from, size_t count, uint64_t generation)
{
    for (size_t i = from; i < from + count; i++)
        words(regions[region])[i] = word(region, i, generation);
}

/* Whether restored memory is the memory that was saved; frees it. */
static int are_equal_and_freed(fs_memory **restored)
{
    int equal = 1;
    for (size_t i = 0; i < REGIONS; i++) {
        void *start = fs_memory_start(restored[i]);
        equal &= fs_memory_bytes(restored[i]) == sizes[i] && start != fs_memory_start(regions[i]);
        equal &= memcmp(start, fs_memory_start(regions[i]), sizes[i]) == 0;
        fs_memory_free(restored[i]);
        unsigned char resident[1];
        CHECK(mincore(start, PAGE, resident) == -1 && errno == ENOMEM); // it is unmapped
    }
    return equal;
}

/* Whether the last save has these contents and this number, by both ways to restore it. */
static int is_saved(fs_checkpoint_sink *sink, uint64_t expected)
{
    fs_memory *restored[REGIONS];
    uint64_t value = 0;
    CHECK(fs_checkpoint_restore(sink, false, restored, REGIONS, &value) == FS_OK && value == expected);
    if (!are_equal_and_freed(restored))
        return 0;
    int code = fs_checkpoint_restore(sink, true, restored, REGIONS, NULL);
    if (code == FS_ERROR_UNSUPPORTED) {
        CHECK(restored[0] == NULL && restored[REGIONS - 1] == NULL);
        printf("SKIP no userfaultfd: %s\n", fs_error_message());
        return 1;
    }
    CHECK(code == FS_OK);
    fs_tracking *tracking;
    CHECK(fs_tracking_new(restored[0], &tracking) == FS_ERROR_UNSUPPORTED && tracking == NULL);
    fs_checkpoint *saver;
    CHECK(fs_checkpoint_open(restored, REGIONS, NULL, &saver) == FS_ERROR_UNSUPPORTED && saver == NULL);
    return are_equal_and_freed(restored);
}

/* The object of a safe point: a lock, the number that it returns, and its calls. */
struct writes {
    pthread_mutex_t lock;
    uint64_t count;
    unsigned entered, left;
    pthread_t thread;
};

static uint64_t enter(void *user)
{
    struct writes *writes = user;
    pthread_mutex_lock(&writes->lock);
    writes->entered++;
    writes->thread = pthread_self();
    return writes->count;
}

static void leave(void *user)
{
    struct writes *writes = user;
    CHECK(++writes->left == writes->entered && pthread_equal(writes->thread, pthread_self()));
    pthread_mutex_unlock(&writes->lock);
}

static struct writes writes = {.lock = PTHREAD_MUTEX_INITIALIZER};
static const fs_checkpoint_safe_point safe_point = {enter, leave, &writes};

static fs_checkpoint_report save(fs_checkpoint *saver, fs_checkpoint_sink *sink)
{
    fs_checkpoint_report report;
    CHECK(fs_checkpoint_begin(saver, sink, &safe_point) == FS_OK);
    CHECK(fs_checkpoint_wait(saver, &report) == FS_OK);
    CHECK(report.pages > 0 && report.bytes > 0 && report.total_ns > 0 && report.total_ns >= report.stop_ns);
    CHECK(report.peak_buffer_bytes > 0 && report.missed_pages == 0);
    CHECK(report.fell_back || report.longest_wait_ns == report.stop_ns);
    CHECK(report.value <= writes.count);
    CHECK(writes.entered == writes.left && !pthread_equal(writes.thread, pthread_self()));
    return report;
}

/* Increments in a directory or an object store, and what is deleted of them. */
static void increments(fs_checkpoint_sink *sink, const char *path)
{
    fs_checkpoint *saver;
    for (size_t i = 0; i < REGIONS; i++)
        memset(fs_memory_start(regions[i]), 0, sizes[i]);
    CHECK(fs_checkpoint_open(regions, REGIONS, NULL, &saver) == FS_OK);
    for (size_t i = 0; i < REGIONS; i++)
        fill(i, 0, sizes[i] / 16, 0); // the second half stays zeros
    writes.count = 1;
    fs_checkpoint_report first = save(saver, sink);
    CHECK(!first.is_increment && !first.fell_back && is_saved(sink, 1));
    CHECK(first.bytes > sizes[0] / 2 && first.bytes < sizes[0]);
    for (uint64_t round = 2; round <= 6; round++) {
        for (size_t i = 0; i < REGIONS; i++)
            fill(i, round * 512 % (sizes[i] / 8), 512, round);
        writes.count = round;
        fs_checkpoint_report next = save(saver, sink);
        CHECK(next.is_increment && next.value == round && next.pages >= REGIONS && next.pages < 20 && is_saved(sink, round));
    }
    int before = files_in(path);
    CHECK(fs_checkpoint_keep(sink, 100) == FS_OK && files_in(path) == before);
    fill(0, 0, sizes[0] / 8, 7);
    save(saver, sink);
    CHECK(fs_checkpoint_keep(sink, 1) == FS_OK && files_in(path) < before && is_saved(sink, 6));
    fs_checkpoint_free(saver);
}

static void directory(void)
{
    fs_checkpoint_sink *sink, *other;
    const char *path = in_folder("directory");
    CHECK(fs_checkpoint_directory(path, &sink) == FS_OK);
    increments(sink, path);
    CHECK(fs_checkpoint_directory(path, &other) == FS_OK && is_saved(other, 6));
    fs_checkpoint_sink_free(other);
    fs_checkpoint_sink_free(sink);
}

/* An object store in a folder, if the library can use one. */
static void objects(void)
{
    fs_checkpoint_sink *sink = NULL;
    char uri[300];
    snprintf(uri, sizeof uri, "fs://%s/objects", folder);
    int code = fs_checkpoint_objects(uri, &sink);
#ifdef WITH_OPENDAL
    CHECK(code == FS_OK);
    increments(sink, in_folder("objects"));
    fs_checkpoint_sink_free(sink);
    CHECK(fs_checkpoint_objects("nowhere://bucket?key=secret", &sink) == FS_ERROR_ARGUMENT && sink == NULL);
    CHECK(strstr(fs_error_message(), "nowhere://bucket") && !strstr(fs_error_message(), "secret"));
#else
    CHECK(code == FS_ERROR_UNSUPPORTED && errno == ENOTSUP && sink == NULL && strstr(fs_error_message(), "`opendal`"));
#endif
}

/* One file, with each compression; the sink is freed while a save runs. */
static void one_file(void)
{
    for (uint64_t compression = FS_CHECKPOINT_NONE; compression <= FS_CHECKPOINT_ZSTD; compression++) {
        fs_checkpoint *saver;
        fs_checkpoint_sink *sink;
        fs_checkpoint_options options = {.stop_limit_ns = 1000000, .memory_limit_bytes = 8 << 20,
                                         .compression = compression, .compare_pages = compression == 1};
        int code = fs_checkpoint_open(regions, REGIONS, &options, &saver);
#ifndef WITH_ZSTD
        if (compression == FS_CHECKPOINT_ZSTD) {
            CHECK(code == FS_ERROR_UNSUPPORTED && saver == NULL && strstr(fs_error_message(), "`zstd`"));
            continue;
        }
#endif
        CHECK(code == FS_OK);
        for (size_t i = 0; i < sizes[1] / 8; i++)
            words(regions[1])[i] = compression; // compresses well
        CHECK(fs_checkpoint_file(in_folder("one.save"), &sink) == FS_OK);
        fs_checkpoint_report first = save(saver, sink), second = save(saver, sink);
        CHECK(!first.is_increment && !second.is_increment && first.peak_buffer_bytes <= 8 << 20);
        CHECK(fs_checkpoint_begin(saver, sink, NULL) == FS_OK);
        fs_checkpoint_sink_free(sink);
        CHECK(fs_checkpoint_wait(saver, NULL) == FS_OK);
        CHECK(fs_checkpoint_file(in_folder("one.save"), &sink) == FS_OK && fs_checkpoint_keep(sink, 1) == FS_OK);
        CHECK(is_saved(sink, 0)); // without a safe point, the number is 0
        fs_checkpoint_free(saver);
        fs_checkpoint_sink_free(sink);
    }
}

static atomic_bool ends;

/* Each write changes a word of two regions. */
enum { SLOTS = 512 };
static void *write_locked(void *unused)
{
    while (!ends) {
        pthread_mutex_lock(&writes.lock);
        uint64_t number = ++writes.count;
        words(regions[0])[number % SLOTS * 64] = number;
        words(regions[2])[number % SLOTS] = number;
        pthread_mutex_unlock(&writes.lock);
    }
    return unused;
}

/* Whether the memory is that after `count` writes. */
static int is_after(fs_memory **restored, uint64_t count)
{
    for (uint64_t slot = 0; slot < SLOTS; slot++) {
        uint64_t last = count < slot ? 0 : count - (count - slot) % SLOTS;
        if (words(restored[0])[slot * 64] != last || words(restored[2])[slot] != last)
            return 0;
    }
    return 1;
}

/* Waits until the thread has made some writes. */
static void wait_for_writes(void)
{
    uint64_t first = 0;
    for (uint64_t now = 0; now == 0 || now < first + SLOTS; usleep(100)) {
        pthread_mutex_lock(&writes.lock);
        now = writes.count;
        pthread_mutex_unlock(&writes.lock);
        first = first == 0 ? now : first;
    }
}

static void a_thread_writes_with_the_lock(void)
{
    fs_checkpoint *saver;
    fs_checkpoint_sink *sink;
    pthread_t thread;
    memset(fs_memory_start(regions[0]), 0, sizes[0]);
    memset(fs_memory_start(regions[2]), 0, sizes[2]);
    writes.count = 0;
    CHECK(fs_checkpoint_open(regions, REGIONS, NULL, &saver) == FS_OK);
    CHECK(fs_checkpoint_directory(in_folder("threads"), &sink) == FS_OK);
    CHECK(pthread_create(&thread, NULL, write_locked, NULL) == 0);
    for (int i = 0; i < 8; i++) {
        fs_memory *restored[REGIONS];
        uint64_t value;
        wait_for_writes();
        save(saver, sink);
        int code = fs_checkpoint_restore(sink, i % 2 == 1, restored, REGIONS, &value);
        CHECK(code == FS_OK || (i % 2 == 1 && code == FS_ERROR_UNSUPPORTED)); // without userfaultfd
        if (code != FS_OK)
            continue;
        CHECK(is_after(restored, value));
        for (int region = 0; region < REGIONS; region++)
            fs_memory_free(restored[region]);
    }
    wait_for_writes();
    ends = true;
    CHECK(pthread_join(thread, NULL) == 0);
    save(saver, sink);
    CHECK(is_saved(sink, writes.count));
    fs_checkpoint_free(saver);
    fs_checkpoint_sink_free(sink);
}

static void *write_without_lock(void *unused)
{
    volatile uint64_t *place = words(regions[0]);
    while (!ends)
        ++*place;
    return unused;
}

/* A save falls back to copy before write, and calls the safe point twice, or it is refused. */
static void a_thread_writes_without_the_lock(void)
{
    fs_checkpoint *saver;
    fs_checkpoint_sink *sink;
    fs_checkpoint_report report;
    pthread_t thread;
    ends = false;
    writes.entered = writes.left = 0;
    CHECK(fs_checkpoint_open(regions, REGIONS, NULL, &saver) == FS_OK);
    CHECK(fs_checkpoint_file(in_folder("writer.save"), &sink) == FS_OK);
    CHECK(pthread_create(&thread, NULL, write_without_lock, NULL) == 0);
    CHECK(fs_checkpoint_begin(saver, sink, &safe_point) == FS_OK);
    int code = fs_checkpoint_wait(saver, &report);
    if (code != FS_OK)
        CHECK(code == FS_ERROR_UNSUPPORTED && errno == ENOTSUP && strstr(fs_error_message(), "try:"));
    else if (report.fell_back)
        CHECK(writes.entered == 2);
    CHECK(writes.entered == writes.left && writes.entered > 0);
    ends = true;
    CHECK(pthread_join(thread, NULL) == 0);
    fs_checkpoint_free(saver);
    fs_checkpoint_sink_free(sink);
}

int main(void)
{
    make_folder();
    for (size_t i = 0; i < REGIONS; i++)
        CHECK(fs_memory_anonymous(sizes[i], &regions[i]) == FS_OK);
    directory();
    objects();
    one_file();
    a_thread_writes_with_the_lock();
    a_thread_writes_without_the_lock();
    for (size_t i = 0; i < REGIONS; i++)
        fs_memory_free(regions[i]);
    return 0;
}
