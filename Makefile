# Every target ends in "## text"; "make help" prints them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/diloco-chaos
# Workers of the test run. Live experiments need the cores for themselves, so they run apart.
WORKERS ?= 2
REQUIRE ?=
PYTEST_REQUIRE = $(if $(REQUIRE),--chaos-require $(REQUIRE))

.DEFAULT_GOAL := help
.PHONY: help demo test quick check bench image proto lock clean

help: ## print this
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

$(VENV)/.run: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@

demo: $(VENV)/.run ## set up, then break a training cluster of local processes and report
	$(RUN) run demo --seed 7 --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(VENV)/.dev ## set up, then all tests (REQUIRE=docker,toxiproxy,browser forbids skips)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not live" $(PYTEST_REQUIRE)
	$(BIN)/python -m pytest -q -m live $(PYTEST_REQUIRE)

quick: $(VENV)/.dev ## the tests that take seconds
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not live and not slow and not docker"

check: $(VENV)/.dev ## formatting, lint, types: the definition of clean
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.dev ## measure what the README states, each figure beside its bar
	$(BIN)/python -m tests.bench

image: ## images of the docker runtime and of docker-compose.yml (see docker/prepare.sh)
	docker/prepare.sh

proto: $(VENV)/.dev ## generate the wire's Python from targets/diloco/diloco.proto
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. targets/diloco/diloco.proto

lock: ## pin every dependency anew (needs uv)
	uv pip compile --generate-hashes --no-header --python-version 3.11 pyproject.toml --extra build -o requirements.lock
	uv pip compile --generate-hashes --no-header --python-version 3.11 pyproject.toml --extra build --extra dev -o requirements-dev.lock

clean: ## remove what was built or run here
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
