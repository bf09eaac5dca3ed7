# Everything a newcomer needs. `make help` lists it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Cargo refuses a variable that is set and empty: it stands for none.
ifeq ($(strip $(CARGO_TARGET_DIR)),)
unexport CARGO_TARGET_DIR
endif
BUILT := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help demo test chaos lint lint-packaging bench fuzz escape clean prepare prepare-demo

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prepare: ## Check the tools that the tests need (as root on Debian, installs what is missing)
	@.ci/prepare

prepare-demo:
	@.ci/prepare demo

# Not the release build, which takes three times as long: the demo waits for its caps, not for the processor. Its tool in
# Python gets an interpreter where one can be made.
demo: prepare-demo ## Build the binary and run the demo: a fleet, its agents, their results; STAY=1 keeps the console
	cargo build --workspace --bin tickfleet --locked
	"$(BUILT)/debug/tickfleet" demo --interpreter "$$(.ci/demo-python "$(BUILT)/demo-python")" $(if $(STAY),--stay)

# Most tests wait for a fleet rather than for the processor: half as many again as there are processors run at a time.
# NEXTEST_TEST_THREADS names another number.
export NEXTEST_TEST_THREADS ?= $(shell echo $$(( ($$(nproc 2>/dev/null || echo 2) * 3 + 1) / 2 )))

# The documentation's examples go first, so that the runner's summary is the last line.
test: prepare ## Run every test
	cargo test --workspace --doc --locked --quiet
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run --workspace --all-targets --locked; \
	else \
		set -x; cargo test --workspace --all-targets --locked; \
	fi

# `make test` plays the first of them for less than a minute. `kills` takes no time but a number: KILLS primaries of a cluster
# are lost, one after the other. BINARY is another build of the processes than the tests' own: target/release/tickfleet. FAULTS names
# those that are played, with commas between; none: all of the target.
CHAOS_single := one_redis_loses_nothing_and_doubles_nothing_whatever_happens
CHAOS_sentinel := behind_sentinels_every_turn_that_its_producer_has_sent_again_is_answered
CHAOS_cluster := on_a_cluster_every_turn_that_its_producer_has_sent_again_is_answered
CHAOS_kills := primaries_that_are_lost_one_after_the_other_exceed_no_cap_and_double_nothing
CHAOS := $(CHAOS_$(or $(TARGET),single))
chaos: ## Play faults against real processes and judge by ledgers; SECONDS=180 TARGET=single|sentinel|cluster|kills SEED=1 KILLS=200 BINARY= FAULTS=
	@test -n "$(CHAOS)" || { echo "TARGET is single, sentinel, cluster or kills"; exit 2; }
	TICKFLEET_CHAOS_SECONDS=$(or $(SECONDS),180) TICKFLEET_CHAOS_SEED=$(or $(SEED),1) TICKFLEET_CHAOS_KILLS=$(or $(KILLS),200) TICKFLEET_CHAOS_FAULTS="$(FAULTS)" TICKFLEET_TEST_BINARY=$(abspath $(BINARY)) cargo test -p tickfleet --test cli --locked -- chaos::$(CHAOS) --exact --nocapture --include-ignored

lint: ## Check formatting, lints, documentation and dependencies
	@.ci/lint

# What they need is fetched with pip, once, into cargo's target folder.
lint-packaging: ## Judge what releases are made of: workflows, Dockerfile, compose.yaml, chart, versions
	python3 tests/packaging/versions.py
	python3 tests/packaging/workflows.py "$(BUILT)/helm"
	python3 tests/packaging/compose.py "$(BUILT)/helm"
	python3 tests/helm/check_chart.py "$(BUILT)/helm"
	python3 docs/site/build.py --check
	python3 docs/reference/generate.py --check

bench: prepare-demo ## Build the release binary and measure it, with ARGS="--limits 20" or others
	cargo build --release --locked -p tickfleet -p tickfleet-bench
	"$(BUILT)/release/tickfleet-bench" $(ARGS)

fuzz: ## Fuzz the parsers of what others write: all, or TARGET=turn; RUNS=100000 inputs each
	@.ci/fuzz "$(TARGET)" "$(RUNS)"

# As root it runs twice: as root, and as a normal user, who must be able to execute what was built.
escape: ## Attack the sandbox with real processes, at each level that this machine can hold
	cargo test -p tickfleet-sandbox --test escape --locked -- --include-ignored --test-threads=1
	@if [ "$$(id -u)" = 0 ]; then \
		suite=$$(cargo test -p tickfleet-sandbox --test escape --locked --no-run 2>&1 | sed -n 's/.*(\(.*escape-[0-9a-f]*\))$$/\1/p'); \
		set -x; setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH="$$PATH" "$$(realpath "$$suite")" --include-ignored --test-threads=1; \
	fi

clean: ## Remove what was built, and the data of the demo
	cargo clean
	rm -rf .demo .tickfleet tests/fuzz/libfuzzer/target
