# lkv_jemalloc: the private jemalloc that core/alloc.c uses, or nothing.
add_library(lkv_jemalloc INTERFACE)
