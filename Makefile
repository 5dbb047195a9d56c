# Each target does everything it needs from a fresh clone: system packages, libtorch, build, run.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
SECONDS_EACH ?= 60
PREFIX ?= /usr/local
DRAWS ?= 30000
CAMPAIGN ?= 20000
FIRST_SEED ?= $(shell date +%s)
CONFIGURE = cmake -S . $(shell command -v ninja >/dev/null && echo -G Ninja) -DPARE_TORCH="$$(cat .deps/torch-path)"

.PHONY: help demo test build install configure lint format docs-update asan tsan fuzz campaign bench clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: build ## the story so far, in under a minute after the build, offline
	@rm -rf build/demo && build/pare demo -o build/demo

test: ## lint, build and every test; ends with one line of totals
	@tools/setup.sh test
	@tools/lint.py
	@$(MAKE) --no-print-directory configure
	@cmake --build build -j $(JOBS)
	@tools/test.py build

build: configure ## build/pare
	@cmake --build build -j $(JOBS) --target pare

install: configure ## the command, the library, its headers and a CMake package, into PREFIX=DIR
	@cmake --build build -j $(JOBS) --target pare pare_archive
	@cmake --install build --prefix "$(PREFIX)" >build/install.log || { cat build/install.log; exit 1; }
	@echo "installed in $(PREFIX)"

configure:
	@tools/setup.sh build && mkdir -p build
	@$(CONFIGURE) -B build >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }

lint: ## format, layers, sizes, cited paths
	@tools/lint.py

format: ## clang-format on every source file
	@clang-format -i $$(git ls-files -co --exclude-standard '*.h' '*.cpp')

docs-update: build ## writes what the commands of README and docs print into them; SLOW=--slow for those that take minutes
	@tools/docs.py build/pare --update $(SLOW)

asan: ## unit and command-line tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup.sh test
	@$(CONFIGURE) -B build-asan -DPARE_ASAN=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
	@cmake --build build-asan -j $(JOBS)
	@ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 tools/test.py build-asan --without conformance

# Loading is what several threads may do at once. libtorch was not compiled for this, so it gets one thread of its own.
tsan: ## loading weights from several threads under ThreadSanitizer
	@tools/setup.sh test
	@$(CONFIGURE) -B build-tsan -DPARE_TSAN=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
	@cmake --build build-tsan -j $(JOBS) --target test_weights
	@OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 build-tsan/test_weights -tc='threads*'

fuzz: ## random bytes into every reader of files, SECONDS_EACH=60 for each; random models into every pass
	@tools/setup.sh fuzz
	@$(CONFIGURE) -B build-fuzz -DCMAKE_CXX_COMPILER=clang++ -DPARE_ASAN=ON -DPARE_FUZZ=ON
	@cmake --build build-fuzz -j $(JOBS) --target $(notdir $(basename $(wildcard tests/fuzz/fuzz_*.cpp)))
	@for reader in $(patsubst tests/fuzz/fuzz_%.cpp,%,$(wildcard tests/fuzz/fuzz_*.cpp)); do \
	  echo "== fuzz_$$reader"; mkdir -p build-fuzz/corpus/$$reader; \
	  ASAN_OPTIONS=detect_leaks=0 build-fuzz/tests/fuzz/fuzz_$$reader -max_total_time=$(SECONDS_EACH) -timeout=10 \
	    -print_final_stats=1 -verbosity=0 -artifact_prefix=build-fuzz/ build-fuzz/corpus/$$reader \
	    tests/fuzz/corpus/$$reader || exit 1; \
	done; echo "fuzz: no findings"
	@cmake --build build -j $(JOBS) --target test_passes
	@echo "== $(DRAWS) random architectures through every pass, from seed $(FIRST_SEED)"
	@OMP_NUM_THREADS=1 PARE_DRAWS=$(DRAWS) PARE_FIRST_SEED=$(FIRST_SEED) build/test_passes -tc='every pass on*'

campaign: ## what is too slow for make test: slow pages, more draws, CAMPAIGN=20000 right and as many sabotaged rewrites into verify
	@tools/setup.sh test
	@$(MAKE) --no-print-directory configure
	@cmake --build build -j $(JOBS) --target pare test_attacks test_passes test_probes
	@tools/docs.py build/pare --slow
	@PARE_CAMPAIGN=1 build/test_probes -tc='the measured redundancy*,count and Jacobian agree*'
	@PARE_CAMPAIGN=1 $$(cat .deps/python-path) tests/conformance/tokenizer_ids.py
	@PARE_CAMPAIGN=1 $$(cat .deps/python-path) tests/conformance/conversions.py
	@PARE_CAMPAIGN=1 $$(cat .deps/python-path) tests/cli/ranks.py
	@PARE_CAMPAIGN=1 tests/cli/commands.py
	@$$(cat .deps/python-path) tests/conformance/compat.py --count 2
	@$$(cat .deps/python-path) tests/conformance/run.py --count 8
	@PARE_DRAWS=400 build/test_passes -tc='every pass on*,what several passes make*,heads that were put*,what is proved is*,after a change of basis*'
	@tools/campaign.py build/test_attacks --draws $(CAMPAIGN) --jobs $(JOBS) --first $(FIRST_SEED)

bench: ## executor, decoder, tokenizers, probes, training and ranks against their peers; figures in benchmarks/README.md
	@tools/setup.sh test
	@$(MAKE) --no-print-directory configure
	@cmake --build build -j $(JOBS) --target pare bench_driver tokenize
	@$$(cat .deps/python-path) benchmarks/executor.py
	@$$(cat .deps/python-path) benchmarks/llama.py
	@$$(cat .deps/python-path) benchmarks/export_gguf.py
	@$$(cat .deps/python-path) benchmarks/tokenizer_speed.py
	@$$(cat .deps/python-path) benchmarks/probe.py
	@$$(cat .deps/python-path) benchmarks/training.py
	@$$(cat .deps/python-path) benchmarks/ranks.py

clean: ## removes what was built, keeps what was fetched into .deps/
	@rm -rf build build-asan build-tsan build-fuzz
