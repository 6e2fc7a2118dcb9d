# Everything a user or a developer runs. Each target does its own set-up from a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LEGACY := .venv-legacy
PYTEST := $(BIN)/python -m pytest
SEEDS ?= 1000
MINUTES ?= 10
RUN_ARGS ?=
BENCH_ARGS ?=
QUICK ?=

.DEFAULT_GOAL := help
.PHONY: help run setup test lint long interop bench bench-pipeline demo simulate chaos clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/base.stamp: pyproject.toml
	@scripts/venv $(VENV) $(PYTHON) .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml
	@scripts/venv $(VENV) $(PYTHON) '.[pipeline,dev]'
	@touch $@ $(VENV)/base.stamp

$(LEGACY)/legacy.stamp: scripts/venv
	@scripts/venv $(LEGACY) $(PYTHON) kafka-python==2.0.2 six lz4 python-snappy zstandard
	@touch $@

run: $(VENV)/base.stamp ## Start one node: data in ./data, Kafka on 127.0.0.1:9092
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q src
	@$(BIN)/chronik start $(RUN_ARGS)

setup: $(VENV)/dev.stamp $(LEGACY)/legacy.stamp ## Install everything that development needs

lint: setup ## Style, types and import rules
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup ## All tests that need nothing but PyPI
	@scripts/run-tests $(BIN)/python

long: setup ## The full forms of the tests
	$(PYTEST) -m long tests

simulate: setup ## Run the simulators over SEEDS=n seeds
	cd tests && ../$(BIN)/python -m simulation.run --seeds $(SEEDS)

chaos: setup ## Random faults on three real nodes under load for MINUTES=n, with a checker
	cd tests && ../$(BIN)/python -m chaos --minutes $(MINUTES)

interop: setup ## Foreign clients: kcat, Java, Go, Node, Spark's Kafka connector
	@scripts/interop $(BIN)/python

demo: setup ## Three nodes, live events, tables, a SQL answer; under two minutes
	@$(BIN)/python scripts/demo

bench: setup ## Chronik beside Apache Kafka, into docs/benchmarks.md; QUICK=1 for the core rows
	@scripts/bench $(BIN)/python $(if $(QUICK),--quick) $(BENCH_ARGS)

bench-pipeline: setup ## The pipeline beside Spark's Kafka connector, into docs/benchmarks-pipeline.md
	@scripts/spark-connector || echo "measuring without Spark's Kafka connector" >&2
	@cd bench && ../$(BIN)/python -m pipeline_speed $(BENCH_ARGS)

clean: ## Remove what set-up made (not ./data)
	rm -rf $(VENV) $(LEGACY) .build
