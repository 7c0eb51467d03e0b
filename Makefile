# Every target sets up .venv first, with the project in it.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test test-all demo bench docs lint clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

test: $(VENV)/installed  ## the tests, in minutes on 2 cores
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-all: test  ## the slow ones as well, one at a time: some take 20 GiB
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: $(VENV)/installed  ## tables of docs/keys.md, from the comments of a config
	$(BIN)/python scripts/keys.py

demo: $(VENV)/installed  ## train ER-JEPA on the embedded model and pairs, and score it
	$(BIN)/python scripts/demo.py

bench: $(VENV)/installed  ## times, memory and ratios as a table; some minutes
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV) demo_output bench_output build *.egg-info
