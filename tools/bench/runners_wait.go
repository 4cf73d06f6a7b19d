package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/tools/testkit/natsd"
)

const (
	idlePolls = 1000
	// idleTurns is the time that polls are idle, as a multiple of that of a comparison: a minute by default.
	idleTurns = 6
	// statisticsDelay is longer than the time until PostgreSQL counts the transactions of an idle connection.
	statisticsDelay = 11 * time.Second
	// waitingRequests is the metric of requests that wait for a job.
	waitingRequests = "lockstep_runners_waiting_requests"
	// waitPause is the time in which a request for a job arrives.
	waitPause = 10 * time.Millisecond
	// leastWaits is the least number of waits.
	leastWaits = 3
)

// measureIdle counts the transactions of the database while runners wait for jobs that do not come, beside the same
// time without runners. It begins when all wait: then their first contacts are stored.
func (b *runnersFixture) measureIdle(ctx context.Context, size Size, measured Measured) {
	pause := min(statisticsDelay, size.For*2)
	without := b.transactions(ctx, size.For*idleTurns, pause)
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	polls, running := errgroup.WithContext(running)
	var answered atomic.Int64
	for range size.of(idlePolls) {
		c := b.connectHTTP(running, http.StatusNoContent, func() []byte { return b.jobRequest(waitingRunner) })
		polls.Go(func() error {
			for {
				if err := c.call(); err != nil {
					return unlessDone(running, err)
				}
				answered.Add(1)
			}
		})
	}
	poll := time.NewTicker(waitPause)
	defer poll.Stop()
	for running.Err() == nil && b.service.metrics(ctx)[waitingRequests] < float64(size.of(idlePolls)) {
		<-poll.C
	}
	with := b.transactions(ctx, size.For*idleTurns, pause)
	cancel()
	check(polls.Wait())
	f := beside(with, without)
	f.Note = fmt.Sprintf("%d polls in %s, %d of them asked again", size.of(idlePolls), size.For*idleTurns, answered.Load())
	measured["idle_queries"] = f
}

// unlessDone returns no error after the end of ctx: the connection was closed.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // see above
	}
	return err
}

// transactions counts the transactions of the database in a time that begins after a pause.
func (b *runnersFixture) transactions(ctx context.Context, during, pause time.Duration) float64 {
	count := func() (n float64) {
		check(b.pool.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database
			WHERE datname = current_database()`).Scan(&n))
		return n
	}
	wait := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			check(interrupted(ctx))
		}
	}
	wait(pause)
	before := count()
	wait(during)
	return count() - before
}

// measureWait measures the time from the commit of a job until the runner that waits for it has it, beside a publish to
// NATS that a waiting HTTP request is answered with.
func (b *runnersFixture) measureWait(ctx context.Context, size Size, measured Measured) {
	b.settle(ctx) // makes the contact of the runner known
	bare := newBareWait(ctx, b.f)
	ours := b.connect(ctx, waitingRunner)
	var jobs, messages []float64
	for began := time.Now(); len(jobs) < leastWaits || time.Since(began) < size.For; {
		jobs = append(jobs, waitFor(ctx, ours, func() { b.createJob(ctx) }))
		messages = append(messages, waitFor(ctx, bare.request, func() { check(bare.conn.Publish(bareSubject, nil)) }))
	}
	measured["wait_p50_ms"] = beside(median(jobs), median(messages))
	p99 := beside(percentile(jobs, 99), percentile(messages, 99))
	p99.Note = fmt.Sprintf("%d jobs", len(jobs))
	measured["wait_p99_ms"] = p99
}

// waitFor returns the milliseconds from the end of create until a request is answered that arrived before it.
func waitFor(ctx context.Context, request caller, create func()) float64 {
	type answer struct {
		at  time.Time
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		err := request.call()
		answered <- answer{time.Now(), err}
	}()
	pace := time.NewTimer(waitPause)
	defer pace.Stop()
	<-pace.C
	create()
	created := time.Now()
	a := <-answered
	check(interrupted(ctx))
	check(a.err)
	return milliseconds(a.at.Sub(created))
}

const bareSubject = "bench.wait"

// bareWait is an HTTP server that answers a request with the next message.
type bareWait struct {
	conn    *nats.Conn
	request caller
}

func newBareWait(ctx context.Context, f *fixture) bareWait {
	url := f.nats(natsd.Options{}).ClientURL()
	messages := make(chan *nats.Msg, 1)
	subscriber := f.connect(url)
	must(subscriber.ChanSubscribe(bareSubject, messages))
	check(subscriber.Flush())
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-messages:
				w.WriteHeader(http.StatusCreated)
			case <-r.Context().Done():
			}
		})}
	listener := must(new(net.ListenConfig).Listen(ctx, "tcp", loopback))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // ends with Close
	}()
	f.onClose(func(context.Context) error {
		err := server.Close()
		<-ended
		return err //nolint:wrapcheck // shown as it is
	})
	request := httpRequest(http.MethodPost, "/", "", nil)
	return bareWait{f.connect(url), connectHTTP(ctx, "the baseline", listener.Addr().String(), http.StatusCreated,
		func() []byte { return request })}
}
