# Two commands: `make demo` and `make test`. Each sets up what it needs, once: the demo the package alone, the tests
# also what they compare with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick lint types docs

help:
	@echo "make demo   set up, audit a small model on embedded data, print the path of the page"
	@echo "make test   set up, lint, check types, run the tests"
	@echo "make quick  run the tests that are not marked slow, about a minute"
	@echo "make docs   write the generated tables and plots of the documentation"
	@echo "make setup  install the package and the tools of its developers in $(VENV)"

setup: $(READY)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "remanence needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	@touch $@

$(READY): $(INSTALLED)
	$(INSTALL) '.[dev]'
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/remanence demo --force

test: lint types
	$(BIN)/python -m pytest

quick: $(READY)
	$(BIN)/python -m pytest -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python docs/build.py
	$(BIN)/python docs/plots.py
