# make run    creates the environment and runs the quickstart
# make test   the same environment, then lint, types and tests
# Python 3.11, git, make and a C compiler are needed; no GPU. Nothing is installed again on later calls.

PYTHON ?= python3.11
VENV ?= .venv
PIP_FLAGS ?=
TORCH_INDEX = https://download.pytorch.org/whl/cpu
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed-$(shell cat requirements.lock pyproject.toml Makefile | cksum | cut -d' ' -f1)

.PHONY: run test lint types unit proofs env compare bench bench-core clean help

help:
	@sed -n '1,3p' Makefile

run: $(STAMP)
	$(BIN)/rolloutpipe train configs/quickstart.yaml

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest

proofs: $(STAMP)
	$(BIN)/python -m pytest -m slow

compare: $(STAMP)
	$(BIN)/rolloutpipe compare configs/compare.yaml --schedules serial,cgp,fgd

bench-core: $(STAMP)
	$(BIN)/python benchmarks/core_scale.py
	$(BIN)/python benchmarks/controller_overhead.py

env: $(STAMP)

$(STAMP): requirements.lock pyproject.toml Makefile
	@scripts/check_machine "$(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@scripts/install_torch $(BIN)/python "$$(grep '^torch==' requirements.lock)" "$(TORCH_INDEX)" $(PIP_FLAGS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_FLAGS) -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(PIP_FLAGS) -e .
	@rm -f $(VENV)/.installed-* && touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
