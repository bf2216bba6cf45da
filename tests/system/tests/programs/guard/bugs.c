/* Memory errors, one a function; the first argument selects one. Without arguments, all are listed: the name, the
 * number of the weakness (CWE), and where the error is. A line that the report must name ends in a comment: "NAME
 * error", "NAME allocated", "NAME freed". The second argument is how often the error is repeated, and the third how
 * many other allocations are made meanwhile. */
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
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "others.h"

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

/* buffers of the C library */
static NEVER FILE *filled_file(size_t bytes) {
    FILE *file = tmpfile();
    char text[8192];
    memset(text, 't', sizeof text);
    if (!file || fwrite(text, 1, bytes, file) != bytes) _exit(99);
    rewind(file);
    return file;
}
static NEVER void fread_call(void) {
    char *p = hide(malloc(64)); /* fread_call allocated */
    sink = (char)fread(p, 1, 8192, filled_file(8192)); /* fread_call error */
}
static NEVER void fwrite_call(void) {
    char *p = hide(malloc(64)); /* fwrite_call allocated */
    memset(p, 'w', 64);
    sink = (char)fwrite(p, 16, 600, fopen("/dev/null", "w")); /* fwrite_call error */
}
static NEVER void readlink_call(void) {
    char *p = hide(malloc(16)); /* readlink_call allocated */
    sink = (char)readlink("/proc/self/exe", p, 100); /* readlink_call error */
}
static NEVER void getrandom_call(void) {
    char *p = hide(malloc(16)); /* getrandom_call allocated */
    sink = (char)getrandom(p, 48, 0); /* getrandom_call error */
}
static NEVER void preadv_call(void) {
    char *p = hide(malloc(16)); /* preadv_call allocated */
    struct iovec part = {p, 96};
    sink = (char)preadv(fileno(filled_file(96)), &part, 1, 0); /* preadv_call error */
}
/* the same in a program built with -D_FORTIFY_SOURCE, whose compiler knows a wrong size of the buffer */
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);
static NEVER void read_chk(void) {
    char *p = hide(malloc(64)); /* read_chk allocated */
    sink = (char)__read_chk(filled_pipe(100), p, 4096, 4096); /* read_chk error */
}
static NEVER void recvfrom_chk(void) {
    int ends[2];
    socklen_t length = sizeof(struct sockaddr_storage);
    struct sockaddr_storage from;
    char text[100] = {1}, *p = hide(malloc(32)); /* recvfrom_chk allocated */
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) || send(ends[1], text, 100, 0) != 100) _exit(99);
    sink = (char)__recvfrom_chk(ends[0], p, 100, 4096, 0, (struct sockaddr *)&from, &length); /* recvfrom_chk error */
}
static NEVER void fread_chk(void) {
    char *p = hide(malloc(64)); /* fread_chk allocated */
    sink = (char)__fread_chk(p, 1 << 20, 1, 8192, filled_file(8192)); /* fread_chk error */
}
/* 123: an overflow changes a pointer, by which the program writes */
struct named { char name[24]; int *count; };
static NEVER void write_what_where(void) {
    static int count;
    struct named *all = hide(malloc(sizeof *all)); /* write_what_where allocated */
    all->count = &count;
    memset((char *)all + sizeof *all, 'p', 8 + zero); /* write_what_where error */
    ++*all->count;
}
/* 134 with 122: a text that is longer than expected */
static NEVER void format_text(void) {
    char *p = hide(malloc(8)); /* format_text allocated */
    sprintf(p, "%s-%d", (char *)hide("identifier"), 12345); /* format_text error */
}
/* 805: the length of another object */
static NEVER void wrong_length(void) {
    char *small = malloc(48); /* wrong_length allocated */
    char *large = malloc(480);
    memset(hide(small), 0, malloc_usable_size(hide(large))); /* wrong_length error */
}
/* 825: a pointer into an array that has moved */
static NEVER void moved_array(void) {
    long *all = malloc(8 * sizeof *all); /* moved_array allocated */
    long *last = hide(all + 7);
    all = realloc(all, 100000 * sizeof *all); /* moved_array freed */
    *last = (long)all; /* moved_array error */
}
/* Errors that are not found. 121: on the stack */
static NEVER void on_the_stack(void) {
    char text[16];
    memset(hide(text), 0, 17 + zero);
}
/* 122: from a member into the next one */
static NEVER void inside_object(void) {
    struct named *all = hide(calloc(1, sizeof *all));
    memset(all->name, 'n', 25 + zero);
}
/* 126: a read of the padding behind an object */
static NEVER void read_padding(void) {
    char *p = hide(calloc(21, 1));
    sink = p[21 + zero];
}

static const struct { const char *name; int weakness; const char *where; void (*run)(void); } bugs[] = {
#define BUG(name, weakness) {#name, weakness, "heap", name}
    BUG(past_end, 122), BUG(copy_too_much, 122), BUG(copy_text, 122), BUG(off_by_one, 193), BUG(before_start, 124),
    BUG(read_before, 127), BUG(read_past, 125), BUG(unterminated, 126), BUG(wrapped_size, 131), BUG(after_free, 416),
    BUG(write_after_free, 416), BUG(freed_list, 416), BUG(old_pointer, 416), BUG(late_callback, 416),
    BUG(double_free, 415), BUG(freed_by_realloc, 415), BUG(realloc_of_freed, 415), BUG(moved_pointer, 761),
    BUG(stack_free, 590), BUG(global_free, 590), BUG(in_thread, 122), BUG(in_handler, 122), BUG(on_signal_stack, 122),
    BUG(in_child, 122), BUG(at_exit, 126), BUG(read_call, 122), BUG(write_call, 126), BUG(write_freed, 416),
    BUG(recv_call, 122), BUG(readv_call, 122), BUG(fread_call, 122), BUG(fwrite_call, 126), BUG(readlink_call, 122),
    BUG(getrandom_call, 122), BUG(preadv_call, 122), BUG(read_chk, 122), BUG(recvfrom_chk, 122), BUG(fread_chk, 122),
    BUG(write_what_where, 123), BUG(format_text, 122), BUG(wrong_length, 805), BUG(moved_array, 825),
    {"read_padding", 126, "padding", read_padding},
    {"inside_object", 122, "member", inside_object},
    {"on_the_stack", 121, "stack", on_the_stack},
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        if (argc < 2) {
            printf("%s %d %s\n", bugs[i].name, bugs[i].weakness, bugs[i].where);
        } else if (!strcmp(argv[1], bugs[i].name)) {
            int times = argc > 2 ? atoi(argv[2]) : 1;
            for (int done = 0; done < times; done++) {
                allocate_others(argc > 3 ? atol(argv[3]) / times : 0);
                bugs[i].run();
            }
            return 0;
        }
    }
    return argc < 2 ? 0 : 98;
}
