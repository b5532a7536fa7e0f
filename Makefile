# Every target sets up what it needs and is quick the second time. `make` lists them.
PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
TORCH ?= 2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
JOBS ?= 2
MINUTES ?= 2
SEED ?= 1
DATA ?= made

SHELL := /bin/sh
PROJECTS := pyproject.toml server/pyproject.toml constraints.txt
PIP_QUIET := --quiet --quiet --disable-pip-version-check --retries 1 --constraint constraints.txt
KENLM_ABSENT := no C++ compiler for kenlm here: everything runs, but bundles with an n-gram over words go without it (the packaged one has none)

# One thread a process: two busy threads slow each other down on small graphs.
export OMP_NUM_THREADS := 1

# Without a C compiler nothing is compiled: everything runs as Python, more slowly.
ifeq ($(shell command -v $(CC)),)
export IDIOLECT_COMPILED := 0
endif

.PHONY: help demo test coverage test-slow hostile-fleet docs lint format types native peers wheels clean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[36m%-13s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(DEMO_VENV)/.ready ## Devices learn against a live server: prints a table and the path of report.html (no torch; SEED=n, DATA=barista:PATH)
	@echo "==> simulating devices against a live server ($(DATA), seed $(SEED); a few minutes on 2 cores)"
	@mkdir -p runs/demo && rm -rf runs/demo/server
	@$(DEMO_VENV)/bin/idiolect simulate --data $(DATA) --seed $(SEED) --keep runs/demo/server --report runs/demo/report.html --output runs/demo/figures.json

FRESH := "from device_sdk.decoding import block; from device_sdk.runtimes import native_kernels; \
	raise SystemExit(block.__file__.endswith('.py') or native_kernels.native_module() is None)"
QUICK := -n $(JOBS) --dist loadscope -m "not slow and not gpu"

test: native ## Every quick test, in parallel, on the native modules that users run; the search's again as plain Python
	@echo "==> tests ($(JOBS) processes)"
	@$(VENV)/bin/python -m pytest $(QUICK) $(ARGS)
	@$(if $(ARGS),,echo "==> the search as plain Python")
	@$(if $(ARGS),,IDIOLECT_COMPILED=0 $(VENV)/bin/python -m pytest $(QUICK) tests/device_sdk/decoding)

coverage: $(VENV)/.ready ## The same as plain Python with branch coverage, which takes half as long again
	@echo "==> tests with coverage ($(JOBS) processes)"
	@IDIOLECT_COMPILED=0 $(VENV)/bin/python -m pytest $(QUICK) --cov --cov-report=term $(ARGS)

test-slow: native ## The tests that take longer: wheels in empty environments, end to end
	@echo "==> slow tests"
	@$(VENV)/bin/python -m pytest -m "slow and not gpu" $(ARGS)

hostile-fleet: native ## Hostile devices beside fifty honest ones, with kills and a restore (MINUTES=20 for all of it)
	@echo "==> hostile devices for $(MINUTES) minutes"
	@$(VENV)/bin/python -m tests.hostile_fleet --minutes $(MINUTES)

docs: $(VENV)/.ready ## The documentation as a site in build/site; a link that leads nowhere, and every other warning, is an error
	@echo "==> building the site"
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build
	@echo "build/site/index.html"

lint: $(VENV)/.ready ## ruff: rules and format
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

format: $(VENV)/.ready ## Rewrite the code in the project's format
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

types: $(VENV)/.ready ## mypy, strict
	@$(VENV)/bin/mypy

native: $(VENV)/.ready ## Compile what changed of the native modules (until then their sources run as Python)
	@$(VENV)/bin/python -c $(FRESH) || $(VENV)/bin/python setup.py --quiet build_ext --inplace

peers: .venv-peers/.ready ## The peers of `idiolect bench aggregate` (flwr, pfl), with versions of their own

wheels: $(VENV)/.ready ## Build both wheels into dist/
	@rm -rf dist build
	@$(VENV)/bin/python -m build --quiet --wheel --outdir dist .
	@$(VENV)/bin/python -m build --quiet --outdir dist server
	@ls dist

clean: ## Remove what these targets made
	rm -rf $(VENV) $(DEMO_VENV) build dist runs device_sdk/decoding/compiled device_sdk/runtimes/native_kernels/compiled .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(DEMO_VENV)/.ready: $(PROJECTS)
	@$(call environment,$(DEMO_VENV))
	@echo "==> installing the SDK and the server into $(DEMO_VENV) (no torch)"
	@$(DEMO_VENV)/bin/python -m pip install $(PIP_QUIET) -e . -e "./server[simulate]"
	@$(call ngram,$(DEMO_VENV))
	@touch $@

$(VENV)/.ready: $(PROJECTS)
	@$(call environment,$(VENV))
	@echo "==> installing torch $(TORCH) for the CPU into $(VENV)"
	@$(VENV)/bin/python -m pip install $(PIP_QUIET) --no-deps --extra-index-url $(TORCH_INDEX) "torch==$(TORCH)"
	@echo "==> installing both wheels with everything they can use, and the tools"
	@$(VENV)/bin/python -m pip install $(PIP_QUIET) -e ".[listen]" -e "./server[train,simulate,bench,postgres,objects,ray]" \
		--group test --group lint --group wheels --group docs
	@$(call ngram,$(VENV))
	@touch $@

.venv-peers/.ready:
	@$(call environment,.venv-peers)
	@.venv-peers/bin/python -m pip install --quiet --quiet --disable-pip-version-check "flwr>=1.12" "pfl>=0.4"
	@touch $@

define environment
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "Python 3.11 or later is needed; $(PYTHON) is older: make PYTHON=python3.12 $@"; exit 1; }; \
test -x $(1)/bin/python || { echo "==> making the environment $(1)"; $(PYTHON) -m venv $(1); }; \
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
endef

define ngram
$(1)/bin/python -m pip install $(PIP_QUIET) "idiolect[ngram]" >/dev/null 2>&1 \
	&& echo "==> kenlm compiled: n-grams over words can be scored (the packaged bundle has none)" || echo "==> $(KENLM_ABSENT)"
endef
