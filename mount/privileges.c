/* SPDX-License-Identifier: Apache-2.0 */
/*
 * privileges: what a daemon of root's keeps of root's rights. Whoever takes it over through what it
 * reads, from the kernel or from a store, is to get as little as possible.
 *
 * CAP_SYS_ADMIN has to stay, for passthrough and the tmpfs of the run directory, so calls that a file
 * server never makes are refused too, by a seccomp filter. It names what is refused and not what is
 * allowed: libraries and the kernel's own ways change, and a daemon that fails in a rare moment loses
 * data. Ordinary users' daemons have nothing to give up, and need fusermount3, which is setuid.
 */
#include "mount/mount.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BIT(capability) (UINT64_C(1) << (capability))

/* The owner of a store need not be root: its files are written and SQLite makes its own with the owner
 * of meta.db. SYS_RESOURCE is what lets names be removed where a file system is full but for root's
 * reserve; IPC_LOCK, io_uring on kernels before 5.12. */
static const uint64_t kept = BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) |
			     BIT(CAP_IPC_LOCK) | BIT(CAP_LEASE) | BIT(CAP_SYS_ADMIN) |
			     BIT(CAP_SYS_RESOURCE);

static bool is_roots(void)
{
	return geteuid() == 0 && daemon_privileged();
}

static int set_capabilities(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &head, data) < 0)
		return -errno;
	for (int i = 0; i < 2; i++) {
		uint32_t keep = (uint32_t)(kept >> 32 * i);

		data[i].permitted &= keep;
		data[i].effective &= keep;
		data[i].inheritable = 0;
	}
	return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

int privileges_drop(void)
{
	if (!is_roots())
		return 0;
	/* The bounding set first, as that takes a capability; one that is not known ends the list. */
	for (unsigned c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++)
		if (c >= 64 || !(kept & BIT(c)))
			prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return set_capabilities();
}

/* ---- The filter ------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* A sanitizer that has found something runs a program to say where, and one of leaks traces. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef ARCH
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef ARCH
#endif
#endif

#ifdef ARCH

/* Mounting too: what is left to do is to unmount. */
static const unsigned short refused[] = {
	SYS_execve,
	SYS_execveat,
	SYS_ptrace,
	SYS_process_vm_readv,
	SYS_process_vm_writev,
	SYS_kcmp,
	SYS_bpf,
	SYS_perf_event_open,
	SYS_userfaultfd,
	SYS_init_module,
	SYS_finit_module,
	SYS_delete_module,
	SYS_kexec_load,
	SYS_reboot,
	SYS_swapon,
	SYS_swapoff,
	SYS_mount,
	SYS_pivot_root,
	SYS_chroot,
	SYS_setns,
	SYS_unshare,
	SYS_settimeofday,
	SYS_clock_settime,
	SYS_adjtimex,
	SYS_clock_adjtime,
	SYS_sethostname,
	SYS_setdomainname,
	SYS_acct,
	SYS_quotactl,
	SYS_syslog,
	SYS_add_key,
	SYS_request_key,
	SYS_keyctl,
	SYS_open_by_handle_at,
	SYS_setuid,
	SYS_setgid,
	SYS_setreuid,
	SYS_setregid,
	SYS_setresuid,
	SYS_setresgid,
	SYS_setfsuid,
	SYS_setfsgid,
	SYS_setgroups,
	SYS_listen,
	SYS_accept,
	SYS_accept4,
#ifdef SYS_kexec_file_load
	SYS_kexec_file_load,
#endif
#ifdef SYS_iopl
	SYS_iopl,
	SYS_ioperm,
#endif
#ifdef SYS_move_mount
	SYS_open_tree,
	SYS_move_mount,
	SYS_fsopen,
	SYS_fsconfig,
	SYS_fsmount,
	SYS_fspick,
#endif
#ifdef SYS_mount_setattr
	SYS_mount_setattr,
#endif
#ifdef SYS_pidfd_getfd
	SYS_pidfd_getfd,
#endif
};

#define REFUSED  (sizeof(refused) / sizeof(refused[0]))
#define RULES    (REFUSED + 16)
#define FIELD(f) ((uint32_t)offsetof(struct seccomp_data, f))
#define X32      0x40000000u /* marks the calls of another ABI of x86-64 */

/* ret: RULES of them at least. The number of those that are used. */
static unsigned short filter_build(struct sock_filter *ret)
{
	const struct sock_filter refuse =
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA));
	unsigned short n = 0;

	ret[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(arch));
	ret[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
	ret[n++] = refuse;
	ret[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(nr));
	ret[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1);
	ret[n++] = refuse;
	for (size_t i = 0; i < REFUSED; i++) {
		ret[n++] =
			(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i], 0, 1);
		ret[n++] = refuse;
	}
	/* Lines go to syslog through a socket of the machine; there is no other. */
	ret[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3);
	ret[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(args[0]));
	ret[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0);
	ret[n++] = refuse;
	ret[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	return n;
}

int privileges_filter(void)
{
	struct sock_filter rules[2 * RULES];
	struct sock_fprog program = { .filter = rules };
	long r;

	if (!is_roots())
		return 0;
	program.len = filter_build(rules);
	r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
	/* A number above 0 is that of a thread that has another filter. */
	return r < 0 ? -errno : r > 0 ? -EBUSY : 0;
}

bool privileges_has_filter(void)
{
	return true;
}

#else

int privileges_filter(void)
{
	return 0;
}

bool privileges_has_filter(void)
{
	return false;
}

#endif
