/* In: requests for slots and the end of their use. Out: places in borrowed blocks.
 *
 *   free --take--> filling --commit--> ready, in a class --victim--> free
 *                     |                   |   ^
 *                     give up --> free    pin, last unpin
 *
 * A slab that is empty goes back at once, so what nobody uses is idle cache again. The budget is a
 * number of blocks, looked at before one is borrowed. */
#include "moe_cache/slots_state.h"

uint32_t lkvi_slot_slab(const struct lkvi_slots *s, uint32_t slot)
{
    return (slot - 1) / s->per_block + 1;
}

/* ---- slabs */

static void join_partial(struct lkvi_slots *s, uint32_t b)
{
    struct lkvi_slab *slab = &s->slabs[b];
    slab->previous = 0;
    slab->next = s->partial;
    if (s->partial)
        s->slabs[s->partial].previous = b;
    s->partial = b;
}

static void leave_partial(struct lkvi_slots *s, uint32_t b)
{
    struct lkvi_slab *slab = &s->slabs[b];
    if (slab->previous)
        s->slabs[slab->previous].next = slab->next;
    else
        s->partial = slab->next;
    if (slab->next)
        s->slabs[slab->next].previous = slab->previous;
}

/* Another headroom block, cut into slots; 0: the budget or the headroom is used up. */
static int borrow(struct lkvi_slots *s)
{
    if (s->held >= s->config.max_blocks || !s->free_slab)
        return 0;
    uint32_t block = lkvi_side_lend(s->m, &s->side);
    if (!block)
        return 0;
    uint32_t b = s->free_slab;
    struct lkvi_slab *slab = &s->slabs[b];
    s->free_slab = slab->next;
    s->held++;
    slab->block = block;
    slab->used = 0;
    slab->free = 0;
    for (uint32_t i = s->per_block; i; i--) {
        uint32_t slot = (b - 1) * s->per_block + i;
        s->slots[slot].next = slab->free;
        slab->free = slot;
    }
    join_partial(s, b);
    return 1;
}

static void give_back(struct lkvi_slots *s, uint32_t b)
{
    struct lkvi_slab *slab = &s->slabs[b];
    uint32_t block = slab->block;
    leave_partial(s, b);
    slab->block = 0;
    slab->next = s->free_slab;
    s->free_slab = b;
    s->held--;
    lkvi_side_return(s->m, &s->side, block);
}

/* keep: a slot is about to be taken, so an empty slab stays. */
static void free_slot(struct lkvi_slots *s, uint32_t i, int keep)
{
    struct lkvi_slot *slot = &s->slots[i];
    uint32_t b = lkvi_slot_slab(s, i);
    struct lkvi_slab *slab = &s->slabs[b];
    if (!slab->free)
        join_partial(s, b);
    slot->state = LKVI_SLOT_FREE;
    slot->generation++;
    slot->next = slab->free;
    slab->free = i;
    if (!--slab->used && !keep)
        give_back(s, b);
}

/* ---- classes */

static uint32_t class_of(const struct lkvi_slots *s, const struct lkvi_slot *slot)
{
    if (s->config.policy == LKV_SLOTS_LFU)
        return slot->uses < LKVI_LFU_CLASSES ? slot->uses : LKVI_LFU_CLASSES - 1;
    return s->config.policy == LKV_SLOTS_LEAST_STALE ? slot->layer : 0;
}

static void join_class(struct lkvi_slots *s, uint32_t i)
{
    struct lkvi_slot *slot = &s->slots[i];
    struct lkvi_class *class = &s->classes[class_of(s, slot)];
    slot->next = 0;
    slot->previous = class->newest;
    if (class->newest)
        s->slots[class->newest].next = i;
    else
        class->oldest = i;
    class->newest = i;
    slot->listed = 1;
}

void lkvi_slot_leave_class(struct lkvi_slots *s, uint32_t i)
{
    struct lkvi_slot *slot = &s->slots[i];
    struct lkvi_class *class = &s->classes[class_of(s, slot)];
    if (!slot->listed)
        return;
    if (slot->previous)
        s->slots[slot->previous].next = slot->next;
    else
        class->oldest = slot->next;
    if (slot->next)
        s->slots[slot->next].previous = slot->previous;
    else
        class->newest = slot->previous;
    slot->listed = 0;
}

/* The layer that comes round latest is the one just passed. */
static uint32_t stalest(const struct lkvi_slots *s, int stale_only)
{
    uint32_t n = s->num_classes;
    for (uint32_t back = 1; back <= n; back++) {
        uint32_t i = s->classes[(s->now_layer + n - back) % n].oldest;
        if (i && (!stale_only || s->slots[i].step < s->now_step))
            return i;
    }
    return 0;
}

static uint32_t victim(const struct lkvi_slots *s)
{
    if (s->config.policy == LKV_SLOTS_LEAST_STALE) {
        uint32_t i = stalest(s, 1);
        return i ? i : stalest(s, 0);
    }
    for (uint32_t c = 0; c < s->num_classes; c++)
        if (s->classes[c].oldest)
            return s->classes[c].oldest;
    return 0;
}

static int evict(struct lkvi_slots *s)
{
    uint32_t i = victim(s);
    if (!i)
        return 0;
    lkvi_slot_leave_class(s, i);
    while (s->slots[i].entries)
        lkvi_entry_remove(s, s->slots[i].entries);
    s->num_ready--;
    s->evicted++;
    free_slot(s, i, 1);
    return 1;
}

/* ---- use */

uint32_t lkvi_slot_take(struct lkvi_slots *s, uint32_t layer)
{
    if (!s->partial && !borrow(s) && !s->partial && !evict(s))
        return 0;
    struct lkvi_slab *slab = &s->slabs[s->partial];
    uint32_t i = slab->free;
    struct lkvi_slot *slot = &s->slots[i];
    slab->free = slot->next;
    slab->used++;
    if (!slab->free)
        leave_partial(s, s->partial);
    *slot = (struct lkvi_slot){.generation = slot->generation,
                               .pins = 1,
                               .layer = layer,
                               .step = s->now_step,
                               .state = LKVI_SLOT_FILLING};
    s->num_filling++;
    s->num_pinned++;
    return i;
}

void lkvi_slot_use(struct lkvi_slots *s, uint32_t i)
{
    struct lkvi_slot *slot = &s->slots[i];
    int listed = slot->listed;
    if (listed)
        lkvi_slot_leave_class(s, i);
    slot->uses += slot->uses != UINT32_MAX;
    slot->step = s->now_step;
    if (listed)
        join_class(s, i);
}

void lkvi_slot_pin(struct lkvi_slots *s, uint32_t i)
{
    lkvi_slot_leave_class(s, i);
    s->num_pinned += !s->slots[i].pins++;
}

void lkvi_slot_settle(struct lkvi_slots *s, uint32_t i)
{
    struct lkvi_slot *slot = &s->slots[i];
    if (slot->pins || slot->state != LKVI_SLOT_READY)
        return;
    if (slot->entries) {
        if (!slot->listed)
            join_class(s, i);
        return;
    }
    lkvi_slot_leave_class(s, i);
    s->num_ready--;
    free_slot(s, i, 0);
}
