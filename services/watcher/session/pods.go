package session

import (
	"context"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/watcher/inflight"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/services/watcher/report"
)

// podListInterval is the least time between two lists of pods.
const podListInterval = 200 * time.Millisecond

// explain publishes why pods of rollouts without progress do not start, until ctx is done.
func (p *pipeline) explain(ctx context.Context) {
	failed := false
	for ctx.Err() == nil {
		now := p.Clock.Now()
		p.mu.Lock()
		target, due, ok := p.inflight.Next(now)
		// A reader ignores pods of a workload that it does not know yet.
		if ok && !p.queue.IsAcked(object.KeyOf(target.Workload.Kind, target.Workload), target.Workload.ResourceVersion) {
			p.inflight.Postpone(target, now)
			p.mu.Unlock()
			continue
		}
		p.mu.Unlock()
		if !ok {
			p.await(ctx, p.observed, due)
			continue
		}
		err := p.explainOne(ctx, target)
		if err != nil && ctx.Err() == nil {
			if !failed {
				p.Logger.WarnContext(ctx, "list pods of a rollout without progress failed; retrying",
					append(keyAttrs(object.KeyOf(target.Workload.Kind, target.Workload)), logkey.Error(err))...)
			}
			p.mu.Lock()
			p.inflight.Postpone(target, p.Clock.Now())
			p.mu.Unlock()
		}
		failed = err != nil
		p.await(ctx, nil, p.Clock.Now().Add(podListInterval))
	}
}

// explainOne lists the pods of one rollout and publishes the list if its summary is new.
func (p *pipeline) explainOne(ctx context.Context, target inflight.Target) error {
	pods, version, err := p.Cluster.Pods(ctx, target.Workload.Namespace, target.Selector, target.Owner)
	if err != nil {
		return err
	}
	now := p.Clock.Now()
	message, summary, err := p.reporter.WorkloadPods(report.PodList{
		Workload: target.Workload, Revision: target.Revision, Version: version, ListedAt: now, Pods: pods,
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	changed := p.inflight.Listed(target, summary, now)
	p.mu.Unlock()
	if !changed {
		return nil
	}
	return p.publishUntilStored(ctx, message)
}
