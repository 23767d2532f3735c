/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choices: how the content of a file is to be stored, as somebody said of it or of its directory: the codec,
 * in the flags of the inode, and the layout, whose text is a stored attribute that one of the flags tells of.
 */
#include "fs/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int choices_load(struct fs *fs, struct inode *i)
{
	return i->a.flags & META_LAYOUT ? xattrs_load(fs, i) : 0;
}

bool choices_layout(struct inode *i, struct raw_layout *ret)
{
	struct xattr *x = i->a.flags & META_LAYOUT ? xattrs_find(i, META_LAYOUT_XATTR) : NULL;

	/* One that another kvfs understands is none. */
	return x && x->present && !raw_layout_parse(x->value, x->len, ret);
}

void choices_apply(struct inode *i, struct object *o)
{
	struct raw_layout l = { 0 };

	choices_layout(i, &l);
	object_set_codec(o, meta_codec_of(i->a.flags));
	object_set_layout(o, &l);
}

int choices_stage_layout(struct nsop *op, struct inode *i, const struct raw_layout *l, char **ret)
{
	bool some = l->slabs || l->stride;
	struct meta_inode *a = nsop_inode(op, i);
	char *text = NULL;
	struct xattr *x;

	*ret = NULL;
	a->flags = some ? a->flags | META_LAYOUT : a->flags & ~META_LAYOUT;
	x = some ? xattrs_slot(i, META_LAYOUT_XATTR) : xattrs_find(i, META_LAYOUT_XATTR);
	if (!some && !x)
		return 0;
	text = malloc(RAW_LAYOUT_TEXT);
	if (!x || !text) {
		free(text);
		return -ENOMEM;
	}
	nsop_xattr(op, i, x, text, some ? (uint32_t)raw_layout_format(l, text) : 0, some);
	*ret = text;
	return 0;
}
