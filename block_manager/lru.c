/* In: blocks that become or stop being idle. Out: the oldest of them.
 * The ring has at least 1.5 slots a block. When five sixths of it are used, a sweep starts that
 * moves entries towards the head past the holes, eight slots a push, and ends before the ring can
 * fill: used <= 5/6 + (5/6)/7 of the capacity at its end, and at most 2/3 of the slots are live. */
#include "block_manager/lru.h"

#include "block_manager/state.h"

enum { SWEEP_SLOTS = 8 };

uint64_t lkvi_lru_num_slots(uint32_t num_blocks)
{
    uint64_t slots = 64;
    while (slots < (uint64_t)num_blocks + num_blocks / 2 + 16)
        slots *= 2;
    return slots;
}

void lkvi_lru_open(struct lkvi_lru *lru, uint32_t *slots, uint32_t num_blocks)
{
    lru->slots = slots;
    lru->mask = (uint32_t)(lkvi_lru_num_slots(num_blocks) - 1);
    lru->head = lru->tail = (uint64_t)1 << 62; /* far from 0: the oldest end grows downwards */
}

static void put(struct lkvi_lru *lru, struct lkvi_cold *cold, uint64_t position, uint32_t b)
{
    uint32_t slot = (uint32_t)position & lru->mask;
    lru->slots[slot] = b;
    cold[b].place = slot;
}

static void sweep(struct lkvi_lru *lru, struct lkvi_cold *cold, uint64_t num_slots)
{
    if (lru->to < lru->head)
        lru->to = lru->head;
    if (lru->from < lru->to)
        lru->from = lru->to;
    for (; num_slots && lru->from < lru->tail; num_slots--, lru->from++) {
        uint32_t b = lru->slots[lru->from & lru->mask];
        if (!b)
            continue;
        lru->slots[lru->from & lru->mask] = 0;
        put(lru, cold, lru->to++, b);
    }
    if (lru->from < lru->tail)
        return;
    lru->tail = lru->to;
    lru->from = 0;
}

/* Room for one more slot at either end. */
static void make_room(struct lkvi_lru *lru, struct lkvi_cold *cold)
{
    uint64_t capacity = (uint64_t)lru->mask + 1, used = lru->tail - lru->head;
    if (!lru->from && used < capacity / 6 * 5)
        return;
    if (!lru->from)
        lru->from = lru->to = lru->head;
    sweep(lru, cold, used + 2 < capacity ? SWEEP_SLOTS : capacity);
}

void lkvi_lru_push(struct lkvi_lru *lru, struct lkvi_cold *cold, uint32_t b)
{
    make_room(lru, cold);
    put(lru, cold, lru->tail++, b);
    lru->live++;
}

void lkvi_lru_push_oldest(struct lkvi_lru *lru, struct lkvi_cold *cold, uint32_t b)
{
    make_room(lru, cold);
    put(lru, cold, --lru->head, b);
    lru->live++;
}

void lkvi_lru_remove(struct lkvi_lru *lru, struct lkvi_cold *cold, uint32_t b)
{
    lru->slots[cold[b].place] = 0;
    if (--lru->live)
        return;
    lru->head = lru->tail;
    lru->from = 0;
}

uint32_t lkvi_lru_pop(struct lkvi_lru *lru)
{
    while (lru->head < lru->tail) {
        uint32_t slot = (uint32_t)lru->head++ & lru->mask, b = lru->slots[slot];
        lru->slots[slot] = 0;
        if (!b)
            continue;
        lru->live--;
        return b;
    }
    lru->from = 0;
    return 0;
}
