# make report: set everything up and run the pipeline; make test: set everything up and test it.
PYTHON ?= python3
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: report test lint clean base adapter

report: .venv/ready
	snakemake --cores $(CORES) results/report.html
	@echo "Open results/report.html"

test: lint .venv/cluster
	pytest -n $(CORES) --dist loadfile

lint: .venv/ready
	ruff check
	ruff format --check
	mypy
	lint-imports

base: .venv/ready ## train models/base anew
	dvc unfreeze models/base/dvc.yaml:base
	dvc repro models/base/dvc.yaml:base
	dvc freeze models/base/dvc.yaml:base

adapter: .venv/ready ## train models/economy anew
	dvc unfreeze models/economy/dvc.yaml:adapter
	dvc repro --single-item models/economy/dvc.yaml:adapter
	dvc freeze models/economy/dvc.yaml:adapter

clean:
	rm -rf results logs .snakemake .checkpoints

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Planward needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	pip install --quiet --disable-pip-version-check -r requirements.lock
	pip install --quiet --disable-pip-version-check --no-deps -e .
	touch .venv/ready

.venv/cluster: requirements-cluster.lock .venv/ready ## the extra `cluster`, which only some tests need
	pip install --quiet --disable-pip-version-check -r requirements-cluster.lock
	touch .venv/cluster
