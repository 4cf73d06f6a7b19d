package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/detection/played"
	"lockstep.internal/tools/testkit/natsd"
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
	watcher     *played.Watcher
	deployments []*played.Deployment
	rollouts    int
}

func newRecording(js jetstream.JetStream, deployments int) *recording {
	start := time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)
	r := &recording{js: js, watcher: &played.Watcher{Cell: benchCell, Now: start, Say: func(m *nats.Msg) error {
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
	each := func(step func(*played.Deployment) error) {
		for _, d := range r.deployments {
			check(step(d))
		}
	}
	for range rollouts {
		r.rollouts++
		tag := fmt.Sprintf("2026.%d", r.rollouts)
		each(func(d *played.Deployment) error { return d.Roll(tag) })
		each((*played.Deployment).Step)
		each((*played.Deployment).Finish)
	}
	check(published(ctx, r.js))
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
	heap := must(heapOf(n, func(n int) (heap float64, err error) {
		own := &fixture{profile: f.profile}
		defer own.close(ctx, &err)
		defer recoverFailure(&err)
		heap, stored = deploysHeap(ctx, own, n)
		return heap, nil
	}))
	m := beside(heap, stored/1024)
	m.Note = fmt.Sprintf("%d workloads after %d rollouts each", n, heapRollouts)
	measured["kb_per_workload"] = m
}

// deploysHeap returns the heap of a service that knows n workloads, and the stored bytes per workload.
func deploysHeap(ctx context.Context, f *fixture, n int) (heap, stored float64) {
	database := must(f.postgres(ctx)).URL()
	url := must(f.natsServer(natsd.Options{})).ClientURL()
	js := must(f.streams(ctx, must(f.connect(url))))
	check(enterAgent(ctx, js, events.DirectoryAgent{AgentID: played.AgentID, ProjectID: benchProject}))
	service := must(f.start(ctx, must(f.folder()), childDeploys, "--cell-name="+string(benchCell),
		"--database-url="+database, "--nats-url="+url, "--api-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0"))
	pool := must(f.pool(ctx, database, childDeploys))
	cursor := watchCursor(ctx, f, pool)
	must(cursor.reached(ctx, newRecording(js, n).publish(ctx, heapRollouts)))
	heap = must(service.ask(ctx, askHeap))
	check(pool.QueryRow(ctx, `select coalesce(avg(octet_length(state)), 0) from workloads`).Scan(&stored))
	check(service.stop())
	return heap, stored
}
