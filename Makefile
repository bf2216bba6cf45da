# What can be made is listed by `make help`. PREFIX, DESTDIR, CARGO_TARGET_DIR, CC and CXX are honoured.

CARGO ?= cargo
ifeq ($(origin CXX),default)
CXX = c++
endif
CXXFLAGS ?= -O2 -std=c++17
CARGO_TARGET_DIR ?= target
RELEASE = $(CARGO_TARGET_DIR)/release
DEBUG = $(CARGO_TARGET_DIR)/debug
# Runs of each program of `make soak-sharing`.
RUNS ?= 1000
# Seconds of `make fuzz-store`.
FUZZ ?= 60
# What `make soak-rescue` kills: repairs of a whole program, and steps of one repair.
RESCUES ?= 200
DEATHS ?= 200
# What `make test` builds and tests, for example `make test TESTS='-p fieldstone-sys'`. For -p fieldstone-system-tests, .ci/test also
# builds the command and the workloads.
TESTS ?= --workspace

PREFIX ?= /usr/local
bin = $(DESTDIR)$(PREFIX)/bin
lib = $(DESTDIR)$(PREFIX)/lib/fieldstone
man = $(DESTDIR)$(PREFIX)/share/man/man1
bash = $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fieldstone
zsh = $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_fieldstone
fish = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/fieldstone.fish
# The C library. Its soname (crates/lib/capi/build.rs) has the first two numbers of the version.
libs = $(DESTDIR)$(PREFIX)/lib
headers = $(DESTDIR)$(PREFIX)/include/fieldstone
version := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
shared = libfieldstone.so.$(version)

# The measured programs; rbtree beside them where there is a C++ compiler.
workloads = gups scan chase bfs cg bt blackscholes game spin bounded-memory

# The programs for false sharing, below sharing/ of a profile's directory: NAME-O0 to NAME-O3, since what a compiler keeps in a register is
# shared with nobody. Without a C compiler none of them is made, and all goes on without them.
sharing = $(if $(shell command -v $(firstword $(CC))),$(foreach level,0 1 2 3,$(patsubst \
	bench/workloads/src/sharing/%.c,$(1)/sharing/%-O$(level),$(wildcard bench/workloads/src/sharing/*.c))),no-c-compiler) \
	$(foreach compiler,$(cxx_compilers),$(foreach level,0 2,$(1)/sharing/objects$(compiler)-O$(level)))
# The one in C++ at -O0 and -O2, by $(CXX) as objects-cxx-O2 and by clang++, where there is one, as objects-clang-O2.
cxx_compilers = $(if $(shell command -v $(firstword $(CXX))),-cxx) $(if $(shell command -v clang++),-clang)

# Stacks made of blocks are for x86-64, and want a C compiler.
stacks = $(if $(and $(shell command -v $(firstword $(CC))),$(filter x86_64,$(shell uname -m))),$(RELEASE)/stacks)

.DEFAULT_GOAL := build
.PHONY: FORCE no-c-compiler soak-sharing soak-rescue soak-store fuzz-store golden-store test-programs build packages demo test install uninstall targets fmt clean help

build: $(RELEASE)/rbtree $(call sharing,$(RELEASE)) $(stacks) ## builds all in release mode (the default)
	$(CARGO) build --release

# Cargo builds no C++. Without a compiler the file is not made, and all goes on without it.
$(CARGO_TARGET_DIR)/%/rbtree: bench/workloads/src/rbtree.cpp
	@if command -v $(firstword $(CXX)) >/dev/null 2>&1; then \
		mkdir -p $(@D) && echo "$(CXX) $(CXXFLAGS) $<" && $(CXX) $(CXXFLAGS) -o $@ $<; \
	else \
		echo "no C++ compiler ($(CXX)): going on without the rbtree workload"; \
	fi

define sharing_at_level
$(CARGO_TARGET_DIR)/$(1)/sharing/%-O$(2): bench/workloads/src/sharing/%.c bench/workloads/src/sharing/threads.h
	@mkdir -p $$(@D)
	$(CC) -g -O$(2) -pthread -o $$@ $$< -lm
endef
$(foreach profile,release debug,$(foreach level,0 1 2 3,$(eval $(call sharing_at_level,$(profile),$(level)))))

define objects_at_level
$(CARGO_TARGET_DIR)/$(1)/sharing/objects-$(2)-O$(3): bench/workloads/src/sharing/objects.cpp bench/workloads/src/sharing/threads.h
	@mkdir -p $$(@D)
	$(if $(filter clang,$(2)),clang++,$(CXX)) -g -O$(3) -std=c++17 -pthread -o $$@ $$<
endef
$(foreach profile,release debug,$(foreach compiler,cxx clang,$(foreach level,0 2,$(eval $(call objects_at_level,$(profile),$(compiler),$(level))))))

# fieldstone-cc and what it links with, below stacks/ of the release directory.
$(RELEASE)/stacks: FORCE
	CARGO="$(CARGO)" CC="$(CC)" crates/lib/stacks/driver/build $@ $(CARGO_TARGET_DIR)

FORCE:

no-c-compiler:
	@echo "no C compiler ($(CC)): going on without the programs for false sharing"

packages: ## installs the Debian packages that are missing, where it may
	@scripts/packages/install

demo: packages build ## profiles two bundled workloads and a real program: tables here, plots in report.html
	@.ci/demo $(RELEASE)

# The system tests run the workloads that are built beside the command.
test: packages $(DEBUG)/rbtree $(call sharing,$(DEBUG)) ## runs all tests and lists those that failed; SKIP lines say what the machine lacks
	@CARGO="$(CARGO)" CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)" .ci/test $(TESTS)

$(RELEASE)/fieldstone $(RELEASE)/libfieldstone.so:
	$(MAKE) build

install: $(RELEASE)/fieldstone $(RELEASE)/libfieldstone.so ## installs to PREFIX (/usr/local), under DESTDIR
	install -d $(bin) $(lib)/workloads $(man) $(dir $(bash)) $(dir $(zsh)) $(dir $(fish))
	install -m 755 $(RELEASE)/fieldstone $(RELEASE)/fieldstone-reproduce $(bin)
	for program in $(workloads) $(notdir $(wildcard $(RELEASE)/rbtree)); do \
		install -m 755 $(RELEASE)/$$program $(lib)/workloads/$$program || exit 1; \
	done
	install -d $(lib)/workloads/sharing
	for program in $(notdir $(wildcard $(RELEASE)/sharing/*-O[0-3])); do \
		install -m 755 $(RELEASE)/sharing/$$program $(lib)/workloads/sharing/$$program || exit 1; \
	done
	$(RELEASE)/fieldstone man $(man)
	$(RELEASE)/fieldstone completions bash > $(bash)
	$(RELEASE)/fieldstone completions zsh > $(zsh)
	$(RELEASE)/fieldstone completions fish > $(fish)
	install -d $(headers) $(libs)/pkgconfig
	install -m 644 crates/lib/capi/include/fieldstone/*.h $(headers)
	install -m 644 $(RELEASE)/libfieldstone.a $(libs)
	install -m 755 $(RELEASE)/libfieldstone.so $(libs)/$(shared)
	ln -sf $(shared) $(libs)/$(basename $(shared))
	ln -sf $(shared) $(libs)/libfieldstone.so
	if [ -d "$(stacks)" ]; then \
		install -d $(lib)/stacks/tools $(lib)/stacks/include && ln -sfn ../../../../include/fieldstone $(lib)/stacks/include/fieldstone && \
		install -m 755 $(stacks)/fieldstone-cc $(bin) && ln -sf fieldstone-cc $(bin)/fieldstone-c++ && \
		install -m 644 $(stacks)/libfieldstone_stacks.a $(stacks)/stacks.list $(lib)/stacks && \
		install -m 755 $(stacks)/libfieldstone_stacks.so $(lib)/stacks && \
		install -m 755 $(stacks)/tools/as $(lib)/stacks/tools && \
		install -m 644 crates/lib/stacks/include/fieldstone/stacks.h $(headers); \
	fi
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(version)|' crates/lib/capi/fieldstone.pc.in > $(libs)/pkgconfig/fieldstone.pc

uninstall: ## removes what install put there
	rm -rf $(lib) $(headers)
	rm -f $(libs)/libfieldstone.a $(libs)/libfieldstone.so* $(libs)/pkgconfig/fieldstone.pc
	rm -f $(bin)/fieldstone-cc $(bin)/fieldstone-c++
	rm -f $(bin)/fieldstone $(bin)/fieldstone-reproduce $(man)/fieldstone.1 $(man)/fieldstone-*.1 $(bash) $(zsh) $(fish)

targets: packages build ## measures every cell of goals.toml against the peers
	$(RELEASE)/fieldstone-targets

test-programs: build ## runs the test suites of Python and Redis under `run`, of Lua and SQLite built by fieldstone-cc, against what they give without
	.ci/test-programs --region
	.ci/test-programs --repair
	.ci/test-programs --stacks

# The peers' malloc asks for the pages that our default pool asks for.
targets-arrays: packages build ## measures the section [arrays]
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(RELEASE)/fieldstone-targets arrays

targets-%: packages build ## measures one section, for example make targets-region
	$(RELEASE)/fieldstone-targets $*

soak-sharing: packages build ## runs ten programs RUNS times (1000) each under `run --repair` and compares what they give
	$(RELEASE)/fieldstone-targets sharing --only wrong_results --runs $(RUNS) --json build/soak-sharing.json

soak-rescue: ## kills our processes in RESCUES repairs (200), and repairers before DEATHS of their steps (200)
	$(CARGO) build --release -p fieldstone -p fieldstone-workloads
	FIELDSTONE_RESCUES=$(RESCUES) $(CARGO) test --release -p fieldstone-system-tests --test sharing killed_helpers -- --nocapture
	FIELDSTONE_DEATHS=$(DEATHS) $(CARGO) test --release -p fieldstone-remap --test deaths -- --nocapture --test-threads 1

soak-store: ## serves a store of 10 GiB in 1 GiB, then crashes stores at random calls for an hour, and compares what is there
	$(CARGO) test --release -p fieldstone-store --test memory -- --ignored --nocapture
	$(CARGO) test --release -p fieldstone-store --lib crash::soak -- --ignored --nocapture

# Takes a nightly compiler and `cargo install cargo-fuzz`.
fuzz-store: ## changes bytes of store files for FUZZ seconds (60), and opens, checks, reads and writes them
	cd crates/lib/store && $(CARGO) +nightly fuzz run --target-dir $(abspath $(CARGO_TARGET_DIR)/fuzz) file -- -max_total_time=$(FUZZ)

golden-store: ## replaces the golden files of the store, after a change of the format before a release
	$(CARGO) test -p fieldstone-store --test golden write_golden_files -- --ignored

fmt: ## formats the sources
	$(CARGO) fmt --all

clean: ## removes what was built
	$(CARGO) clean
	rm -rf report.html report.json build

help: ## lists what can be made
	@sed -n 's/^\([a-z%-]*\):.*## /make \1|/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'
