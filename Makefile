# make run      creates the environment and runs the quickstart
# make test     the same environment, then lint, types and tests
# make compare  schedules side by side, against their marks (6 minutes)
# make seeds    the quickstart on three seeds with each trainer, against its marks (6 minutes)
# make proofs   bit-identical weights under all schedules, and interrupts, both trainers (30 minutes)
# make parity   50 updates on the torch and the JAX trainer, and the same answers from both models (5 minutes)
# make smollm2  a real model of 135 M parameters in JAX and in transformers (2 minutes)
# make speed    tokens a second of the JAX and of the torch trainer (3 minutes)
# make bench    the scheduling core at a million requests, the controller's own time, a simulated round of 800,000 (10 minutes)
# make paper    the paper's settings simulated, on three seeds, against their marks; refits what is fitted (2 minutes)
# make verifiers  every gold in every variant of an answer; verdicts a second, and what answers that never end cost (4 minutes)
# make chaos    kills at random moments, then the books and the weights: 30 runs with fakes in real processes, 3 with vLLM and FSDP2
# make soak     200 rounds in real processes: memory, files and threads of each (10 minutes)
# make two-nodes  two Ray nodes on one machine, pools apart: each node killed in turn, another added (6 minutes)
# make faults   what a resume costs, what durable writing costs; engines killed under real vLLM (15 minutes)
# make gpu-check  one GPU, both trainers: speed, memory, parity (at most 6 minutes; skips, with the reason, what is not there)
# make grid     all schedules in 72 simulated regimes and in 54 others, against marks and a lower bound (8 minutes)
# Python 3.11, git, make and a C compiler are needed; no GPU. Nothing is installed again on later calls.

PYTHON ?= python3.11
VENV ?= .venv
PIP_FLAGS ?=
CACHE = $(or $(ROLLOUTPIPE_CACHE),$(HOME)/.cache/rolloutpipe)
TORCH_INDEX = https://download.pytorch.org/whl/cpu
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed-$(shell cat requirements.lock pyproject.toml Makefile | cksum | cut -d' ' -f1)

.PHONY: run test lint types unit env compare seeds proofs parity smollm2 speed paper grid bench verifiers chaos soak two-nodes \
  faults gpu-check clean help

help:
	@sed -n 's/^# //p' Makefile

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

compare: $(STAMP)
	$(BIN)/python benchmarks/compare_marks.py

seeds: $(STAMP)
	$(BIN)/python benchmarks/quickstart_seeds.py

proofs: $(STAMP)
	$(BIN)/python benchmarks/bit_identity.py
	$(BIN)/python benchmarks/bit_identity.py trainer=jax
	$(BIN)/python -m pytest -m slow

parity: $(STAMP)
	$(BIN)/python benchmarks/parity_50.py

smollm2: $(STAMP)
	$(BIN)/python -m rolloutpipe_torch.pretrained $(CACHE)/models/smollm2-135m-instruct
	ROLLOUTPIPE_SMOLLM2=$(CACHE)/models/smollm2-135m-instruct $(BIN)/python -m pytest -m slow -s tests/unit/jax/test_smollm2.py

speed: $(STAMP)
	$(BIN)/python benchmarks/trainer_speed.py

paper: $(STAMP)
	$(BIN)/python benchmarks/paper_marks.py

bench: $(STAMP)
	$(BIN)/python benchmarks/core_scale.py
	$(BIN)/python benchmarks/controller_overhead.py
	$(BIN)/python benchmarks/simulator_scale.py

verifiers: $(STAMP)
	$(BIN)/python benchmarks/checker_table.py
	$(BIN)/python benchmarks/verifier_speed.py

grid: $(STAMP)
	$(BIN)/python benchmarks/schedule_grid.py --figure docs/figures/schedule_grid.png
	$(BIN)/python benchmarks/schedule_grid.py --grid second

chaos: $(STAMP)
	$(BIN)/python benchmarks/chaos --seeds 0-29
	$(BIN)/python benchmarks/chaos --real --seeds 0-2
	$(BIN)/python benchmarks/chaos --plants

soak: $(STAMP)
	$(BIN)/python benchmarks/soak.py

two-nodes: $(STAMP)
	$(BIN)/python benchmarks/two_nodes.py
	$(BIN)/python benchmarks/two_nodes.py --kill trainer
	$(BIN)/python -m pytest -m slow tests/integration/test_placing.py

faults: $(STAMP)
	$(BIN)/python benchmarks/resume_cost.py
	$(BIN)/python -m pytest -m slow tests/integration/test_engine_faults.py

gpu-check: $(STAMP)
	$(BIN)/python benchmarks/gpu_check.py
	$(BIN)/python -m pytest -m slow tests/unit/test_gpu_check.py

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
