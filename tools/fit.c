/* lkv fit-projector: starts lkv-fit-projector, which is built beside lkv where the GNU Scientific
 * Library is there, and hands it the rest of the command line. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/command.h"
#include "tools/common/out.h"

int command_fit_projector(int argc, char **argv)
{
    static const char name[] = "lkv-fit-projector";
    char path[4096];
    (void)argc;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof name);
    if (n <= 0)
        out_die("the folder of lkv cannot be found");
    path[n] = 0;
    memcpy(strrchr(path, '/') + 1, name, sizeof name);
    execv(path, argv); /* argv[0] is "lkv fit-projector" */
    out_die("fit-projector needs %s beside lkv: it is built where the GNU Scientific Library "
            "(libgsl-dev) is installed",
            name);
}
