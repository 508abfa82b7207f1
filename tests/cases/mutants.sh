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

compile() { # source object
    $cc -std=gnu11 -O1 -w -DLKV_BUILDING -I"$root/include" -I"$root" -c "$1" -o "$2"
}

# Everything once; a mutant is one object more and two links. No header is ever changed.
mkdir "$work/manager" "$work/cases.o" "$work/model.o" "$work/core"
for file in "$root"/block_manager/*.c; do compile "$file" "$work/manager/$(basename "$file").o" || exit 99; done
for file in alloc status sha256; do compile "$root/core/$file.c" "$work/core/$file.o" || exit 99; done
for file in "$root"/tests/cases/cases.c "$root"/tests/cases/group_?.c "$root"/tests/cases/group_dfgh.c; do
    compile "$file" "$work/cases.o/$(basename "$file").o" || exit 99
done
for file in "$root"/tests/stress/blocks_model.c "$root"/tests/stress/blocks_ops*.c \
    "$root"/tests/reference/ref_manager.c "$root"/tests/reference/ref_blocks.c \
    "$root"/tests/reference/ref_host.c; do
    compile "$file" "$work/model.o/$(basename "$file").o" || exit 99
done

build() { # file
    mkdir -p "$work/linked" && rm -f "$work"/linked/* && cp "$work"/manager/*.o "$work/linked" &&
    compile "$work/mutant.c" "$work/linked/$1.o" &&
    $cc "$work"/cases.o/*.o "$work"/linked/*.o "$work"/core/*.o -o "$work/cases" \
        -lcriterion -lmbedcrypto -lpthread &&
    $cc "$work"/model.o/*.o "$work"/linked/*.o "$work"/core/*.o -o "$work/model" \
        -lmbedcrypto -lpthread
}

plant() { # name file old new
    case $1 in *"$only"*) ;; *) return ;; esac
    python3 - "$root/block_manager/$2" "$work/mutant.c" "$3" "$4" <<'PY' || { echo "$1: the text to change is gone"; survivors=$((survivors + 1)); return; }
import sys
source, path, old, new = sys.argv[1:]
text = open(source).read()
if text.count(old) < 1:
    sys.exit(1)
open(path, "w").write(text.replace(old, new, 1))
PY
    if ! build "$2" 2>"$work/log"; then
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
    'take_hits(m, s, args, &plan); LKV_TRY(plan_hits(m, s, &plan, result));'
plant "BM-30 idle counted twice" admit.c \
    'plan->hits.on_host) + plan->idle;' 'plan->hits.on_host);'
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
    'lkvi_copies_add(m, from, to, LKVI_COPY_BLOCK);' \
    'lkvi_copies_add(m, from, to, LKVI_COPY_BLOCK); lkvi_drop(m, from, 0);'
plant "newest evicted first" lru.c \
    'put(lru, cold, lru->tail++, b);' 'put(lru, cold, --lru->head, b);'
plant "highest priority first" order.c \
    'used[0] ? __builtin_ctzll(used[0]) : 64 + __builtin_ctzll(used[1])' \
    'used[1] ? 127 - __builtin_clzll(used[1]) : 63 - __builtin_clzll(used[0])'
plant "a dropped namespace publishes again" drop.c \
    'm->seqs[i].no_publish = 1;' ';'
plant "watermark ignored" admit.c \
    'needed + plan->promise + plan->spare' 'needed + plan->promise'
plant "a slot of the wheel skipped" order.c \
    'for (uint32_t digit = digit_of(before, top) + 1;' \
    'for (uint32_t digit = digit_of(before, top) + 2;'
plant "BM-25 a twin on the host stays there" commit.c \
    'if (!lkvi_on_host(m, twin))
        return twin;' 'return twin;'
plant "BM-54 the source of a demotion is not held" host.c \
    'lkvi_claim(m, b);
        m->blocks[b].flags |= LKVI_BORROWED;' 'm->blocks[b].refs++;'
plant "BM-59 copied out before the writer is done" swap.c \
    'if (after > m->passed_fence)' 'if (0)'
plant "swapped in before it has arrived" swap.c \
    'LKV_TRY(arrived(m, s));' ';'
plant "hits on the host need no room" admit.c \
    '(plan->hits.blocks - plan->hits.on_host)' 'plan->hits.blocks'
plant "a copy outlives its original" prefix.c \
    'if (m->host.num_blocks && !lkvi_on_host(m, b))' 'if (0)'
plant "a running copy is taken back" copies.c \
    'find(m->copies, m->num_issued, m->num_copies, to)' 'find(m->copies, 0, m->num_copies, to)'
plant "copies of the next victims make room" host.c \
    'if (!b || !(m->blocks[b].flags & LKVI_MARK)) {' 'if (1) {'
plant "a demoted block comes back as the newest" host.c \
    'm->blocks[b].flags |= LKVI_BORROWED;' ';'
plant "a shared block is written" step.c \
    '(block->flags & LKVI_INDEXED) || block->refs > 1' 'block->flags & LKVI_INDEXED'
plant "a swapped sequence publishes" commit.c '!s->swapped &&' ''
plant "an aborted swap leaks" swap.c \
    'm->counts.reserved -= s->reserved_blocks;' ';'
[ $survivors -eq 0 ] && echo "every mutant that was planted was killed"
exit $survivors
