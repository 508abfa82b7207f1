/* Finds the CUDA backend. */
#ifndef LKVI_CORE_LOADER_H
#define LKVI_CORE_LOADER_H

#include "core/backend.h"

/* The backend of liblatentkv_cuda.so, loaded once a process from the folder of the core library
 * only. LKV_E_UNSUPPORTED with the reason if it is not there or does not fit. */
lkv_status lkvi_loader_cuda(const struct lkvi_backend **out);

#endif
