package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/detection/played"
)

// deploysFamily measures the way from a cluster's change to everybody's knowledge of a rollout.
func deploysFamily() Family {
	return Family{
		Name: "deploys",
		About: "notify: a whole system and a kubelab, in which pod templates of Deployments are changed; what is timed is the fact that a rollout started, as a subscriber of its own account hears it live, beside a bare " +
			"informer's sight of the same: the new ReplicaSet is there, and the Deployment names its revision. facts_per_s: the real reader over a stretch of OBSERVED that lies ready, from its start to its last commit in PostgreSQL. " +
			"kb_per_workload: the real service as a process of its own, its heap after a garbage collection with workloads less without any.",
		Specs: []Spec{
			{
				Name: "notify_p50_ms", Unit: "ms", About: "a pod template is changed → an outside subscriber has the fact that the rollout started, half of them",
				Baseline: "the same changes → a bare informer of client-go has the objects that say so: nobody who follows the API server knows it earlier",
			},
			{
				Name: "notify_p99_ms", Unit: "ms", About: "the same, all but one in a hundred", Baseline: "the same percentile of the informer",
				Aim: Aim{Of: ofExcess, AtMost: 10},
			},
			{
				Name: "facts_per_s", Unit: "1/s", About: "facts that are on DEPLOYS and stored, through detection and publishing",
				Baseline: "bare consuming of the same observations by a durable consumer, and publishing of the same facts as safely: to a stream of the same settings, by compare-and-set, one of each " +
					"workload at a time, the next with the acknowledgement of the one before. That is the least by which the same gets onto DEPLOYS; it is less than ours, since observations are not read, facts lie ready " +
					"in memory, and PostgreSQL has no part in it",
				Aim: Aim{Of: ofRatio, AtLeast: 0.6},
			},
			{
				Name: "kb_per_workload", Unit: "KB", About: "heap of the service for each workload that it knows",
				Baseline: "what is stored of a workload in PostgreSQL, without the facts about it",
			},
		},
		Run: deploysFigures,
	}
}

func deploysFigures(ctx context.Context, size Size) (Measured, error) {
	measured := Measured{}
	for _, part := range []struct {
		measure func(context.Context, Measured, Size) error
		figures []string
	}{
		{measureNotify, []string{"notify_p50_ms", "notify_p99_ms"}},
		{measureFacts, []string{"facts_per_s"}},
		{measureDeploysHeap, []string{"kb_per_workload"}},
	} {
		if !size.wants(part.figures...) {
			continue
		}
		if err := part.measure(ctx, measured, size); err != nil {
			return nil, err
		}
	}
	return measured, nil
}

// stagePatience is how long a message may wait for those before it.
const stagePatience = time.Minute

// stage plays a watcher onto the stream OBSERVED.
type stage struct {
	js          jetstream.JetStream
	watcher     *played.Watcher
	deployments []*played.Deployment
	rolled      int
}

// newStage has n Deployments that nothing was told of.
func newStage(js jetstream.JetStream, n int) *stage {
	s := &stage{js: js, watcher: &played.Watcher{Cell: benchCell, Now: time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC), Say: func(m *nats.Msg) error {
		_, err := js.PublishMsgAsync(m, jetstream.WithStallWait(stagePatience))
		return err //nolint:wrapcheck // play says what failed
	}}}
	for i := range n {
		s.deployments = append(s.deployments, s.watcher.Deployment(fmt.Sprintf("web-%04d", i), nil))
	}
	return s
}

// play tells of all Deployments, and then of rollouts of each: four observations a rollout, of which four facts follow. It returns the last sequence.
func (s *stage) play(ctx context.Context, rollouts int) (uint64, error) {
	steps := []func() error{func() error { return s.watcher.List("r1", s.deployments...) }}
	for range rollouts {
		s.rolled++
		tag := fmt.Sprintf("2026.%d", s.rolled)
		for _, step := range []func(*played.Deployment) error{
			func(d *played.Deployment) error { return d.Roll(tag) }, (*played.Deployment).Step, (*played.Deployment).Finish,
		} {
			steps = append(steps, func() error {
				for _, d := range s.deployments {
					if err := step(d); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return 0, fmt.Errorf("play a watcher: %w", err)
		}
	}
	select {
	case <-s.js.PublishAsyncComplete():
	case <-ctx.Done():
		return 0, fmt.Errorf("play a watcher: %w", context.Cause(ctx))
	}
	return lastSequence(ctx, s.js, topology.StreamObserved)
}

func lastSequence(ctx context.Context, js jetstream.JetStream, name string) (uint64, error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", name, err)
	}
	return stream.CachedInfo().State.LastSeq, nil
}
