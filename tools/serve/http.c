/* In: texts, from the replay's thread. Out: the last one, to whoever asks. The lock is held while a
 * response copies the text, so a scrape sees one snapshot and never a mixture. */
#include "tools/serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/out.h"

enum { MOST_CONNECTIONS = 32, TIMEOUT_S = 10 };

struct http {
    struct MHD_Daemon *daemon;
    pthread_mutex_t mutex;
    char *text;
};

static enum MHD_Result answer(struct MHD_Connection *to, unsigned status, const char *text,
                              const char *type)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    const enum MHD_Result done = MHD_queue_response(to, status, response);
    MHD_destroy_response(response);
    return done;
}

static enum MHD_Result answer_metrics(struct http *h, struct MHD_Connection *to)
{
    pthread_mutex_lock(&h->mutex);
    const enum MHD_Result done =
        answer(to, MHD_HTTP_OK, h->text ? h->text : "", "text/plain; version=0.0.4");
    pthread_mutex_unlock(&h->mutex);
    return done;
}

/* The signature is the library's. */
#define HANDLER(name)                                                                              \
    static enum MHD_Result name(void *user, struct MHD_Connection *to, const char *url,            \
                                const char *method, const char *version, const char *data,         \
                                size_t *data_bytes, void **state)
HANDLER(handle)
{
    (void)version;
    (void)data;
    (void)data_bytes;
    (void)state;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer(to, MHD_HTTP_METHOD_NOT_ALLOWED, "GET /metrics\n", "text/plain");
    if (strcmp(url, "/metrics") != 0)
        return answer(to, MHD_HTTP_NOT_FOUND, "the metrics are at /metrics\n", "text/plain");
    return answer_metrics(user, to);
}

struct http *http_open(const char *address, uint16_t port)
{
    struct http *h = out_alloc(1, sizeof *h);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
        out_die("--listen: '%s' is not an IPv4 address", address);
    pthread_mutex_init(&h->mutex, NULL);
    h->daemon =
        MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, port, NULL, NULL, handle,
                         h, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&at,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_END);
    if (!h->daemon)
        out_die("cannot listen on %s, port %u: %s", address, port, strerror(errno));
    return h;
}

uint16_t http_port(const struct http *h)
{
    return MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
}

void http_publish(struct http *h, char *text)
{
    pthread_mutex_lock(&h->mutex);
    char *before = h->text;
    h->text = text;
    pthread_mutex_unlock(&h->mutex);
    free(before);
}

void http_close(struct http *h)
{
    MHD_stop_daemon(h->daemon);
    pthread_mutex_destroy(&h->mutex);
    free(h->text);
    free(h);
}
