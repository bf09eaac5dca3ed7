SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Cargo rejects an empty value of this variable, so an empty value means unset.
ifeq ($(strip $(CARGO_TARGET_DIR)),)
unexport CARGO_TARGET_DIR
endif
BUILT := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help demo test chaos lint lint-packaging bench fuzz escape packages clean prepare prepare-demo prepare-bench

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prepare: ## Check for the tools that the tests need; as root on Debian, install missing ones
	@.ci/prepare

prepare-demo prepare-bench:
	@.ci/prepare $(@:prepare-%=%)

# A release build takes three times as long. The demo waits for its caps, not for the CPU, so a debug build is enough.
demo: prepare-demo ## Build and run the demo: a fleet, its agents, their results; STAY=1 keeps the console open
	cargo build --workspace --bin tickfleet --locked
	"$(BUILT)/debug/tickfleet" demo --interpreter "$$(.ci/demo-python "$(BUILT)/demo-python")" $(if $(STAY),--stay)

# Most tests wait for a fleet, not for the CPU, so 1.5 tests per core run at the same time.
export NEXTEST_TEST_THREADS ?= $(shell echo $$(( ($$(nproc 2>/dev/null || echo 2) * 3 + 1) / 2 )))

# The examples of the documentation run first, so that the summary of the test runner is the last line.
test: prepare ## Run the tests; long ones only if what they judge has changed (.ci/nightly runs them all)
	cargo test --workspace --doc --locked --quiet
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run --workspace --all-targets --locked -E "$$(.ci/tests)"; \
	else \
		set -x; cargo test --workspace --all-targets --locked; \
	fi

# BINARY is the tickfleet program to test, such as target/release/tickfleet. FAULTS is a comma-separated list of faults to
# inject; by default, all faults of the target.
CHAOS_single := one_redis_loses_and_duplicates_nothing_under_faults
CHAOS_sentinel := durable_calls_keep_all_guarantees_behind_sentinels
CHAOS_cluster := durable_calls_keep_all_guarantees_on_a_cluster
CHAOS := $(CHAOS_$(or $(TARGET),single))
chaos: ## Inject faults into real processes and check the ledgers; SECONDS=180 TARGET=single|sentinel|cluster SEED=1 BINARY= FAULTS=
	@test -n "$(CHAOS)" || { echo "TARGET is single, sentinel or cluster"; exit 2; }
	TICKFLEET_CHAOS_SECONDS=$(or $(SECONDS),180) TICKFLEET_CHAOS_SEED=$(or $(SEED),1) TICKFLEET_CHAOS_FAULTS="$(FAULTS)" TICKFLEET_TEST_BINARY=$(abspath $(BINARY)) cargo test -p tickfleet --test cli --locked -- chaos::$(CHAOS) --exact --nocapture --include-ignored

lint: ## Check formatting, lints, documentation and dependencies
	@.ci/lint

# The checks use pinned tools. pip downloads these tools into cargo's target folder.
lint-packaging: ## Check release files: workflows, Dockerfile, compose.yaml, chart, versions, documentation
	python3 tests/packaging/versions.py
	python3 tests/packaging/workflows.py "$(BUILT)/helm"
	python3 tests/packaging/compose.py "$(BUILT)/helm"
	python3 tests/helm/check_chart.py "$(BUILT)/helm"
	python3 docs/site/build.py --check
	python3 docs/reference/generate.py --check

packages: ## Make what a release contains, as far as this machine can, in dist; BINARY= is a built program
	@.ci/packages $(BINARY)

bench: prepare-bench ## Build the release binary and measure it; ARGS="--runs 5" or other options
	cargo build --release --locked -p tickfleet -p tickfleet-bench
	"$(BUILT)/release/tickfleet-bench" $(ARGS)

fuzz: ## Fuzz the parsers of foreign input: all, or TARGET=turn; RUNS=100000 inputs each
	@.ci/fuzz "$(TARGET)" "$(RUNS)"

# If root runs this target, the tests run a second time as user 65534. This user must be able to read the test program.
escape: ## Attack the sandbox with real processes, at each level that this machine supports
	cargo test -p tickfleet-sandbox --test escape --locked -- --include-ignored --test-threads=1
	@if [ "$$(id -u)" = 0 ]; then \
		suite=$$(cargo test -p tickfleet-sandbox --test escape --locked --no-run 2>&1 | sed -n 's/.*(\(.*escape-[0-9a-f]*\))$$/\1/p'); \
		set -x; setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH="$$PATH" "$$(realpath "$$suite")" --include-ignored --test-threads=1; \
	fi

clean: ## Remove builds, and the data of the demo
	cargo clean
	rm -rf .demo .tickfleet tests/fuzz/libfuzzer/target
