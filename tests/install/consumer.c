/* A program outside the tree: in, the version it was built for; out, exit 0 if the library it runs
 * with has that version and opens a CPU context. */
#include <latentkv/latentkv.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    uint32_t v = lkv_version();
    char text[40];
    snprintf(text, sizeof text, "%u.%u.%u", v / 1000000, v / 1000 % 1000, v % 1000);
    if (argc != 2 || strcmp(argv[1], text)) {
        fprintf(stderr, "the library is %s; built for %s\n", text, argc == 2 ? argv[1] : "nothing");
        return 1;
    }
    lkv_context *context;
    lkv_context_desc desc = {.size = sizeof desc, .device = LKV_DEVICE_CPU, .num_threads = 1};
    if (lkv_context_create(&desc, &context) != LKV_OK) {
        fprintf(stderr, "%s\n", lkv_last_error());
        return 1;
    }
    lkv_context_release(context);
    printf("latentkv %s\n", text);
    return 0;
}
