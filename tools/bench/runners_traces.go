package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"os"

	"lockstep.internal/libs/config"
	"lockstep.internal/tools/stack"
)

const (
	// traceLimit is the largest trace. No turn reaches it.
	traceLimit = config.Bytes(1 << 30)
	// tracePart is the size of an append: what a busy job writes in an interval of its runner.
	tracePart = 64 << 10
	// traceJobs write at once.
	traceJobs = 8
)

// measureTraces measures appends to the traces of running jobs beside appends to files that are as durable.
func (b *runnersFixture) measureTraces(ctx context.Context, size Size, measured Measured) {
	part := traceOutput()
	traces, files := make([]caller, traceJobs), make([]caller, traceJobs)
	b.pending = traceJobs
	b.refill(ctx, "jobs")
	b.settle(ctx)
	for i := range traces {
		traces[i] = &keptOpen{b.newTrace(ctx, part)}
		file := must(os.Create(b.f.file(fmt.Sprintf("trace-%d", i))))
		b.f.onClose(func(context.Context) error { return file.Close() })
		files[i] = &fileAppend{file: file, part: part, checksum: crc32.NewIEEE()}
	}
	rate := func(name string, callers []caller) float64 {
		appends := callRate(ctx, name, traceJobs, turnOf(size), func(i int) caller { return callers[i] })
		return appends * tracePart / 1e6
	}
	measured["trace_mb_s"] = takeTurns(ctx, size.For,
		func(int) float64 { return rate(stack.Runners, traces) },
		func(int) float64 { return rate("a file", files) })
}

// traceOutput returns a part with the lines of a build, which PostgreSQL compresses to about a third.
func traceOutput() []byte {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same in each run
	var part []byte
	for n := 0; len(part) < tracePart; n++ {
		part = fmt.Appendf(part, "[%4d] compiled module-%d/package-%d in %d ms, digest %016x\n", n, random.IntN(30),
			random.IntN(300), random.IntN(5000), random.Uint64())
	}
	return part[:tracePart]
}

// keptOpen is a caller for several turns.
type keptOpen struct{ caller }

// Close implements [io.Closer]. The connection ends with the fixture.
func (keptOpen) Close() error { return nil }

// newTrace takes a job and returns a caller that appends to its trace.
func (b *runnersFixture) newTrace(ctx context.Context, part []byte) caller {
	var taken struct {
		ID    int64  `json:"id"`
		Token string `json:"token"`
	}
	runner := b.connect(ctx, anyRunner)
	runner.body = func(data []byte) error { return json.Unmarshal(data, &taken) }
	check(runner.call())
	check(runner.Close())
	offset := 0
	return b.connectHTTP(ctx, http.StatusAccepted, func() []byte {
		header := fmt.Sprintf("Job-Token: %s\r\nContent-Type: text/plain\r\nContent-Range: %d-%d\r\n", taken.Token, offset,
			offset+len(part)-1)
		offset += len(part)
		return httpRequest(http.MethodPatch, fmt.Sprintf("/api/v4/jobs/%d/trace", taken.ID), header, part)
	})
}

// fileAppend appends a part to a file and to its checksum, and makes it durable.
type fileAppend struct {
	file     *os.File
	part     []byte
	checksum hash.Hash32
}

func (a *fileAppend) call() error {
	_, _ = a.checksum.Write(a.part) // never fails
	if _, err := a.file.Write(a.part); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	if err := a.file.Sync(); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	return nil
}

// Close implements [io.Closer]. The fixture closes the file.
func (*fileAppend) Close() error { return nil }
