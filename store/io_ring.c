/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_ring: reads and writes in flight. io_uring does them where the kernel lets us; else requests
 * queue up and io_ring_wait does the oldest itself, so that submitting never blocks.
 *
 * The kernel ties requests to the thread that submits them and cancels some when it ends; these and
 * the rest of short transfers are done by the waiter with plain calls.
 */
#include "store/io.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

struct io_ring {
	const struct io_ops *io;
	unsigned depth;
	bool uring;
	struct io_uring kernel; /* submission under the lock, completion by the one waiter */
	pthread_mutex_t lock;
	unsigned inflight;          /* lock */
	unsigned first;             /* lock; of the queue, without io_uring */
	struct io_request *queue[]; /* lock; depth of them */
};

static bool kernel_can_read_and_write(struct io_uring *ring)
{
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
		   io_uring_opcode_supported(probe, IORING_OP_WRITE);

	io_uring_free_probe(probe);
	return can;
}

static bool start_uring(struct io_ring *r)
{
	if (r->io->direct_only || io_uring_queue_init(r->depth, &r->kernel, 0) < 0)
		return false;
	if (kernel_can_read_and_write(&r->kernel))
		return true;
	io_uring_queue_exit(&r->kernel);
	return false;
}

int io_ring_new(const struct io_ops *io, unsigned depth, struct io_ring **ret)
{
	struct io_ring *r = calloc(1, sizeof(*r) + depth * sizeof(r->queue[0]));

	if (!r)
		return -ENOMEM;
	r->io = io;
	r->depth = depth;
	pthread_mutex_init(&r->lock, NULL);
	r->uring = start_uring(r);
	*ret = r;
	return 0;
}

void io_ring_free(struct io_ring *r)
{
	if (!r)
		return;
	while (io_ring_wait(r))
		;
	if (r->uring)
		io_uring_queue_exit(&r->kernel);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

bool io_ring_is_uring(const struct io_ring *r)
{
	return r->uring;
}

unsigned io_ring_inflight(struct io_ring *r)
{
	unsigned n;

	pthread_mutex_lock(&r->lock);
	n = r->inflight;
	pthread_mutex_unlock(&r->lock);
	return n;
}

static int submit_uring(struct io_ring *r, struct io_request *req)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->kernel);
	int rc;

	if (!sqe)
		return -EAGAIN;
	if (req->write)
		io_uring_prep_write(sqe, req->fd, req->buf, (unsigned)req->len, req->off);
	else
		io_uring_prep_read(sqe, req->fd, req->buf, (unsigned)req->len, req->off);
	io_uring_sqe_set_data(sqe, req);
	/* Once it is in the queue there is no taking it back; these three are for the moment. */
	while ((rc = io_uring_submit(&r->kernel)) == -EINTR || rc == -EAGAIN || rc == -EBUSY)
		sched_yield();
	return rc < 0 ? rc : 0;
}

int io_ring_submit(struct io_ring *r, struct io_request *req)
{
	int rc = 0;

	if (req->len > IO_REQUEST_MAX)
		return -EINVAL;
	pthread_mutex_lock(&r->lock);
	if (r->inflight == r->depth)
		rc = -EAGAIN;
	else if (r->uring)
		rc = submit_uring(r, req);
	else
		r->queue[(r->first + r->inflight) % r->depth] = req;
	if (!rc)
		r->inflight++;
	pthread_mutex_unlock(&r->lock);
	return rc;
}

/* What the kernel left of the request, from done on. */
static int transfer(struct io_ring *r, const struct io_request *req, size_t done)
{
	char *buf = (char *)req->buf + done;

	if (req->write)
		return io_write_full(r->io, req->fd, buf, req->len - done, req->off + done);
	return io_read_full(r->io, req->fd, buf, req->len - done, req->off + done);
}

static struct io_request *wait_uring(struct io_ring *r)
{
	struct io_uring_cqe *cqe;
	struct io_request *req;
	int res;

	/* Only signals end the wait early, and giving up would free buffers under the device. */
	while (io_uring_wait_cqe(&r->kernel, &cqe) < 0)
		;
	/* After whoever submitted it: the kernel orders the two, the lock tells the tools. */
	pthread_mutex_lock(&r->lock);
	req = io_uring_cqe_get_data(cqe);
	res = cqe->res;
	io_uring_cqe_seen(&r->kernel, cqe);
	pthread_mutex_unlock(&r->lock);

	if (res == -ECANCELED || res == -EAGAIN || res == -EINTR)
		res = 0;
	req->result = res < 0 ? res : transfer(r, req, (size_t)res);
	return req;
}

static struct io_request *take_queued(struct io_ring *r)
{
	struct io_request *req;

	pthread_mutex_lock(&r->lock);
	req = r->queue[r->first];
	pthread_mutex_unlock(&r->lock);
	req->result = transfer(r, req, 0);
	return req;
}

struct io_request *io_ring_wait(struct io_ring *r)
{
	struct io_request *req;

	if (!io_ring_inflight(r))
		return NULL;
	req = r->uring ? wait_uring(r) : take_queued(r);
	pthread_mutex_lock(&r->lock);
	r->inflight--;
	r->first = (r->first + 1) % r->depth;
	pthread_mutex_unlock(&r->lock);
	return req;
}
