/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck_pages: the rows of a database that SQLite cannot read any more, from its pages. What the trees lead to
 * counts first, then what lies on other pages that are not free: those of a tree whose upper part is damaged. A row is
 * known by its columns, so neither the schema nor the first page is needed.
 *
 * Nothing that is read is trusted: every offset and length is checked against its page or row, and a row that
 * is not one is left out.
 */
#include "store/fsck_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE        4096u /* the only size kvfs makes */
#define COLUMNS_MAX 16u
#define ROW_MAX     (64u << 20)
#define DEPTH_MAX   24u

enum page_type {
	PAGE_INDEX_INNER = 0x02,
	PAGE_TABLE_INNER = 0x05,
	PAGE_INDEX_LEAF = 0x0a,
	PAGE_TABLE_LEAF = 0x0d,
};

struct value {
	enum { VALUE_NULL, VALUE_INT, VALUE_BLOB, VALUE_TEXT, VALUE_OTHER } type;
	int64_t number;
	const uint8_t *data;
	size_t len;
};

struct row {
	int64_t rowid;
	bool table; /* has a rowid */
	unsigned n;
	struct value v[COLUMNS_MAX];
};

/* How the rows of a table are known and put back: a letter a column, of n (null: the rowid), i (integer), b (blob),
 * t (text), o (blob or null), a (anything). */
static const struct shape {
	bool table;
	const char *columns;
	const char *sql;
} shapes[] = {
	{ true, "niiiiiiiiiiio",
	  "INSERT OR IGNORE INTO inodes VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)" },
	{ true, "nbiiiiiiii",
	  "INSERT OR IGNORE INTO chunks VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)" },
	{ true, "nb", "INSERT OR IGNORE INTO extents VALUES(?1,?2)" },
	{ true, "ni", "INSERT OR IGNORE INTO segments VALUES(?1,?2)" },
	{ false, "iibii", "INSERT OR IGNORE INTO dentries VALUES(?1,?2,?3,?4,?5)" },
	{ false, "ibb", "INSERT OR IGNORE INTO xattrs VALUES(?1,?2,?3)" },
	{ false, "ta", "INSERT OR IGNORE INTO meta VALUES(?1,?2)" },
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct pages {
	struct fsck *f;
	int fd;
	uint32_t n;    /* pages */
	uint8_t *seen; /* a byte a page: free, or read already */
	sqlite3 *to;
	sqlite3_stmt *put[SHAPES];
	uint8_t *row; /* of the payload at hand */
	size_t cap;
};

static uint32_t get16(const uint8_t *p)
{
	return (uint32_t)p[0] << 8 | p[1];
}

static uint32_t get32(const uint8_t *p)
{
	return get16(p) << 16 | get16(p + 2);
}

/* The number at *p, which moves behind it. False: it does not end before end. */
static bool get_varint(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
	uint64_t v = 0;

	for (int i = 0; i < 9 && *p < end; i++) {
		uint8_t b = *(*p)++;

		if (i == 8) {
			*ret = v << 8 | b;
			return true;
		}
		v = v << 7 | (b & 0x7f);
		if (!(b & 0x80)) {
			*ret = v;
			return true;
		}
	}
	return false;
}

/* False: it cannot be read, which is as good as damaged. */
static bool read_page(const struct pages *g, uint32_t n, uint8_t *buf)
{
	return n >= 1 && n <= g->n &&
	       pread(g->fd, buf, PAGE, (off_t)(n - 1) * PAGE) == (ssize_t)PAGE;
}

/* ---- rows ---- */

static size_t serial_length(uint64_t type)
{
	static const uint8_t fixed[] = { 0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0 };

	return type < 12 ? fixed[type] : (type - 12) / 2;
}

static void get_value(uint64_t type, const uint8_t *p, struct value *ret)
{
	size_t len = serial_length(type);

	*ret = (struct value){ .type = VALUE_OTHER, .data = p, .len = len };
	if (type == 0) {
		ret->type = VALUE_NULL;
	} else if (type == 8 || type == 9) {
		ret->type = VALUE_INT;
		ret->number = type == 9;
	} else if (type >= 1 && type <= 6) {
		uint64_t v = p[0] & 0x80 ? UINT64_MAX : 0;

		for (size_t i = 0; i < len; i++)
			v = v << 8 | p[i];
		ret->type = VALUE_INT;
		ret->number = (int64_t)v;
	} else if (type >= 12) {
		ret->type = type % 2 ? VALUE_TEXT : VALUE_BLOB;
	}
}

/* The columns of a payload. */
static bool parse_row(const uint8_t *p, size_t len, struct row *ret)
{
	const uint8_t *at = p, *end = p + len, *head_end;
	uint64_t head;

	if (!get_varint(&at, end, &head) || head > len)
		return false;
	head_end = p + head;
	ret->n = 0;
	for (const uint8_t *data = head_end; at < head_end; ret->n++) {
		uint64_t type;

		if (ret->n == COLUMNS_MAX || !get_varint(&at, head_end, &type) || type == 10 ||
		    type == 11 || serial_length(type) > (size_t)(end - data))
			return false;
		get_value(type, data, &ret->v[ret->n]);
		data += serial_length(type);
	}
	return true;
}

static bool has_type(const struct value *v, char want)
{
	switch (want) {
	case 'n':
		return v->type == VALUE_NULL;
	case 'i':
		return v->type == VALUE_INT;
	case 'b':
		return v->type == VALUE_BLOB;
	case 't':
		return v->type == VALUE_TEXT;
	case 'o':
		return v->type == VALUE_BLOB || v->type == VALUE_NULL;
	default:
		return v->type != VALUE_OTHER && v->type != VALUE_NULL;
	}
}

static int shape_of(const struct row *row)
{
	for (unsigned k = 0; k < SHAPES; k++) {
		bool ok = shapes[k].table == row->table && strlen(shapes[k].columns) == row->n;

		for (unsigned i = 0; ok && i < row->n; i++)
			ok = has_type(&row->v[i], shapes[k].columns[i]);
		if (ok)
			return (int)k;
	}
	return -1;
}

static void bind(sqlite3_stmt *st, int n, const struct value *v)
{
	switch (v->type) {
	case VALUE_INT:
		sqlite3_bind_int64(st, n, v->number);
		return;
	case VALUE_TEXT:
		sqlite3_bind_text(st, n, (const char *)v->data, (int)v->len, SQLITE_STATIC);
		return;
	case VALUE_BLOB:
		sqlite3_bind_blob(st, n, v->len ? (const void *)v->data : "", (int)v->len,
				  SQLITE_STATIC);
		return;
	default:
		sqlite3_bind_null(st, n);
	}
}

/* What the new database does not take, such as a name that is there already, is left out. */
static int put_row(struct pages *g, struct row *row)
{
	int k = shape_of(row), rc;
	struct meta_conn c = { .db = g->to };
	sqlite3_stmt *st;

	if (k < 0)
		return 0;
	st = g->put[k];
	if (row->table)
		row->v[0] = (struct value){ .type = VALUE_INT, .number = row->rowid };
	for (unsigned i = 0; i < row->n; i++)
		bind(st, (int)i + 1, &row->v[i]);
	rc = sqlite3_step(st);
	sqlite3_reset(st);
	if (rc == SQLITE_DONE || (rc & 0xff) == SQLITE_CONSTRAINT || (rc & 0xff) == SQLITE_MISMATCH)
		return 0;
	return meta_conn_errno(&c, rc);
}

/* ---- cells ---- */

/* Bytes of a payload of that length that are in its cell. */
static size_t local_length(uint64_t len, bool table)
{
	size_t most = table ? PAGE - 35 : (PAGE - 12) * 64 / 255 - 23;
	size_t least = (PAGE - 12) * 32 / 255 - 23, n;

	if (len <= most)
		return (size_t)len;
	n = least + (size_t)((len - least) % (PAGE - 4));
	return n <= most ? n : least;
}

/* The whole payload, which begins at p, in g->row. 0: it is not there; negative: out of memory. */
static int gather(struct pages *g, const uint8_t *p, const uint8_t *end, uint64_t len, bool table)
{
	size_t local = local_length(len, table), have = local;
	uint8_t page[PAGE];
	uint32_t next;

	if (len > ROW_MAX || local > (size_t)(end - p))
		return 0;
	if (len > g->cap) {
		uint8_t *row = realloc(g->row, len);

		if (!row)
			return -ENOMEM;
		g->row = row;
		g->cap = len;
	}
	if (local)
		memcpy(g->row, p, local);
	if (local == len)
		return 1;
	if ((size_t)(end - p) - local < 4)
		return 0;
	next = get32(p + local);
	while (have < len) {
		size_t n = len - have < PAGE - 4 ? (size_t)(len - have) : PAGE - 4;

		if (!read_page(g, next, page))
			return 0;
		memcpy(g->row + have, page + 4, n);
		next = get32(page);
		have += n;
	}
	return 1;
}

static int take_cell(struct pages *g, const uint8_t *p, const uint8_t *end, bool table)
{
	struct row row = { .table = table };
	uint64_t len, rowid = 0;
	int r;

	if (!get_varint(&p, end, &len) || (table && !get_varint(&p, end, &rowid)))
		return 0;
	row.rowid = (int64_t)rowid;
	r = gather(g, p, end, len, table);
	if (r == 1)
		r = parse_row(g->row, (size_t)len, &row) ? put_row(g, &row) : 0;
	return r;
}

static const uint8_t *page_header(uint32_t n, const uint8_t *page)
{
	return n == 1 ? page + 100 : page;
}

/* The rows that are on a page itself. */
static int take_page(struct pages *g, uint32_t n, const uint8_t *page)
{
	const uint8_t *h = page_header(n, page), *end = page + PAGE;
	bool inner = h[0] == PAGE_INDEX_INNER, table = h[0] == PAGE_TABLE_LEAF;
	uint32_t cells = get16(h + 3);
	const uint8_t *slot = h + (inner ? 12 : 8);
	int r = 0;

	if (!inner && !table && h[0] != PAGE_INDEX_LEAF)
		return 0;
	for (uint32_t i = 0; i < cells && slot + 2 <= end && !r; i++, slot += 2) {
		uint32_t at = get16(slot) + (inner ? 4 : 0);

		if (at < PAGE)
			r = take_cell(g, page + at, end, table);
	}
	return r;
}

/* ---- trees ---- */

static int take_tree(struct pages *g, uint32_t n, unsigned depth);

static int take_children(struct pages *g, uint32_t n, const uint8_t *page, unsigned depth)
{
	const uint8_t *h = page_header(n, page), *slot = h + 12;
	uint32_t cells = get16(h + 3);
	int r = 0;

	for (uint32_t i = 0; i < cells && slot + 2 <= page + PAGE && !r; i++, slot += 2) {
		uint32_t at = get16(slot);

		if (at <= PAGE - 4)
			r = take_tree(g, get32(page + at), depth + 1);
	}
	return r ? r : take_tree(g, get32(h + 8), depth + 1);
}

static int take_tree(struct pages *g, uint32_t n, unsigned depth)
{
	uint8_t page[PAGE];
	uint8_t type;
	int r = 0;

	if (depth > DEPTH_MAX || n < 1 || n > g->n || g->seen[n] || !read_page(g, n, page))
		return 0;
	g->seen[n] = 1;
	type = *page_header(n, page);
	if (type == PAGE_INDEX_INNER || type == PAGE_TABLE_INNER)
		r = take_children(g, n, page, depth);
	return r ? r : take_page(g, n, page);
}

/* A row of the schema: where a tree begins. */
static int take_root(struct pages *g, const uint8_t *p, const uint8_t *end)
{
	struct row row = { .table = true };
	uint64_t len, rowid;
	int r;

	if (!get_varint(&p, end, &len) || !get_varint(&p, end, &rowid))
		return 0;
	r = gather(g, p, end, len, true);
	if (r != 1)
		return r;
	if (!parse_row(g->row, (size_t)len, &row) || row.n != 5 || row.v[3].type != VALUE_INT ||
	    row.v[3].number < 2 || row.v[3].number > g->n)
		return 0;
	return take_tree(g, (uint32_t)row.v[3].number, 0);
}

static int take_trees(struct pages *g)
{
	const uint8_t *h, *slot;
	uint8_t page[PAGE];
	int r = 0;

	if (!read_page(g, 1, page))
		return 0;
	g->seen[1] = 1;
	h = page_header(1, page);
	if (h[0] != PAGE_TABLE_LEAF)
		return 0;
	slot = h + 8;
	for (uint32_t i = get16(h + 3); i && slot + 2 <= page + PAGE && !r; i--, slot += 2)
		if (get16(slot) < PAGE)
			r = take_root(g, page + get16(slot), page + PAGE);
	return r;
}

/* Free pages hold rows that were removed. */
static void mark_free(struct pages *g)
{
	uint8_t page[PAGE];
	uint32_t n;

	if (!read_page(g, 1, page))
		return;
	for (n = get32(page + 32); n > 1 && n <= g->n && !g->seen[n]; n = get32(page)) {
		if (!read_page(g, n, page))
			return;
		g->seen[n] = 1;
		for (uint32_t i = 0; i < get32(page + 4) && i < PAGE / 4 - 2; i++) {
			uint32_t leaf = get32(page + 8 + 4 * i);

			if (leaf > 1 && leaf <= g->n)
				g->seen[leaf] = 1;
		}
	}
}

static int take_rest(struct pages *g)
{
	uint8_t page[PAGE];
	int r = 0;

	for (uint32_t n = 2; n <= g->n && !r; n++) {
		if (fsck_cancelled(g->f))
			return -ECANCELED;
		if (!g->seen[n] && read_page(g, n, page))
			r = take_page(g, n, page);
	}
	return r;
}

/* ---- the whole ---- */

static int prepare(struct pages *g)
{
	struct meta_conn c = { .db = g->to };

	for (unsigned k = 0; k < SHAPES; k++) {
		int rc = sqlite3_prepare_v2(g->to, shapes[k].sql, -1, &g->put[k], NULL);

		if (rc != SQLITE_OK)
			return meta_conn_errno(&c, rc);
	}
	return 0;
}

static int open_pages(struct pages *g)
{
	struct stat st;

	g->fd = openat(g->f->dir_fd, "meta.db", O_RDONLY | O_CLOEXEC);
	if (g->fd < 0 || fstat(g->fd, &st))
		return -errno;
	if (st.st_size / PAGE >= UINT32_MAX)
		return -EFBIG;
	g->n = (uint32_t)(st.st_size / PAGE);
	g->seen = calloc((size_t)g->n + 1, 1);
	return g->seen ? 0 : -ENOMEM;
}

int fsck_pages_copy(struct fsck *f, sqlite3 *to)
{
	struct pages g = { .f = f, .fd = -1, .to = to };
	struct meta_conn c = { .db = to };
	int r = open_pages(&g);

	if (!r)
		r = meta_conn_exec(&c, "BEGIN");
	if (!r)
		r = meta_schema_create(&c);
	if (!r)
		r = prepare(&g);
	if (!r)
		r = take_trees(&g);
	if (!r) {
		mark_free(&g);
		r = take_rest(&g);
	}
	for (unsigned k = 0; k < SHAPES; k++)
		sqlite3_finalize(g.put[k]);
	if (!r)
		r = meta_conn_exec(&c, "COMMIT");
	free(g.row);
	free(g.seen);
	if (g.fd >= 0)
		close(g.fd);
	return r;
}
