# Targets for people; .ci/run is what has to pass.
GO ?= go
BIN := bin/processor
# Packages that run with the race detector in CI: those with goroutines of their own.
RACE := ./engine/... ./store/... ./txn/... ./kafkasrc/... ./kafkasink/... ./processor/... ./internal/...

.PHONY: build test test-race test-kafka lint bench demo clean

build: ## one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/processor

test: ## needs nothing but Go
	$(GO) test ./...

test-race:
	CGO_ENABLED=1 $(GO) test -race -short $(RACE)

test-kafka: ## the same suites and the kill tests on a real Kafka: KAFKA_BROKERS, or one started from Maven artefacts with Java 17
	REAL_KAFKA=1 $(GO) test -count=1 -timeout 30m -v -run 'Real|Conformance' ./integration/...

lint: ## formatting, vet, staticcheck and the rules in internal/lint
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "gofmt: $$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
	$(GO) test -count=1 ./internal/lint

bench: ## COUNT beside the raw loop on a real Kafka, in one run
	$(GO) run ./bench

demo: ## the main job on the embedded broker, killed again and again, then verified
	$(GO) run ./cmd/processor demo

clean:
	rm -rf bin
