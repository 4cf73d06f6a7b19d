package nats

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
)

const (
	senders       = 16
	publishPause  = 100 * time.Millisecond
	maxPause      = time.Second
	publishExpiry = 5 * time.Second
)

// Sender stores one message and waits for the acknowledgement.
type Sender interface {
	PublishMsg(ctx context.Context, message *nats.Msg, options ...jetstream.PublishOpt) (*jetstream.PubAck, error)
}

// Publisher publishes results. Make it with [NewPublisher].
type Publisher struct {
	sender Sender
	cell   topology.Cell
	agent  int64
	logger *slog.Logger

	mu      sync.Mutex
	lines   map[string]*line // of workspaces that have results
	ready   []string         // workspaces whose first result can be sent
	waiting int
	changed chan struct{} // closed and replaced when something has changed
}

// line is what one workspace waits to tell, in order.
type line struct {
	events  []event.Event
	sending bool // the first
}

// NewPublisher makes one that publishes when it runs.
func NewPublisher(sender Sender, cell topology.Cell, agent int64, logger *slog.Logger) *Publisher {
	return &Publisher{sender: sender, cell: cell, agent: agent, logger: logger, lines: map[string]*line{}, changed: make(chan struct{})}
}

// Publish adds a result of a workspace; its type is its kind. It never blocks.
func (p *Publisher) Publish(workspace string, result event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lines[workspace]
	if l == nil {
		l = &line{}
		p.lines[workspace] = l
		p.ready = append(p.ready, workspace)
	}
	first := 0
	if l.sending {
		first = 1
	}
	before := len(l.events)
	kept := slices.DeleteFunc(l.events[first:], func(e event.Event) bool { return e.Type() == result.Type() })
	l.events = append(l.events[:first+len(kept)], result)
	p.waiting += len(l.events) - before
	p.signal()
}

// Waiting is how many results are not acknowledged yet.
func (p *Publisher) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// Flush waits until everything is acknowledged. The error is the context's.
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

// Run publishes until the context is done. What is not acknowledged then is lost: the next leader works out all results anew.
func (p *Publisher) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for range senders {
		group.Go(func() { p.send(ctx) })
	}
	group.Wait()
	return nil
}

func (p *Publisher) send(ctx context.Context) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = publishPause, maxPause
	for {
		workspace, result, ok := p.take(ctx)
		if !ok {
			return
		}
		err := p.publish(ctx, workspace, result)
		if err == nil {
			pauses.Reset()
			p.end(workspace, true)
			continue
		}
		if ctx.Err() == nil {
			p.logger.WarnContext(ctx, "cannot publish a result, trying on", slog.String("workspace", workspace), slog.String("type", result.Type()), slog.String("error", err.Error()))
		}
		timer := time.NewTimer(pauses.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		p.end(workspace, false)
	}
}

func (p *Publisher) publish(ctx context.Context, workspace string, result event.Event) error {
	message, err := event.Encode(result, p.cell.Applied(p.agent, workspace))
	if err != nil {
		return fmt.Errorf("publish a result: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, publishExpiry)
	defer cancel()
	if _, err := p.sender.PublishMsg(ctx, message); err != nil {
		return fmt.Errorf("publish a result: %w", err)
	}
	return nil
}

// take waits for a workspace whose next result can be sent.
func (p *Publisher) take(ctx context.Context) (string, event.Event, bool) {
	for ctx.Err() == nil {
		p.mu.Lock()
		if len(p.ready) > 0 {
			workspace := p.ready[0]
			p.ready = p.ready[1:]
			l := p.lines[workspace]
			l.sending = true
			result := l.events[0]
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

// end takes the first result off the line when it has been acknowledged.
func (p *Publisher) end(workspace string, acknowledged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lines[workspace]
	l.sending = false
	if acknowledged {
		l.events = l.events[1:]
		p.waiting--
	} else {
		p.supersede(l)
	}
	if len(l.events) == 0 {
		delete(p.lines, workspace)
	} else {
		p.ready = append(p.ready, workspace)
	}
	p.signal()
}

// supersede drops a first result that could not be sent when a later one of its kind is there.
func (p *Publisher) supersede(l *line) {
	for _, later := range l.events[1:] {
		if later.Type() == l.events[0].Type() {
			l.events = l.events[1:]
			p.waiting--
			return
		}
	}
}

func (p *Publisher) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}
