/* Memory of 8 MiB, after calls that prevent moving its pages. Then page-grained calls on it:
 *   unmovable MODE    prints "protect ERRNO unmap ERRNO wrong PAGES", and the errno of earlier calls of some modes
 * Then the same with newly mapped memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 8 << 20, PAGE = 4096, PAGES = BYTES / PAGE };
/* Older versions of linux/io_uring.h lack these. */
enum { REGISTER_RING = 20, ENTER_REGISTERED = 1 << 4, RING_IN_USER_MEMORY = 1 << 14, RING_WITHOUT_DESCRIPTOR = 1 << 15 };

static char *buffer;
static int ring, file;
static struct io_uring_params params;
static char *sq, *cq;
static struct io_uring_sqe *sqes;

static void check(int good, const char *what) {
    if (!good) { perror(what); exit(2); }
}

static char *map(void) {
    char *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static void mark(char *at, unsigned value) {
    for (unsigned i = 0; i < PAGES; i++) *(unsigned *)(at + i * PAGE) = value + i;
}

/* Counts the pages from `first` to `end` without their mark. */
static int wrong(const char *at, unsigned value, unsigned first, unsigned end) {
    int count = 0;
    for (unsigned i = first; i < end; i++) count += *(const unsigned *)(at + i * PAGE) != value + i;
    return count;
}

static void *shared(size_t bytes, off_t offset) {
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
    check(at != MAP_FAILED, "mmap of the ring");
    return at;
}

/* A ring with the whole buffer registered and without a descriptor, and a file to read. */
static void register_buffer(void) {
    ring = syscall(SYS_io_uring_setup, 8, &params);
    if (ring < 0) { puts("no io_uring"); exit(0); }
    sq = shared(params.sq_off.array + params.sq_entries * 4, IORING_OFF_SQ_RING);
    cq = shared(params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    sqes = shared(params.sq_entries * sizeof *sqes, IORING_OFF_SQES);
    struct iovec whole = {buffer, BYTES};
    check(!syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &whole, 1), "register buffers");
    unsigned update[4] = {-1U, 0, ring, 0}; /* struct io_uring_rsrc_update */
    check(syscall(SYS_io_uring_register, ring, REGISTER_RING, update, 1) == 1, "register the ring");
    close(ring);
    ring = update[0];
    file = memfd_create("contents", 0);
    check(ftruncate(file, BYTES) == 0, "ftruncate");
    char *contents = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    mark(contents, 900000);
    munmap(contents, BYTES);
}

/* The kernel reads the file into the pinned frames. */
static void read_into_buffer(void) {
    struct io_uring_sqe *sqe = sqes;
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = IORING_OP_READ_FIXED;
    sqe->fd = file;
    sqe->addr = (unsigned long)buffer;
    sqe->len = BYTES;
    *(unsigned *)(sq + params.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    check(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS | ENTER_REGISTERED, 0, 0) == 1, "enter");
    check(((struct io_uring_cqe *)(cq + params.cq_off.cqes))->res == BYTES, "read");
}

static void fork_and_wait(void) {
    int hold[2];
    check(!pipe(hold), "pipe");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (!child) {
        char byte;
        close(hold[1]);
        _exit(read(hold[0], &byte, 1) != 0);
    }
    close(hold[0]);
    read_into_buffer();
    close(hold[1]);
    waitpid(child, 0, 0);
}

/* A ring within the buffer itself: it has neither a descriptor nor a mapping. */
static void ring_in_buffer(void) {
    params.flags = RING_IN_USER_MEMORY | RING_WITHOUT_DESCRIPTOR;
    *(unsigned long *)((char *)&params.cq_off + 32) = (unsigned long)buffer;           /* cq_off.user_addr */
    *(unsigned long *)((char *)&params.sq_off + 32) = (unsigned long)buffer + 16 * PAGE; /* sq_off.user_addr */
    if (syscall(SYS_io_uring_setup, 8, &params) < 0) { puts("no io_uring"); exit(0); }
    mark(buffer, 900000);
}

static void open_direct(void) {
    file = open("/proc/self/exe", O_RDONLY | O_DIRECT);
    if (file < 0) { puts("no direct I/O"); exit(0); }
}

static void drop_root(void) { check(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534), "setresuid"); }
static void close_all(void) { check(!syscall(SYS_close_range, 3, ~0U, 0), "close_range"); }

/* Calls mlockall under a limit of 64 MiB or less. */
static void lock_all(void) {
    struct rlimit limit;
    check(!getrlimit(RLIMIT_MEMLOCK, &limit), "getrlimit");
    if (limit.rlim_max > 64 << 20) limit.rlim_max = 64 << 20;
    limit.rlim_cur = limit.rlim_max;
    check(!setrlimit(RLIMIT_MEMLOCK, &limit), "setrlimit");
    drop_root();
    printf("locked %d ", mlockall(MCL_CURRENT) ? errno : 0);
    munlockall();
}

/* Installs a filter that makes all but some memory calls fail with EPERM. */
static void refuse_calls(void) {
#define PASS(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        PASS(write), PASS(mmap), PASS(munmap), PASS(mremap), PASS(mprotect), PASS(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    setvbuf(stdout, 0, _IOFBF, 4096);
    printf(" ");
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

static void watch_buffer(void) {
    int watcher = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (watcher < 0 || ioctl(watcher, UFFDIO_API, &api)) { puts("no userfaultfd"); exit(0); }
    struct uffdio_register range = {{(unsigned long)buffer, BYTES}, UFFDIO_REGISTER_MODE_MISSING, 0};
    check(!ioctl(watcher, UFFDIO_REGISTER, &range), "register");
}

/* Opens, protects and unmaps parts of memory; the marks stay. */
static void use(char *at, unsigned value) {
    int protect = mprotect(at + 5 * PAGE, PAGE, PROT_READ) ? errno : 0;
    if (!protect) mprotect(at + 5 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    int unmap = munmap(at + BYTES - 600 * PAGE, 600 * PAGE) ? errno : 0;
    printf("protect %d unmap %d wrong %d\n", protect, unmap, wrong(at, value, 0, PAGES - 600));
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "";
    unsigned value = 1000;
    struct rlimit none = {0, 0};
    buffer = map();
    mark(buffer, value);
    if (!strcmp(mode, "ring")) { register_buffer(); fork_and_wait(); value = 900000; }
    if (!strcmp(mode, "inside")) { ring_in_buffer(); value = 900000; }
    if (!strcmp(mode, "direct")) open_direct();
    if (!strcmp(mode, "user")) drop_root();
    if (!strcmp(mode, "bare")) { close_all(); drop_root(); }
    if (!strcmp(mode, "full")) check(!setrlimit(RLIMIT_NOFILE, &none), "setrlimit");
    if (!strcmp(mode, "filter")) refuse_calls();
    if (!strcmp(mode, "small")) check(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "prctl");
    if (!strcmp(mode, "locked")) lock_all();
    if (!strcmp(mode, "watched")) watch_buffer();
    if (!strcmp(mode, "raw")) printf("raw %d ", syscall(SYS_munmap, buffer + 5 * PAGE, PAGE) ? errno : 0);
    use(buffer, value);
    char *fresh = map();
    mark(fresh, 5000);
    use(fresh, 5000);
    return 0;
}
