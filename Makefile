# Everything runs in .venv: `make demo` puts what the demos need there, `make test` what development needs, each when it is
# missing or older than setup.py. The default interpreter is Python 3.12 where there is one, for which fairseq-fixed has a
# ready wheel on x86-64; pyenv finds it by its variable.
PYTHON ?= $(shell PYENV_VERSION=3.12 python3.12 -c "import sys; print(sys.executable)" 2>/dev/null || echo python3)
VENV := .venv
BIN := $(VENV)/bin
# Put before a command, which then finds the programs of the environment.
IN_VENV := PATH="$(CURDIR)/$(BIN):$$PATH"
VERSION := $(shell $(PYTHON) -c "import platform; print(platform.python_version())")
DEMO := $(VENV)/.demo-$(VERSION)
FULL := $(VENV)/.installed-$(VERSION)

BENCH ?= translation language scan vision
ROUNDS ?= 20

.DEFAULT_GOAL := help
.PHONY: help install demo demo-pronounce demo-vision test test-fairseq test-timm test-timm-versions fuzz lint bench gpu test-official

help:
	@echo "make install        install everything that fairseq, timm, the tests and the recipes need into $(VENV)"
	@echo "make demo           train one block in a loop and the same block run once, on a cellular automaton (a minute)"
	@echo "make demo-pronounce train a small RingFormer to pronounce English words, score it, try it on yours (5 minutes)"
	@echo "make demo-vision    train a small RingFormer-ViT and a small SReT on handwritten digits (about 2 minutes)"
	@echo "make test           run the tests, on all cores         ARGS='-m \"not slow\"' passes options on to pytest"
	@echo "make test-fairseq   run fairseq's own tests without and with the plugin    FAIRSEQ=../fairseq is a checkout of it"
	@echo "make test-timm      run timm's own tests of models on ours     ARGS='--models sret_t,uit*' selects among them"
	@echo "make test-timm-versions    run every image model on several versions of timm    ARGS='1.0.20 ../timm' selects; scripts of a checkout run, too"
	@echo "make fuzz           try random options, hostile files, kills and full disks    ROUNDS=100 says how often (20)"
	@echo "make bench          speed and memory, as ratios to fairseq's and timm's own models    BENCH=vision runs one"
	@echo "make gpu            tests on a GPU in about 10 minutes, then half an hour of the papers' rows; the next call continues them"
	@echo "make lint           check style, formatting and annotations"
	@echo "make test-official  run the tests on fairseq 0.12.2 under Python 3.10"
	@echo
	@echo "PYTHON=python3.11 selects the interpreter (default: 3.12, or else python3). The first call makes $(VENV)."

install: $(FULL)

demo: $(DEMO)
	$(IN_VENV) recipes/automaton/run.sh

demo-pronounce: $(DEMO)
	$(IN_VENV) recipes/pronounce/run.sh

demo-vision: $(DEMO)
	$(IN_VENV) recipes/digits/run.sh

# With bytecode, also where the environment forbids it: the tests start hundreds of commands.
test: $(FULL)
	$(IN_VENV) PYTHONDONTWRITEBYTECODE= python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder $(ARGS)

test-fairseq: $(FULL)
	@test -d "$(FAIRSEQ)/tests" || { echo "FAIRSEQ=$(FAIRSEQ): must be the folder of a checkout of fairseq" >&2; exit 1; }
	$(IN_VENV) python -m tests.support.fairseq_suite "$(FAIRSEQ)" $(ARGS)

test-timm: $(FULL)
	$(IN_VENV) python -m tests.support.timm_suite $(ARGS)

test-timm-versions: $(FULL)
	$(BIN)/python -m tests.support.timm_versions $(ARGS)

fuzz: $(FULL)
	$(IN_VENV) ROUNDS=$(ROUNDS) python -m pytest tests/reliability/test_fuzz.py \
		tests/reliability/test_attack.py tests/reliability/test_interruptions.py $(ARGS)

lint: $(FULL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(FULL)
	for name in $(BENCH); do $(IN_VENV) python -m benchmarks.$$name $(ARGS) || exit 1; done

gpu: $(FULL)
	$(IN_VENV) PYTHON=python tests/gpu.sh; tested=$$?; $(IN_VENV) recipes/gpu.sh && exit $$tested

test-official:
	tests/official.sh

# A .venv of another Python version, or without pip, is cleared first; one of the same version is kept and brought up to
# date. Building beside the installed torch spares fairseq-fixed, where it is compiled, a torch of its own.
PIP := $(BIN)/python -m pip install

$(DEMO): setup.py
	@test -n "$(VERSION)" || { echo "PYTHON=$(PYTHON): no such interpreter" >&2; exit 1; }
	@case "$(VERSION)" in 3.11.* | 3.12.* | 3.13.*) ;; \
		*) echo "PYTHON=$(PYTHON): is Python $(VERSION): must be 3.11, 3.12 or 3.13" >&2; exit 1 ;; esac
	@$(BIN)/python -m pip --version >/dev/null 2>&1 && test "$$($(BIN)/python -V)" = "Python $(VERSION)" || \
		$(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV): with torch several gigabytes, about 2 minutes. Except with Python 3.12 on x86-64 Linux,"
	@echo "fairseq-fixed is compiled, which needs a C++ compiler and takes about 3 minutes more."
	$(PIP) "setuptools>=64" wheel cython "torch>=2.7" numpy
	$(PIP) --no-build-isolation --editable ".[fairseq,timm,demo]"
	@touch $@

$(FULL): $(DEMO)
	$(PIP) pdm-backend # editdistance is built where it has no wheel (Python 3.13)
	$(PIP) --no-build-isolation --editable ".[fairseq,speech,timm,compare,demo,dev]"
	@touch $@
