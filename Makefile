# The commands of the project; each is a small script in tests/steps, which documents where files are kept.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
STEPS := tests/steps

.DEFAULT_GOAL := help
.PHONY: run cluster build test quick check fix bench fuzz schedules sample deep nemesis help

run: build ## build, start the server with data in ./mlgw-data and print how to connect to it
	@MLGW_S3__PRINT_CREDENTIALS=always exec ./mlgw serve --data-dir ./mlgw-data

cluster: build ## start three nodes on this machine, data in ./mlgw-cluster, and print how to use them
	@exec $(STEPS)/cluster

build: ## install the build dependencies, build the release binary, link it as ./mlgw
	@$(STEPS)/build

test: ## everything: format, lint, unit, model, crash and client tests
	@$(STEPS)/run test

quick: ## format, lint, unit and model tests but the slowest: about a minute when warm
	@$(STEPS)/run quick

check: ## format and lint; never writes to the tree
	@$(STEPS)/run check

fix: ## apply the automatic fixes of rustfmt and clippy
	@$(STEPS)/fix

bench: build ## measure and print beside the targets; ONLY=name[,name] for groups of rows
	@ONLY="$(ONLY)" tests/bench/run

fuzz: ## run every fuzz target for a minute (MLGW_FUZZ_SECONDS)
	@$(STEPS)/run fuzz

schedules: ## run 20,000 random schedules (MLGW_SCHEDULES) of each decider; CI runs 2,000
	@$(STEPS)/run schedules

sample: ## what CI runs after the tests: a subset of `make deep` that differs for each commit
	@$(STEPS)/run sample

deep: ## hours of tests: 10 more seeds of crashes (MLGW_DEEP_SEEDS), 5 minutes for each fuzz target
	@$(STEPS)/run deep

nemesis: build ## hours: 300 rounds (MLGW_ROUNDS) of clients of a cluster while nodes, disks and network fail
	@$(STEPS)/nemesis

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
