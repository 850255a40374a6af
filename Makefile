# Every target makes .venv and installs what it needs by itself, once. Another Python: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2
PINS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint docs peers clean
.DELETE_ON_ERROR:

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; \
		do printf '  make %-9s %s\n' "$$name" "$$text"; done

demo: .venv/installed ## train on embedded data and write a report to demo/
	@echo "Training the demonstration networks and writing their report to demo/."
	@$(BIN)/bayeswise demo --out demo
	@echo "To go on: source .venv/bin/activate, then bayeswise --help, or python and import bayeswise."

test: lint ## lint, types and the fast tests
	@echo "Running the fast tests."
	@$(PYTEST) -m "not slow"

test-all: lint ## the same with the slow tests
	@echo "Running all tests, the slow ones too."
	@$(PYTEST) -m "slow or not slow"

lint: .venv/installed ## ruff (rules and format) and pyright
	@echo "Checking the rules of style."
	@$(BIN)/ruff check --quiet .
	@echo "Checking the format."
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted as above: run $(BIN)/ruff format ."; exit 1; }
	@echo "Checking the types."
	@$(BIN)/pyright

docs: .venv/installed-docs ## build the documentation in docs/_build/html
	@echo "Building the documentation: docs/_build/html/index.html"
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

peers: .venv-peers/installed ## the libraries that benchmarks/peers compares with, in .venv-peers
	@echo "Ready: OMP_NUM_THREADS=1 .venv-peers/bin/python benchmarks/peers/laplace_torch.py --data-dir DIR"

clean: ## remove .venv, caches and everything built
	@echo "Removing .venv, caches and everything built."
	@rm -rf .venv .venv-peers build dist demo docs/_build .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	@find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "The pinned packages need Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@echo "Creating a virtual environment in .venv."
	@$(PYTHON) -m venv .venv

# torch is named together with its pin, so that pip takes that build and no other. The package itself is
# built with the pinned setuptools of .venv, not in a build environment of its own.
.venv/installed: $(PINS) | .venv/bin/python
	@echo "Installing bayeswise and its tools into .venv (once; a minute or two)."
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation torch -e '.[all,test,lint]'
	@touch $@

.venv/installed-docs: .venv/installed
	@echo "Installing the documentation tools into .venv (once)."
	@$(PIP) --no-build-isolation -e '.[docs]'
	@touch $@

# Without their dependencies: some of them declare packages that nothing here needs.
.venv-peers/installed: $(PINS) benchmarks/peers/requirements.txt
	@echo "Creating .venv-peers and installing the peers (once; a few minutes)."
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt setuptools
	@.venv-peers/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
		--no-build-isolation torch -e '.[all]'
	@.venv-peers/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
		-r benchmarks/peers/requirements.txt
	@touch $@
