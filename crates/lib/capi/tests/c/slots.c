/* Guarded objects: allocation, faults, explanations, wrong frees, refusals. */
#include "check.h"
#include <fieldstone/guard.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static fs_slots *slots;

/* Explains the fault, and ends with the kind. */
static void on_fault(int signal_number, siginfo_t *information, void *context)
{
    (void)signal_number;
    (void)context;
    fs_finding finding;
    _exit(fs_slots_explain(slots, information->si_addr, &finding) == FS_OK ? (int)finding.kind : 100);
}

/* The kind of the fault of a write to an address, in a child. */
static int kind_of_write(volatile char *address)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
        sigaction(SIGSEGV, &action, NULL);
        *address = 1;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void refusals(void)
{
    fs_slots *other = slots;
    fs_slots_options options = {.side = 3};
    CHECK(fs_slots_open(&options, &other) == FS_ERROR_ARGUMENT && other == NULL);
    options = (fs_slots_options){.memory = 1};
    CHECK(fs_slots_open(&options, &other) == FS_ERROR_ARGUMENT && errno == EINVAL);
    CHECK(fs_slots_alloc(slots, 8, 3) == NULL && errno == EINVAL);
    CHECK(fs_slots_alloc(NULL, 8, 8) == NULL && errno == EINVAL);
    CHECK(fs_slots_alloc(slots, SIZE_MAX - 5, 0) == NULL && errno == ENOMEM);
    CHECK(fs_slots_alloc(slots, (size_t)1 << 40, 8) == NULL && errno == ENOMEM);
    CHECK(strstr(fs_error_message(), "cannot allocate"));
    CHECK(fs_slots_explain(slots, &options, NULL) == FS_ERROR_NOT_EXPLAINED && errno == ENOENT);
    CHECK(!fs_slots_owns(slots, &options) && !fs_slots_owns(NULL, NULL));
    CHECK(fs_slots_free_object(slots, NULL) == FS_OK);
    fs_slots_free(NULL);
}

int main(void)
{
    CHECK(fs_slots_open(NULL, &slots) == FS_OK);
    fs_slots_free(slots);
    fs_slots_options options = {.memory = 16 << 20, .side = FS_SIDE_RIGHT};
    CHECK(fs_slots_open(&options, &slots) == FS_OK);

    char *object = fs_slots_alloc(slots, 32, 0);
    CHECK(object && (uintptr_t)object % 16 == 0 && object[31] == 0 && fs_slots_owns(slots, object));
    memset(object, 1, 32);
    CHECK(kind_of_write(object + 31) == 0);
    CHECK(kind_of_write(object + 32) == FS_HEAP_BUFFER_OVERFLOW);
    CHECK(kind_of_write(object - PAGE) == FS_HEAP_BUFFER_UNDERFLOW);
    fs_finding finding;
    CHECK(fs_slots_explain(slots, object + 40, &finding) == FS_OK);
    CHECK(finding.object == object && finding.object_bytes == 32 && finding.offset == 8);
    CHECK(finding.address == object + 40 && finding.allocated_thread != 0 && finding.freed_thread == 0);

    CHECK(fs_slots_free_object(slots, object + 1) == FS_ERROR_FINDING && errno == EFAULT);
    CHECK(strstr(fs_error_message(), "invalid-free: 1 byte inside an object of 32 bytes"));
    CHECK(fs_slots_free_object(slots, object) == FS_OK);
    CHECK(kind_of_write(object) == FS_USE_AFTER_FREE);
    CHECK(fs_slots_free_object(slots, object) == FS_ERROR_FINDING);
    CHECK(strstr(fs_error_message(), "double-free"));
    CHECK(strcmp(fs_finding_name(FS_USE_AFTER_FREE), "use-after-free") == 0);
    CHECK(strcmp(fs_finding_name(77), "unknown") == 0);

    char *padded = fs_slots_alloc(slots, 20, 16);
    padded[20] = 0;
    CHECK(fs_slots_free_object(slots, padded) == FS_ERROR_FINDING);
    CHECK(strstr(fs_error_message(), "heap-buffer-overflow: 0 bytes after"));
    refusals();
    fs_slots_free(slots);
    return 0;
}
