/* In: a path. Out: token ids, every one of them checked to be an integer in 0..2^31-1. Whether the
 * vocabulary has them is the engine's to say. */
#include "tools/common/document.h"

#include <jansson.h>

#include "tools/common/out.h"

struct document document_read(const char *path, uint32_t limit)
{
    json_error_t where;
    json_t *root = json_load_file(path, 0, &where);
    if (!root)
        out_die("%s: line %d: %s", path, where.line, where.text);
    json_t *ids = json_is_array(root) ? root : json_object_get(root, "token_ids");
    if (!json_is_array(ids) || json_array_size(ids) < 2 || json_array_size(ids) > 1 << 20)
        out_die("%s: token_ids has %zu entries; need an array of 2 to 2^20 integers", path,
                json_array_size(ids));
    struct document d = {.count = (uint32_t)json_array_size(ids)};
    if (limit && limit < d.count)
        d.count = limit;
    d.ids = out_alloc(d.count, sizeof *d.ids);
    for (uint32_t i = 0; i < d.count; i++) {
        json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            out_die("%s: token %u is not an integer in 0..2^31-1", path, i);
        d.ids[i] = (int32_t)json_integer_value(id);
    }
    json_decref(root);
    return d;
}
