# `make demo` and `make test` build .venv when it is missing or older than its pins.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes that unit and kernel tests run in.
WORKERS ?= 2
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test test-gpu lint stubs format containers

demo: $(STAMP)
	$(BIN)/draftwood demo

# What starts no service runs on all cores; the rest measures time, or would wait for its neighbour.
test: $(STAMP)
	$(BIN)/pytest -n $(WORKERS) tests/unit tests/kernels tests/gpu
	$(BIN)/pytest tests/deployment tests/services tests/faults tests/end_to_end

# On a machine with a GPU: every kernel natively against its reference, and steps as graphs.
test-gpu: $(STAMP)
	$(BIN)/python -m draftwood_kernels.bench --check
	DRAFTWOOD_TEST_DEVICE=cuda $(BIN)/pytest tests/gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy protos kernels drafter verifier gateway compose
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit/wire/test_stubs.py
	$(BIN)/buf lint protos

stubs: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python protos/generate.py

# Root on Debian: builds the images without a registry, starts them, fetches a completion.
containers: $(STAMP)
	compose/containers/verify

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[dev,train]'
	# The oracle of the drafter's tests; its own pins (transformers, datasets) clash with ours and are not needed.
	$(PIP) --no-deps dflash==0.1.0
	touch $@
