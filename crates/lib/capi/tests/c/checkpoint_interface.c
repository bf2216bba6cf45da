/* A program against the declared interface, which is repeated here. It compiles as C and as C++. */
#include <fieldstone/checkpoint.h>
#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
int fs_checkpoint_open(fs_memory *const *regions, size_t count, const fs_checkpoint_options *or_null, fs_checkpoint **saver);
int fs_checkpoint_directory(const char *path, fs_checkpoint_sink **sink);
int fs_checkpoint_file(const char *path, fs_checkpoint_sink **sink);
int fs_checkpoint_objects(const char *uri, fs_checkpoint_sink **sink);
int fs_checkpoint_begin(fs_checkpoint *saver, fs_checkpoint_sink *sink, const fs_checkpoint_safe_point *or_null);
int fs_checkpoint_wait(fs_checkpoint *saver, fs_checkpoint_report *report_or_null);
int fs_checkpoint_cancel(fs_checkpoint *saver);
int fs_checkpoint_keep(fs_checkpoint_sink *sink, unsigned saves);
int fs_checkpoint_restore(fs_checkpoint_sink *sink, bool lazily, fs_memory **regions, size_t count, uint64_t *value_or_null);
void fs_checkpoint_free(fs_checkpoint *), fs_checkpoint_sink_free(fs_checkpoint_sink *);

static uint64_t enter(void *user)
{
    return *(uint64_t *)user;
}

static void leave(void *user)
{
    ++*(uint64_t *)user;
}
#ifdef __cplusplus
}
#define IS_TRUE(what) static_assert(what, #what)
#else
#define IS_TRUE(what) _Static_assert(what, #what)
#endif

#define IS_AT(type, field, place) IS_TRUE(offsetof(type, field) == (place) * 8)

IS_AT(fs_checkpoint_report, pages, 0);
IS_AT(fs_checkpoint_report, bytes, 1);
IS_AT(fs_checkpoint_report, stop_ns, 2);
IS_AT(fs_checkpoint_report, longest_wait_ns, 3);
IS_AT(fs_checkpoint_report, peak_buffer_bytes, 4);
IS_AT(fs_checkpoint_report, total_ns, 5);
IS_AT(fs_checkpoint_report, fell_back, 6);
IS_AT(fs_checkpoint_options, stop_limit_ns, 0);
IS_AT(fs_checkpoint_options, memory_limit_bytes, 1);
IS_AT(fs_checkpoint_options, compression, 2);
IS_AT(fs_checkpoint_safe_point, enter, 0);
IS_AT(fs_checkpoint_safe_point, leave, 1);
IS_AT(fs_checkpoint_safe_point, user, 2);
IS_TRUE(sizeof(((fs_checkpoint_report *)0)->fell_back) == 8 && sizeof(((fs_checkpoint_options *)0)->compression) == 8);

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, fs_error_message());
    return 1;
}

/* The arguments are a directory, a file and the address of an object store. */
int main(int count, char **arguments)
{
    fs_memory *heap, *restored;
    fs_checkpoint *saver;
    fs_checkpoint_sink *directory, *file, *objects = NULL;
    fs_checkpoint_options options = {0, 0, 0, false, false};
    fs_checkpoint_report report;
    uint64_t number = 5, value = 0;
    fs_checkpoint_safe_point safe_point = {enter, leave, &number};
    if (count != 4 || fs_memory_anonymous(1 << 20, &heap) != FS_OK)
        return failed("memory");
    if (fs_checkpoint_open(&heap, 1, &options, &saver) != FS_OK)
        return failed("open");
    if (fs_checkpoint_directory(arguments[1], &directory) != FS_OK || fs_checkpoint_file(arguments[2], &file) != FS_OK)
        return failed("sinks");
    int code = fs_checkpoint_objects(arguments[3], &objects);
    if (code != FS_OK && code != FS_ERROR_UNSUPPORTED)
        return failed("objects");
    ((char *)fs_memory_start(heap))[1000] = 42;
    fs_checkpoint_sink *sinks[] = {directory, file, directory, objects};
    for (int i = 0; i < (objects ? 4 : 3); i++) {
        if (fs_checkpoint_begin(saver, sinks[i], &safe_point) != FS_OK || fs_checkpoint_wait(saver, &report) != FS_OK)
            return failed("save");
        if (fs_checkpoint_restore(sinks[i], false, &restored, 1, &value) != FS_OK)
            return failed("restore");
        if (value != (uint64_t)(5 + i) || report.fell_back || ((char *)fs_memory_start(restored))[1000] != 42)
            return failed("contents");
        fs_memory_free(restored);
    }
    if (fs_checkpoint_cancel(saver) != FS_OK || fs_checkpoint_keep(directory, 1) != FS_OK)
        return failed("keep");
    fs_checkpoint_free(saver);
    fs_checkpoint_sink_free(directory);
    fs_checkpoint_sink_free(file);
    fs_checkpoint_sink_free(objects);
    fs_memory_free(heap);
    return 0;
}
