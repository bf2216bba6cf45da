/* Null and unknown arguments return codes with messages in each function, without a crash. */
#include "check.h"
#include <pthread.h>

static enum fs_outcome never(const fs_fault *fault, void *user)
{
    (void)fault, (void)user;
    return FS_CHAIN;
}

static void *message_of_a_new_thread(void *length)
{
    *(size_t *)length = strlen(fs_error_message());
    return NULL;
}

#define REFUSED(call) CHECK((errno = 0, (call)) == FS_ERROR_ARGUMENT && errno == EINVAL && strlen(fs_error_message()) > 10)

int main(void)
{
    CHECK(strcmp(fs_version(), FS_VERSION) == 0 && strlen(fs_error_message()) == 0);
    for (int code = FS_ERROR_TOO_OLD; code <= FS_OK; code++)
        CHECK(strlen(fs_error_name(code)) > 5 && strcmp(fs_error_name(code), fs_error_name(1)) != 0);
    for (int mechanism = FS_USERFAULT_THREAD; mechanism <= FS_SCAN; mechanism++)
        CHECK(strcmp(fs_mechanism_name((enum fs_mechanism)mechanism), fs_mechanism_name((enum fs_mechanism)9)) != 0);
    CHECK(strstr(fs_loss_text(FS_LOSS_KERNEL_ACCESSES), "EFAULT") && strstr(fs_loss_text(FS_LOSS_MAPPINGS), "max_map_count"));
    CHECK(strstr(fs_loss_text(FS_LOSS_BLOCKED_SIGNALS), "SIGBUS") && strstr(fs_loss_text(FS_LOSS_PINNED_PAGES), "io_uring"));
    CHECK(strstr(fs_loss_text(FS_LOSS_SHARED_MEMORY), "fs_tracking_mark") && strcmp(fs_loss_text((enum fs_loss)32), "unknown") == 0);

    fs_memory *memory = pages_of(fs_memory_anonymous);
    fs_trapping *trapping;
    fs_tracking *tracking;
    fs_filling *filling;
    REFUSED(fs_memory_anonymous(1, NULL));
    REFUSED(fs_memory_populate(NULL));
    REFUSED(fs_memory_alias(NULL, NULL));
    REFUSED(fs_memory_guard_with(memory, 0, PAGE, (enum fs_guard)7));
    REFUSED(fs_trapping_new(NULL, FS_WATCH_WRITES, never, NULL, &trapping));
    REFUSED(fs_trapping_new(memory, FS_WATCH_WRITES, NULL, NULL, &trapping));
    REFUSED(fs_trapping_new(memory, (enum fs_watch)2, never, NULL, &trapping));
    REFUSED(fs_trapping_new(memory, FS_WATCH_WRITES, never, NULL, NULL));
    REFUSED(fs_trapping_with(memory, FS_WATCH_WRITES, (enum fs_mechanism)0, never, NULL, &trapping));
    REFUSED(fs_trapping_protect(NULL, 0, PAGE));
    REFUSED(fs_tracking_new(NULL, &tracking));
    REFUSED(fs_tracking_with(memory, (enum fs_mechanism)6, &tracking));
    REFUSED(fs_tracking_mark(NULL, 0, PAGE));
    REFUSED(fs_filling_new(memory, NULL, NULL, &filling));
    REFUSED(fs_filling_evict(NULL, 0, PAGE));
    CHECK(fs_fault_unprotect(NULL) == FS_ERROR_ARGUMENT && fs_fault_address(NULL) == NULL && fs_fault_page(NULL).bytes == 0);
    CHECK(fs_memory_start(NULL) == NULL && fs_memory_bytes(NULL) == 0 && fs_trapping_memory(NULL) == NULL);
    CHECK(fs_trapping_mechanism(NULL) == 0 && fs_tracking_losses(NULL) == 0);
    fs_memory_free(NULL);
    fs_alias_free(NULL);
    fs_trapping_free(NULL);
    fs_tracking_free(NULL);
    fs_filling_free(NULL);
    /* The memory is unchanged after the refusals. */
    *(char *)fs_memory_start(memory) = 1;
    fs_memory_free(memory);

    pthread_t thread;
    size_t length = 99;
    CHECK(pthread_create(&thread, NULL, message_of_a_new_thread, &length) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(length == 0 && strlen(fs_error_message()) > 10);
    return 0;
}
