# The two commands: `make reports` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3.11
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PROFILE ?= quick
JOBS ?= 2

.PHONY: help
help: ## List these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# One call of the resolver (uv, or else pip) installs what the two commands need. Optional parts, as rpy2 (only where
# R is), are left out by a second call if they do not build.
EXTRAS = test,encoder,models,r
$(VENV)/.installed: pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) bash .ci/install_system
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	@bash .ci/install_python $(BIN)/python "$(TORCH)" "$(EXTRAS)"
	@touch $@

$(VENV)/.developed: $(VENV)/.installed
	@bash .ci/install_python $(BIN)/python "" "dev,cluster,docs"
	@touch $@

.PHONY: setup
setup: $(VENV)/.developed ## Make .venv with everything in it (TORCH=... picks another torch)

.PHONY: reports
reports: $(VENV)/.installed ## Run every notebook that changed and write reports/index.html (PROFILE=quick|full|paper|smoke)
	$(BIN)/psychlm run --profile $(PROFILE) --jobs $(JOBS)

.PHONY: test
test: $(VENV)/.installed ## Lint, check types, run every test and every notebook once in small
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(JOBS) --dist loadscope $(PYTEST_OPTIONS)

PEERS := .venv-peers
$(PEERS)/.installed: $(VENV)/.developed .ci/install_peers
	@bash .ci/install_peers $(VENV) $(PEERS)
	@touch $@

.PHONY: bench
bench: $(PEERS)/.installed ## Measure speed and memory beside other programs; write docs/speed.md (20 minutes)
	$(PEERS)/bin/python -m pytest tests/bench -o python_files='bench_*.py' --benchmark-only --benchmark-json=reports/bench/.raw.json
	$(BIN)/python docs/tables.py speed on_a_cluster

OUT ?= reports/bench
.PHONY: gpu
gpu: ## Compare what a GPU computes with the CPU, measure speed and memory there (7 minutes; OUT=folder); install nothing
	PYTHONPATH=. python3 tests/gpu/check.py --out $(OUT)

.PHONY: docs
docs: $(VENV)/.developed ## Build the documentation into reports/docs/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: results
results: $(VENV)/.installed ## Write docs/results.md and README's sentences from the reports of `make reports`
	$(BIN)/python docs/tables.py results

.PHONY: lab
lab: $(VENV)/.installed ## Open JupyterLab on the notebooks
	$(BIN)/jupyter lab --notebook-dir=notebooks

.PHONY: format
format: $(VENV)/.developed ## Sort imports, format, strip the notebooks' outputs
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/nbstripout --keep-id notebooks/*.ipynb

.PHONY: release
release: ## Prepare a release: version, changelog, tests, wheel (make release VERSION=1.2.3); commits nothing
	@[[ "$(VERSION)" =~ ^[0-9]+\.[0-9]+\.[0-9]+$$ ]] || { echo "name the version: make release VERSION=1.2.3"; exit 1; }
	$(MAKE) $(VENV)/.developed
	$(BIN)/python .ci/release.py $(VERSION)
	$(MAKE) test
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

.PHONY: clean
clean: ## Remove what was built (reports, caches, .venv); data/raw stays
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache reports/*.html reports/*.json reports/*.xlsx reports/interactive reports/.[a-z]*
