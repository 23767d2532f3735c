/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of gpu/checksum.h: reads each word once, in place, over the bus when it is mapped. */
#include "gpu/checksum.h"

/* *sum must be 0 before. Any grid; blocks of whole warps. */
extern "C" __global__ void gpu_checksum(const uint64_t *words, uint64_t count,
					unsigned long long *sum)
{
	uint64_t step = (uint64_t)gridDim.x * blockDim.x;
	unsigned long long part = 0;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
		part += checksum_word(words[i], i);
	for (int lane = 16; lane > 0; lane /= 2)
		part += __shfl_down_sync(0xffffffffu, part, lane);
	if (threadIdx.x % 32 == 0)
		atomicAdd(sum, part);
}
