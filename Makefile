# Two targets a newcomer needs: `make demo` and `make test`. Each builds the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs coverage clean

demo: $(VENV)/installed
	$(BIN)/coheat demo --out demo

test: $(VENV)/installed-dev $(VENV)/browser $(VENV)/postgres
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed-dev
	$(BIN)/python tools/settings_reference.py --check
	$(BIN)/python tools/results_tables.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

# Slower than `make test`: every line of Python is watched, in the commands that the tests start too.
coverage: $(VENV)/installed-dev $(VENV)/browser $(VENV)/postgres
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term-missing:skip-covered

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,serve]'
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/installed

# The explorer is tested in a real browser. Where there is none it is installed if we may; else these tests are
# skipped and say so.
$(VENV)/browser: $(VENV)/bin/python
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null; } \
	  || echo "no Chromium here: the browser tests will be skipped"
	touch $@

# A service with replicas is tested on a PostgreSQL that the tests start; the same holds for it.
$(VENV)/postgres: $(VENV)/bin/python
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null; } \
	  || echo "no PostgreSQL here: the tests of replicas will be skipped"
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis .coverage* demo site
