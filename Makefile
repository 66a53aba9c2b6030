# Temper's commands. `make` alone lists them.
#
# Every target does its own set-up, may be interrupted, and may be run again. ARGS is passed on to the command behind
# a target: make site ARGS="--limit gpu01", make unit ARGS="-k nouveau".

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Ansible insists on UTF-8, and a fresh server has no other such locale.
export LC_ALL := C.UTF-8
# Tests start Python thousands of times: it keeps its byte code.
unexport PYTHONDONTWRITEBYTECODE

# Python 3.11 or newer, and not the one of an active virtual environment: ours may have to be made anew.
python_is_usable = import sys; sys.exit(sys.version_info < (3, 11) or sys.prefix != sys.base_prefix)
PYTHON ?= $(shell for python in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c '$(python_is_usable)' 2>/dev/null && echo "$$python" && break; done)
BIN := $(CURDIR)/.venv/bin
# Molecule and ansible-lint look for Ansible's commands on PATH.
WITH_PATH := PATH="$(BIN):$$PATH"
LAB := $(PYTHON) -m tests.lab
# The Python with torch that the lab's nodes get, if it has been built: some unit tests of the payload need one.
PAYLOAD_PYTHON = $(shell ls -t $(or $(TEMPER_LAB_CACHE),/var/cache/temper-lab)/payload-????????????/bin/python3 \
	2>/dev/null | head -n 1)

##@ The main job

.PHONY: setup
setup: python ## Make .venv with what operating needs: Ansible, the command temper and what they stand on
	@$(PYTHON) -m tools.bootstrap environment controller

.PHONY: site
site: packages setup ## Boot the lab, make its bare nodes hardened, tuned, validated GPU nodes; print the verdict
	@$(LAB) up
	@$(BIN)/ansible-playbook site.yml $(ARGS)

.PHONY: test
test: packages setup-dev lint unit component molecule lab-smoke ## Run everything that must pass before a merge: lint, types, unit, component, Molecule and the smoke tests on nodes

##@ The lab

.PHONY: lab-up
lab-up: packages ## Boot the lab's nodes (LAB_NODES=2, LAB_NAME=temper)
	@$(LAB) up

.PHONY: lab-down
lab-down: python ## Stop the lab and leave nothing of it behind but its cache
	@$(LAB) down

.PHONY: lab-status
lab-status: python ## Say which nodes run
	@$(LAB) status

##@ Checks

.PHONY: lint
lint: setup-dev ## Check style and types: ruff, mypy, ansible-lint with its production profile
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache --no-logo
	@# Side by side, because each leaves a core idle. The payload also runs on Python 3.10. ansible-lint has Ansible
	@# parse every playbook, for which the lab's inventory would ask the lab to run.
	printf '%s\n' "$(BIN)/mypy && $(BIN)/mypy --python-version 3.10 validation" \
		'$(WITH_PATH) ANSIBLE_INVENTORY=inventory/example ansible-lint --offline' | xargs -d '\n' -n 1 -P 2 bash -c

.PHONY: unit
unit: setup-dev ## Run the unit tests, which start no process: minutes, no root
	$(BIN)/pytest -m "not component and not nightly" -n $$(nproc) --dist worksteal $(ARGS)

.PHONY: component
component: packages setup-dev payload monitoring browser schedulers ## Run the tests that start processes of this machine: Ansible, apt, gpg, sshd, torch
	@# One more than there are cores: many of these tests wait.
	TEMPER_PAYLOAD_PYTHON="$(PAYLOAD_PYTHON)" $(BIN)/pytest -m "component and not nightly" -n $$(($$(nproc) + 1)) --dist worksteal $(ARGS)

.PHONY: thorough
thorough: packages setup-dev payload monitoring browser schedulers ## Run the tests that prove at length what make unit and make component prove in short
	HYPOTHESIS_PROFILE=thorough TEMPER_PAYLOAD_PYTHON="$(PAYLOAD_PYTHON)" $(BIN)/pytest -m "nightly or hypothesis" -n $$(nproc) --dist worksteal $(ARGS)

.PHONY: fuzz
fuzz: setup-dev ## Give hostile input to every reader of foreign text, for MINUTES=5 of CPU; SEED=20261125000000 repeats a run
	nice $(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: lab-smoke
lab-smoke: packages setup-dev payload ## Run the few tests that boot nodes which `make test` has: one for each kind of failure
	$(BIN)/pytest tests/lab -m smoke -n 3 --dist loadfile --no-loadscope-reorder -v --durations=20 $(ARGS)

.PHONY: lab-test
lab-test: packages setup-dev ## Run the tests that boot nodes, but the slow ones
	@# Several files at a time: each has a lab of its own, and waits for its nodes most of the time.
	$(BIN)/pytest tests/lab -m "lab and not slow" -n 3 --dist loadfile --no-loadscope-reorder -v --durations=20 $(ARGS)

.PHONY: slow-test
slow-test: packages setup-dev payload monitoring schedulers scap ## Tests that boot nodes and take long: Debian's own driver, container engines, GPU settings, monitoring, Slurm, kernels, snapshots, all of dnf: hours; one: FILE=tests/lab/test_x.py
	$(BIN)/pytest $(or $(FILE),tests/lab) -m "lab and slow" -v $(ARGS)

.PHONY: scap
scap: packages
	@$(PYTHON) -m tools.bootstrap scap

.PHONY: scan
scan: packages setup-dev scap ## Harden nodes, have OpenSCAP, lynis and ssh-audit judge them, and print what they found: 40 minutes
	$(BIN)/pytest tests/lab/test_scan.py tests/lab/test_scan_enterprise.py tests/lab/test_harden_ssh.py -m lab -k "test_scan or ssh_audit" -v -s $(ARGS)

.PHONY: cuda-test
cuda-test: packages setup-dev ## Run the payload under CUDA builds of torch, on a stand-in for CUDA: 2 GB to fetch, many minutes
	nice $(BIN)/pytest tests/lab/cuda -m cuda -v $(ARGS)

.PHONY: cutoff-test
cutoff-test: packages setup payload ## Cut site.yml off at random moments (COUNT=20); the next run must complete it: an hour
	$(BIN)/python -m tests.lab.cutoff --count $(or $(COUNT),20) $(ARGS)

.PHONY: rollout-simulation
rollout-simulation: setup-dev ## Simulate 1,000 upgrades of 1,000 nodes with faults (COUNT=1000, NODES=1000, ARGS="--seed 7"): hours
	nice $(BIN)/python -m tests.rollout.simulation --rollouts $(or $(COUNT),1000) --nodes $(or $(NODES),1000) $(ARGS)

.PHONY: compliance-campaign
compliance-campaign: packages setup payload ## Change COUNT=30 nodes by hand; the compliance check must find each, its command repair it: a quarter of an hour
	@nice $(BIN)/python -m tests.lab.compliance_campaign --count $(or $(COUNT),30) $(ARGS)

.PHONY: upgrade-campaign
upgrade-campaign: packages setup payload ## Meet every fault of an upgrade on a node (RUN=faults), or upgrade COUNT=30 nodes (RUN=fleet): hours
	@nice $(BIN)/python -m tests.lab.upgrade_campaign $(or $(RUN),faults) $(if $(COUNT),--count $(COUNT)) $(ARGS)

.PHONY: fleet-campaign
fleet-campaign: packages setup payload ## Slices beside one process on NODES=4 nodes, then cut off at COUNT=20 random moments: two hours
	@nice $(BIN)/python -m tests.lab.fleet_campaign --nodes $(or $(NODES),4) --count $(or $(COUNT),20) $(ARGS)

.PHONY: molecule
molecule: packages setup-dev ## Converge bare nodes with Molecule, verify with testinfra; one step: STEP=converge
	@# Strict: the lab's inventory is not for the steps that make and end the lab.
	$(WITH_PATH) MOLECULE_GLOB="tests/molecule/*/molecule.yml" MOLECULE_ANSIBLE_ARGS_STRICT_MODE=true \
		MOLECULE_COMMAND_BORDERS=false molecule $(or $(STEP),test) $(ARGS)

.PHONY: nightly
nightly: packages setup-dev payload monitoring browser schedulers scap ## Run everything, also what takes hours, and print a table; one step: ARGS="fuzz"
	$(BIN)/python -m tests.nightly $(ARGS)

.PHONY: bench
bench: packages setup payload ## Time a ping, site.yml and the hardening roles, first and second run side by side
	TEMPER_PAYLOAD_PYTHON="$(PAYLOAD_PYTHON)" $(BIN)/python -m tests.bench.payload
	$(PAYLOAD_PYTHON) -m tests.bench.corruption --trials 4
	$(PAYLOAD_PYTHON) -m tests.bench.one_gpu --cpu --only wrong
	$(BIN)/python -m tests.bench.pages
	$(BIN)/python -m tests.bench.slices
	$(BIN)/python -m tests.bench.scale --nodes 100
	$(BIN)/python -m tests.unit.validation.test_autotune_search 300
	$(BIN)/python -m tests.unit.rollout.test_gate_rates 20
	$(BIN)/python -m tests.bench $(ARGS)

.PHONY: os-values
os-values: packages setup-dev payload ## Measure what values of the operating system bring on this machine, which it changes and restores: half an hour
	TEMPER_PAYLOAD_PYTHON="$(PAYLOAD_PYTHON)" $(BIN)/python -m tests.bench.os_values $(ARGS)

##@ The repository

.PHONY: setup-dev
setup-dev: python ## Make .venv with what tests and checks need, too
	@$(PYTHON) -m tools.bootstrap environment dev

.PHONY: docs
docs: setup-dev ## Write defaults, READMEs and typed variables from the argument specs, the tables of tests and of plans, the lists of controls, findings and refusals, alert rules
	$(BIN)/python -m tools.check_docs
	$(BIN)/python -m tools.role_files
	$(BIN)/python -m tools.command_docs
	$(BIN)/python -m tools.control_docs
	$(BIN)/python -m tools.finding_docs
	$(BIN)/python -m tools.refusal_docs
	$(BIN)/python -m tools.alert_rules
	$(BIN)/python -m tools.dashboards
	$(BIN)/python -m tools.plan_matrix
	$(BIN)/python -m tools.schemas

.PHONY: site-docs
site-docs: setup-dev ## Make a site of the documentation, with search, for any browser and without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "$(CURDIR)/.cache/site-docs/docs/index.html"

.PHONY: screenshots
screenshots: setup-dev browser ## Take the pictures of reports in docs/images anew, of a made-up fleet
	$(BIN)/python -m tools.screenshots

.PHONY: requirements
requirements: setup-dev ## Renew the pins and hashes in requirements/*.txt from pyproject.toml
	cd requirements && pin() { $(BIN)/uv --no-config pip compile --quiet --upgrade --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make requirements" \
		../pyproject.toml "$$@"; } && \
	pin --output-file controller.txt && pin --constraint controller.txt --group ../pyproject.toml:dev --output-file dev.txt

.PHONY: torch-requirements
torch-requirements: setup-dev ## Pin what is installed with a torch that is new in data/, with hashes; ARGS="2.11.0" renews one
	$(BIN)/python -m tools.torch_requirements $(ARGS)

.PHONY: clean
clean: ## Remove the virtual environment and the tools' caches from the checkout; keeps reports/ and the lab
	rm -rf .venv .venv.lock .ansible .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## "; print "Usage: make TARGET [ARGS=...]" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Not for the user: what the targets above stand on.

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "Temper needs Python 3.11 or newer and found none: apt-get install python3" \
		"(Debian 12 or newer), or say which: make PYTHON=/path/to/python3" >&2; exit 1; }

.PHONY: packages
packages: python
	@$(PYTHON) -m tools.bootstrap packages

.PHONY: payload
payload: packages
	@$(PYTHON) -m tools.bootstrap payload

.PHONY: monitoring
monitoring: packages
	@$(PYTHON) -m tools.bootstrap monitoring

.PHONY: schedulers
schedulers: packages setup
	@$(PYTHON) -m tools.bootstrap schedulers

.PHONY: browser
browser: packages
	@$(PYTHON) -m tools.bootstrap browser
