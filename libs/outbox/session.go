package outbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/internal/delay"
	"lockstep.internal/libs/postgres"
)

const (
	// maxRemembered bounds the memory of last sequences; a forgotten one costs one refused publish.
	maxRemembered = 100_000
	// maxBlocked is from how many failing subjects on the failure is taken for one of the server.
	maxBlocked = 1000
	// collectInterval is how often slow acknowledgements are looked for while nothing else is to be done.
	collectInterval = 10 * time.Millisecond
	// drainTimeout bounds the removal of acknowledged rows after Run was asked to end.
	drainTimeout = 5 * time.Second
)

// session is the time in which this replica holds the lock. All of it runs in one goroutine, and all its work in the database goes through the
// connection that holds the lock, so that a session that lost the lock cannot change anything there.
type session struct {
	cfg   Config
	hooks hooks
	js    jetstream.JetStream
	held  *postgres.HeldLock
	queue queue
	// offers of writers in this process
	offers offers

	worked     bool
	remembered map[string]position // subject → its end, as far as known
	streams    map[string]uint64   // stream → the highest sequence it has acknowledged
	blocked    map[string]*blocked // subjects that failed
	pending    map[string]sent     // subjects whose acknowledgement takes longer than that of the others
	reconnects uint64              // of the connection, when the streams were last checked
	outage     *delay.Delay
}

// blocked is a subject whose first row failed: it is left out until the pause is over.
type blocked struct {
	row   int64
	until time.Time
	pause *delay.Delay
}

func newSession(p *Publisher, js jetstream.JetStream, held *postgres.HeldLock) *session {
	return &session{
		cfg: p.cfg, hooks: p.hooks, js: js, held: held, queue: queue{conn: held.Conn()}, offers: p.offers,
		remembered: make(map[string]position), blocked: make(map[string]*blocked), pending: make(map[string]sent),
		outage: delay.New(p.cfg.retry()),
	}
}

func (s *session) run(ctx context.Context) error {
	var schema string
	if err := s.held.Conn().QueryRow(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
		return fmt.Errorf("ask for the schema: %w", err)
	}
	if err := s.held.Listen(ctx, channel+schema); err != nil {
		return err
	}
	var err error
	if s.streams, err = s.queue.streams(ctx); err != nil {
		return err
	}
	checked := false
	for {
		if reconnects := s.cfg.Conn.Stats().Reconnects; !checked || reconnects != s.reconnects {
			if err := s.checkStreams(ctx); err != nil {
				if !isOutage(err) {
					return err
				}
				if err := s.awaitServer(ctx, err); err != nil {
					return err
				}
				continue
			}
			checked, s.reconnects = true, reconnects
		}
		more, err := s.publishBatch(ctx)
		switch {
		case err != nil && isOutage(err):
			err = s.awaitServer(ctx, err)
		case err == nil && !more:
			s.hooks.waiting()
			err = s.idle(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// idle waits for new rows, or until something else is due.
func (s *session) idle(ctx context.Context) error {
	if err := s.held.WaitForNotification(ctx, s.untilNext(), s.offers.wake); err != nil {
		return fmt.Errorf("wait for messages: %w", err)
	}
	return nil
}

// publishBatch publishes what was offered, and then the oldest rows of healthy subjects, and tries those again that failed and whose pause is over. It says whether there may be
// more that can be published now.
func (s *session) publishBatch(ctx context.Context) (bool, error) {
	if offered := s.offered(); len(offered) > 0 {
		if _, err := s.publishRows(ctx, offered); err != nil {
			return false, err
		}
	}
	s.held.ClearNotification()
	rows, full, err := s.take(ctx)
	if err != nil {
		return false, err
	}
	done, err := s.publishRows(ctx, rows)
	return full || done > 0, err
}

// offered returns the rows that writers have handed over, without those of subjects that are not to be published to now: these stay in the database.
func (s *session) offered() []row {
	return slices.DeleteFunc(s.offers.take(time.Now()), func(r row) bool { return s.blocked[r.subject] != nil || s.waits(r.subject) })
}

func (s *session) waits(subject string) bool {
	_, waits := s.pending[subject]
	return waits
}

// publishRows publishes rows, takes the answers that have come for slow subjects, and takes note of both. It returns how many rows are on their streams.
func (s *session) publishRows(ctx context.Context, rows []row) (int, error) {
	result := outcome{acknowledged: make(map[string]uint64)}
	s.collect(ctx, &result)
	s.publish(ctx, rows, &result)
	if err := s.settle(ctx, result); err != nil {
		return 0, err
	}
	if result.restored != "" {
		if err := s.streamRestored(ctx, result.restored); err != nil {
			return 0, err
		}
	}
	if result.restoredRevision > 0 {
		if err := s.databaseRestored(ctx, result.restoredRevision); err != nil {
			return 0, err
		}
	}
	if result.outage != nil {
		return 0, result.outage
	}
	return len(result.done), ctx.Err()
}

// take reads the rows to publish now. Failing subjects are probed with the row that failed, apart from the others, so that they never fill the batch.
func (s *session) take(ctx context.Context) ([]row, bool, error) {
	excluded := make([]string, 0, len(s.blocked)+len(s.pending)) // never nil: that would be NULL, which excludes all
	for subject := range s.blocked {
		excluded = append(excluded, subject)
	}
	for subject := range s.pending {
		excluded = append(excluded, subject)
	}
	var rows []row
	if slow := len(s.pending) - s.probing(); slow < s.cfg.Batch {
		var err error
		if rows, err = s.queue.read(ctx, excluded, s.cfg.Batch, s.cfg.BatchBytes); err != nil {
			return nil, false, err
		}
	}
	s.cfg.Metrics.waiting.Set(float64(len(rows) + len(excluded)))
	oldest := time.Duration(0)
	for _, r := range rows {
		oldest = max(oldest, r.age)
	}
	probes, err := s.probes(ctx)
	for _, r := range probes {
		oldest = max(oldest, r.age)
	}
	s.cfg.Metrics.oldest.Set(oldest.Seconds())
	return append(probes, rows...), len(rows) == s.cfg.Batch, err
}

// probes reads the rows of failing subjects whose pause is over. A subject whose row is gone is healthy again.
func (s *session) probes(ctx context.Context) ([]row, error) {
	due := make(map[string]int64)
	now := time.Now()
	room := s.cfg.Batch - s.probing()
	for subject, b := range s.blocked {
		if !s.waits(subject) && !now.Before(b.until) && len(due) < room {
			due[subject] = b.row
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	rows, err := s.queue.readRows(ctx, slices.Collect(maps.Values(due)), s.cfg.BatchBytes)
	if err != nil {
		return nil, err
	}
	if len(rows) < len(due) {
		for _, r := range rows {
			delete(due, r.subject)
		}
		for subject := range due {
			delete(s.blocked, subject)
		}
	}
	return rows, nil
}

// probing is how many failing subjects are being tried.
func (s *session) probing() int {
	n := 0
	for subject := range s.pending {
		if _, failing := s.blocked[subject]; failing {
			n++
		}
	}
	return n
}

// settle removes what was acknowledged, also when Run was asked to end meanwhile.
func (s *session) settle(ctx context.Context, published outcome) error {
	if len(published.done) == 0 {
		return nil
	}
	if err := s.hooks.acknowledged(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := s.queue.remove(ctx, published.done, published.acknowledged); err != nil {
		return err
	}
	s.worked = true
	s.outage.Reset()
	s.cfg.Metrics.published.Add(float64(len(published.done)))
	return nil
}

func (s *session) remember(subject string, ends position) {
	if len(s.remembered) >= maxRemembered {
		clear(s.remembered)
	}
	s.remembered[subject] = ends
}

// block leaves the row's subject out for a while.
func (s *session) block(ctx context.Context, r row, err error) {
	b := s.blocked[r.subject]
	if b == nil {
		b = &blocked{pause: delay.New(s.cfg.retry())}
		s.blocked[r.subject] = b
	}
	pause := b.pause.Next()
	b.row, b.until = r.id, time.Now().Add(pause)
	s.cfg.Metrics.failures.Inc()
	s.cfg.Logger.WarnContext(ctx, "a message of the outbox cannot be published now", "subject", r.subject, "retry_in", pause, "error", err)
}

// untilNext is how long to wait for a notification at most.
func (s *session) untilNext() time.Duration {
	next := s.cfg.Interval
	if len(s.pending) > 0 {
		next = min(next, collectInterval)
	}
	for subject, b := range s.blocked {
		if !s.waits(subject) {
			next = min(next, max(time.Until(b.until), collectInterval))
		}
	}
	return next
}

// awaitServer pauses after a failure of NATS; the pause ends when the connection is back.
func (s *session) awaitServer(ctx context.Context, cause error) error {
	pause := s.outage.Next()
	s.cfg.Metrics.failures.Inc()
	s.cfg.Logger.WarnContext(ctx, "the outbox waits for NATS", "retry_in", pause, "error", cause)
	back := s.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer s.cfg.Conn.RemoveStatusListener(back)
	if err := delay.SleepOr(ctx, pause, back); err != nil {
		return fmt.Errorf("wait for NATS: %w", err)
	}
	return nil
}

// chains groups rows by subject; the chains are ordered by their first row.
func chains(rows []row) [][]row {
	position := make(map[string]int, len(rows))
	var grouped [][]row
	for _, r := range rows {
		i, known := position[r.subject]
		if !known {
			i = len(grouped)
			position[r.subject] = i
			grouped = append(grouped, nil)
		}
		grouped[i] = append(grouped[i], r)
	}
	return grouped
}
