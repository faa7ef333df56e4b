# What can be run. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /usr/bin/env bash
BIN := .venv/bin
LOWEST := .venv-lowest/bin

# Spark binds to the loopback only, and does not look the host name up.
export SPARK_LOCAL_IP := 127.0.0.1
# Workers run the same Python as the driver, whatever python3 is on the PATH.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Tests start some hundred Pythons: each module is compiled once, whatever the machine's settings say.
export PYTHONDONTWRITEBYTECODE :=

# A JVM that lives for a minute spends a third of its time on optimising itself: it is told not to.
JAVA := JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark's classes come from an archive, which spares each Java half of its start.
CLASSES := .venv/spark.jsa
# Workers get whole files, so that a file's Spark session is started once; the longest files begin first, as
# tests/conftest.py has them. Three workers for two cores: Spark's tests wait a lot.
PYTEST := $(JAVA) SPARK_SUBMIT_OPTS="'-XX:SharedArchiveFile=$(CURDIR)/$(CLASSES)' -Xlog:disable" \
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help setup postgres demo test test-long test-lowest lint format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv with all that is needed (does nothing when it is there)
	@scripts/setup.sh

postgres: setup ## a PostgreSQL server for the tests (does nothing when one is there)
	@scripts/postgres.sh

demo: setup ## a pipeline of sales into Delta tables, beside Spark's own joins
	@$(BIN)/semistream demo

test: setup postgres $(CLASSES) lint ## lint, types, layers and all tests but the long ones
	$(PYTEST)

test-long: setup postgres $(CLASSES) ## all tests, the long ones too
	$(PYTEST) -m "long or not long"

lint: setup ## style, format, types, direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

$(CLASSES): requirements.lock scripts/spark_classes.py | setup
	$(JAVA) $(BIN)/python scripts/spark_classes.py $@

format: setup ## put the code into its format and fix what can be fixed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup ## short benchmarks: the core, then Spark
	$(BIN)/semistream bench core --quick
	$(BIN)/semistream bench spark --quick

test-lowest: setup postgres ## the tests on the oldest packages allowed, but for tests/spark
	$(BIN)/python -m venv --clear .venv-lowest
	$(LOWEST)/python -m pip install --quiet uv
	$(LOWEST)/uv pip install --quiet --python $(LOWEST)/python --resolution lowest-direct -e '.[dev]'
	$(LOWEST)/python -m pytest -n 2 --dist loadfile --ignore=tests/spark

clean: ## remove .venv, caches and what was built
	rm -rf .venv .venv-lowest build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +
