/* Stacks made of blocks: what a program compiled by fieldstone-cc can ask and set.
 *
 * Nothing here is needed for stacks to grow. Link by fieldstone-cc or fieldstone-c++.
 */
#ifndef FIELDSTONE_STACKS_H
#define FIELDSTONE_STACKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The calling thread's limit in bytes, for all of its stack. By default a quarter of the machine's memory, or the environment
 * variable FIELDSTONE_STACK_LIMIT (bytes, or with K, M, G). At the limit the process says so and aborts. */
size_t fieldstone_stack_limit(void);

/* Sets it; 0 is the default again. */
void fieldstone_stack_set_limit(size_t bytes);

/* Bytes of addresses that the segments take in which the calling thread's stack lies now, what the system gave it among them (108 KiB
 * of that are used, or FIELDSTONE_STACK_FIRST and 44 KiB); not the segments that it has been in and keeps, nor how many of the pages are resident. */
size_t fieldstone_stack_held(void);

/* How often this process took a segment or a coroutine's stack, or grew one. */
uint64_t fieldstone_stack_allocations(void);

/* Gives back the segments that the calling thread's stack has been in and is not now. At a thread's end that happens by itself. */
void fieldstone_stack_trim(void);

/* The interface of gcc's run-time library for stacks of one's own, for example with swapcontext(3); a context is ten words.
 *
 *     ucontext_t machine, home;  void *stack[10], *home_stack[10];
 *     getcontext(&machine);
 *     machine.uc_stack.ss_sp = __splitstack_makecontext(1024, stack, &machine.uc_stack.ss_size);
 *     makecontext(&machine, function, 0);
 *     __splitstack_getcontext(home_stack);   // to it: the stack that is left is put away, the other one set, then switched
 *     __splitstack_setcontext(stack);
 *     swapcontext(&home, &machine);          // from it: the same with the two exchanged
 *     __splitstack_releasecontext(stack);    // when nothing on it is used any more
 *
 * A stack begins with room for `bytes` at once and grows beyond by itself; it counts against the limit of the thread that it runs on.
 * Without memory the process says so and aborts. No pointer may be null but where a word is "new_value" or "old_value". */
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
