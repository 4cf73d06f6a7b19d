package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/detection/watchertest"
	"lockstep.internal/tools/stack"
)

func deployFacts(ctx context.Context, f *fixture, size Size, measured Measured) {
	if size.wants("notify_p50_ms", "notify_p99_ms") {
		measureNotify(ctx, f, size, measured)
	}
	if size.wants("facts_per_s") {
		measureFacts(ctx, f, size, measured)
	}
	if size.wants("kb_per_workload") {
		measureDeploysHeap(ctx, f, size, measured)
	}
}

// publishTimeout is the longest time that a publish waits for those before it.
const publishTimeout = time.Minute

// recording publishes observations of Deployments to OBSERVED, like a watcher.
type recording struct {
	js          jetstream.JetStream
	watcher     *watchertest.Watcher
	deployments []*watchertest.Deployment
	rollouts    int
}

func newRecording(js jetstream.JetStream, deployments int) *recording {
	start := time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)
	r := &recording{js: js, watcher: &watchertest.Watcher{Cell: benchCell, Now: start, Publish: func(m *nats.Msg) error {
		_, err := js.PublishMsgAsync(m, jetstream.WithStallWait(publishTimeout))
		return err //nolint:wrapcheck // shown as it is
	}}}
	for i := range deployments {
		r.deployments = append(r.deployments, r.watcher.Deployment(fmt.Sprintf("web-%04d", i), nil))
	}
	return r
}

// publish publishes a list of the Deployments, then rollouts of each: four observations per
// rollout, which cause four facts. It returns the last sequence.
func (r *recording) publish(ctx context.Context, rollouts int) uint64 {
	check(r.watcher.List("r1", r.deployments...))
	each := func(step func(*watchertest.Deployment) error) {
		for _, d := range r.deployments {
			check(step(d))
		}
	}
	for range rollouts {
		r.rollouts++
		tag := fmt.Sprintf("2026.%d", r.rollouts)
		each(func(d *watchertest.Deployment) error { return d.Roll(tag) })
		each((*watchertest.Deployment).Step)
		each((*watchertest.Deployment).Finish)
	}
	published(ctx, r.js)
	return lastSequence(ctx, r.js, topology.StreamObserved)
}

const (
	heapWorkloads = 5000
	heapRollouts  = 3
)

// measureDeploysHeap measures the heap of the deploys service in a process of its own.
func measureDeploysHeap(ctx context.Context, f *fixture, size Size, measured Measured) {
	n := size.of(heapWorkloads)
	var stored float64
	heap := heapPerItem(ctx, f, n, func(f *fixture, n int) *process {
		database := f.postgres(ctx)
		_, js, url := f.jetStream(ctx)
		f.createConsumers(ctx, js)
		publishAgent(ctx, js, events.DirectoryAgent{AgentID: watchertest.AgentID, ProjectID: benchProject})
		service := f.start(ctx, stack.Deploys, "--cell-name="+string(benchCell),
			"--database-url="+database, "--nats-url="+url, "--api-listen="+loopback, "--ops-listen="+loopback)
		pool := f.pool(ctx, database, stack.Deploys)
		cursor := watchCursor(ctx, f, pool)
		cursor.reached(ctx, newRecording(js, n).publish(ctx, heapRollouts))
		check(pool.QueryRow(ctx, `select coalesce(avg(octet_length(state)), 0) from workloads`).Scan(&stored))
		return service
	})
	m := beside(heap, stored/1024)
	m.Note = fmt.Sprintf("%d workloads after %d rollouts each", n, heapRollouts)
	measured["kb_per_workload"] = m
}

// heapPerItem returns the kilobytes of heap per item of a child that start starts with n items, and without any.
func heapPerItem(ctx context.Context, f *fixture, n int, start func(f *fixture, n int) *process) float64 {
	heap := map[int]float64{}
	for _, items := range []int{0, n} {
		check(onFixture(ctx, f.programs, func(f *fixture) { heap[items] = start(f, items).heap(ctx) }))
	}
	return max(heap[n]-heap[0], 0) / float64(n) / 1024
}
