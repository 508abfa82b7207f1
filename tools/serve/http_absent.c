/* In place of http.c where the build found no libmicrohttpd: the command says so, and everything
 * else of lkv is there. Nothing can be published, because nothing was opened. */
#include "tools/serve/http.h"

#include "tools/common/out.h"

struct http *http_open(const char *address, uint16_t port)
{
    out_die("cannot listen on %s, port %u: this lkv was built without libmicrohttpd", address,
            port);
}

uint16_t http_port(const struct http *h)
{
    (void)h;
    return 0;
}

void http_publish(struct http *h, char *text)
{
    (void)h;
    (void)text;
}

void http_close(struct http *h)
{
    (void)h;
}
