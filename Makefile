# Targets for people (see README.md): run, test. For engineers: build, check, bench, interop, kill, fuzz, vuln.

VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS     := -s -w -X main.version=$(VERSION)
GO          ?= go
GOBUILD     := $(GO) build -trimpath -ldflags '$(LDFLAGS)'
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@latest
BENCHSTAT   := golang.org/x/perf/cmd/benchstat@latest
BUF         := github.com/bufbuild/buf/cmd/buf@v1.75.0

# The race detector needs a C compiler; without one the tests still run. SQLite itself is left out of it: it is translated C
# whose memory is none of Go's, so the detector would look at each of its accesses and pass over it, which makes the tests
# three to five times slower. (The driver, modernc.org/sqlite, stays in: its sync.Map is the one that the whole program uses.)
UNWATCHED := modernc.org/sqlite/lib modernc.org/libc modernc.org/memory
RACE := $(if $(shell command -v $${CC:-cc} 2>/dev/null),-race $(UNWATCHED:%=-gcflags=%=-race=false),)

# All else is without cgo, as the program is shipped, and with the same flags, so that each dependency is compiled once for all.
export CGO_ENABLED := 0

# Lengths of the long loops. The defaults are CI's; docs/operations.md gives the long forms. Fuzzing counts inputs by
# default: a run that is ended by time now and then fails for its own deadline, and for no input.
KILLS      ?= 200
SOAK       ?= 1h
CLIENTS    ?= 1000
FUZZTIME   ?= 10000x
FUZZ_CASES ?= 20000
OUTAGE     ?= 60s
PROXY_IDLE ?= 75s
BENCHTIME  ?= 1s

SOURCES := $(shell find . -name '*.go' -not -path './bin/*') go.mod go.sum schema.sql config.example.toml

.PHONY: all build cross run test check fmt vet lint proto proto-lint proto-release tidy imports fuzz kill soak bench interop vuln clean
all: build

## build: the binary for this machine in bin/, and static ones for linux/amd64, arm64 and armv7 in dist/
build: bin/signalbox cross

bin/signalbox: $(SOURCES)
	$(GOBUILD) -o $@ .

cross: dist/signalbox-linux-amd64 dist/signalbox-linux-arm64 dist/signalbox-linux-armv7

dist/signalbox-linux-amd64: $(SOURCES)
	GOOS=linux GOARCH=amd64 $(GOBUILD) -o $@ .
dist/signalbox-linux-arm64: $(SOURCES)
	GOOS=linux GOARCH=arm64 $(GOBUILD) -o $@ .
dist/signalbox-linux-armv7: $(SOURCES)
	GOOS=linux GOARCH=arm GOARM=7 $(GOBUILD) -o $@ .

## run: serve on loopback with the embedded defaults; state in ./signalbox-data
run: bin/signalbox
	./bin/signalbox serve

## test: every test, with the race detector where a C compiler is found
test:
	CGO_ENABLED=$(if $(RACE),1,0) $(GO) test -timeout 30m $(RACE) ./...

## check: what a change must pass
check: fmt vet lint proto-lint test kill fuzz tidy

fmt:
	@out=$$(gofmt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi

vet:
	$(GO) vet ./...
	$(GO) vet -tags interop ./...
	GOOS=linux GOARCH=arm GOARM=7 $(GO) vet ./...

lint:
	$(GO) run $(STATICCHECK) ./...

# The schema of the archive plane. buf comes from the Go module proxy and is built once into Go's cache.
PROTO     := appliance/archive/proto
ARCHIVEPB := appliance/archive/archivepb
RELEASED  := released/archive_control.v1.binpb

## proto: regenerate the Go code of the schema
proto:
	cd $(PROTO) && $(GO) run $(BUF) format -w && $(GO) run $(BUF) generate -o ../archivepb

## proto-lint: style of the schema, compatibility with the released one, and whether the generated code fits
proto-lint:
	cd $(PROTO) && $(GO) run $(BUF) format -d --exit-code && $(GO) run $(BUF) lint && $(GO) run $(BUF) breaking --against $(RELEASED)
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && (cd $(PROTO) && $(GO) run $(BUF) generate -o "$$out") && \
	for f in "$$out"/*.pb.go $(ARCHIVEPB)/*.pb.go; do n=$$(basename $$f); cmp -s "$$out/$$n" "$(ARCHIVEPB)/$$n" || \
	  { echo "$(ARCHIVEPB)/$$n does not fit the schema: run make proto"; exit 1; }; done

## proto-release: make the present schema the one that later schemas are compared with; part of every release
proto-release: proto-lint
	cd $(PROTO) && $(GO) run $(BUF) build --exclude-source-info -o $(RELEASED)

tidy:
	$(GO) mod tidy -diff

## kill: kill -9 the real binary KILLS times under load and compare it with the clients' ledgers
kill:
	SIGNALBOX_KILLS=$(KILLS) $(GO) test -count=1 -timeout 60m -run '^TestKillLoop' ./commands/

## soak: the real binary under steady load for SOAK, and restarted under CLIENTS connected clients
soak:
	SIGNALBOX_SOAK=$(SOAK) SIGNALBOX_CLIENTS=$(CLIENTS) $(GO) test -count=1 -timeout 0 \
	  -run '^(TestSoak|TestRestartUnderManyClients)$$' -v ./commands/

# The targets are found in the source: to be asked for its own, each package's tests would have to be compiled and linked.
TEST_FILES := {{range .TestGoFiles}}{{$$.ImportPath}} {{$$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$$.ImportPath}} {{$$.Dir}}/{{.}}{{"\n"}}{{end}}

## fuzz: every fuzz target for FUZZTIME
fuzz:
	@set -e; files=$$($(GO) list -f '$(TEST_FILES)' ./...); \
	targets=$$(echo "$$files" | while read -r pkg file; do sed -n "s|^func \(Fuzz[A-Za-z0-9_]*\)(.*|$$pkg \1|p" $$file </dev/null; done); \
	echo "$$targets" | while read -r pkg target; do \
	  echo "fuzz $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg </dev/null; \
	done

## bench: the figures of docs/performance.md
bench:
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -benchmem ./...

## interop: published agents in a real Celery worker against the real binary, room clients behind nginx and Caddy, archive
## daemons across a network that loses packets, notifications through a real mail server; needs python3 with venv,
## redis-server, nginx, caddy, opensmtpd, dovecot-submissiond, iproute2 and, for namespaces, root
interop:
	SIGNALBOX_FUZZ_CASES=$(FUZZ_CASES) SIGNALBOX_INTEROP_OUTAGE=$(OUTAGE) SIGNALBOX_PROXY_IDLE=$(PROXY_IDLE) $(GO) test -tags interop -count=1 -parallel 4 \
	  -timeout 20m -run '^TestInterop' -v ./commands/ ./transport/wire/

## vuln: known vulnerabilities in what the binary links (needs the vulnerability database)
vuln:
	$(GO) run $(GOVULNCHECK) ./...

clean:
	rm -rf bin dist
