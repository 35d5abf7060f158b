# The front door.  Everything is built by CMake; this file only knows the words.
#
#   make              build/firesteel and everything beside it
#   make serve        install what is missing, build, answer at http://127.0.0.1:30000
#                     (ARGS="--port 8000" for flags, build/firesteel serve --help lists them)
#   make test         all tests that need no GPU; the last line counts them
#   make help         all words
.DEFAULT_GOAL := all
JOBS ?= $(shell nproc)
ARGS ?=
BUILD = scripts/configure $(1) && cmake --build --preset $(1) -j $(JOBS) -- --quiet
# No detect_stack_use_after_return: gcc 12 misaligns its frames of AVX-512 vectors (PR 110027).
# handle_*=2: cmocka must not take the signals that ASan explains.
SMALL = FST_TEST_SIZE=san ASAN_OPTIONS=strict_string_checks=1:allocator_may_return_null=1:$\
  handle_segv=2:handle_sigbus=2:handle_sigfpe=2:handle_sigill=2

.PHONY: all serve test test-asan test-tsan test-long test-peers gpu hip hip-gfx950 gpu-bundle test-gpu lint format kern bench fuzz clean help

all:
	@scripts/setup run
	@$(call BUILD,release) product

serve: all
	@build/firesteel serve $(ARGS)

test:
	@scripts/setup test
	@$(call BUILD,release)
	@tests/run build

test-asan: # all tests under ASan and UBSan
	@scripts/setup test
	@$(call BUILD,asan)
	@$(SMALL) tests/run build/asan --no-lint

test-tsan: # all tests under TSan
	@scripts/setup test
	@$(call BUILD,tsan)
	@$(SMALL) TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1 tests/run build/tsan --no-lint

test-long: # the same tests at full size; resumes where it was stopped
	@scripts/setup long || scripts/setup test
	@$(call BUILD,release)
	@FST_TEST_SIZE=long tests/run build --long

test-peers: # against other people's clients and tokenizers, from PyPI
	@scripts/setup peers
	@$(call BUILD,release)
	@tests/run build --only peers

gpu: all # the module for NVIDIA cards, build/libfiresteel_cuda.so; needs nvcc
	@cmake -S . -B build -DFST_CUDA=ON >build/configure-gpu.log || { cat build/configure-gpu.log; exit 1; }
	@cmake --build build --target firesteel_cuda -j $(JOBS) -- --quiet

hip: # compile the module for AMD cards (gfx90a, gfx942), which has not run yet
	@scripts/setup hip
	@scripts/hip-compile build/hip

hip-gfx950: # the same by hipcc 7 for gfx942 and gfx950, in a root of Debian's next release; as root
	@scripts/hip-forky build/forky

gpu-bundle: gpu # program, module and tests in build/gpu-bundle, for a machine that has nothing but a card
	@scripts/setup test
	@$(call BUILD,release) checkkern gpu_same gpu_graphs prop_engine_text_parity prop_engine_text_prefix \
		prop_engine_text_tiers prop_engine_text_mtp
	@scripts/gpu-bundle build build/gpu-bundle

test-gpu: # the tests that need a card, from build/gpu-bundle (make gpu-bundle makes it)
	@[ -d build/gpu-bundle ] || $(MAKE) gpu-bundle
	@tests/gpu/run build/gpu-bundle $(ARGS)

lint: # house rules
	@scripts/setup lint
	@$(call BUILD,release)
	@tests/run build --only lint

format: # clang-format over everything
	@scripts/setup lint
	@git ls-files -z 'src/*.[ch]' 'src/*.cu' 'src/*.cuh' 'include/*.h' 'tests/*.[ch]' 'tests/*.cc' | xargs -0 clang-format -i

kern: # every kernel against its reference; ARGS="--bench" for times
	@scripts/setup test
	@$(call BUILD,release) checkkern
	@build/checkkern $(ARGS)

bench: all # what a step costs, block by block; ARGS="--rows 4 --context 2048"
	@build/firesteel bench step $(ARGS)

fuzz: # 30 seconds for each target; ARGS="json 600" for one, longer
	@scripts/setup fuzz
	@tests/fuzz/run $(ARGS)

clean: # objects and programs; what scripts/setup fetched stays
	@cmake --build build --target clean
	@rm -rf build/asan build/tsan build/debug build/fuzz

help:
	@sed -n '3,/^\./s/^# \{0,1\}//p' Makefile
	@sed -n 's/^\([a-z-]*\):[^#=]*# \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-20s%s\n", $$1, $$2}' 
