# One entry for each job; .ci/run calls the same ones.
# Needs Python 3.11 or newer, with venv and pip. Another one than python3: make test PYTHON=python3.12

PYTHON ?= python3
TEST_ARGS ?=
NEED := command -v $(PYTHON) >/dev/null || { echo 'There is no $(PYTHON). Name another: make test PYTHON=python3.12'; exit 1; }; \
	$(PYTHON) .ci/check_python.py

# The environment of `core-test`: NumPy and pytest alone.
CORE_VENV ?= .venv-core
CORE_NUMPY ?= $(shell grep '^numpy==' constraints.txt)
OLDEST_NUMPY := numpy==1.24.0
# The lowest versions that the extra "jax" allows: grain==... jax==...
OLDEST_GRAIN := $(shell sed -n '/^jax = /s/[^a-z0-9.=> ]//gp' pyproject.toml | sed 's/^jax = //; s/>=/==/g')
# Newer ones ask for JAX 0.4.34 as well, but fail with it on several processes.
OLDEST_GRAIN_ORBAX := orbax-checkpoint==0.11.0

.PHONY: help demo demo-torch demo-jax test lint format typecheck contracts bench core-test core-test-oldest core-test-newest grain-test-oldest check clean

help:
	@echo 'make demo       pack the standard library, read it back, stop and resume'
	@echo 'make demo-torch train a tiny GPT, kill it, resume it, draw both loss curves (2 minutes)'
	@echo 'make demo-jax   the same with JAX, Grain and Orbax'
	@echo 'make test       all tests and doctests           (TEST_ARGS="-k builder" for some)'
	@echo 'make lint       ruff, codespell                  (make format repairs)'
	@echo 'make typecheck  mypy --strict on src'
	@echo 'make contracts  which module may import which'
	@echo 'make core-test  the core, with NumPy and pytest alone; core-test-oldest, core-test-newest'
	@echo 'make grain-test-oldest  packcore_grain with the oldest Grain and JAX'
	@echo 'make bench      throughput beside the technique of lit-gpt and beside NumPy'
	@echo 'make check      all of it, as .ci/run does'
	@echo 'make clean      remove the environments and the caches'

# A stamp carries the interpreter's name: with another PYTHON the environment is made anew.
STAMP := .stamp-$(subst /,-,$(PYTHON))

demo: .venv-demo/$(STAMP)
	@.venv-demo/bin/python examples/demo.py

demo-torch: .venv/$(STAMP)
	@.venv/bin/python -c 'import matplotlib' 2>/dev/null || .venv/bin/python -m pip install --quiet -c constraints.txt matplotlib
	@.venv/bin/python examples/stop_and_resume.py train_torch.py

demo-jax: .venv-jax/$(STAMP)
	@.venv-jax/bin/python examples/stop_and_resume.py train_jax.py

test: .venv/$(STAMP)
	.venv/bin/python -m pytest $(TEST_ARGS)

lint: .venv/$(STAMP)
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/codespell

format: .venv/$(STAMP)
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

typecheck: .venv/$(STAMP)
	.venv/bin/mypy

contracts: .venv/$(STAMP)
	.venv/bin/lint-imports

bench: .venv/$(STAMP)
	@.venv/bin/python -m benchmarks

core-test: $(CORE_VENV)/$(STAMP)
	$(CORE_VENV)/bin/python -m pytest $(wildcard tests/packcore) tests/test_house.py src/packcore --ignore=src/packcore/cli

# NumPy 1.24 has wheels up to Python 3.11.
core-test-oldest:
	@python=$$(.ci/find_python.sh 3.11) || { echo 'skipped: no python3.11 for $(OLDEST_NUMPY)'; exit 0; }; \
	$(MAKE) --no-print-directory core-test PYTHON=$$python CORE_VENV=.venv-core-oldest CORE_NUMPY='$(OLDEST_NUMPY)'

core-test-newest:
	@python=$$(.ci/find_python.sh 3.14 3.13 3.12) || { echo 'skipped: no Python newer than 3.11'; exit 0; }; \
	$(MAKE) --no-print-directory core-test PYTHON=$$python CORE_VENV=.venv-core-newest

# Not in `make check`: an environment of 700 MB more.
grain-test-oldest:
	@python=$$(.ci/find_python.sh 3.11) || { echo 'skipped: no python3.11 for $(OLDEST_GRAIN)'; exit 0; }; \
	$(MAKE) --no-print-directory PYTHON=$$python .venv-grain-oldest/.stamp-$$(echo $$python | tr / -) && \
	JAX_PLATFORMS=cpu .venv-grain-oldest/bin/python -m pytest tests/packcore_grain src/packcore_grain

check:
	.ci/run

clean:
	rm -rf .venv .venv-core .venv-core-oldest .venv-core-newest .venv-demo .venv-grain-oldest .venv-jax demo-data
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# A checkout's own code, editable: only a changed dependency makes the environment anew.
.venv/$(STAMP): pyproject.toml constraints.txt
	@$(NEED)
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install -c constraints.txt --editable '.[all,arrayrecord,dev,grain,progress,ray,torch,zarr]'
	@touch $@

$(CORE_VENV)/$(STAMP): pyproject.toml constraints.txt
	@$(NEED)
	$(PYTHON) -m venv --clear $(CORE_VENV)
	@grep -v '^numpy==' constraints.txt > $(CORE_VENV)/constraints.txt
	$(CORE_VENV)/bin/python -m pip install --quiet -c $(CORE_VENV)/constraints.txt '$(CORE_NUMPY)' pytest
	$(CORE_VENV)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

.venv-grain-oldest/$(STAMP): pyproject.toml constraints.txt
	@$(NEED)
	$(PYTHON) -m venv --clear .venv-grain-oldest
	@grep -v -E '^(grain|jax|jaxlib|orbax-checkpoint)==' constraints.txt > .venv-grain-oldest/constraints.txt
	.venv-grain-oldest/bin/python -m pip install --quiet -c .venv-grain-oldest/constraints.txt $(OLDEST_GRAIN) $(OLDEST_GRAIN_ORBAX) pytest
	.venv-grain-oldest/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

# The package as a user installs it, not editable: a changed source file installs it again.
.venv-demo/$(STAMP): pyproject.toml $(shell find src -name '*.py')
	@$(NEED)
	@echo 'Making .venv-demo: packcore and NumPy'
	@$(PYTHON) -m venv --clear .venv-demo
	@.venv-demo/bin/python -m pip install --quiet .
	@touch $@

.venv-jax/$(STAMP): pyproject.toml constraints.txt
	@$(NEED)
	@echo 'Making .venv-jax: packcore, JAX, Grain, Orbax and matplotlib'
	@$(PYTHON) -m venv --clear .venv-jax
	@.venv-jax/bin/python -m pip install --quiet -c constraints.txt --editable '.[jax,demo]' orbax-checkpoint
	@touch $@
