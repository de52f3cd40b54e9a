# Targets for people; .ci/run is what has to pass.
GO ?= go
BIN := bin/processor
# Packages that run with the race detector in CI: those with goroutines of their own.
RACE := ./engine/... ./store/... ./txn/... ./kafkasrc/... ./kafkasink/... ./processor/... ./internal/...
# Packages whose tests run on a real Kafka as they do on the embedded broker; integration has the tests of whole services.
KAFKA_SUITES := ./internal/testbed ./internal/kafka ./kafkasrc ./kafkasink ./txn ./processor
KAFKA_LOGS := bin/test-kafka.log

.PHONY: build test test-race test-kafka planted synctests soak lint bench demo clean

build: ## one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/processor

test: ## needs nothing but Go
	$(GO) test ./...

test-race:
	CGO_ENABLED=1 $(GO) test -race -short $(RACE)

# One package after the other, each with a broker of its own: two cores have no room for more. Without Java and Maven,
# and without KAFKA_BROKERS, the tests fail; those that only the embedded broker can run are skipped with a reason and
# counted in the lines of testbed. The logs of the services under test go to a file only.
test-kafka: SHELL := /bin/bash
test-kafka: ## the same suites and the kill tests on a real Kafka: KAFKA_BROKERS, or one started from Maven artefacts with Java 17
	@mkdir -p bin; rm -f $(KAFKA_LOGS); set -o pipefail; rc=0; \
	run() { REAL_KAFKA=1 $(GO) test -count=1 -p 1 -v "$$@" 2>&1 | tee -a $(KAFKA_LOGS) | grep --line-buffered -vE '^(time=|=== )'; }; \
	run -timeout 5m $(KAFKA_SUITES) || rc=1; \
	run -timeout 25m -run 'Real|Conformance' ./integration/... || rc=1; \
	grep -E '^(ok|FAIL|testbed: [0-9]+ tests)|^--- FAIL' $(KAFKA_LOGS); exit $$rc

planted: SHELL := /bin/bash
planted: ## which rung finds which mistake that is built in on purpose; simulation and barrier handling: in how many of 500 schedules
	SIM_RATES=1 $(GO) test -count=1 -v -timeout 20m -run 'Planted' ./internal/sim
	$(GO) test -count=1 -v -run 'Planted' ./engine/gate -rates
	$(GO) test -tags synctests -count=1 -v -run 'TestPlanted' ./internal/synctests
	$(GO) test -count=1 -v -run 'PlantedFault' ./store
	set -o pipefail; $(GO) test -count=1 -v -run 'PlantedFault' ./integration 2>&1 | grep -vE '^ *time='

synctests: ## the real service in bubbles of virtual time, on the embedded broker: 500 schedules for one process and for three, and the planted faults
	$(GO) test -tags synctests -count=1 -v -run 'TestSchedules$$|TestPlanted' ./internal/synctests
	$(GO) test -tags synctests -count=1 -v -run 'TestSchedules$$' ./internal/synctests -processes 3

soak: ## a million schedules of the simulation
	SIM_N=1000000 $(GO) test -count=1 -v -timeout 0 -run 'TestSchedules$$' ./internal/sim

lint: ## formatting, vet, staticcheck and the rules in internal/lint
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "gofmt: $$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
	$(GO) test -count=1 ./internal/lint

bench: ## COUNT beside the raw loop, and through an exchange, on a real Kafka, in one run
	$(GO) run ./bench

demo: ## the main job on the embedded broker, killed again and again, then verified
	$(GO) run ./cmd/processor demo

clean:
	rm -rf bin
