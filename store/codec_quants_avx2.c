/* SPDX-License-Identifier: Apache-2.0 */
/* codec_quants_avx2: compiled with -mavx2, called where the processor has it. */
#ifdef __AVX2__
#include "store/codec_quants_block.h"

const struct quants_ops quants_avx2 = { split, join };
#endif
