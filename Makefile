# What can be made is listed by `make help`. PREFIX, DESTDIR, CARGO_TARGET_DIR and CXX are honoured.

CARGO ?= cargo
ifeq ($(origin CXX),default)
CXX = c++
endif
CXXFLAGS ?= -O2 -std=c++17
CARGO_TARGET_DIR ?= target
RELEASE = $(CARGO_TARGET_DIR)/release
# What `make test` passes to cargo test, for example `make test TESTS='-p fieldstone-sys'`.
TESTS ?= --workspace

PREFIX ?= /usr/local
bin = $(DESTDIR)$(PREFIX)/bin
lib = $(DESTDIR)$(PREFIX)/lib/fieldstone
man = $(DESTDIR)$(PREFIX)/share/man/man1
bash = $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fieldstone
zsh = $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_fieldstone
fish = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/fieldstone.fish

# The measured programs; rbtree beside them where there is a C++ compiler.
workloads = gups scan chase bfs blackscholes game spin

.DEFAULT_GOAL := build
.PHONY: build rbtree packages demo test install uninstall targets fmt clean help

build: rbtree ## builds all in release mode (the default)
	$(CARGO) build --release

# Cargo builds no C++.
rbtree: workloads/src/rbtree.cpp
	@if ! command -v $(firstword $(CXX)) >/dev/null 2>&1; then \
		echo "no C++ compiler ($(CXX)): going on without the rbtree workload"; \
	elif [ ! -e $(RELEASE)/rbtree ] || [ $< -nt $(RELEASE)/rbtree ]; then \
		mkdir -p $(RELEASE) && echo "$(CXX) $(CXXFLAGS) $<" && $(CXX) $(CXXFLAGS) -o $(RELEASE)/rbtree $<; \
	fi

packages: ## installs the Debian packages that are missing, where it may
	@packages/install

demo: packages build ## profiles a bundled workload: a table here, plots in report.html
	$(RELEASE)/fieldstone profile --html report.html -- $(RELEASE)/gups 512M

test: packages rbtree ## runs all tests, the layer check among them; SKIP lines say what the machine lacks
	$(CARGO) test $(TESTS) -- --show-output

$(RELEASE)/fieldstone:
	$(MAKE) build

install: $(RELEASE)/fieldstone ## installs to PREFIX (/usr/local), under DESTDIR
	install -d $(bin) $(lib)/workloads $(man) $(dir $(bash)) $(dir $(zsh)) $(dir $(fish))
	install -m 755 $(RELEASE)/fieldstone $(bin)/fieldstone
	for program in $(workloads) $(notdir $(wildcard $(RELEASE)/rbtree)); do \
		install -m 755 $(RELEASE)/$$program $(lib)/workloads/$$program || exit 1; \
	done
	$(RELEASE)/fieldstone man $(man)
	$(RELEASE)/fieldstone completions bash > $(bash)
	$(RELEASE)/fieldstone completions zsh > $(zsh)
	$(RELEASE)/fieldstone completions fish > $(fish)

uninstall: ## removes what install put there
	rm -rf $(lib)
	rm -f $(bin)/fieldstone $(man)/fieldstone.1 $(man)/fieldstone-*.1 $(bash) $(zsh) $(fish)

targets: packages build ## measures every cell of goals.toml against the peers
	$(RELEASE)/fieldstone-targets

targets-%: packages build ## measures one section, for example make targets-region
	$(RELEASE)/fieldstone-targets $*

fmt: ## formats the sources
	$(CARGO) fmt --all

clean: ## removes what was built
	$(CARGO) clean
	rm -f report.html report.json

help: ## lists what can be made
	@sed -n 's/^\([a-z%-]*\):.*## /make \1|/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'
