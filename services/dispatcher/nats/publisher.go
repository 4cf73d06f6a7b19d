package nats

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
)

const (
	concurrentPublishes = 16
	minPause            = 100 * time.Millisecond
	maxPause            = time.Second
	defaultTimeout      = 3 * time.Second
)

// Sender publishes one message and waits for the acknowledgement.
type Sender interface {
	PublishMsg(ctx context.Context, message *nats.Msg, options ...jetstream.PublishOpt) (*jetstream.PubAck, error)
}

// Publisher publishes results. It is safe for concurrent use. Create it with [NewPublisher].
type Publisher struct {
	sender  Sender
	cell    topology.Cell
	agent   int64
	timeout time.Duration // of one attempt
	logger  *slog.Logger

	mu      sync.Mutex
	pending map[string]*pendingResults // by workspace
	ready   []string                   // workspaces with a waiting result and none in flight
	waiting int
	changed chan struct{} // closed and replaced after each change
}

// pendingResults are the unacknowledged results of one workspace, in order.
type pendingResults struct {
	events  []event.Event
	sending bool // whether the first one is in flight
}

// NewPublisher returns a publisher that does nothing until Run. A result that is not acknowledged within the timeout
// is published again. The timeout defaults to 3 s.
func NewPublisher(
	sender Sender, cell topology.Cell, agent int64, timeout time.Duration, logger *slog.Logger,
) *Publisher {
	return &Publisher{
		sender: sender, cell: cell, agent: agent, timeout: cmp.Or(timeout, defaultTimeout), logger: logger,
		pending: map[string]*pendingResults{}, changed: make(chan struct{}),
	}
}

// Publish adds a result of a workspace. It replaces a waiting result of the same event type. It
// never blocks.
func (p *Publisher) Publish(workspace string, result event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := p.pending[workspace]
	if results == nil {
		results = &pendingResults{}
		p.pending[workspace] = results
		p.ready = append(p.ready, workspace)
	}
	first := 0
	if results.sending {
		first = 1
	}
	before := len(results.events)
	kept := slices.DeleteFunc(results.events[first:], func(e event.Event) bool { return e.Type() == result.Type() })
	results.events = append(results.events[:first+len(kept)], result)
	p.waiting += len(results.events) - before
	p.signal()
}

// Waiting returns the number of unacknowledged results.
func (p *Publisher) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// Flush waits until every result is acknowledged. It returns the error of ctx when that ends first.
func (p *Publisher) Flush(ctx context.Context) error {
	for {
		p.mu.Lock()
		waiting, changed := p.waiting, p.changed
		p.mu.Unlock()
		if waiting == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Run publishes until ctx ends. Unacknowledged results are then lost; the next leader applies and
// reports again.
func (p *Publisher) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for range concurrentPublishes {
		group.Go(func() { p.send(ctx) })
	}
	group.Wait()
	return nil
}

func (p *Publisher) send(ctx context.Context) {
	backoff := retry.Policy{Min: minPause, Max: maxPause}.Backoff()
	for {
		workspace, result, ok := p.next(ctx)
		if !ok {
			return
		}
		err := p.publish(ctx, workspace, result)
		if err == nil {
			backoff.Reset()
			p.finish(workspace, true)
			continue
		}
		pause := backoff.Next()
		if ctx.Err() == nil {
			p.logger.WarnContext(ctx, "result not published, retrying", slog.String(logkey.WorkspaceID, workspace),
				slog.String(logkey.EventType, result.Type()), slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
		}
		_ = retry.Sleep(ctx, pause)
		p.finish(workspace, false)
	}
}

func (p *Publisher) publish(ctx context.Context, workspace string, result event.Event) error {
	message, err := event.Encode(result, p.cell.Applied(p.agent, workspace))
	if err != nil {
		return fmt.Errorf("publish a result: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if _, err := p.sender.PublishMsg(ctx, message); err != nil {
		return fmt.Errorf("publish a result: %w", err)
	}
	return nil
}

// next waits for a workspace whose next result can be sent. It returns false when ctx ends.
func (p *Publisher) next(ctx context.Context) (string, event.Event, bool) {
	for ctx.Err() == nil {
		p.mu.Lock()
		if len(p.ready) > 0 {
			workspace := p.ready[0]
			p.ready = p.ready[1:]
			results := p.pending[workspace]
			results.sending = true
			result := results.events[0]
			p.mu.Unlock()
			return workspace, result, true
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return "", event.Event{}, false
}

// finish removes the first result of the workspace when it was acknowledged.
func (p *Publisher) finish(workspace string, acknowledged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := p.pending[workspace]
	results.sending = false
	if acknowledged {
		results.events = results.events[1:]
		p.waiting--
	} else {
		p.dropReplaced(results)
	}
	if len(results.events) == 0 {
		delete(p.pending, workspace)
	} else {
		p.ready = append(p.ready, workspace)
	}
	p.signal()
}

// dropReplaced drops the first result, which was not acknowledged, if a later result of its type is queued.
func (p *Publisher) dropReplaced(results *pendingResults) {
	for _, later := range results.events[1:] {
		if later.Type() == results.events[0].Type() {
			results.events = results.events[1:]
			p.waiting--
			return
		}
	}
}

func (p *Publisher) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}
