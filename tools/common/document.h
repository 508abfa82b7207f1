/* Token ids of one text, as a JSON file has them: {"token_ids": [...]} or a bare array. */
#ifndef TOOLS_COMMON_DOCUMENT_H
#define TOOLS_COMMON_DOCUMENT_H

#include <stdint.h>

struct document {
    int32_t *ids;
    uint32_t count;
};

/* Dies with a sentence where the file has no such array of 2 to 2^20 ids. limit: only the first
 * ones; 0: all. Free ids with free(). */
struct document document_read(const char *path, uint32_t limit);

#endif
