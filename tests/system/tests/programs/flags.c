/* Reads its flags repeatedly, over enough accesses for bursts, and checks that the alignment-check flag stays clear. */
static volatile char table[1 << 24];

int main(void) {
    unsigned at = 1;
    for (long i = 0; i < 20000000; i++) {
        at = at * 1664525 + 1013904223;
        table[at >> 8 & ((1 << 24) - 1)]++;
        if (i % 1000 == 0) {
            unsigned long flags;
            __asm__ volatile("pushfq; pop %0" : "=r"(flags));
            if (flags >> 18 & 1) return 5;
        }
    }
    return 0;
}
