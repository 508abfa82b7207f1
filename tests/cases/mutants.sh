#!/bin/sh
# In: nothing, or a word to run only the rows that have it. Out: exit 0 if the cases or the model test notice every planted fault.
# Each row: name | file | exact text | replacement. The tree itself is never changed.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=${CC:-cc}
survivors=0
only=${1:-}

build() {
    $cc -std=gnu11 -O1 -DLKV_BUILDING -I"$root/include" -I"$work" -I"$root" "$1" \
        "$root"/tests/cases/*.c "$work"/block_manager/*.c "$root"/core/alloc.c \
        "$root"/core/status.c "$root"/core/sha256.c -o "$work/cases" \
        -lcriterion -lmbedcrypto -lpthread &&
    $cc -std=gnu11 -O1 -DLKV_BUILDING -I"$root/include" -I"$work" -I"$root" \
        "$root"/tests/stress/blocks_model.c "$root"/tests/stress/blocks_ops*.c \
        "$root"/tests/reference/ref_manager.c "$root"/tests/reference/ref_blocks.c \
        "$work"/block_manager/*.c "$root"/core/alloc.c \
        "$root"/core/status.c "$root"/core/sha256.c -o "$work/model" -lmbedcrypto -lpthread
}

plant() { # name file old new
    case $1 in *"$only"*) ;; *) return ;; esac
    rm -rf "$work/block_manager"
    cp -r "$root/block_manager" "$work/block_manager"
    python3 - "$work/block_manager/$2" "$3" "$4" <<'PY' || { echo "$1: the text to change is gone"; survivors=$((survivors + 1)); return; }
import sys
path, old, new = sys.argv[1:]
text = open(path).read()
if text.count(old) < 1:
    sys.exit(1)
open(path, "w").write(text.replace(old, new, 1))
PY
    if ! build -w 2>"$work/log"; then
        echo "$1: does not build"; sed -n 1,5p "$work/log"; survivors=$((survivors + 1)); return
    fi
    if timeout 120 "$work/cases" --jobs 1 >"$work/out" 2>&1 &&
        timeout 120 "$work/model" --steps 40000 >"$work/out" 2>&1; then
        echo "$1: SURVIVED"; survivors=$((survivors + 1))
    else
        echo "$1: killed"
    fi
}

plant "BM-11 last token ignored" prefix.c \
    '!memcmp(lkvi_block_tokens(m, b), tokens, m->block_tokens * sizeof *tokens)' \
    '!memcmp(lkvi_block_tokens(m, b), tokens, (m->block_tokens - 1) * sizeof *tokens)'
plant "BM-11 identity never cleaned" prefix.c \
    'block->flags &= (uint8_t) ~(LKVI_INDEXED | LKVI_HASHED);' ';'
plant "BM-13 filtered after the loop" pool.c \
    'if (--block->refs)
        return 0;' 'if (--block->refs > 1)
        return 0;'
plant "BM-29 hits touched first" admit.c \
    'LKV_TRY(plan_hits(m, s, &plan, result));' \
    'take_hits(m, s, &plan); LKV_TRY(plan_hits(m, s, &plan, result));'
plant "BM-30 idle counted twice" admit.c \
    'plan->want - plan->hits.blocks + plan->idle' 'plan->want - plan->hits.blocks'
plant "BM-43 len, not len - 1" match.c \
    'uint64_t usable = (prompt->num_tokens - 1) >> m->block_shift;' \
    'uint64_t usable = prompt->num_tokens >> m->block_shift;'
plant "BM-47 published at allocation" admit.c \
    '*out = lkvi_seq_start(m, s);' \
    '*out = lkvi_seq_start(m, s); for (uint64_t k = plan.hits.blocks, p = plan.hits.last; (k + 1) * m->block_tokens <= s->length; p = (uint64_t)s->table[k++]) lkvi_publish(m, (uint32_t)s->table[k], (uint32_t)p, 0);'
plant "BM-73 32-bit slots" step.c \
    'return ((int64_t)block << m->block_shift) + at;' \
    'return (int32_t)((uint32_t)block << m->block_shift) + (int32_t)at;'
plant "a decode into a shared tail" step.c \
    'if (tail->refs != 1 ||' 'if ('
plant "a decode beyond the final length" step.c \
    '(s->max_tokens && s->length >= s->max_tokens)' '0'
plant "a fence forgotten" pool.c \
    'if (fence > m->cold[b].fence)' 'if (0)'
plant "copy source not held" grow.c \
    'lkvi_copies_add(m, from, to);' 'lkvi_copies_add(m, from, to); lkvi_drop(m, from, 0);'
plant "newest evicted first" lru.c \
    'put(lru, cold, lru->tail++, b);' 'put(lru, cold, --lru->head, b);'
plant "highest priority first" order.c \
    'used[0] ? __builtin_ctzll(used[0]) : 64 + __builtin_ctzll(used[1])' \
    'used[1] ? 127 - __builtin_clzll(used[1]) : 63 - __builtin_clzll(used[0])'
plant "a dropped namespace publishes again" drop.c \
    'm->seqs[i].no_publish = 1;' ';'
plant "watermark ignored" admit.c \
    'needed + plan->promise + plan->spare' 'needed + plan->promise'
[ $survivors -eq 0 ] && echo "every mutant that was planted was killed"
exit $survivors
