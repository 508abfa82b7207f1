/* How the engine fails: functions return 0, or -1 with a sentence here. */
#ifndef LKV_TOOLS_ENGINE_ERROR_H
#define LKV_TOOLS_ENGINE_ERROR_H

struct engine_error {
    char text[512];
};

/* Writes the sentence and returns -1. */
int engine_fail(struct engine_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
