/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: what the workload was promised, in memory that outlives it.
 *
 * For each file what its bytes are, and what some may be instead, as the change of them failed or was not
 * answered; what it was at each settle; for each transaction which of these it made the file, and which
 * names there were. A transaction leaves its number in an attribute of the root, so a store that is
 * looked at says itself which one it is.
 */
#ifndef FAULT_MODEL_H
#define FAULT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FILES     10
#define NAMES     12
#define FILE_MAX  (1u << 20)
#define VERSIONS  64
#define TXNS      64
#define FIRST_INO 100
#define OTHERS    2 /* that a byte may be beside what it is */
#define ANYTHING  255

struct content {
	uint32_t size;
	uint8_t byte[FILE_MAX];
};

struct file {
	bool made;      /* the object was created, and something of it acknowledged */
	bool discarded; /* it has begun to go */
	bool unsure;    /* what was settled last is not known */
	uint32_t size, other_size[OTHERS];
	unsigned other_sizes;
	uint8_t byte[FILE_MAX], other[OTHERS][FILE_MAX], others[FILE_MAX];
	int version; /* of the last settle; -1 */
};

/* The store as a transaction leaves it. */
struct state {
	int version[FILES]; /* -1: not there */
	int name[NAMES];    /* the file it is of; -1 */
};

struct model {
	struct file file[FILES];
	struct content version[VERSIONS];
	int versions;
	struct state state[TXNS];
	int base;          /* the state of the last transaction that succeeded */
	int attempt;       /* the last one begun */
	int acked;         /* the last one whose commit returned 0 */
	int durable;       /* the last one that is, as was said */
	uint64_t recorded; /* the last record in the journal that was acknowledged */
	bool damaged;  /* the kind of fault takes bytes away: EIO is an answer, others are none */
	bool finished; /* the workload came to its end */
	bool wrong;
	char why[512];
};
extern struct model *model;

/* Says why, once, and that the run has failed. */
void model_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A change is on its way: from now on it may have been made. */
void model_may_write(int f, uint32_t off, const uint8_t *data, uint32_t len);
void model_may_resize(int f, uint32_t size);
/* It was made. */
void model_wrote(int f, uint32_t off, const uint8_t *data, uint32_t len);
void model_resized(int f, uint32_t size);
/* A settle succeeded: what the file is now has a number. content: read, where the model is not sure; NULL. */
void model_settled(int f, const uint8_t *content, uint32_t size);
bool model_is_sure(int f);

/* False, with a reason, if got cannot be the range at off of the file as it is now. */
bool model_agrees(int f, const uint8_t *got, uint32_t len, uint32_t off);
bool model_agrees_size(int f, uint64_t size);

#endif
