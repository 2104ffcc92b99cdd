.PHONY: help test test-race test-real lint fmt bench bench-outbox bench-peers bench-txmsg soak model ci
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
test: ## all tests on the embedded engines
	go test ./...
test-race: ## the same with the race detector
	go test -race ./...
test-real: ## the suites on MySQL and RocketMQ, started without Docker by scripts/engines
	eval "$$(scripts/engines up)" && HALFBOX_TEST_ENGINES=real go test -race -p 1 -timeout 25m ./...
model: ## the model of txmsg, checked by spin
	docs/model/check
lint: ## golangci-lint as CI runs it, pinned in tools/go.mod
	go tool -modfile=tools/go.mod golangci-lint run ./...
fmt: ## format the code
	go tool -modfile=tools/go.mod golangci-lint fmt ./...
bench: ## benchmarks
	go test -run '^$$' -bench . ./...
bench-outbox: ## drain beside a bare loop, commit to broker and the write path, on MySQL and RocketMQ
	eval "$$(scripts/engines up)" && HALFBOX_TEST_ENGINES=real go test -run '^$$' -bench 'DrainBesideABareLoop|CommitToBroker' -benchtime 1x -timeout 60m ./outbox/sink/rocketmq && \
	HALFBOX_TEST_ENGINES=real go test -run '^$$' -bench 'BenchmarkWrite/mysql' ./outbox
bench-peers: ## the outbox beside its peers on MySQL and RocketMQ, see bench/README.md
	eval "$$(scripts/engines up)" && cd bench && go run . -json bench.json
bench-txmsg: ## orders/s beside a bare loop with the same client and driver, on MySQL and RocketMQ
	eval "$$(scripts/engines up)" && HALFBOX_TEST_ENGINES=real GIN_MODE=release go test -run '^$$' -bench AgainstBareLoop -benchtime 1x -timeout 20m ./txmsg
soak: ## start, stop and time out for an hour (or HALFBOX_SOAK), and see that goroutines and memory stay flat
	HALFBOX_SOAK=$${HALFBOX_SOAK:-1h} go test -count=1 -v -run '^TestSoak' -timeout 0 ./txmsg
ci: ## everything CI does
	.ci/run
