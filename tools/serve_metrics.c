/* lkv serve-metrics: a replay that can be scraped. In: the options of `lkv replay`, an address.
 * Out: the pool's and the experts' signals as Prometheus text under /metrics, while the replay runs
 * and for as long after it as asked; then, as `lkv replay`, the table and the JSON object. The
 * library only formats: the text is made between two steps, in the replay's own thread. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/command.h"
#include "tools/common/clock.h"
#include "tools/common/out.h"
#include "tools/replay/command_line.h"
#include "tools/serve/http.h"

struct server {
    struct http *http;
    const char *address, *labels;
    uint32_t port, every_ms;
    double pace, linger_s;
    double first_s; /* of the simulated clock */
    uint64_t begin_ns, next_ns;
};

/* ---- the text */

typedef lkv_status (*writer)(struct replay *r, struct moe *moe, const char *labels, char *buffer,
                             size_t capacity, size_t *needed);

static lkv_status write_pool(struct replay *r, struct moe *moe, const char *labels, char *buffer,
                             size_t capacity, size_t *needed)
{
    (void)moe;
    return lkv_pool_metrics_text(r->pool.pool, labels, buffer, capacity, needed);
}

static lkv_status write_moe(struct replay *r, struct moe *moe, const char *labels, char *buffer,
                            size_t capacity, size_t *needed)
{
    const lkv_moe_args args = moe_args(moe);
    (void)r;
    return lkv_moe_metrics_text(&args, labels, buffer, capacity, needed);
}

/* Appends one writer's text to what is there; both lengths without the closing zero. */
static char *append_text(char *text, writer write, struct replay *r, struct moe *moe)
{
    const struct server *s = r->watcher;
    const size_t length = text ? strlen(text) : 0;
    size_t needed = 0;
    out_must(write(r, moe, s->labels, NULL, 0, &needed), "--labels");
    text = out_grow(text, length + needed);
    out_must(write(r, moe, s->labels, text + length, needed, &needed), "the metrics");
    return text;
}

static void publish(struct server *s, struct replay *r, struct moe *moe)
{
    char *text = append_text(NULL, write_pool, r, moe);
    if (moe)
        text = append_text(text, write_moe, r, moe);
    http_publish(s->http, text);
}

/* ---- between two steps */

static void sleep_until(uint64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u),
                               .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

/* Simulated time does not run ahead of the wall's, by the factor asked for. */
static void keep_pace(struct server *s, double now_s)
{
    if (!(s->pace > 0))
        return;
    const uint64_t due = s->begin_ns + (uint64_t)(1e9 * (now_s - s->first_s) / s->pace);
    if (due > clock_ns())
        sleep_until(due);
}

static void watch(struct replay *r, struct moe *moe, double now_s, int last)
{
    struct server *s = r->watcher;
    if (!s->begin_ns) {
        s->begin_ns = clock_ns();
        s->first_s = now_s;
    }
    keep_pace(s, now_s);
    if (!last && clock_ns() < s->next_ns)
        return;
    publish(s, r, moe);
    s->next_ns = clock_ns() + s->every_ms * UINT64_C(1000000);
}

/* ---- the command */

static sigset_t ending_signals(void)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    return ends;
}

/* The server's thread never takes them: during the run they end the process, after it linger()
 * waits for them. */
static void open_server(struct server *s)
{
    const sigset_t ends = ending_signals();
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    s->http = http_open(s->address, (uint16_t)s->port);
    pthread_sigmask(SIG_UNBLOCK, &ends, NULL);
    fprintf(stderr, "lkv: metrics at http://%s:%u/metrics\n", s->address, http_port(s->http));
}

/* Until somebody ends it, or the time is over. */
static void linger(double seconds)
{
    const struct timespec most = {.tv_sec = (time_t)seconds};
    const sigset_t ends = ending_signals();
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    if (seconds < 0)
        sigwaitinfo(&ends, NULL);
    else if (seconds > 0)
        sigtimedwait(&ends, NULL, &most);
}

static void parse(int argc, char **argv, struct server *s, struct replay_options *o)
{
    const struct option_row own[] = {
        {"listen", "ADDR", "IPv4 address; default 127.0.0.1", OPTION_TEXT, &s->address, 0, 0, NULL,
         7},
        {"port", "N", "0: any that is free, which is printed; default 9464", OPTION_U32, &s->port,
         0, 65535, NULL, 7},
        {"labels", "LIST", "name=\"value\" pairs for every sample, commas between them",
         OPTION_TEXT, &s->labels, 0, 0, NULL, 7},
        {"pace", "X", "simulated seconds a second at most; default: as fast as it can", OPTION_REAL,
         &s->pace, 0.001, 1e9, NULL, 7},
        {"every-ms", "MS", "between two snapshots at least; default 200", OPTION_U32, &s->every_ms,
         1, 3600000, NULL, 7},
        {"linger", "S", "serve on for so long after the run; default: until it is ended",
         OPTION_REAL, &s->linger_s, 0, 1e9, NULL, 7}};
    replay_parse(argc, argv, "Runs a serving workload as lkv replay does, and serves its metrics.",
                 o, own, sizeof own / sizeof *own);
    if (o->infinite || o->compare)
        out_die("serve-metrics needs steps: neither --infinite nor --compare");
}

int command_serve_metrics(int argc, char **argv)
{
    struct server s = {.address = "127.0.0.1", .port = 9464, .every_ms = 200, .linger_s = -1};
    struct replay r = {.watch = watch, .watcher = &s};
    parse(argc, argv, &s, &r.options);
    open_server(&s);
    replay_begin(&r);
    replay_run(&r);
    const int code = replay_end(&r);
    fflush(stdout);
    linger(s.linger_s);
    http_close(s.http);
    return code;
}
