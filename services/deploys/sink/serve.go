package sink

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errPanicked is an error made of a panic of a sink.
var errPanicked = errors.New("the sink panicked")

// verdict is what became of one fact of an attempt.
type verdict struct {
	entry   *entry
	outcome string // "" for one to be tried again
	err     error
}

// serve makes one attempt at what is first in the lane. ctx ends the waiting for the destination, work the attempt.
func (p *pump) serve(ctx, work context.Context, l *lane) {
	verdicts, err := p.attempt(ctx, work, l)
	var done []*entry
	if err == nil {
		done, err = p.conclude(work, verdicts)
	}
	var failure error
	for _, v := range verdicts {
		if v.outcome == "" {
			failure = v.err
			break
		}
	}
	if err == nil {
		err = failure
	}
	ended := ctx.Err() != nil
	p.mu.Lock()
	p.remove(l, done)
	switch {
	case err == nil:
		l.succeeded()
		p.worked, p.trouble = time.Now(), nil
	case !ended:
		l.failed(err, time.Now(), p.cfg.Retry)
		if p.trouble == nil {
			p.troubled = time.Now()
		}
		p.trouble = err
	}
	hopeless := err != nil && !ended && len(l.queue) > 0 && p.hopeless(l)
	p.mu.Unlock()
	if err != nil && !ended {
		p.set.metrics.failures.WithLabelValues(p.name).Inc()
		p.logger.WarnContext(ctx, "a fact could not be delivered", "thread", l.thread, "attempt", l.attempt, "error", err)
	}
	if hopeless {
		p.giveUp(work, l)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l.serving = false
	p.serving--
	if len(l.queue) == 0 {
		delete(p.lanes, l.thread)
	}
	p.stir()
}

// remove takes what is done with out of the lane.
func (p *pump) remove(l *lane, done []*entry) {
	gone := make(map[*entry]bool, len(done))
	for _, e := range done {
		gone[e] = true
		delete(p.pending, e.place)
	}
	kept := l.queue[:0:0]
	for _, e := range l.queue {
		if !gone[e] {
			kept = append(kept, e)
		}
	}
	l.queue = kept
	p.set.metrics.waiting.WithLabelValues(p.name).Set(float64(len(p.pending)))
}

// attempt delivers what is first in the lane. The error is one of its own means, none of the destination's.
func (p *pump) attempt(ctx, work context.Context, l *lane) ([]verdict, error) {
	if pacer, ok := p.sink.(Pacer); ok {
		if err := pacer.Pace(ctx); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	head := l.head(p.traits)
	attempt := l.attempt + 1
	p.mu.Unlock()
	if head[0].broken != nil {
		return []verdict{{entry: head[0], outcome: outcomeDead, err: head[0].broken}}, nil //nolint:nilerr // what is wrong with the fact is its verdict
	}
	keys := make([]string, 0, len(head))
	for _, e := range head {
		keys = append(keys, e.key)
	}
	known, err := p.store.known(work, p.name, keys)
	if err != nil {
		return nil, err
	}
	var verdicts []verdict
	var todo []Delivery
	var entries []*entry
	for _, e := range head {
		if known[e.key] && !e.again || e.broken != nil {
			outcome := outcomeKnown
			if e.broken != nil {
				outcome = outcomeDead
			}
			verdicts = append(verdicts, verdict{entry: e, outcome: outcome, err: e.broken})
			continue
		}
		entries = append(entries, e)
		todo = append(todo, Delivery{
			Key: e.key, Thread: l.thread, Fact: e.fact, Event: e.event, Threads: threads{p.store, p.name}, Attempt: attempt, Again: e.again,
		})
	}
	if len(todo) == 0 {
		return verdicts, nil
	}
	began := time.Now()
	verdicts = append(verdicts, p.deliver(work, entries, todo)...)
	p.set.metrics.seconds.WithLabelValues(p.name).Observe(time.Since(began).Seconds())
	return verdicts, nil
}

// deliver calls the sink: with all at once, with the last as the latest, or with one.
func (p *pump) deliver(ctx context.Context, entries []*entry, todo []Delivery) []verdict {
	verdicts := make([]verdict, 0, len(entries))
	if batcher, ok := p.sink.(Batcher); ok && p.traits.Batch > 1 {
		for i, err := range guardBatch(ctx, batcher, todo) {
			verdicts = append(verdicts, judge(entries[i], err))
		}
		return verdicts
	}
	last := len(todo) - 1
	d := todo[last]
	for _, earlier := range todo[:last] {
		d.Earlier = append(d.Earlier, earlier.Fact)
		d.Again = d.Again || earlier.Again
	}
	v := judge(entries[last], guard(ctx, p.sink, d))
	for _, e := range entries[:last] {
		combined := verdict{entry: e, outcome: outcomeCombined}
		if v.outcome == "" {
			combined = verdict{entry: e, err: v.err}
		}
		verdicts = append(verdicts, combined)
	}
	return append(verdicts, v)
}

func judge(e *entry, err error) verdict {
	switch {
	case err == nil:
		return verdict{entry: e, outcome: outcomeDelivered}
	case IsPermanent(err):
		return verdict{entry: e, outcome: outcomeDead, err: err}
	default:
		return verdict{entry: e, err: err}
	}
}

// guard makes a panic of a sink an error: it ends no other sink.
func guard(ctx context.Context, s Sink, d Delivery) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanicked, r)
		}
	}()
	return s.Deliver(ctx, d)
}

func guardBatch(ctx context.Context, b Batcher, batch []Delivery) (failures []error) {
	defer func() {
		if r := recover(); r != nil {
			failures = all(len(batch), fmt.Errorf("%w: %v", errPanicked, r))
		}
	}()
	failures = b.DeliverBatch(ctx, batch)
	if len(failures) != len(batch) {
		return all(len(batch), errors.New("the sink did not say what became of each fact"))
	}
	return failures
}

func all(n int, err error) []error {
	list := make([]error, n)
	for i := range list {
		list[i] = err
	}
	return list
}

// conclude puts on DEAD what is dead, records what is done with and acknowledges it. It returns what it has acknowledged.
func (p *pump) conclude(ctx context.Context, verdicts []verdict) ([]*entry, error) {
	var done []*entry
	var record []delivery
	var failure error
	for _, v := range verdicts {
		if v.outcome == "" {
			continue
		}
		if v.outcome == outcomeDead {
			if err := p.bury(ctx, v.entry, v.err); err != nil {
				failure = err
				continue
			}
		}
		done = append(done, v.entry)
		if v.outcome != outcomeKnown && v.entry.key != "" {
			record = append(record, delivery{key: v.entry.key, sequence: v.entry.place.sequence, outcome: v.outcome})
		}
		if v.outcome != outcomeDead {
			p.set.metrics.facts.WithLabelValues(p.name, v.outcome).Inc()
		}
	}
	if err := p.store.record(ctx, p.name, record); err != nil {
		return nil, err
	}
	for _, e := range done {
		p.acknowledge(ctx, e)
	}
	return done, failure
}

func (p *pump) acknowledge(ctx context.Context, e *entry) {
	p.mu.Lock()
	msg := e.msg
	p.mu.Unlock()
	// One that is lost brings the fact again, which then is known.
	if err := msg.Ack(); err != nil {
		p.logger.DebugContext(ctx, "a fact could not be acknowledged", "sequence", e.place.sequence, "error", err)
	}
}

// patience is how often a thread must have failed on end before it may be given up for the sake of others: about two minutes of attempts.
const patience = 8

// hopeless says that the head of the lane has been tried long enough; or that, while other threads get through, this one takes up too much of what may
// wait. Where the destination asked for time, it gets it.
func (p *pump) hopeless(l *lane) bool {
	if time.Since(l.since) >= p.cfg.Retry.GiveUp {
		return true
	}
	if _, asked := asRetryAfter(l.why); asked || l.failures < patience || !p.worked.After(l.failing) {
		return false
	}
	return len(l.queue) >= max(p.cfg.Waiting/4, 2) || len(p.pending) >= p.cfg.Waiting*9/10
}

// giveUp puts the head of the lane on DEAD.
func (p *pump) giveUp(ctx context.Context, l *lane) {
	p.mu.Lock()
	head := l.head(p.traits)
	reason := fmt.Errorf("given up after %d attempts in %s: %w", l.attempt, time.Since(l.since).Round(time.Second), l.why)
	p.mu.Unlock()
	if !p.traits.Latest {
		head = head[:1]
	}
	verdicts := make([]verdict, 0, len(head))
	for i, e := range head {
		v := verdict{entry: e, outcome: outcomeDead, err: reason}
		if i < len(head)-1 {
			v = verdict{entry: e, outcome: outcomeCombined}
		}
		verdicts = append(verdicts, v)
	}
	done, err := p.conclude(ctx, verdicts)
	if err != nil {
		p.logger.WarnContext(ctx, "a fact could not be given up yet", "thread", l.thread, "error", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(l, done)
	l.passed()
}
