# SPDX-License-Identifier: Apache-2.0
# kvfs: a FUSE file system for KV caches.
#
# GNU make and pkg-config, nothing else: sources are found by wildcard, so a new file needs no line
# here. `make help` lists the targets. CC, CFLAGS, CPPFLAGS, LDFLAGS and LDLIBS are the user's; what
# kvfs itself needs stands in KVFS_* and comes first, so that the user's flags win.

VERSION := 0.1.0

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

# ---- What the caller may set ---------------------------------------------------------------------
#  V=1        loud: print whole commands
#  WERROR=1   warnings are errors
#  SAN=LIST   sanitizers, for example SAN=address,undefined or SAN=thread
#  BUILD=DIR  where everything built goes; each compiler and sanitizer has a folder of its own
#  PREFIX, DESTDIR and the folders below, for install

comma := ,
empty :=
space := $(empty) $(empty)

variant := $(subst $(space),-,$(strip $(if $(findstring clang,$(notdir $(firstword $(CC)))),clang) \
		$(if $(SAN),san-$(subst $(comma),-,$(SAN)))))
BUILD ?= build$(if $(variant),/$(variant))

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
# mount(8) looks for its helpers in /sbin and nowhere else; a private prefix keeps to itself.
SBINDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(PREFIX)/sbin)
MANDIR ?= $(PREFIX)/share/man
COMPLETIONSDIR ?= $(PREFIX)/share/bash-completion/completions
UNITDIR ?= $(PREFIX)/lib/systemd/system

PKG_CONFIG ?= pkg-config
CLANG_FORMAT ?= clang-format
MANDOC ?= mandoc
INSTALL ?= install

ifeq ($(V),1)
Q :=
say = @:
else
Q := @
say = @printf '  %-7s %s\n'
MAKEFLAGS += --no-print-directory
endif

# ---- Libraries -----------------------------------------------------------------------------------
# The system's libfuse when it is new enough, else the one scripts/setup has built.
FUSE_MIN := 3.17
KVFS_DEPS ?= /opt/kvfs-deps
PACKAGES := liblz4 libzstd libxxhash liburing sqlite3 jansson
# What only the unit tests link with.
TEST_PACKAGES := $(if $(filter tests unit,$(MAKECMDGOALS)),criterion)

# Goals that compile; the others work on a bare machine too.
bare_goals := help clean format format-check man-lint uninstall check demo bench soak
ifneq ($(filter-out $(bare_goals),$(or $(MAKECMDGOALS),all)),)

ifneq ($(shell $(PKG_CONFIG) --atleast-version=$(FUSE_MIN) fuse3 2>/dev/null && echo yes),yes)
deps_pc := $(firstword $(wildcard $(KVFS_DEPS)/lib/pkgconfig/fuse3.pc build/deps/lib/pkgconfig/fuse3.pc))
ifneq ($(deps_pc),)
export PKG_CONFIG_PATH := $(dir $(deps_pc))$(if $(PKG_CONFIG_PATH),:$(PKG_CONFIG_PATH))
endif
endif

# Make before 4.4 does not hand exported variables to $(shell).
pc := PKG_CONFIG_PATH='$(PKG_CONFIG_PATH)' $(PKG_CONFIG)
missing := $(strip $(shell \
	$(pc) --atleast-version=$(FUSE_MIN) fuse3 2>/dev/null || echo 'fuse3>=$(FUSE_MIN)'; \
	for p in $(PACKAGES) $(TEST_PACKAGES); do $(pc) --exists $$p 2>/dev/null || echo $$p; done))
ifneq ($(missing),)
$(error missing: $(missing); run scripts/setup)
endif

LIB_CFLAGS := $(shell $(pc) --cflags fuse3 $(PACKAGES))
LIB_LIBS := $(shell $(pc) --libs fuse3 $(PACKAGES)) -lm -ldl
UNIT_LIBS := $(if $(TEST_PACKAGES),$(shell $(pc) --libs $(TEST_PACKAGES)))

# ---- The GPU part --------------------------------------------------------------------------------
# Kernels travel inside the program as one fat binary, loaded through the driver API that is found
# with dlopen: a kvfs built with nvcc starts on a machine without CUDA.
CU := $(sort $(wildcard gpu/*.cu))
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
ifneq ($(and $(CU),$(NVCC)),)
CUDA_VERSION := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
cuda_known := $(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch))
cuda_archs := $(filter 80 90 100,$(cuda_known))
# PTX for the oldest of them serves every later one that has no code of its own.
GENCODE := $(foreach a,$(cuda_archs),-gencode arch=compute_$a$(comma)code=sm_$a) \
	-gencode arch=compute_$(firstword $(cuda_archs))$(comma)code=compute_$(firstword $(cuda_archs))
CUDA_CPPFLAGS := -DKVFS_HAVE_CUDA -DKVFS_CUDA_VERSION='"$(CUDA_VERSION)"'
FATBIN_OBJ := $(BUILD)/obj/gpu/fatbin.o
endif

endif # goals that compile

# ---- Flags ---------------------------------------------------------------------------------------
KVFS_CPPFLAGS := -D_FILE_OFFSET_BITS=64 -D_GNU_SOURCE -I. -DKVFS_VERSION='"$(VERSION)"' \
	$(CUDA_CPPFLAGS) $(LIB_CFLAGS)
KVFS_CFLAGS := -std=gnu11 -O2 -g -pthread -Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes \
	$(if $(WERROR),-Werror)
KVFS_LDFLAGS := -pthread -Wl,--as-needed
ifneq ($(SAN),)
# Every report ends the process: a test must not pass over one.
SAN_FLAGS := -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
endif

# Of the one file that is called only where the processor has it.
AVX2 := $(if $(filter x86_64-%,$(shell $(CC) -dumpmachine)),-mavx2)

COMPILE = $(CC) $(KVFS_CPPFLAGS) $(CPPFLAGS) $(KVFS_CFLAGS) $(SAN_FLAGS) $(CFLAGS)
LINK = $(CC) $(KVFS_LDFLAGS) $(SAN_FLAGS) $(CFLAGS) $(LDFLAGS)
LIBS = $(LIB_LIBS) $(LDLIBS)

# ---- Sources -------------------------------------------------------------------------------------
SRC := $(sort $(wildcard mount/*.c fs/*.c store/*.c gpu/*.c))
OBJ := $(SRC:%.c=$(BUILD)/obj/%.o) $(FATBIN_OBJ)
# Everything but main(), for the programs that bring their own.
LIB_OBJ := $(filter-out $(BUILD)/obj/mount/main.o,$(OBJ))

UNIT_SRC := $(sort $(wildcard tests/unit/*.c))
ifneq ($(and $(UNIT_SRC),$(findstring thread,$(SAN))),)
UNIT_SRC += tests/tsan.c
UNIT_LDFLAGS := -Wl,--export-dynamic
endif
UNIT_OBJ := $(UNIT_SRC:%.c=$(BUILD)/obj/%.o)
UNIT := $(if $(UNIT_SRC),$(BUILD)/tests/unit)
# Stand-alone programs the mount cases run: they see kvfs from outside, so nothing of it is linked.
HELPER_SRC := $(sort $(wildcard tests/helpers/*.c tests/cases/*.c))
HELPERS := $(addprefix $(BUILD)/tests/helpers/,$(notdir $(HELPER_SRC:.c=)))
# Programs of the benchmark and of the soak run, with what they use of kvfs's own code linked in.
TOOL_SRC := $(sort $(wildcard tests/bench/*.c tests/soak/*.c))
TOOLS := $(TOOL_SRC:%.c=$(BUILD)/%)
# Fuzzers, each with all of kvfs but main() in it, which is compiled anew for them.
FUZZ_SRC := $(sort $(wildcard tests/fuzz/*.c))
FUZZERS := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/fuzz/%)
# One program: a store whose calls and allocations fail. The latter are those that --wrap hands over.
FAULT_SRC := $(sort $(wildcard tests/fault/*.c))
FAULT_OBJ := $(FAULT_SRC:%.c=$(BUILD)/obj/%.o)
FAULT := $(if $(FAULT_SRC),$(BUILD)/tests/fault)
FAULT_LDFLAGS := $(foreach f,malloc calloc realloc reallocarray strdup asprintf mmap64,-Wl$(comma)--wrap=$f)
FORMATTED := $(sort $(wildcard $(foreach d,mount fs store gpu tests/unit tests/helpers tests/cases \
	tests tests/bench tests/soak tests/fuzz tests/fault,$d/*.c $d/*.h $d/*.cu)))
MAN := $(sort $(wildcard man/*.[0-9]))
UNITS := $(sort $(wildcard scripts/systemd/*.service))

# With -j of the caller's the job server is inherited; without it use every core.
jobs = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
run_env = BUILD='$(abspath $(BUILD))' KVFS='$(abspath $(BUILD)/kvfs)' SAN='$(SAN)'

# ---- Targets -------------------------------------------------------------------------------------
.PHONY: all tests tools fuzzers fuzz-programs check unit demo bench soak man-lint format format-check install uninstall \
	clean help FORCE

all: $(BUILD)/kvfs ## build kvfs (the default)

tests: all $(UNIT) $(HELPERS) $(FAULT) ## build the tests

tools: all $(TOOLS)

# libFuzzer is clang's.
fuzzers: ## build the fuzzers with clang and its sanitizers
	$(Q)$(MAKE) $(jobs) CC=clang NVCC= SAN=address,undefined,fuzzer-no-link BUILD='$(BUILD)/fuzzing' fuzz-programs

fuzz-programs: $(FUZZERS)

check: ## set up, build with warnings as errors, run every test; T='PATTERN...' selects
	$(Q)scripts/setup
	$(Q)$(MAKE) $(jobs) WERROR=1 tests
	$(Q)$(if $(SAN),,$(MAKE) $(jobs) WERROR=1 fuzzers)
	$(Q)$(run_env) tests/run $(T)

unit: tests ## build and run the unit tests alone
	$(Q)$(run_env) tests/run 'unit/*'

demo: ## set up, build, and show kvfs at work on real KV caches
	$(Q)scripts/setup --minimal
	$(Q)$(MAKE) $(jobs) all
	$(Q)$(run_env) scripts/demo

bench: ## measure against tmpfs, ext4 and the raw device; results in build/bench
	$(Q)scripts/setup
	$(Q)$(MAKE) $(jobs) tools
	$(Q)$(run_env) tests/bench/run $(T)

soak: ## long runs: kill -9 and power-cut loops, checkers, fuzzers
	$(Q)scripts/setup
	$(Q)$(MAKE) $(jobs) tests tools
	$(Q)$(if $(SAN),,$(MAKE) $(jobs) fuzzers)
	$(Q)$(run_env) tests/soak/run $(T)

man-lint: ## check the manual pages
	$(say) LINT 'man'
	$(Q)$(if $(MAN),$(MANDOC) -T lint -W warning $(MAN))

format: ## lay out the sources with clang-format
	$(Q)$(if $(FORMATTED),$(CLANG_FORMAT) -i $(FORMATTED))

format-check: ## fail if `make format` would change anything
	$(say) CHECK 'format'
	$(Q)$(if $(FORMATTED),$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED))

install: all ## install below DESTDIR and PREFIX
	$(Q)$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(SBINDIR)
	$(Q)$(INSTALL) -m 755 $(BUILD)/kvfs $(DESTDIR)$(BINDIR)/kvfs
	$(Q)ln -sf $(BINDIR)/kvfs $(DESTDIR)$(SBINDIR)/mount.kvfs
	$(Q)for m in $(MAN); do \
		$(INSTALL) -D -m 644 $$m $(DESTDIR)$(MANDIR)/man$${m##*.}/$${m##*/} || exit 1; done
	$(Q)if [ -e scripts/completion/kvfs.bash ]; then $(INSTALL) -D -m 644 \
		scripts/completion/kvfs.bash $(DESTDIR)$(COMPLETIONSDIR)/kvfs; fi
	$(Q)for u in $(UNITS); do \
		$(INSTALL) -D -m 644 $$u $(DESTDIR)$(UNITDIR)/$${u##*/} && \
		sed -i 's,@BINDIR@,$(BINDIR),g' $(DESTDIR)$(UNITDIR)/$${u##*/} || exit 1; done

uninstall: ## remove what install put there
	$(Q)rm -f $(DESTDIR)$(BINDIR)/kvfs $(DESTDIR)$(SBINDIR)/mount.kvfs \
		$(foreach m,$(MAN),$(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $m))/$(notdir $m)) \
		$(DESTDIR)$(COMPLETIONSDIR)/kvfs $(addprefix $(DESTDIR)$(UNITDIR)/,$(notdir $(UNITS)))

# build/deps, a libfuse that took a download to build, stays.
clean: ## remove what was built
	$(Q)rm -rf $(addprefix $(BUILD)/,kvfs obj tests bench .compile .link) \
		$(wildcard build/clang* build/san-*)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## /\1|/p' $(firstword $(MAKEFILE_LIST)) | \
		awk -F'|' '{ printf "  %-13s %s\n", $$1, $$2 }'
	@echo '  Variables: V=1 WERROR=1 SAN=address,undefined|thread CC=clang BUILD= PREFIX= DESTDIR= T='

# ---- Rules ---------------------------------------------------------------------------------------
# A stamp is rewritten only when its text changes, and what depends on it is built again then: with
# other flags, or when a source file went away.
quote = '$(subst ','\'',$1)'
stamp = $(Q)mkdir -p $(@D); printf '%s\n' $(call quote,$1) | cmp -s - $@ || \
	printf '%s\n' $(call quote,$1) >$@

$(BUILD)/.compile: FORCE
	$(call stamp,$(COMPILE))

$(BUILD)/.link: FORCE
	$(call stamp,$(LINK) $(OBJ) $(UNIT_OBJ) $(FAULT_OBJ) $(LIBS))

$(BUILD)/kvfs: $(OBJ) $(BUILD)/.link
	$(say) LD $@
	$(Q)$(LINK) -o $@ $(OBJ) $(LIBS)
ifeq ($(NVCC),)
	@echo 'kvfs: no nvcc on PATH or in /usr/local/cuda/bin: built without the GPU part'
endif

$(BUILD)/obj/%.o: %.c $(BUILD)/.compile
	$(say) CC $<
	$(Q)mkdir -p $(@D)
	$(Q)$(COMPILE) -MMD -MP -c -o $@ $<

# Loops over the vectors of a block are unrolled only so; no vector is passed to another file.
$(BUILD)/obj/store/codec_planes.o: private KVFS_CFLAGS += -O3 -Wno-psabi $(if $(AVX2),-DHAVE_PLANES_AVX2)
$(BUILD)/obj/store/codec_dense.o $(BUILD)/obj/store/codec_huffman.o: private KVFS_CFLAGS += -O3
$(BUILD)/obj/store/codec_planes_avx2.o: private KVFS_CFLAGS += -O3 -Wno-psabi $(AVX2)
$(BUILD)/obj/store/codec_quants.o: private KVFS_CFLAGS += -O3 $(if $(AVX2),-DHAVE_QUANTS_AVX2)
$(BUILD)/obj/store/codec_quants_avx2.o: private KVFS_CFLAGS += -O3 $(AVX2)

$(BUILD)/tests/unit: $(UNIT_OBJ) $(LIB_OBJ) $(BUILD)/.link
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(LINK) $(UNIT_LDFLAGS) -o $@ $(UNIT_OBJ) $(LIB_OBJ) $(UNIT_LIBS) $(LIBS)

$(FAULT): $(FAULT_OBJ) $(LIB_OBJ) $(BUILD)/.link
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(LINK) $(FAULT_LDFLAGS) -o $@ $(FAULT_OBJ) $(LIB_OBJ) $(LIBS)

$(FUZZERS): $(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(LIB_OBJ) $(BUILD)/.link
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(LINK) -fsanitize=fuzzer -o $@ $< $(LIB_OBJ) $(LIBS)

vpath %.c tests/helpers tests/cases
$(HELPERS): $(BUILD)/tests/helpers/%: %.c $(BUILD)/.compile
	$(say) CC $<
	$(Q)mkdir -p $(@D)
	$(Q)$(COMPILE) -MMD -MP -MF $@.d $(LDFLAGS) -Wl,--as-needed -o $@ $< $(LIBS)

$(BUILD)/obj/kvfs.a: $(LIB_OBJ) $(BUILD)/.link
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_OBJ)

$(TOOLS): $(BUILD)/%: $(BUILD)/obj/%.o $(BUILD)/obj/kvfs.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $< $(BUILD)/obj/kvfs.a $(LIBS)

# One translation unit of all kernels makes one fat binary with one pair of symbols.
$(BUILD)/obj/gpu/kernels.fatbin: $(CU) $(BUILD)/.compile
	$(say) NVCC '$(CU)'
	$(Q)mkdir -p $(@D)
	$(Q)printf '#include "%s"\n' $(CU) >$(@:.fatbin=.cu)
	$(Q)$(NVCC) -O3 -std=c++17 -I. $(GENCODE) -MD -MP -MF $(@:.fatbin=.d) -MT $@ \
		-fatbin -o $@ $(@:.fatbin=.cu)

$(BUILD)/obj/gpu/fatbin.o: $(BUILD)/obj/gpu/kernels.fatbin
	$(Q)printf '%s\n' '.section .rodata' '.balign 64' '.globl kvfs_fatbin' 'kvfs_fatbin:' \
		'.incbin "$<"' '.globl kvfs_fatbin_end' 'kvfs_fatbin_end:' '.byte 0' \
		'.section .note.GNU-stack,"",@progbits' >$(@:.o=.s)
	$(Q)$(CC) -c -o $@ $(@:.o=.s)

-include $(OBJ:.o=.d) $(UNIT_OBJ:.o=.d) $(FAULT_OBJ:.o=.d) $(HELPERS:=.d) $(TOOL_SRC:%.c=$(BUILD)/obj/%.d) \
	$(FUZZ_SRC:%.c=$(BUILD)/obj/%.d) \
	$(BUILD)/obj/gpu/kernels.d
