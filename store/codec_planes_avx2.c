/* SPDX-License-Identifier: Apache-2.0 */
/* codec_planes_avx2: compiled with -mavx2, called where the processor has it. */
#ifdef __AVX2__
#include "store/codec_planes_block.h"

const struct planes_ops planes_avx2 = { encode_block, decode_block, split_pairs, join_pairs };
#endif
