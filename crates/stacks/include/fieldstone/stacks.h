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

/* Bytes that the segments hold in which the calling thread's stack lies. */
size_t fieldstone_stack_held(void);

/* How often this process took a segment, or grew one. */
uint64_t fieldstone_stack_allocations(void);

/* Gives back the segments that the calling thread's stack has been in and is not now. At a thread's end that happens by itself. */
void fieldstone_stack_trim(void);

/* The interface of gcc's run-time library for stacks of one's own; a context is ten words. */
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
