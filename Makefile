# make demo      the example, tuned on this machine       make lint           ruff, and the layers of the package
# make test      the tests                                make types          mypy
# make bench     the benchmarks                           make clean          removes what these made
# make ranking   this class of processors, measured       make demo-cnn       a network is trained, a photograph filtered
# make sanitize  the core under sanitizers, or by libffi  make check-kernels  every vendor kernel over problems with edges
# make test-caps the tests as on other processors, and without some libraries: half an hour
# make storm     first calls of many threads at once, in 300 processes
# make fuzz      random calls of every operation against wider arithmetic
# make test-torch Backline beside PyTorch, which is installed for it
# make test-ray   the same settings in Ray's workers; Ray is installed for it
# make test-jax  Backline beside JAX, likewise
# make test-report the page of `backline report` in Chromium, which is to be installed: apt-get install chromium
# make test-exchange the linear algebra tests of NumPy and SciPy, their BLAS exchanged for each library
# make test-determinism every operation on 1 to 8 threads, bit for bit
# make gpu-check the rows that only an NVIDIA GPU can prove: docs/devices.md
#
# All of them work in .venv, which is made on first use. The package is installed in place: an edited Python file needs nothing,
# an edited C++ file is compiled by the next command.

PYTHON ?= python3
# Processes that run tests; 0: the tests run in the process that was started (for a debugger).
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
BUILT_FROM := pyproject.toml CMakeLists.txt $(wildcard src/backline/_*/*.cpp src/backline/_*/*.hpp)

MACHINES_PATH := $(PATH)
# The tools that the command line of Backline finds, and those of the environment before others.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PIP_ROOT_USER_ACTION := ignore

.PHONY: demo demo-cnn test test-caps sanitize check-kernels fuzz gpu-check wheelhouse test-triton test-cudnn test-cupy test-torch test-jax test-ray \
        test-report test-exchange test-determinism lint types bench \
        ranking storm clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo $(VENV)/mkl
	$(BIN)/backline tune examples/digits_ridge.py

demo-cnn: $(VENV)/demo $(VENV)/mkl
	$(BIN)/python examples/digits_cnn.py
	$(BIN)/python examples/photo_filters.py

test: $(VENV)/test $(VENV)/mkl $(VENV)/devices
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# The tests of operations, libraries and choices as on other processors and without some libraries: tests/configurations.py has the table.
test-caps: $(VENV)/test $(VENV)/mkl
	$(BIN)/python tests/configurations.py --workers $(WORKERS) $(ARGS)

# Random calls of every operation by every library: SECONDS=3600 SEED=7 FAMILIES=fft,conv LIBRARIES=mkl; CASE=7:1234 repeats one.
SECONDS ?= 60
SEED ?= 1
fuzz: $(VENV)/test $(VENV)/mkl
	@PYTHONPATH=tests $(BIN)/python -m fuzz --seconds=$(SECONDS) --seed=$(SEED) --families="$(FAMILIES)" --libraries="$(LIBRARIES)" --case="$(CASE)" $(ARGS)

# The rows that only an NVIDIA GPU can prove, by the Python that has CuPy: that of the environment that is active, or PYTHON=folder/bin/python.
# Nothing is installed into it, and no network is needed; what is not compiled yet is, into a temporary folder. ARGS=--gpu-out=folder
# says where its files go.
gpu-check:
	@env -u VIRTUAL_ENV PATH="$(MACHINES_PATH)" $(PYTHON) -c 'import pytest' 2> /dev/null || \
	  { echo "pytest is missing: $(PYTHON) -m pip install pytest numpy ml_dtypes opt_einsum platformdirs" >&2; exit 1; }
	env -u VIRTUAL_ENV PATH="$(MACHINES_PATH)" $(PYTHON) -m pytest -p no:cacheprovider -m gpu $(ARGS)

# What such a machine may lack, to be carried there: 17 MB, without what these packages depend on.
wheelhouse:
	$(PYTHON) -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
	  --dest wheelhouse nvidia-cudnn-frontend==1.28.0 nvmath-python==1.0.0 opt_einsum platformdirs

# The kernels in Triton, compiled for several devices and run in its interpreter; Triton is 272 MB.
test-triton: $(VENV)/test
	@$(PIP) install 'triton>=3.8'
	$(BIN)/python -m pytest -n $(WORKERS) -m triton tests/triton_kernels $(ARGS)

# What the true cuDNN answers for GPUs that are described to it: 1 GB is downloaded, a C compiler is needed, a GPU is not.
test-cudnn: $(VENV)/test $(VENV)/cudnn
	$(BIN)/python -m pytest -m cudnn tests/cudnn --cudnn-result=benchmarks/results/cudnn_without_a_device.json $(ARGS)

# The true CuPy, its kernels compiled by NVRTC for an H100 and by g++ for this machine: 400 MB are downloaded, a GPU is not needed.
test-cupy: $(VENV)/test $(VENV)/devices $(VENV)/cupy
	$(BIN)/python -m pytest -m cupy -o faulthandler_timeout=1900 tests/hollow $(ARGS)

# Public snippets, PyTorch's operator samples and layers, by Backline and by PyTorch. The package may bring CUDA along, 3 GB; where pip is set
# to an index of builds for the CPU it is 200 MB. PYTHONPATH may name a folder that has it: nothing is installed then.
test-torch: $(VENV)/test $(VENV)/mkl
	@$(BIN)/python -c 'import torch, expecttest' 2> /dev/null || $(PIP) install 'torch==2.13.0' expecttest
	$(BIN)/python -m pytest -m torch tests $(ARGS)

# Settings in the workers of Ray, which is 250 MB.
test-ray: $(VENV)/test
	@$(BIN)/python -c 'import ray' 2> /dev/null || $(PIP) install 'ray>=2.50'
	$(BIN)/python -m pytest -m ray tests/interop $(ARGS)

# Arrays of JAX, and operations in functions that JAX traces. PYTHONPATH may name a folder that has it, as for test-torch.
test-jax: $(VENV)/test $(VENV)/mkl
	@$(BIN)/python -c 'import jax' 2> /dev/null || $(PIP) install jax
	$(BIN)/python -m pytest -m jax tests $(ARGS)

# The page of `backline report` as a browser shows it: apt-get install --no-install-recommends chromium.
test-report: $(VENV)/test
	@command -v chromium > /dev/null || { echo "Chromium is not installed: apt-get install --no-install-recommends chromium"; exit 1; }
	$(BIN)/python -m pytest -m chromium tests/report $(ARGS)

# What NumPy and SciPy test of their linear algebra, with their BLAS exchanged for MKL, OpenBLAS and BLIS in turn.
test-exchange: $(VENV)/test $(VENV)/mkl
	$(BIN)/python tests/exchange_suites.py $(ARGS)

# The core built for AddressSanitizer with UndefinedBehaviorSanitizer, then for ThreadSanitizer, and a part of the tests on each.
# make sanitize SANITIZERS=address ARGS="tests/core -x" runs others. SANITIZERS=libffi is a build that calls libraries through libffi,
# whose headers it needs.
SANITIZERS ?= address thread
sanitize: $(VENV)/test
	.ci/sanitize $(SANITIZERS) $(if $(ARGS),-- $(ARGS))

# Every operation on 1 to 8 threads, 50 times on each, its arrays moved, at determinism level "threads": all bits compared, in minutes.
test-determinism: $(VENV)/test $(VENV)/mkl
	$(BIN)/python benchmarks/determinism.py --check $(ARGS)

# Fresh processes in which many threads make the first call of everything at once: an hour or less.
storm: $(VENV)/test $(VENV)/mkl
	$(BIN)/python tests/threads/first_use_storm.py --processes 300 $(ARGS)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/dev $(VENV)/test
	$(BIN)/mypy

# Every kernel of every CPU library over problems with edges, in processes that may crash; ARGS="--library onednn --seconds 60".
check-kernels: $(VENV)/test $(VENV)/mkl
	$(BIN)/backline check kernels $(ARGS)

bench: $(VENV)/test $(VENV)/mkl
	for name in small tables switches; do $(BIN)/python benchmarks/$$name.py $(ARGS) || exit 1; done

# The order of algorithms for machines that nobody tuned: half an hour on a machine that does nothing else; ARGS="products --least".
ranking: $(VENV)/test $(VENV)/mkl
	$(BIN)/python benchmarks/make_ranking.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Backline needs Python 3.11 or later; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# Stamps: installing again is only due when what an installation is made from has changed. The build runs without isolation, so
# that an edited C++ file is compiled in seconds and without a network.
$(VENV)/tools: | $(BIN)/python
	@$(PIP) install 'scikit-build-core>=0.11' 'numpy>=2.0'
	@command -v cmake > /dev/null || $(PIP) install cmake
	@command -v ninja > /dev/null || $(PIP) install ninja
	@touch $@

$(VENV)/core: $(VENV)/tools $(BUILT_FROM)
	@echo "installing Backline into $(VENV) (its core is compiled)"
	@$(PIP) install --no-build-isolation --editable .
	@touch $@

# The package is there by now: these add what its extras name.
$(VENV)/demo $(VENV)/test $(VENV)/dev: $(VENV)/%: $(VENV)/core
	@echo "installing what the extra '$*' names"
	@$(PIP) install 'backline[$*]'
	@touch $@

# Tests of libraries for devices that are not here; without these packages they are left out.
$(VENV)/devices: $(VENV)/core
	@echo "installing what tests of GPU libraries are checked against"
	@$(PIP) install 'backline[devices]' || echo "not all of it can be installed here: the tests that want it are skipped"
	@touch $@

$(VENV)/cudnn: $(VENV)/core
	@echo "installing cuDNN, which is large"
	@$(PIP) install nvidia-cudnn-cu13 nvidia-cudnn-frontend==1.28.0 cuda-pathfinder
	@touch $@

$(VENV)/cupy: $(VENV)/core
	@echo "installing CuPy, NVRTC and the headers of CUDA"
	@$(PIP) install 'cupy-cuda13x>=14.2,<15' 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-cccl>=13,<14' 'nvidia-cuda-crt>=13,<14'
	@touch $@

# Everything works without MKL, on fewer libraries.
$(VENV)/mkl: $(VENV)/core
	@echo "installing MKL"
	@$(PIP) install 'backline[mkl]' && $(BIN)/python -m pip show --quiet mkl || \
	  echo "MKL cannot be installed here: going on with the libraries that are left"
	@touch $@
