/* SPDX-License-Identifier: Apache-2.0 */
/* model: see model.h. */
#include "tests/fault/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct model *model;

void model_wrong(const char *fmt, ...)
{
	va_list ap;

	if (model->wrong)
		return;
	model->wrong = true;
	va_start(ap, fmt);
	vsnprintf(model->why, sizeof(model->why), fmt, ap);
	va_end(ap);
}

static void may_be(struct file *f, uint32_t at, uint8_t byte)
{
	if (f->others[at] == ANYTHING || (f->byte[at] == byte && at < f->size))
		return;
	for (unsigned i = 0; i < f->others[at]; i++)
		if (f->other[i][at] == byte)
			return;
	if (f->others[at] == OTHERS)
		f->others[at] = ANYTHING;
	else
		f->other[f->others[at]++][at] = byte;
}

void model_may_resize(int n, uint32_t size)
{
	struct file *f = &model->file[n];

	/* What is cut off may come back as zeros with a later growth. */
	for (uint32_t i = size; i < f->size; i++)
		may_be(f, i, 0);
	if (size == f->size)
		return;
	for (unsigned i = 0; i < f->other_sizes; i++)
		if (f->other_size[i] == size)
			return;
	if (f->other_sizes == OTHERS)
		f->other_sizes = ANYTHING;
	else if (f->other_sizes < OTHERS)
		f->other_size[f->other_sizes++] = size;
}

void model_may_write(int n, uint32_t off, const uint8_t *data, uint32_t len)
{
	struct file *f = &model->file[n];

	for (uint32_t i = 0; i < len; i++)
		may_be(f, off + i, data[i]);
	if (off + len > f->size)
		model_may_resize(n, off + len);
}

static void is_size(struct file *f, uint32_t size)
{
	f->size = size;
	f->other_sizes = 0;
}

/* It ends there or behind it now. */
static void grew(struct file *f, uint32_t end)
{
	unsigned kept = 0;

	if (end > f->size)
		f->size = end;
	if (f->other_sizes == ANYTHING)
		return;
	for (unsigned i = 0; i < f->other_sizes; i++)
		if (f->other_size[i] > end && f->other_size[i] != f->size)
			f->other_size[kept++] = f->other_size[i];
	f->other_sizes = kept;
}

void model_wrote(int n, uint32_t off, const uint8_t *data, uint32_t len)
{
	struct file *f = &model->file[n];

	f->made = true;
	memcpy(f->byte + off, data, len);
	memset(f->others + off, 0, len);
	grew(f, off + len);
}

void model_resized(int n, uint32_t size)
{
	struct file *f = &model->file[n];

	f->made = true;
	memset(f->byte + size, 0, FILE_MAX - size);
	memset(f->others + size, 0, FILE_MAX - size);
	is_size(f, size);
}

bool model_is_sure(int n)
{
	const struct file *f = &model->file[n];

	for (uint32_t i = 0; i < f->size; i++)
		if (f->others[i])
			return false;
	return !f->other_sizes;
}

void model_settled(int n, const uint8_t *content, uint32_t size)
{
	struct file *f = &model->file[n];
	struct content *v = &model->version[model->versions];

	if (model->versions == VERSIONS) {
		model_wrong("the model has no room for so many settles");
		return;
	}
	if (content) {
		model_resized(n, size);
		model_wrote(n, 0, content, size);
	}
	v->size = f->size;
	memcpy(v->byte, f->byte, f->size);
	f->version = model->versions++;
	f->unsure = false;
}

bool model_agrees_size(int n, uint64_t size)
{
	const struct file *f = &model->file[n];

	if (size == f->size || f->other_sizes == ANYTHING)
		return true;
	for (unsigned i = 0; i < f->other_sizes; i++)
		if (f->other_size[i] == size)
			return true;
	model_wrong("file %d has %llu bytes, and should have %u (or %u others)", n,
		    (unsigned long long)size, f->size, f->other_sizes);
	return false;
}

static bool byte_agrees(const struct file *f, uint32_t at, uint8_t byte)
{
	if (f->others[at] == ANYTHING || byte == f->byte[at])
		return true;
	for (unsigned i = 0; i < f->others[at]; i++)
		if (f->other[i][at] == byte)
			return true;
	return false;
}

bool model_agrees(int n, const uint8_t *got, uint32_t len, uint32_t off)
{
	const struct file *f = &model->file[n];

	if (!memcmp(got, f->byte + off, len))
		return true;
	for (uint32_t i = 0; i < len; i++) {
		if (byte_agrees(f, off + i, got[i]))
			continue;
		model_wrong("file %d: byte %u is %#x, and should be %#x (%u others)", n, off + i,
			    got[i], f->byte[off + i], f->others[off + i]);
		return false;
	}
	return true;
}
