/* SPDX-License-Identifier: Apache-2.0 */
/* The chunk table: references, death and revival, tenants, the warm tier's budget. */
#include "store/chunk.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct chunk_table *t;

static void setup(void)
{
	cr_assert_eq(chunk_table_new(10000, 1 << 20, &t), 0);
}

static void teardown(void)
{
	chunk_table_free(t);
}

TestSuite(chunk, .init = setup, .fini = teardown);

static struct chunk *add(uint32_t tenant, uint64_t hash, uint32_t len)
{
	struct record_info info = { .chunk_id = chunk_next_id(t),
				    .hash = { hash, 7 },
				    .tenant = tenant,
				    .raw_len = len,
				    .stored_len = len };
	struct chunk *c = chunk_add(t, &info, (struct segment_loc){ 1, (uint32_t)info.chunk_id });

	cr_assert_not_null(c);
	return c;
}

Test(chunk, is_found_by_its_tenant_only)
{
	struct chunk *c = add(1, 42, 100), *f;

	f = chunk_find(t, 1, (struct hash128){ 42, 7 }, 100, NULL);
	cr_assert_eq(f, c);
	cr_assert_null(chunk_find(t, 1, (struct hash128){ 42, 7 }, 100, f));
	cr_assert_null(chunk_find(t, 2, (struct hash128){ 42, 7 }, 100, NULL));
	cr_assert_null(chunk_find(t, 1, (struct hash128){ 42, 8 }, 100, NULL));
	cr_assert_null(chunk_find(t, 1, (struct hash128){ 42, 7 }, 99, NULL));
	chunk_put(t, c);
}

/* Equal hashes, different bytes: every candidate is offered, once, also while others come and go. */
Test(chunk, all_candidates_of_a_collision_are_offered)
{
	struct chunk *v[5], *c = NULL;
	unsigned seen = 0;

	for (int i = 0; i < 5; i++)
		v[i] = add(1, 42, 100);
	while ((c = chunk_find(t, 1, (struct hash128){ 42, 7 }, 100, c))) {
		for (int i = 0; i < 5; i++)
			if (v[i] == c) {
				cr_assert(!(seen & 1u << i));
				seen |= 1u << i;
			}
		for (uint64_t i = 0; i < 500; i++)
			add(1, i * 977 + (uint64_t)(uintptr_t)c, 50);
	}
	cr_assert_eq(seen, 31);
}

/* Whatever somebody has made collide, the walk ends, and the chunks are there all the same. */
Test(chunk, no_more_candidates_than_the_index_keeps)
{
	enum { N = 1000 };
	uint64_t id[N];
	struct chunk *c = NULL;
	unsigned found = 0;

	for (int i = 0; i < N; i++)
		id[i] = add(1, 42, 100)->info.chunk_id;
	while ((c = chunk_find(t, 1, (struct hash128){ 42, 7 }, 100, c)))
		found++;
	cr_assert(found && found <= INDEX_SAME, "%u", found);
	for (int i = 0; i < N; i++)
		cr_assert_not_null(chunk_get(t, id[i]));
}

/* A chunk that the index forgot is only not found: it lives and dies as all do. */
Test(chunk, forgotten_by_the_index)
{
	enum { N = 4000 };
	struct chunk_table *small;
	struct chunk **dead = calloc(N, sizeof(*dead));
	uint64_t found = 0;

	cr_assert_eq(chunk_table_new(10000, 4096, &small), 0);
	chunk_table_free(t);
	t = small;
	for (uint64_t i = 0; i < N; i++)
		add(1, i, 100);
	for (uint64_t i = 0; i < N; i++) {
		struct chunk *c = chunk_find(t, 1, (struct hash128){ i, 7 }, 100, NULL);

		found += c != NULL;
		if (c)
			chunk_put(t, c);
	}
	cr_assert(found > 200 && found <= 256, "%" PRIu64, found);
	for (uint64_t id = 1; id <= N; id++) {
		struct chunk *c = chunk_get(t, id);

		cr_assert_not_null(c);
		chunk_put(t, c);
		chunk_put(t, c);
	}
	cr_assert_eq(chunk_reap(t, dead, N), N);
	chunk_reap_done(t, dead, N, true);
	for (uint64_t i = 0; i < N; i++)
		cr_assert_null(chunk_find(t, 1, (struct hash128){ i, 7 }, 100, NULL));
	free(dead);
}

Test(chunk, dies_without_references_and_revives_when_found)
{
	struct chunk *c = add(1, 42, 100), *dead[4];
	struct chunk_totals n;
	uint64_t id = c->info.chunk_id;

	chunk_put(t, c);
	cr_assert(chunk_any_dead(t));
	chunk_table_totals(t, &n);
	cr_assert_eq(n.chunks, 0);
	c = chunk_find(t, 1, (struct hash128){ 42, 7 }, 100, NULL);
	cr_assert_not_null(c);
	cr_assert(!chunk_any_dead(t));
	chunk_table_totals(t, &n);
	cr_assert_eq(n.unique_bytes, 100);
	chunk_put(t, c);
	cr_assert_eq(chunk_reap(t, dead, 4), 1);
	cr_assert_null(chunk_find(t, 1, (struct hash128){ 42, 7 }, 100, NULL), "being deleted");
	cr_assert_null(chunk_get(t, id));
	chunk_reap_done(t, dead, 1, false);
	cr_assert_eq(chunk_reap(t, dead, 4), 1, "dead again after a transaction that failed");
	chunk_reap_done(t, dead, 1, true);
	cr_assert(!chunk_any_dead(t));
	cr_assert_null(chunk_get(t, id));
}

Test(chunk, committed_references_keep_it)
{
	struct chunk *c = add(1, 42, 100);
	struct meta_chunk row;
	uint64_t id = c->info.chunk_id;

	cr_assert_eq(chunk_db_add(t, id, 1), 1, "the whole row at first");
	cr_assert_eq(chunk_db_add(t, id, 1), 2);
	chunk_db_row(t, id, &row);
	cr_assert_eq(row.refs, 2);
	cr_assert_eq(row.loc.offset, c->loc.offset);
	chunk_put(t, c);
	cr_assert(!chunk_any_dead(t));
	chunk_db_undo(t, id, 1, false);
	chunk_db_undo(t, id, 1, true);
	cr_assert(chunk_any_dead(t));
}

Test(chunk, many)
{
	enum { N = 20000 };
	uint64_t *id = calloc(N, sizeof(*id));
	struct chunk **dead = calloc(N, sizeof(*dead));

	for (int i = 0; i < N; i++)
		id[i] = add(1, i * 977, 50)->info.chunk_id;
	for (int i = 0; i < N; i += 2) {
		struct chunk *c = chunk_get(t, id[i]);

		chunk_put(t, c);
		chunk_put(t, c);
	}
	cr_assert_eq(chunk_reap(t, dead, N), N / 2);
	chunk_reap_done(t, dead, N / 2, true);
	for (int i = 0; i < N; i++) {
		struct chunk *c = chunk_get(t, id[i]);

		cr_assert_eq(c != NULL, i % 2);
		if (c)
			chunk_put(t, c);
	}
	free(id);
	free(dead);
}

Test(chunk, warm_keeps_its_budget)
{
	char payload[3000], got[3000];
	struct chunk *v[5];
	struct chunk_totals n;

	for (int i = 0; i < 5; i++) {
		v[i] = add(1, i, sizeof(payload));
		memset(payload, i, sizeof(payload));
		cr_assert(warm_put(t, v[i], payload));
	}
	chunk_table_totals(t, &n);
	cr_assert_eq(n.warm_bytes, 9000);
	cr_assert(!warm_get(t, v[0], got), "the oldest went");
	cr_assert(!warm_get(t, v[1], got));
	cr_assert(warm_get(t, v[2], got));
	cr_assert_eq(got[1234], 2);
	v[0] = add(1, 99, 10001);
	cr_assert(!warm_put(t, v[0], payload), "larger than the budget");
}

/* A chunk that died was dropped from the warm tier, and is cold when it is found again. */
Test(chunk, is_cold_after_a_death)
{
	char payload[100] = "payload", got[100];
	struct chunk *c = add(1, 42, sizeof(payload)), *other = add(1, 43, sizeof(payload));
	struct extent e = { .len = sizeof(payload), .chunk = c->info.chunk_id };
	struct extmap *m = extmap_new(&e, 1);
	struct chunk_totals n;

	cr_assert_not_null(m);
	cr_assert(warm_put(t, c, payload));
	cr_assert(warm_has_map(t, m));
	chunk_put(t, other);
	chunk_put(t, c);
	chunk_table_totals(t, &n);
	cr_assert_eq(n.warm_bytes, 0);
	cr_assert(!warm_has_map(t, m));
	warm_drop_map(t, m);
	c = chunk_get(t, e.chunk);
	cr_assert(!warm_get(t, c, got));
	cr_assert(!warm_has_map(t, m));
	cr_assert(warm_put(t, c, payload));
	cr_assert(warm_get(t, c, got) && !strcmp(got, payload));
	extmap_unref(m);
}

/* A walk meets each live chunk once, whatever gaps the ids have, and no more at once than it was told to. */
Test(chunk, walk_meets_the_live)
{
	enum { N = 5000 };
	uint64_t last, next = 1, seen = 0, want = 0;
	struct chunk *c[64];
	size_t n;

	for (int i = 0; i < N; i++) {
		struct chunk *a = add(1, (uint64_t)i, 100);

		if (i % 3 && !(i > 1000 && i < 4000))
			want += a->info.chunk_id;
		else
			chunk_put(t, a); /* dies */
	}
	last = chunk_last_id(t);
	cr_assert_eq(last, N);
	add(1, 99999, 100); /* later than the walk */
	while (next <= last) {
		n = chunk_walk(t, next, last, c, 64, 1000, &next);
		cr_assert(n <= 10, "%zu chunks of 100 bytes", n);
		for (size_t i = 0; i < n; i++) {
			seen += c[i]->info.chunk_id;
			chunk_put(t, c[i]);
		}
	}
	cr_assert_eq(seen, want);
	cr_assert_eq(chunk_walk(t, next, last, c, 64, 1000, &next), 0);
}

/* It lives on, for those who have it. */
Test(chunk, unshared_is_not_found)
{
	struct chunk *c = add(1, 42, 100), *other = add(1, 42, 100);

	chunk_unshare(t, c);
	chunk_unshare(t, c);
	cr_assert_eq(chunk_find(t, 1, (struct hash128){ 42, 7 }, 100, NULL), other);
	cr_assert_null(chunk_find(t, 1, (struct hash128){ 42, 7 }, 100, other));
	cr_assert_eq(chunk_get(t, c->info.chunk_id), c);
}
