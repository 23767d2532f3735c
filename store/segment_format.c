/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_format: headers of segments and records as bytes. Whatever is read is checked here before
 * anything believes it.
 */
#include "store/segment_impl.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#define RECORD_CHUNK 1u
#define UUID_LENGTH  36u
#define SUMMED       56u /* bytes of either header before its own sum */

_Static_assert(sizeof(struct segment_header) == 64, "as on disk");
_Static_assert(sizeof(struct record_header) == 64, "as on disk");

void segment_header_pack(uint8_t out[SEGMENT_HEADER], uint32_t n, const char *uuid)
{
	struct segment_header h = {
		.magic = htole64(SEGMENT_MAGIC),
		.version = htole32(SEGMENT_VERSION),
		.number = htole32(n),
	};

	memcpy(h.uuid, uuid, UUID_LENGTH);
	h.sum = htole64(sum64(&h, SUMMED));
	memset(out, 0, SEGMENT_HEADER);
	memcpy(out, &h, sizeof(h));
}

bool segment_header_ok(const uint8_t *p, uint32_t n, const char *uuid)
{
	struct segment_header h;

	memcpy(&h, p, sizeof(h));
	return le64toh(h.magic) == SEGMENT_MAGIC && le64toh(h.sum) == sum64(&h, SUMMED) &&
	       le32toh(h.version) == SEGMENT_VERSION && le32toh(h.number) == n &&
	       !memcmp(h.uuid, uuid, UUID_LENGTH);
}

static uint64_t header_sum(const struct record_header *h, struct segment_loc loc)
{
	return sum64_seeded(h, SUMMED, (uint64_t)loc.segment << 32 | loc_offset(loc));
}

void record_pack(struct record_header *ret, const struct record_info *info, struct segment_loc loc,
		 uint64_t payload_sum)
{
	*ret = (struct record_header){
		.magic = htole32(RECORD_MAGIC),
		.version = RECORD_VERSION,
		.type = RECORD_CHUNK,
		.codec = info->codec,
		.tenant = htole32(info->tenant),
		.raw_len = htole32(info->raw_len),
		.stored_len = htole32(info->stored_len),
		.chunk_id = htole64(info->chunk_id),
		.hash_lo = htole64(info->hash.lo),
		.hash_hi = htole64(info->hash.hi),
		.payload_sum = htole64(payload_sum),
	};
	memcpy(ret->params, info->params, CODEC_PARAMS);
	ret->header_sum = htole64(header_sum(ret, loc));
}

static bool length_ok(uint32_t len)
{
	return len && len <= RECORD_MAX;
}

int record_parse(const uint8_t *p, struct segment_loc loc, struct record_info *ret,
		 uint64_t *ret_payload_sum)
{
	struct record_header h;

	memcpy(&h, p, sizeof(h));
	if (le32toh(h.magic) != RECORD_MAGIC || le64toh(h.header_sum) != header_sum(&h, loc))
		return -EBADMSG;
	if (h.version != RECORD_VERSION || h.type != RECORD_CHUNK || h.flags)
		return -EBADMSG;
	if (!length_ok(le32toh(h.raw_len)) || !length_ok(le32toh(h.stored_len)))
		return -EBADMSG;
	*ret = (struct record_info){
		.chunk_id = le64toh(h.chunk_id),
		.hash = { .lo = le64toh(h.hash_lo), .hi = le64toh(h.hash_hi) },
		.tenant = le32toh(h.tenant),
		.raw_len = le32toh(h.raw_len),
		.stored_len = le32toh(h.stored_len),
		.codec = h.codec,
	};
	memcpy(ret->params, h.params, CODEC_PARAMS);
	*ret_payload_sum = le64toh(h.payload_sum);
	return 0;
}
