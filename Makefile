PYTHON ?= python3.11
PY := .venv/bin/python

.PHONY: help setup run test test-engines lint screenshots llama deploy-files
help:
	@echo "make run    install what is missing and open the lab on http://127.0.0.1:8501"
	@echo "make setup  install only"
	@echo "make test   install what the tests need, lint, and run all of them"
	@echo "make lint   ruff and mypy"
	@echo "make llama  build llama.cpp's server (about five minutes), so that Compare can race it"
	@echo "make test-engines   the same, then measure every engine for real"
	@echo "make deploy-files  Prometheus' and Grafana's files in deploy/, from the app's own panels and alerts"
	@echo "make screenshots   new pictures for the README, of the lab that is running"

setup:
	@$(PYTHON) scripts/setup.py

run: setup
	@$(PY) -m components.launch

lint:
	@$(PYTHON) scripts/setup.py --dev --no-model
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m mypy

test:
	@$(PYTHON) scripts/setup.py --dev
	@$(MAKE) --no-print-directory lint
	@$(PY) -m pytest tests/unit tests/ui -n 3 --dist worksteal
	@$(PY) -m pytest tests/e2e

llama:
	@$(PYTHON) scripts/setup.py --no-model
	@$(PYTHON) scripts/llama.py

test-engines: llama
	@$(PYTHON) scripts/setup.py --dev
	@$(PY) -m pytest tests/e2e/test_peers.py

screenshots:
	@$(PY) scripts/screenshots.py docs/screenshots

deploy-files:
	@$(PY) scripts/deploy_files.py
