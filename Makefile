# SPDX-License-Identifier: Apache-2.0
# Two commands: `make bundle` and `make test`. Each makes .venv first, from requirements.lock, if it is missing or out of date.
# Every path is relative, so that the tree may stand in a folder with blanks or other letters in its name.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup bundle test lock clean distclean

# What stands in the caller's environment must not choose other packages than the lock file does.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP
export PYTHONNOUSERSITE := 1

PY := .venv/bin/python
ARGS ?=
TESTS ?= tests/unit tests/build tests/cabi tests/device

help:
	@printf '%s\n' \
	  'make bundle   build every row of variants.yaml into dist/fmhaforge-<version>/ and its archive' \
	  'make test     run the tests: unit, build, C ABI, and device (skipped with the reason when there is no GPU)' \
	  'make clean    remove what the build made, except the bundles in dist/' \
	  'make distclean  make clean, and .venv with it' \
	  'make lock     resolve requirements.in into requirements.lock (needs uv)' \
	  '' \
	  'ARGS passes options through: make bundle ARGS="sm=90,87 variants=fmha_v2_d64* dist=out"' \
	  '                             make test ARGS="-k cubin" TESTS=tests/unit' \
	  'All build options with their defaults: .venv/bin/scons --help'

# `cmp` is the whole cost when nothing changed. The copy of the lock file is the last thing that the set-up writes.
setup:
	@if [ -x $(PY) ] && cmp -s requirements.lock .venv/requirements.lock; then :; else sh tools/setup.sh; fi

# `set -f`: a pattern in ARGS (variants=fmha_v2_d64*) is for the build, not for the shell.
bundle: setup
	@set -f; exec $(PY) -m SCons -Q $(ARGS)

test: setup
	@set -f; exec $(PY) -m pytest $(TESTS) $(ARGS)

clean: setup
	@exec $(PY) -m SCons -Q -c $(ARGS)

distclean:
	rm -rf build .venv

lock:
	uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --only-binary :all: --no-header --no-annotate \
	  --no-emit-package nvidia-nvvm --no-emit-package nvidia-cuda-runtime --no-emit-package nvidia-cuda-crt \
	  requirements.in --output-file requirements.lock
