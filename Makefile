# make demo · make test · make check
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow check format schema bench-accounting bench-attacks bench-trainer bench-synthetic clean

demo: $(READY)  ## train, audit and judge real models: the main job, end to end
	$(BIN)/python fixtures/demo/demo.py --out demo-out

test: $(READY)  ## the test suite, under ten minutes on two cores
	$(BIN)/python -m pytest

test-slow: $(READY)  ## the truths that take longer
	$(BIN)/python -m pytest -m slow --timeout 1200

check: $(READY)  ## lint, types, import direction, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lint-imports
	$(BIN)/python -m reports.schema --check

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(READY)  ## write reports/*.schema.json anew from the dataclasses
	$(BIN)/python -m reports.schema --write

bench-accounting: $(READY)  ## our accountants beside other people's, in one run
	$(BIN)/python tests/benchmarks/bench_accounting.py

bench-attacks: $(READY)  ## our attacks and fleets beside other people's; half an hour
	$(BIN)/python tests/benchmarks/bench_attacks.py

bench-trainer: $(READY)  ## a private step of ours beside a plain one, Opacus' and fastDP's; 40 minutes
	$(BIN)/python tests/benchmarks/bench_trainer.py

bench-synthetic: $(READY)  ## attacks on synthetic tables beside other people's, and what generators lose; an hour
	$(BIN)/python tests/benchmarks/bench_nearest.py
	$(BIN)/python tests/benchmarks/bench_criteria.py
	$(BIN)/python tests/benchmarks/bench_shadow_generators.py
	$(BIN)/python tests/benchmarks/bench_generators.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo-out bench-out build dist *.egg-info
