# The main commands: `make run` opens the workbench, `make test` runs the checks. Both set up .venv first.
PYTHON ?= python3
VENV ?= .venv
SOURCE ?= samples/bert.py
PYTEST_ARGS ?=
# Which tests run, by the marks of pyproject.toml: `make pytest MARKS= PYTEST_ARGS=tests/app` runs all of tests/app.
MARKS ?= not full
# The tests of `make check`: without the marked ones, none compiles a whole model or starts a process.
UNITS := $(addprefix tests/,app cli codegen/gpu codegen/iree docs graph ops passes protocol themes tools/bisect \
  test_scratch.py test_packaging.py test_contracts.py test_prose.py test_renamed_modules.py)
# The number of test processes (0: only pytest's own); `auto` is as many as cores and memory allow.
WORKERS ?= auto

BIN := $(VENV)/bin
TREE := build/tree/buddy
PARTS := api app compiler themes
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run check test test-full coverage lint format types contracts pytest docs bench tree wheel lock audit matrix fresh clean distclean

help:
	@echo "make run        set up and open the workbench on $(SOURCE) (SOURCE=path.py for another script)"
	@echo "make check      set up, then lint, format check and the unit tests: two minutes, for use while editing"
	@echo "make test       set up, then lint, format check, types, import contracts and all tests but the longest"
	@echo "make test-full  the same with every test: campaigns, whole models, screens in every theme; before a release"
	@echo "make coverage   the tests of \`make test\`, measured line by line, processes that they start included"
	@echo "make lint | format | types | contracts | pytest    one of these (format rewrites files)"
	@echo "make docs       write the pages that come from the code, and build the site of the documentation"
	@echo "make bench      the timings in benchmarks/"
	@echo "make lock       renew requirements.lock, the hash of every file that is installed"
	@echo "make audit      ask whether anything in requirements.lock has a known vulnerability"
	@echo "make matrix     the tests that depend on PyTorch, with every supported version of it and of Python (an hour, 5 GB each)"
	@echo "make wheel      build a wheel into dist/"
	@echo "make fresh      prove that a clean clone of the last commit passes its tests"
	@echo "make clean      remove caches and build output (distclean: also $(VENV))"

run: $(VENV)/.run
	@$(BIN)/buddy-tui $(SOURCE)

check: check-lint check-format
	@$(MAKE) --no-print-directory pytest MARKS="not process and not slow and not full" PYTEST_ARGS="$(UNITS) $(PYTEST_ARGS)"

test: check-lint check-format types contracts pytest

test-full: check-lint check-format types contracts
	@$(MAKE) --no-print-directory pytest MARKS=

.PHONY: check-lint check-format
check-lint lint: $(VENV)/.dev
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/python -m tests.prose

check-format: $(VENV)/.dev
	@echo "== format"
	@$(BIN)/ruff format --check .

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

types: $(VENV)/.dev tree
	@echo "== types"
	@$(BIN)/mypy

contracts: $(VENV)/.dev
	@echo "== import contracts"
	@$(BIN)/lint-imports --no-cache --no-logo

# Hundreds of processes import the same modules, so they are compiled once, even if the user disables bytecode.
pytest: $(VENV)/.dev
	@echo "== tests"
	@$(BIN)/python -m compileall -q -j 0 $(PARTS)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "$(MARKS)" $(PYTEST_ARGS)

# Killed processes leave no data.
coverage: $(VENV)/.dev
	@$(BIN)/coverage erase
	@COVERAGE_FILE="$(CURDIR)/.coverage" $(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal -m "$(MARKS)" $(PYTEST_ARGS); \
	status=$$?; $(BIN)/coverage combine --quiet; $(BIN)/coverage report --skip-covered --sort=cover; exit $$status

docs: $(VENV)/.dev
	@$(BIN)/python docs/reference_pages.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo "the site is in build/site: open build/site/index.html"

bench: $(VENV)/.run
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

wheel: $(VENV)/.dev
	@rm -rf build/lib build/bdist.*
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# Neither mypy nor an editor follows setuptools' package-dir, so the folders are linked under their import names.
tree:
	@mkdir -p $(TREE)
	@for part in $(PARTS); do ln -sfn ../../../$$part $(TREE)/$$part; done

lock: $(VENV)/.tools
	@$(BIN)/python .ci/lock.py $(VENV)/tools/bin

audit: $(VENV)/.tools
	@$(BIN)/python .ci/audit.py $(VENV)/tools/bin

# CELLS="3.11/2.14 3.13/2.15" for some of them.
CELLS ?=
matrix: $(VENV)/.tools tree
	@$(BIN)/python .ci/matrix.py $(VENV)/tools/bin $(CELLS)

fresh:
	@set -e; clone=$$(mktemp -d); trap 'rm -rf "$$clone"' EXIT; \
	git clone --quiet . "$$clone/buddy-tui"; cd "$$clone/buddy-tui"; \
	env -i HOME="$$HOME" PATH="$$PATH" LANG=C.UTF-8 bash .ci/run

# By requirements.lock if it is for this Python and system, else within the ranges of pyproject.toml.
$(VENV)/.run: $(VENV)/.created pyproject.toml requirements.lock
	@echo "== installing buddy-tui and its samples into $(VENV) (a few minutes the first time)"
	@$(BIN)/python .ci/install.py samples
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml requirements.lock
	@echo "== installing buddy-tui, its samples and the tools of its tests into $(VENV) (a few minutes the first time)"
	@$(BIN)/python .ci/install.py samples,dev
	@touch $(VENV)/.run $@

# The tools that renew and audit the lock are not in it: they have a separate environment.
$(VENV)/.tools: $(VENV)/.created
	@$(BIN)/python -m venv "$(VENV)/tools"
	@$(VENV)/tools/bin/python -m pip install --quiet --disable-pip-version-check uv pip-audit && touch $@ || \
	  echo "the tools that renew and audit the lock cannot be installed here" >&2

$(VENV)/.created:
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "There is no '$(PYTHON)' here. Install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "buddy-tui needs Python 3.10 or newer; '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@"$(PYTHON)" -m venv "$(VENV)"
	@touch $@

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache snapshot_report.html .coverage .coverage.*
	find . -path "./$(VENV)" -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean
	rm -rf "$(VENV)"
