/* In: the samples of a replay. Out: one HTML file with its numbers and plots. gnuplot draws each
 * plot as SVG, which is pasted in; the data goes to it through a temporary script. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/out.h"
#include "tools/common/parse.h"
#include "tools/replay/replay.h"

struct plot {
    const char *title, *axis;
    size_t num_lines;
    struct {
        const char *label;
        size_t offset; /* in struct sample */
        double factor;
    } lines[2];
};

static const struct plot plots[] = {
    {"Occupancy",
     "% of all blocks",
     2,
     {{"in use", offsetof(struct sample, in_use), 100},
      {"cached, idle", offsetof(struct sample, idle), 100}}},
    {"Hits so far",
     "% of prompt tokens",
     1,
     {{"hit ratio", offsetof(struct sample, hit_ratio), 100}}},
    {"Waste",
     "% of the room in sequences",
     1,
     {{"no token in it", offsetof(struct sample, waste), 100}}},
    {"Requests",
     "requests",
     2,
     {{"running", offsetof(struct sample, running), 1},
      {"waiting", offsetof(struct sample, waiting), 1}}},
};
enum { NUM_PLOTS = sizeof plots / sizeof *plots };

static void write_points(FILE *to, const struct timeline *t, size_t offset, double factor)
{
    for (uint64_t i = 0; i < t->count; i++) {
        double y;
        memcpy(&y, (const char *)&t->samples[i] + offset, sizeof y);
        fprintf(to, "%.9g %.9g\n", t->samples[i].time_s, y * factor);
    }
    fputs("e\n", to);
}

static void write_script(FILE *to, const struct plot *p, const struct timeline *t)
{
    fprintf(to,
            "set terminal svg size 900,280 dynamic font 'sans-serif,12'\n"
            "set title '%s'\nset ylabel '%s'\nset xlabel 'seconds of the trace'\n"
            "set grid\nset yrange [0:*]\nset key top left\nplot ",
            p->title, p->axis);
    for (size_t i = 0; i < p->num_lines; i++)
        fprintf(to, "%s'-' with lines title '%s'", i ? ", " : "", p->lines[i].label);
    fputc('\n', to);
    for (size_t i = 0; i < p->num_lines; i++)
        write_points(to, t, p->lines[i].offset, p->lines[i].factor);
}

/* Pastes from "<svg" on: the XML head has no place inside HTML. */
static int paste_svg(FILE *html, FILE *svg)
{
    char line[4096];
    int inside = 0;
    while (fgets(line, sizeof line, svg)) {
        const char *from = inside ? line : strstr(line, "<svg");
        if (!from)
            continue;
        inside = 1;
        fputs(from, html);
    }
    return inside;
}

static void draw(FILE *html, const struct plot *p, const struct timeline *t)
{
    char path[] = "/tmp/lkv-plot-XXXXXX", command[64];
    const int fd = mkstemp(path);
    FILE *script = fd < 0 ? NULL : fdopen(fd, "w");
    if (!script)
        out_die("%s: %s", path, strerror(errno));
    write_script(script, p, t);
    fclose(script);
    snprintf(command, sizeof command, "gnuplot %s", path);
    FILE *svg = popen(command, "r");
    const int drawn = svg && paste_svg(html, svg);
    const int status = svg ? pclose(svg) : -1;
    unlink(path);
    if (!drawn || status != 0)
        out_die("gnuplot drew no plot: --report needs it installed");
}

static void write_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '&')
            fputs("&amp;", to);
        else if (*text == '<')
            fputs("&lt;", to);
        else
            fputc(*text, to);
    }
}

static void write_numbers(FILE *html, const struct replay *r)
{
    json_t *numbers = replay_json((struct replay *)r);
    char *text = json_dumps(numbers, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    fputs("<details><summary>Numbers</summary><pre>", html);
    write_text(html, text);
    fputs("</pre></details>\n", html);
    free(text);
    json_decref(numbers);
}

void replay_report(const struct replay *r, const char *path)
{
    FILE *html = fopen(path, "w");
    if (!html)
        out_die("%s: %s", path, strerror(errno));
    fputs("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">"
          "<title>lkv replay</title>\n<style>body{font:15px sans-serif;max-width:60rem;"
          "margin:2rem auto;padding:0 1rem}svg{width:100%;height:auto}</style>\n<h1>lkv "
          "replay</h1>\n<p>",
          html);
    write_text(html, r->options.trace ? r->options.trace : "synthetic workload");
    fprintf(html, ", %s, blocks of %u tokens</p>\n", format_name(r->options.format),
            r->options.block_tokens);
    for (size_t i = 0; i < NUM_PLOTS; i++)
        draw(html, &plots[i], &r->result.timeline);
    write_numbers(html, r);
    fputs("</html>\n", html);
    if (fclose(html))
        out_die("%s: could not write the report", path);
}
