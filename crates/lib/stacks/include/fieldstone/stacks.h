/* The C interface of stacks made of blocks, for programs compiled by fieldstone-cc.
 *
 * Stacks grow without any of these calls. Link with fieldstone-cc or fieldstone-c++.
 */
#ifndef FIELDSTONE_STACKS_H
#define FIELDSTONE_STACKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the calling thread's stack limit in bytes. By default a quarter of the machine's memory, or the
 * environment variable FIELDSTONE_STACK_LIMIT (bytes, or with K, M, G). At the limit the process prints a
 * message and aborts. */
size_t fieldstone_stack_limit(void);

/* Sets the calling thread's stack limit; 0 restores the default. */
void fieldstone_stack_set_limit(size_t bytes);

/* Returns the bytes of address space held by the segments of the calling thread's stack. It includes 108 KiB
 * of the system's stack (or FIELDSTONE_STACK_FIRST and 44 KiB). It does not include segments kept for reuse,
 * and does not count resident pages. */
size_t fieldstone_stack_held(void);

/* Returns the number of times that this process allocated a segment or a coroutine's stack, or extended one. */
uint64_t fieldstone_stack_allocations(void);

/* Frees the segments that the calling thread's stack does not use now. Also happens when the thread ends. */
void fieldstone_stack_trim(void);

/* Separate stacks, for example for swapcontext(3): the interface of gcc's run-time library. A context is ten words.
 *
 *     ucontext_t machine, home;  void *stack[10], *home_stack[10];
 *     getcontext(&machine);
 *     machine.uc_stack.ss_sp = __splitstack_makecontext(1024, stack, &machine.uc_stack.ss_size);
 *     makecontext(&machine, function, 0);
 *     __splitstack_getcontext(home_stack);   // enter: save the old stack, set the new one, then switch
 *     __splitstack_setcontext(stack);
 *     swapcontext(&home, &machine);          // leave: the same with the two exchanged
 *     __splitstack_releasecontext(stack);    // when nothing on it is used any more
 *
 * A stack has space for `bytes` at first and grows when needed. It counts against the limit of the thread that
 * runs on it. Without memory the process prints a message and aborts. No pointer may be null, except
 * "new_value" and "old_value". */
void *__splitstack_makecontext(size_t bytes, void *context[10], size_t *size);
void __splitstack_getcontext(void *context[10]);
void __splitstack_setcontext(void *context[10]);
void *__splitstack_resetcontext(void *context[10], size_t *size);
void __splitstack_releasecontext(void *context[10]);
void __splitstack_block_signals(int *new_value, int *old_value);
void __splitstack_block_signals_context(void *context[10], int *new_value, int *old_value);
void *__splitstack_find(void *segment, void *sp, size_t *length, void **next_segment, void **next_sp, void **initial_sp);
void *__splitstack_find_context(void *context[10], size_t *length, void **next_segment, void **next_sp, void **initial_sp);

#ifdef __cplusplus
}
#endif

#endif
