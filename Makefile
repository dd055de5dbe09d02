# Everything runs in .venv, which the first target that needs it creates and fills.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

# One torch thread a process and two processes: torch's own threading is erratic on small machines.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.PHONY: help demo test test-slow lint tables docs tutorials clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: .venv/installed  ## train, warm up and adapt a small network on digits (a minute after the installation)
	$(BIN)/vcotta demo --out demo

test: .venv/installed  ## the test suite, without the slow tests
	$(BIN)/pytest -n 2

test-slow: .venv/cluster  ## the slow tests alone
	$(BIN)/pytest -n 2 -m slow

lint: .venv/installed  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

tables: .venv/installed  ## draw every table of README, docs and studies from the result files
	$(BIN)/python -m studies.update

docs: .venv/docs  ## build the site into site/, strictly; read it with: python -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

tutorials: .venv/installed  ## execute the tutorials and write their pages (a few minutes)
	$(BIN)/python tutorials/build.py

clean:  ## remove the environment, caches and demo output
	rm -rf .venv build demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv: about 2 GB with torch, a minute or more."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	touch $@

# Ray has no wheel for every Python and platform; without it the tests of the cluster are skipped.
# After .venv/docs and not beside it: with -j, two pips would change one environment at once.
.venv/cluster: .venv/docs
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cluster]' \
	  || echo "Ray could not be installed: its tests are skipped."
	touch $@

.venv/docs: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs,tensorboard]'
	touch $@
