/* SPDX-License-Identifier: Apache-2.0 */
/* element: what bytes are made of, for people to read; no codec depends on it. */
#ifndef STORE_ELEMENT_H
#define STORE_ELEMENT_H

#include "store/store.h"

/* A guess by 16 KiB from the middle. scratch: len bytes. */
enum analyze_element element_of(const void *src, size_t len, void *scratch);

#endif
