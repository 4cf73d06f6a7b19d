package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

// pump serves one sink while this replica leads. What waits is in lanes, one for each thread, in memory; none of it is acknowledged before it is done with.
type pump struct {
	set    *Set
	name   string
	sink   Sink
	traits Traits
	filter *Filter
	cfg    Entry
	store  *store
	logger *slog.Logger
	wake   chan struct{}

	mu       sync.Mutex
	lanes    map[string]*lane
	pending  map[place]*entry
	arrived  uint64
	serving  int
	workers  sync.WaitGroup
	worked   time.Time // when something got through last
	trouble  error     // what failed last, of the sink or of its supply
	troubled time.Time
}

func newPump(s *Set, e Entry, st *store) *pump {
	traits := e.Sink.Traits()
	traits.Parallel = max(traits.Parallel, 1)
	return &pump{
		set: s, name: e.Name, sink: e.Sink, traits: traits, filter: e.Filter, cfg: e, store: st,
		logger: s.cfg.Logger.With("sink", e.Name), wake: make(chan struct{}, 1),
	}
}

// supervise runs the pump again and again until ctx is done.
func (p *pump) supervise(ctx context.Context) {
	pause := pauses()
	for ctx.Err() == nil {
		began := time.Now()
		err := p.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			pause.Reset()
		}
		p.failed(err)
		p.logger.WarnContext(ctx, "the sink starts again", "error", err)
		if sleep(ctx, pause.NextBackOff()) != nil {
			return
		}
	}
}

// run takes facts and delivers them until ctx is done or the supply fails. What is under way then gets the grace to finish.
func (p *pump) run(ctx context.Context) error {
	p.mu.Lock()
	p.lanes, p.pending, p.serving = map[string]*lane{}, map[place]*entry{}, 0
	p.mu.Unlock()
	supplies, err := p.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	var running sync.WaitGroup
	for _, s := range supplies {
		running.Go(func() {
			if err := p.take(ctx, s); err != nil {
				cancel(err)
			}
		})
	}
	running.Go(func() { p.keep(ctx, supplies[0]) })
	p.dispatch(ctx, work)
	running.Wait()
	stop := time.AfterFunc(p.set.cfg.Grace, endWork)
	defer stop.Stop()
	p.workers.Wait()
	p.set.metrics.waiting.WithLabelValues(p.name).Set(0)
	return context.Cause(ctx) //nolint:wrapcheck // what a part of the pump ended with
}

// take puts what the supply has into the lanes.
func (p *pump) take(ctx context.Context, s supply) error {
	messages, err := s.consumer.Messages(jetstream.PullMaxMessages(min(p.cfg.Waiting, 200)))
	if err != nil {
		return fmt.Errorf("read %s: %w", s.stream, err)
	}
	defer context.AfterFunc(ctx, messages.Stop)()
	defer messages.Stop()
	var delivered uint64
	for {
		msg, err := messages.Next()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			continue // the connection is away; it comes back by itself
		case err != nil:
			return fmt.Errorf("read %s: %w", s.stream, err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("read %s: %w", s.stream, err)
		}
		// The server counts what it delivers. One that is missing went to a replica that is gone, and would come late and out of order: take all again.
		if delivered > 0 && meta.Sequence.Consumer > delivered+1 {
			return fmt.Errorf("read %s: %w", s.stream, errElsewhere)
		}
		delivered = meta.Sequence.Consumer
		p.arrive(ctx, place{stream: s.stream, sequence: meta.Sequence.Stream}, msg)
	}
}

// errElsewhere says that this reader did not get all there is.
var errElsewhere = errors.New("a fact was delivered elsewhere")

func (p *pump) arrive(ctx context.Context, at place, msg jetstream.Msg) {
	stored := nats.Msg{Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data()}
	e := &entry{place: at, stored: stored, msg: msg, again: at.stream == topology.StreamSinks}
	e.event, e.fact, e.broken = Read(msg.Headers(), msg.Data())
	e.key = e.event.ID()
	thread, tells := fmt.Sprintf("unread %s/%d", at.stream, at.sequence), true
	if e.broken == nil {
		thread, tells = p.sink.Thread(e.fact)
		tells = tells && (e.again || p.filter.Selects(e.fact))
	}
	if !tells {
		p.set.metrics.facts.WithLabelValues(p.name, "not_selected").Inc()
		p.acknowledge(ctx, e)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if waiting := p.pending[e.place]; waiting != nil {
		waiting.msg = msg // the server has lost patience: this one is to be acknowledged
		return
	}
	p.arrived++
	e.order = p.arrived
	p.pending[e.place] = e
	l := p.lanes[thread]
	if l == nil {
		l = &lane{thread: thread}
		p.lanes[thread] = l
	}
	l.queue = append(l.queue, e)
	p.set.metrics.waiting.WithLabelValues(p.name).Set(float64(len(p.pending)))
	p.stir()
}

// stir makes dispatch look again.
func (p *pump) stir() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// dispatch serves lanes until ctx is done.
func (p *pump) dispatch(ctx, work context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		l, wait := p.next(time.Now())
		if l != nil {
			p.workers.Go(func() { p.serve(ctx, work, l) })
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// next is the lane to serve now, marked as served; without one, how long to wait unless stirred.
func (p *pump) next(now time.Time) (*lane, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Hour
	if p.serving >= p.traits.Parallel {
		return nil, wait
	}
	var best *lane
	for _, l := range p.lanes {
		switch {
		case l.serving:
		case l.due.After(now):
			wait = min(wait, l.due.Sub(now))
		case best == nil || l.before(best):
			best = l
		}
	}
	if best == nil {
		return nil, wait
	}
	best.serving = true
	p.serving++
	return best, 0
}

// keep tells the server that what waits is worked on, and writes down where the sink is, until ctx is done.
func (p *pump) keep(ctx context.Context, s supply) {
	patience := time.NewTicker(p.set.cfg.AckWait / 3)
	defer patience.Stop()
	notes := time.NewTicker(p.set.cfg.NoteInterval)
	defer notes.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-patience.C:
			p.mu.Lock()
			for _, e := range p.pending {
				if err := e.msg.InProgress(); err != nil {
					p.logger.DebugContext(ctx, "the server could not be told of work in progress", "error", err)
					break
				}
			}
			p.mu.Unlock()
		case <-notes.C:
			p.note(ctx, s)
		}
	}
}

func (p *pump) note(ctx context.Context, s supply) {
	info, err := s.consumer.Info(ctx)
	if err == nil {
		p.set.metrics.lag.WithLabelValues(p.name).Set(float64(info.NumPending))
		p.mu.Lock()
		trouble := ""
		if p.trouble != nil {
			trouble = p.trouble.Error()
		}
		p.mu.Unlock()
		err = p.store.note(ctx, p.name, info.AckFloor.Stream+1, trouble)
	}
	if err != nil && ctx.Err() == nil {
		p.logger.WarnContext(ctx, "where the sink is could not be written down", "error", err)
	}
}

func (p *pump) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble == nil {
		p.troubled = time.Now()
	}
	p.trouble = err
}

func (p *pump) check(staleAfter time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble == nil || time.Since(p.troubled) < staleAfter {
		return nil
	}
	return fmt.Errorf("sink %s has not got through for %s, %d facts wait: %w", p.name, time.Since(p.troubled).Round(time.Second), len(p.pending), p.trouble)
}
