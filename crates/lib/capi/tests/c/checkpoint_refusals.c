/* Failed calls of checkpoints: cancelled and busy saves, damaged files, forked children, wrong arguments. */
#include "folder.h"
#include <fieldstone/checkpoint.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>

static fs_memory *memory;
static fs_checkpoint *saver;
static fs_checkpoint_sink *sink;

/* A safe point that waits until the test permits the save to go on. */
struct gate {
    sem_t is_entered, may_leave;
};

static uint64_t enter(void *user)
{
    struct gate *gate = user;
    sem_post(&gate->is_entered);
    sem_wait(&gate->may_leave);
    return 7;
}

static struct gate gate;
static const fs_checkpoint_safe_point safe_point = {.enter = enter, .user = &gate};

static void begin(void)
{
    CHECK(fs_checkpoint_begin(saver, sink, &safe_point) == FS_OK);
    sem_wait(&gate.is_entered);
}

static uint64_t value(void)
{
    fs_memory *restored;
    uint64_t value;
    CHECK(fs_checkpoint_restore(sink, false, &restored, 1, &value) == FS_OK);
    CHECK(memcmp(fs_memory_start(restored), fs_memory_start(memory), PAGES * PAGE) == 0);
    fs_memory_free(restored);
    return value;
}

/* The code of restoring the last save, which fails. */
static int refusal(size_t count)
{
    fs_memory *restored[2] = {memory, memory};
    uint64_t unchanged = 42;
    int code = fs_checkpoint_restore(sink, false, restored, count, &unchanged);
    CHECK(code != FS_OK && unchanged == 42 && restored[0] == NULL && restored[count - 1] == NULL);
    int error = errno;
    CHECK(fs_checkpoint_restore(sink, true, restored, count, NULL) == code && errno == error);
    return code;
}

static void cancelled_and_busy(void)
{
    fs_checkpoint_report report = {.pages = 42};
    CHECK(fs_checkpoint_cancel(saver) == FS_OK);
    CHECK(fs_checkpoint_wait(saver, &report) == FS_ERROR_ARGUMENT && strstr(fs_error_message(), "fs_checkpoint_begin"));
    begin();
    CHECK(fs_checkpoint_begin(saver, sink, NULL) == FS_ERROR_BUSY && errno == EBUSY);
    CHECK(fs_checkpoint_cancel(saver) == FS_OK);
    sem_post(&gate.may_leave);
    CHECK(fs_checkpoint_wait(saver, &report) == FS_ERROR_SYSTEM && errno == ECANCELED && report.pages == 42);
    CHECK(strstr(fs_error_message(), "cancelled") && refusal(1) == FS_ERROR_ABSENT && errno == ENOENT);

    begin();
    sem_post(&gate.may_leave);
    CHECK(fs_checkpoint_wait(saver, &report) == FS_OK && report.pages == 2 && value() == 7);
    CHECK(fs_checkpoint_wait(saver, NULL) == FS_ERROR_ARGUMENT);
    CHECK(refusal(2) == FS_ERROR_ARGUMENT && strstr(fs_error_message(), "2 regions") && strstr(fs_error_message(), "contains 1"));
}

/* A child that is forked while a save runs, or none does, and saves this memory. */
static void forked_child(fs_memory *own)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        int refused = fs_checkpoint_begin(saver, sink, NULL) == FS_ERROR_FORKED && errno == ECHILD &&
                      fs_checkpoint_wait(saver, NULL) == FS_ERROR_FORKED &&
                      fs_checkpoint_cancel(saver) == FS_ERROR_FORKED;
        fs_checkpoint_free(saver);
        saver = NULL;
        memory = own;
        CHECK(refused && fs_checkpoint_open(&memory, 1, NULL, &saver) == FS_OK);
        CHECK(fs_checkpoint_file(in_folder("child.save"), &sink) == FS_OK);
        CHECK(fs_checkpoint_begin(saver, sink, NULL) == FS_OK && fs_checkpoint_wait(saver, NULL) == FS_OK);
        CHECK(value() == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void forked_children(void)
{
    forked_child(memory);
    fs_memory *other = pages_of(fs_memory_anonymous);
    begin();
    forked_child(other);
    fs_memory_free(other);
    sem_post(&gate.may_leave);
    CHECK(fs_checkpoint_wait(saver, NULL) == FS_OK && value() == 7);
}

static void damaged_files(void)
{
    char path[300], second[300];
    snprintf(path, sizeof path, "%s/damaged/0000000001.save", folder);
    snprintf(second, sizeof second, "%s/damaged/0000000002.save", folder);
    fs_checkpoint_sink_free(sink);
    CHECK(fs_checkpoint_directory(in_folder("damaged"), &sink) == FS_OK);
    CHECK(fs_checkpoint_begin(saver, sink, NULL) == FS_OK && fs_checkpoint_wait(saver, NULL) == FS_OK);
    damage(path, 100); // contents of a page
    fs_memory *restored;
    CHECK(fs_checkpoint_restore(sink, false, &restored, 1, NULL) == FS_ERROR_CORRUPT && errno == EBADMSG);
    CHECK(restored == NULL && strstr(fs_error_message(), path));
    damage(path, 100);
    CHECK(value() == 0);
    damage(path, -1);
    CHECK(refusal(1) == FS_ERROR_CORRUPT && strstr(fs_error_message(), path));
    damage(path, -1);
    damage(path, 8); // the version
    CHECK(refusal(1) == FS_ERROR_VERSION && errno == ENOTSUP && strstr(fs_error_message(), path));
    CHECK(fs_checkpoint_keep(sink, 1) == FS_ERROR_VERSION);
    damage(path, 8);
    CHECK(fs_checkpoint_begin(saver, sink, NULL) == FS_OK && fs_checkpoint_wait(saver, NULL) == FS_OK && value() == 0);
    CHECK(truncate(path, 1) == 0 && refusal(1) == FS_ERROR_CORRUPT && strstr(fs_error_message(), second));
    CHECK(unlink(second) == 0 && refusal(1) == FS_ERROR_CORRUPT && strstr(fs_error_message(), path));
    CHECK(unlink(path) == 0 && refusal(1) == FS_ERROR_ABSENT && errno == ENOENT);
}

static void wrong_memories(void)
{
    fs_checkpoint *other = saver;
    fs_memory *shared;
    CHECK(fs_memory_shared(PAGE, &shared) == FS_OK);
    CHECK(fs_checkpoint_open(&shared, 1, NULL, &other) == FS_ERROR_UNSUPPORTED && errno == ENOTSUP && other == NULL);
    fs_memory_free(shared);
    CHECK(fs_checkpoint_open(&memory, 1, NULL, &other) == FS_ERROR_UNSUPPORTED && other == NULL);
    fs_memory *twice[2];
    CHECK(fs_memory_anonymous(PAGE, &twice[0]) == FS_OK);
    twice[1] = twice[0];
    CHECK(fs_checkpoint_open(twice, 2, NULL, &other) == FS_ERROR_UNSUPPORTED && other == NULL);
    twice[1] = NULL;
    CHECK(fs_checkpoint_open(twice, 2, NULL, &other) == FS_ERROR_ARGUMENT && other == NULL);
    fs_checkpoint_options options = {.compression = 3};
    CHECK(fs_checkpoint_open(twice, 1, &options, &other) == FS_ERROR_ARGUMENT && errno == EINVAL && other == NULL);
    CHECK(fs_checkpoint_open(NULL, 1, NULL, &other) == FS_ERROR_ARGUMENT);
    CHECK(fs_checkpoint_open(twice, 0, NULL, &other) == FS_ERROR_ARGUMENT);
    CHECK(fs_checkpoint_open(twice, 1, NULL, NULL) == FS_ERROR_ARGUMENT);
    // The memory is not controlled by what failed, and outlives its handle while it is saved.
    CHECK(fs_checkpoint_open(twice, 1, NULL, &other) == FS_OK);
    *(char *)fs_memory_start(twice[0]) = 1;
    fs_memory_free(twice[0]);
    CHECK(fs_checkpoint_begin(other, sink, NULL) == FS_OK && fs_checkpoint_wait(other, NULL) == FS_OK);
    fs_checkpoint_free(other);
}

static void null_arguments(void)
{
    fs_checkpoint_sink *other = sink;
    CHECK(fs_checkpoint_directory(NULL, &other) == FS_ERROR_ARGUMENT && other == NULL);
    CHECK(fs_checkpoint_file(NULL, &other) == FS_ERROR_ARGUMENT && fs_checkpoint_file("a", NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_checkpoint_objects(NULL, &other) == FS_ERROR_ARGUMENT);
    CHECK(fs_checkpoint_directory("/dev/null/saves", &other) == FS_ERROR_SYSTEM && errno == ENOTDIR && other == NULL);
    CHECK(fs_checkpoint_begin(NULL, sink, NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_checkpoint_begin(saver, NULL, NULL) == FS_ERROR_ARGUMENT);
    fs_checkpoint_safe_point nothing = {NULL, NULL, NULL};
    CHECK(fs_checkpoint_begin(saver, sink, &nothing) == FS_ERROR_ARGUMENT && strstr(fs_error_message(), "enter"));
    CHECK(fs_checkpoint_wait(NULL, NULL) == FS_ERROR_ARGUMENT && fs_checkpoint_cancel(NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_checkpoint_keep(NULL, 1) == FS_ERROR_ARGUMENT);
    fs_memory *restored = memory;
    CHECK(fs_checkpoint_restore(NULL, false, &restored, 1, NULL) == FS_ERROR_ARGUMENT && restored == NULL);
    CHECK(fs_checkpoint_restore(sink, false, NULL, 1, NULL) == FS_ERROR_ARGUMENT);
    CHECK(fs_checkpoint_restore(sink, false, &restored, 0, NULL) == FS_ERROR_ARGUMENT);
    fs_checkpoint_free(NULL);
    fs_checkpoint_sink_free(NULL);
}

/* A failed write to a sink, which has the errno of the system call. */
static void lost_folder(void)
{
    CHECK(fs_checkpoint_file(in_folder("missing/a.save"), &sink) == FS_OK && refusal(1) == FS_ERROR_ABSENT);
    CHECK(fs_checkpoint_begin(saver, sink, NULL) == FS_OK && fs_checkpoint_wait(saver, NULL) == FS_ERROR_SYSTEM);
    CHECK(errno == ENOENT && strstr(fs_error_message(), "a.save"));
    fs_checkpoint_sink_free(sink);
}

int main(void)
{
    make_folder();
    CHECK(sem_init(&gate.is_entered, 0, 0) == 0 && sem_init(&gate.may_leave, 0, 0) == 0);
    memory = pages_of(fs_memory_anonymous);
    memset((char *)fs_memory_start(memory) + PAGE, 3, 2 * PAGE);
    CHECK(fs_checkpoint_open(&memory, 1, NULL, &saver) == FS_OK);
    CHECK(fs_checkpoint_directory(in_folder("saves"), &sink) == FS_OK);
    cancelled_and_busy();
    forked_children();
    CHECK(fs_checkpoint_keep(sink, 0) == FS_OK);
    null_arguments();
    damaged_files();
    wrong_memories();
    fs_checkpoint_sink_free(sink);
    lost_folder();
    // A save that runs ends before its handle is freed.
    CHECK(fs_checkpoint_file(in_folder("last.save"), &sink) == FS_OK);
    begin();
    sem_post(&gate.may_leave);
    fs_checkpoint_free(saver);
    CHECK(value() == 7);
    fs_checkpoint_sink_free(sink);
    fs_memory_free(memory);
    return 0;
}
