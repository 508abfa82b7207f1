/* One page over HTTP: GET /metrics gives the text published last. libmicrohttpd does the talking,
 * in a thread of its own; where the build has none (http_absent.c) opening ends the command. */
#ifndef TOOLS_SERVE_HTTP_H
#define TOOLS_SERVE_HTTP_H

#include <stdint.h>

struct http;
/* port 0: any that is free. Dies with a sentence where it cannot listen. */
struct http *http_open(const char *address, uint16_t port);
uint16_t http_port(const struct http *h);
/* Takes the text, which free() ends. From now on it is what is served. */
void http_publish(struct http *h, char *text);
void http_close(struct http *h);

#endif
