# Everything runs in .venv, which is made on first use and installed again only when setup.py changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c "import platform; print(platform.python_version())")
STAMP := $(VENV)/.installed-$(VERSION)

BENCH ?= translation speech language scan vision

.DEFAULT_GOAL := help
.PHONY: help demo demo-vision test test-timm lint bench report test-official

help:
	@echo "make demo           train a small RingFormer to translate numbers, decode, score (about 4 minutes of training)"
	@echo "make demo-vision    train a small RingFormer-ViT and a small SReT on handwritten digits (about 2 minutes)"
	@echo "make test           run the tests                    ARGS='-m \"not slow\"' passes options on to pytest"
	@echo "make test-timm      run timm's own tests of models on ours     ARGS='--models sret_t,uit*' selects among them"
	@echo "make bench          speed and memory, as ratios to the hosts' own models    BENCH=vision runs one of several"
	@echo "make report         write out/report/report.html: architectures, results beside the papers', pictures, speeds"
	@echo "make lint           check style and formatting"
	@echo "make test-official  run the tests on fairseq 0.12.2 under Python 3.10"
	@echo
	@echo "PYTHON=python3.12 selects the interpreter (default python3). The first call makes $(VENV)."

demo: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" recipes/numbers/run.sh

demo-vision: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" recipes/digits/run.sh

test: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" python -m pytest $(ARGS)

test-timm: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" python -m tests.timm_suite $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(STAMP)
	for name in $(BENCH); do PATH="$(CURDIR)/$(BIN):$$PATH" python -m benchmarks.$$name $(ARGS) || exit 1; done

report: $(STAMP)
	$(BIN)/python recipes/report.py out/report

test-official:
	tests/official.sh

# A .venv of another Python version is cleared first; one of the same version is kept and brought up to date.
$(STAMP): setup.py
	@test -n "$(VERSION)" || { echo "PYTHON=$(PYTHON): no such interpreter" >&2; exit 1; }
	@test "$$($(BIN)/python -V 2>/dev/null)" = "Python $(VERSION)" || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV). With torch this is several gigabytes; where there is no ready wheel of"
	@echo "fairseq-fixed (Python 3.11 and 3.13), its extensions are compiled once, which takes about 3 minutes."
	$(BIN)/python -m pip install --editable ".[fairseq,speech,timm,demo,dev]"
	@touch $@
