/* Memory errors, one a function; the first argument selects one. The number of a weakness (CWE) is at each. A
 * line that the report must name ends in a comment: "NAME error", "NAME allocated", "NAME freed". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEVER __attribute__((noinline, noipa))
static volatile char sink;
static volatile size_t zero;
static void *volatile held;
static NEVER void *hide(void *p) { held = p; return held; }

/* 122: heap overflow */
static NEVER void past_end(void) {
    char *p = hide(malloc(32)); /* past_end allocated */
    for (size_t i = 0; i <= 32 + zero; i++)
        p[i] = 'x'; /* past_end error */
    free(p);
}
static NEVER void copy_too_much(void) {
    char source[200];
    memset(source, 'a', sizeof source);
    char *p = hide(malloc(64)); /* copy_too_much allocated */
    memcpy(p, source, 128 + zero); /* copy_too_much error */
    free(hide(p));
}
static NEVER void copy_text(void) {
    char *p = hide(malloc(16)); /* copy_text allocated */
    strcpy(p, (char *)hide("a text that is longer than sixteen")); /* copy_text error */
    free(p);
}
/* 193: off by one, into the padding behind the object: found at its free */
static NEVER void off_by_one(void) {
    char *p = hide(malloc(21)); /* off_by_one allocated */
    p[21 + zero] = 0;
    free(p); /* off_by_one error */
}
/* 124: before the start */
static NEVER void before_start(void) {
    int *p = hide(calloc(4, sizeof *p)); /* before_start allocated */
    p[-1 - (long)zero] = 7; /* before_start error */
    free(p);
}
/* 127: read before the start */
static NEVER void read_before(void) {
    char *p = hide(malloc(48)); /* read_before allocated */
    memset(p, 'y', 48);
    char *at = p + 47;
    while (*at != 'x') at--; /* read_before error */
    free(p);
}
/* 125, 126: read past the end */
static NEVER void read_past(void) {
    long *p = hide(calloc(10, sizeof *p)); /* read_past allocated */
    long sum = 0;
    for (size_t i = 0; i < 11 + zero; i++)
        sum += p[i]; /* read_past error */
    sink = (char)sum;
    free(p);
}
static NEVER void unterminated(void) {
    char *p = hide(malloc(32)); /* unterminated allocated */
    memset(p, 'z', 32);
    sink = (char)strlen(p); /* unterminated error */
    free(p);
}
/* 131: the size wraps */
static NEVER void wrapped_size(void) {
    unsigned count = 0x40000001u + (unsigned)zero;
    int *p = hide(malloc(count * sizeof *p & 0xffffffffu)); /* wrapped_size allocated */
    for (unsigned i = 0; i < 100; i++)
        p[i] = (int)i; /* wrapped_size error */
    free(p);
}
/* 416: use after free */
static NEVER void after_free(void) {
    char *p = hide(malloc(100)); /* after_free allocated */
    memset(p, 1, 100);
    free(p); /* after_free freed */
    sink = ((char *)held)[40]; /* after_free error */
}
static NEVER void write_after_free(void) {
    long *p = hide(malloc(sizeof *p)); /* write_after_free allocated */
    free(p); /* write_after_free freed */
    *(long *)held = 5; /* write_after_free error */
}
struct list { struct list *next; int value; };
static NEVER void freed_list(void) {
    struct list *first = 0;
    for (int i = 0; i < 5; i++) {
        struct list *node = malloc(sizeof *node); /* freed_list allocated */
        *node = (struct list){first, i};
        first = node;
    }
    for (struct list *node = hide(first); node; node = node->next) /* freed_list error */
        free(node); /* freed_list freed */
}
/* the pointer from before a realloc */
static NEVER void old_pointer(void) {
    char *p = hide(malloc(24)); /* old_pointer allocated */
    char *q = realloc(p, 4000); /* old_pointer freed */
    ((char *)held)[3] = 1; /* old_pointer error */
    free(q);
}
/* a callback whose data is gone */
struct timer { void (*call)(struct timer *); int count; };
static struct timer *volatile registered;
static NEVER void tick(struct timer *timer) { timer->count++; }
static NEVER void late_callback(void) {
    struct timer *timer = malloc(sizeof *timer); /* late_callback allocated */
    *timer = (struct timer){tick, 0};
    registered = timer;
    free(timer); /* late_callback freed */
    registered->call(registered); /* late_callback error */
}
/* 415: double free */
static NEVER void double_free(void) {
    char *p = hide(malloc(40)); /* double_free allocated */
    free(p); /* double_free freed */
    free(held); /* double_free error */
}
static NEVER void freed_by_realloc(void) {
    char *p = hide(malloc(40)); /* freed_by_realloc allocated */
    char *q = realloc(p, 80); /* freed_by_realloc freed */
    free(held); /* freed_by_realloc error */
    free(q);
}
static NEVER void realloc_of_freed(void) {
    char *p = hide(malloc(40)); /* realloc_of_freed allocated */
    free(p); /* realloc_of_freed freed */
    held = realloc(held, 80); /* realloc_of_freed error */
}
/* 761: free of a pointer that has moved */
static NEVER void moved_pointer(void) {
    char *p = hide(strdup("  text"));
    while (*p == ' ') p++;
    free(p); /* moved_pointer error */
}
/* 590: free of memory that is not on the heap */
static NEVER void stack_free(void) {
    char text[64];
    free(hide(text)); /* stack_free error */
}
static char global[64];
static NEVER void global_free(void) {
    free(hide(global)); /* global_free error */
}
/* in a thread */
static NEVER void *worker(void *argument) {
    char *p = argument;
    p[64] = 1; /* in_thread error */
    return 0;
}
static NEVER void in_thread(void) {
    pthread_t thread;
    char *p = hide(malloc(64)); /* in_thread allocated */
    pthread_create(&thread, 0, worker, p);
    pthread_join(thread, 0);
}
/* in a handler of a signal, on the normal stack and on another one */
static NEVER void handler(int signal) {
    (void)signal;
    ((char *)held)[128] = 1; /* in_handler error */
}
static NEVER void in_handler(void) {
    hide(malloc(128)); /* in_handler allocated */
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
}
static NEVER void handler_on_stack(int signal) {
    (void)signal;
    ((char *)held)[128] = 1; /* on_signal_stack error */
}
static NEVER void on_signal_stack(void) {
    stack_t stack = {.ss_sp = malloc(SIGSTKSZ), .ss_size = SIGSTKSZ};
    struct sigaction action = {.sa_handler = handler_on_stack, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, 0);
    hide(malloc(128)); /* on_signal_stack allocated */
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
}
/* in the child of a fork, with an object of the parent */
static NEVER void in_child(void) {
    char *p = hide(malloc(32)); /* in_child allocated */
    pid_t child = fork();
    if (child == 0) {
        p[32 + zero] = 1; /* in_child error */
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : 0);
}
/* in a function that runs at the end of the program */
static NEVER void at_end(void) {
    sink = ((char *)held)[64]; /* at_exit error */
}
static NEVER void at_exit(void) {
    hide(malloc(64)); /* at_exit allocated */
    atexit(at_end);
}
/* system calls */
static NEVER int filled_pipe(size_t bytes) {
    int ends[2];
    char text[8192];
    memset(text, 't', sizeof text);
    if (pipe(ends) || write(ends[1], text, bytes) != (ssize_t)bytes) _exit(99);
    return ends[0];
}
static NEVER void read_call(void) {
    char *p = hide(malloc(64)); /* read_call allocated */
    sink = (char)read(filled_pipe(100), p, 4096); /* read_call error */
}
static NEVER void write_call(void) {
    char *p = hide(malloc(64)); /* write_call allocated */
    memset(p, 'w', 64);
    sink = (char)write(open("/dev/null", O_WRONLY), p, 96); /* write_call error */
}
static NEVER void write_freed(void) {
    char *p = hide(malloc(64)); /* write_freed allocated */
    free(p); /* write_freed freed */
    sink = (char)write(open("/dev/null", O_WRONLY), held, 64); /* write_freed error */
}
static NEVER void recv_call(void) {
    int ends[2];
    char text[100] = {1}, *p = hide(malloc(32)); /* recv_call allocated */
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) || send(ends[1], text, 100, 0) != 100) _exit(99);
    sink = (char)recv(ends[0], p, 100, 0); /* recv_call error */
}
static NEVER void readv_call(void) {
    char *p = hide(malloc(64)), *q = malloc(16); /* readv_call allocated */
    struct iovec parts[2] = {{p, 64}, {q, 32}};
    sink = (char)readv(filled_pipe(96), parts, 2); /* readv_call error */
}

static const struct { const char *name; void (*run)(void); } bugs[] = {
#define BUG(name) {#name, name}
    BUG(past_end), BUG(copy_too_much), BUG(copy_text), BUG(off_by_one), BUG(before_start), BUG(read_before),
    BUG(read_past), BUG(unterminated), BUG(wrapped_size), BUG(after_free), BUG(write_after_free), BUG(freed_list),
    BUG(old_pointer), BUG(late_callback), BUG(double_free), BUG(freed_by_realloc), BUG(realloc_of_freed),
    BUG(moved_pointer), BUG(stack_free), BUG(global_free), BUG(in_thread), BUG(in_handler), BUG(on_signal_stack),
    BUG(in_child), BUG(at_exit), BUG(read_call), BUG(write_call), BUG(write_freed), BUG(recv_call), BUG(readv_call),
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof bugs / sizeof *bugs; i++)
        if (!strcmp(argv[1], bugs[i].name)) {
            bugs[i].run();
            return 0;
        }
    return 98;
}
