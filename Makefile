# Every command a contributor needs. `make help` lists them.

# One target directory outside the checkout: the native libraries are built once for all clones.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/orloj/target
$(shell scripts/build-this-checkout.sh '$(CARGO_TARGET_DIR)')
# ccache's compilers, when there are any, make a second profile cheap.
export PATH := $(if $(wildcard /usr/lib/ccache),/usr/lib/ccache:)$(PATH)

# The tool that breaks rules is a workspace of its own.
MUTANTS := --manifest-path tests/mutants/Cargo.toml

.DEFAULT_GOAL := help
.PHONY: demo test upgrade test-delivery test-signatures test-schedules test-api test-promises sim mutations mutations-part mutants mutants-kafka faults faults-part faults-long outside test-brokers verify fix bench bench-quick bench-long bench-floor bench-guard dist dist-check help

demo: ## show it working, without Kafka (DEMO=once: exit when it has been shown)
	DEMO=$(DEMO) scripts/demo.sh

# With ROTATE=commit, as in .ci/run, a third of the long groups is run; which one, its hash says.
test: left_out = $(if $(ROTATE),$(shell scripts/rotation.sh $(ROTATE)))
test: ## run all tests, against a real Apache Kafka on this machine
	scripts/prerequisites.sh test
	scripts/kafka.sh
	cargo test --locked --workspace --features faults -- $(left_out)
	cargo test --locked --features faults --test it bounds:: -- --ignored --test-threads 1 $(left_out)
	cargo test --locked $(MUTANTS)

test-delivery: ## callbacks to receivers that hang, fail and are overloaded, at length; mail to a real server, downloaded
	scripts/prerequisites.sh test
	scripts/kafka.sh
	cargo test --locked --features faults --test it delivery:: -- --include-ignored --nocapture --test-threads 1

test-signatures: ## our signatures, by the official libraries of Python, JavaScript and Go, which it fetches
	scripts/prerequisites.sh test
	scripts/kafka.sh
	cargo test --locked --features faults --test it the_official_libraries -- --ignored --nocapture

test-schedules: ## schedules, commands and dependencies at length, by another implementation, which it fetches
	scripts/prerequisites.sh test
	scripts/kafka.sh
	cargo test --locked -p orloj-core --lib -- schedule recurring lifecycle engine::tests
	ORLOJ_SEEDS=8000 cargo test --locked -p orloj-core --test core -- --include-ignored \
		--nocapture --test-threads 1
	cargo test --locked --features faults --test it -- --include-ignored --nocapture \
		--test-threads 1 schedules:: lifecycles:: dependencies::

test-api: ## the HTTP API at length, by other people's programs too, which it fetches
	scripts/prerequisites.sh test
	scripts/kafka.sh
	ORLOJ_VIEW_LOGS=20000 cargo test --locked --features faults --lib -- --include-ignored gateway:: view::
	ORLOJ_CANCELS=10000 cargo test --locked --features faults --test it -- --include-ignored --nocapture \
		--test-threads 1 api:: openapi_clients:: gateway:: identity:: promises:: reconcile:: tenants:: \
		view::a_view_that

test-promises: ## what the worker, the gateway, the view and the notifier promise, at length: two and a half hours
	scripts/prerequisites.sh test
	scripts/kafka.sh
	ORLOJ_SEEDS=5000 cargo test --locked -p orloj-core --test core -- simulation::callbacks --nocapture
	ORLOJ_SEEDS=1000 ORLOJ_VIEW_LOGS=100000 cargo test --locked --features faults --lib -- --nocapture \
		gateway::simulation:: view::tests::second_opinion::comparison
	ORLOJ_REQUESTS=50000 cargo test --locked --features faults --test it -- --nocapture --test-threads 1 \
		requests:: api::changes:: notifications:: readiness_table:: readiness_members:: readiness_unreadable:: \
		worker_readiness:: reconcile:: first_steps::
	ORLOJ_BOUND_SECONDS=600 cargo test --locked --features faults --test it -- --include-ignored --nocapture \
		--test-threads 1 bounds::
	LONG=1 CASES=worker-moves,worker-ends,refused-signals,rolling-restart \
		cargo test --locked --features faults --test it all_fault_cases_pass -- --ignored --nocapture

# The oldest Kafka that is supported, the one of the other tests, and the newest. The first has no
# transactions of version 2.
BROKERS ?= 3.9.2 4.1.1 4.3.0
test-brokers: ## clients, fires and short faults on Kafka 3.9, 4.1 and 4.3 (BROKERS=3.9.2: on that one)
	scripts/prerequisites.sh test
	set -e; for version in $(BROKERS); do \
		export ORLOJ_TEST_KAFKA_VERSION=$$version; \
		scripts/kafka.sh; \
		cargo test --locked --features faults --test it -- kafka_smoke:: kafka_clients:: fires_once:: restarts:: \
			targets:: topics:: worker:: short_fault_cases; \
	done

# The first release that fires, with the formats of its time.
EARLIER ?= 0c72936

upgrade: ## an earlier release is replaced by this one under load, and back (EARLIER=commit: that one)
	scripts/prerequisites.sh test
	scripts/kafka.sh
	earlier=$$(scripts/earlier-release.sh $(EARLIER)) && ORLOJ_TEST_EARLIER=$$earlier CASES=upgrade \
		cargo test --locked --features faults --test it all_fault_cases_pass -- --ignored --nocapture

sim: ## the protocol under faults, in memory (SEEDS=n how many, SEED=n one of them again)
	scripts/prerequisites.sh core
	ORLOJ_SEEDS=$(or $(SEEDS),$(if $(SEED),1,8000)) $(if $(SEED),ORLOJ_SEED=$(SEED)) \
		cargo test --locked -p orloj-core --test core -- simulation::no_seed \
			simulation::callbacks::no_seed --nocapture

mutations: ## break the rules of tests/mutants/planted.toml, one at a time: each is found (ONLY=name: that one)
	scripts/prerequisites.sh core
	cargo run --locked --quiet $(MUTANTS) -- planted $(ONLY)

mutations-part: ## a part of them, within 3 minutes; which part depends on the commit
	scripts/prerequisites.sh core
	cargo run --locked --quiet $(MUTANTS) -- planted --part $(shell git rev-parse HEAD)

mutants: ## MINUTES=n of random small changes of engine and scheduler; report in tests/mutants/survivors.md
	scripts/prerequisites.sh core
	cargo run --locked --quiet $(MUTANTS) -- sample core $(or $(MINUTES),60) $(or $(SEED),$(shell date +%s))

mutants-kafka: ## MINUTES=n of them in the clients and threads around the core, tried on a real Kafka
	scripts/prerequisites.sh test
	scripts/kafka.sh
	cargo run --locked --quiet $(MUTANTS) -- sample program $(or $(MINUTES),60) $(or $(SEED),$(shell date +%s))

faults: ## every fault, an hour and a quarter, on a real Kafka (CASES=kill,broker: those); report in target/faults
	scripts/prerequisites.sh test
	scripts/kafka.sh
	cargo test --locked --features faults --test it all_fault_cases_pass -- --ignored --nocapture
	$(if $(CASES)$(PART),,cargo test --locked --features faults --lib a_view_of_recorded_topics -- --ignored --nocapture)

faults-part: export PART = $(shell git rev-parse HEAD)
faults-part: faults ## a part of the faults, within 8 minutes; which part depends on the commit

faults-long: export LONG = 1
faults-long: faults ## some of them for longer, two hours: 100 kills at each step, a storm of ten minutes

outside: ## judged by Kafka's Java client, three brokers, 10 minutes (CASES=plain: those; ORLOJ=program: that)
	scripts/prerequisites.sh test
	$(if $(ORLOJ),,cargo build --locked --bin orloj)
	tests/outside/run.sh

verify: ## format, lints, documentation, house rules; changes nothing
	scripts/prerequisites.sh
	cargo fmt --all --check
	cargo fmt $(MUTANTS) --check
	cargo clippy --locked --workspace --all-targets --features faults -- -D warnings
	cargo clippy --locked $(MUTANTS) --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --features faults --no-deps --document-private-items
	cargo test --locked --features faults --test tidy

fix: ## fix what can be fixed automatically: format and simple lints
	cargo fmt --all
	cargo clippy --locked --workspace --all-targets --features faults --fix --allow-dirty --allow-staged
	cargo fmt --all

bench-quick: ## how fast, next to what the machine can do at all, in 3 minutes
bench: ## everything, next to the pipe, the ticker and the peers, in an hour (CASES=burst,late: those)
bench-long: ## the same with 100 million pending
bench-floor: ## p99 at 10,000/s with nothing pending, next to the ticker's, in 8 minutes
bench-quick bench bench-long bench-floor:
	scripts/prerequisites.sh test
	scripts/kafka.sh
	cargo bench --locked --profile dev --bench suite -- $(subst bench,full,$(subst bench-,,$@))

bench-guard: ## instructions a trigger costs the engine, against the recorded number (with valgrind)
	scripts/prerequisites.sh guard
	cargo bench --locked --profile dev -p orloj-core --bench hot_path

dist: ## packages into dist/: tar.gz, .deb, Python wheel, npm package, SHA256SUMS, SBOM
	scripts/prerequisites.sh dist
	cargo build --locked --profile dist --package orloj --bin orloj
	scripts/dist.py $(CARGO_TARGET_DIR)/dist/orloj dist

dist-check: ## install each package of dist/ and run it to the first callback
	scripts/prerequisites.sh dist
	scripts/dist-check.sh dist

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18
