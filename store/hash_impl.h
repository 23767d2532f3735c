/* SPDX-License-Identifier: Apache-2.0 */
/* hash_impl: the variants behind hash.h, one for each instruction set worth having. */
#ifndef STORE_HASH_IMPL_H
#define STORE_HASH_IMPL_H

#include "store/hash.h"

#if defined(__x86_64__)
struct hash128 hash128_avx2(const void *buf, size_t len);
uint64_t sum64_avx2(const void *buf, size_t len);
#endif

#endif
