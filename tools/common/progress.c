/* In: how much of the work is done. Out: one line of stderr that redraws itself and leaves nothing
 * behind. */
#include "tools/common/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tools/common/clock.h"

enum { BAR_CELLS = 40, REDRAW_NS = 100000000 };

void progress_start(struct progress *p, const char *label, uint64_t total)
{
    p->label = label;
    p->total = total ? total : 1;
    p->drawn_ns = 0;
    p->on = isatty(STDERR_FILENO);
}

void progress_show(struct progress *p, uint64_t done)
{
    if (!p->on)
        return;
    uint64_t now = clock_ns();
    if (now - p->drawn_ns < REDRAW_NS)
        return;
    p->drawn_ns = now;
    char bar[BAR_CELLS + 1];
    done = done < p->total ? done : p->total;
    size_t full = (size_t)((double)done / (double)p->total * BAR_CELLS);
    memset(bar, '#', full);
    memset(bar + full, '.', BAR_CELLS - full);
    bar[BAR_CELLS] = 0;
    fprintf(stderr, "\r%s [%s] %3.0f %%", p->label, bar, 100.0 * (double)done / (double)p->total);
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->on)
        fputs("\r\033[K", stderr);
    p->on = 0;
}
