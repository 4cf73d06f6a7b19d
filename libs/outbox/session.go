package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
)

const (
	// maxCachedSubjects limits the cache of last sequences. A cache miss costs one rejected publish.
	maxCachedSubjects = 100_000
	// maxFailing is the number of failing keys above which NATS itself is treated as failing.
	maxFailing = 1000
	// slowAckInterval is the time between two checks for slow acknowledgements while the session is
	// idle.
	slowAckInterval = 10 * time.Millisecond
	// checkInterval is the time between two checks for ends of streams that have arrived, while the session is idle.
	checkInterval = 100 * time.Millisecond
	// waitInterval is the time between two warnings of a session that waits for the ends of its streams; see warn.
	waitInterval = time.Second
	// lookupTimeout bounds a request about a stream, which nobody answers while the servers elect its leader.
	lookupTimeout = time.Second
	// drainTimeout bounds the removal of acknowledged rows after Run was asked to end.
	drainTimeout = 5 * time.Second
)

// outageRetry is short: for seconds after a server has failed, its streams have no leader.
var outageRetry = retry.Policy{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond}

// session publishes while this replica holds the lock. It runs in one goroutine. All its database
// work goes through the connection that holds the lock, so a session that lost the lock cannot
// change anything in the database.
type session struct {
	cfg   Config
	hooks hooks
	js    jetstream.JetStream
	held  *postgres.HeldLock
	queue queue

	published     bool
	lastKnown     map[string]position    // subject → its last message, as far as known
	streams       map[string]uint64      // stream → the highest sequence it has acknowledged
	failing       map[string]*failingKey // key → its failed row
	slow          map[string]sent        // keys with a slow acknowledgement
	reconnects    uint64                 // of the connection, at the last check of the streams
	unchecked     int                    // streams whose end has not arrived
	ends          chan streamEnd
	restored      map[string]bool // streams that were handled as restored since checkStreams
	stopChecks    func()
	outageBackoff *retry.Backoff
	failureLog    retry.FailureLog
}

// failingKey is an ordering key with a failed row. It is skipped until the back-off ends.
type failingKey struct {
	row     int64
	until   time.Time
	backoff *retry.Backoff
}

func newSession(p *Publisher, js jetstream.JetStream, held *postgres.HeldLock) *session {
	return &session{
		cfg: p.cfg, hooks: p.hooks, js: js, held: held, queue: queue{conn: held.Conn(), orderingKey: p.cfg.OrderingKey},
		lastKnown: make(map[string]position), failing: make(map[string]*failingKey), slow: make(map[string]sent),
		restored:      make(map[string]bool),
		outageBackoff: outageRetry.Backoff(), stopChecks: func() {},
	}
}

func (s *session) run(ctx context.Context) error {
	var schema string
	if err := s.held.Conn().QueryRow(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
		return fmt.Errorf("read the current schema: %w", err)
	}
	if err := s.held.Listen(ctx, channel+schema); err != nil {
		return err
	}
	var err error
	if s.streams, err = s.queue.streams(ctx); err != nil {
		return err
	}
	if err := s.finishRestoration(ctx); err != nil {
		return err
	}
	s.reconnects = s.cfg.Conn.Stats().Reconnects
	s.checkStreams(ctx)
	defer func() { s.stopChecks() }()
	// Before it knows that the database was not restored, it does not know which rows are published.
	if err := s.awaitChecks(ctx); err != nil {
		return err
	}
	for {
		if reconnects := s.cfg.Conn.Stats().Reconnects; reconnects != s.reconnects {
			s.reconnects = reconnects
			s.checkStreams(ctx)
		}
		more, err := s.publishBatch(ctx)
		switch {
		case err != nil && isOutage(err):
			err = s.waitForServer(ctx, err)
		case err == nil && !more:
			s.hooks.waiting()
			err = s.waitForRows(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// waitForRows waits for new rows, or until a retry or a slow acknowledgement is due.
func (s *session) waitForRows(ctx context.Context) error {
	if err := s.held.WaitForNotification(ctx, s.waitTimeout()); err != nil {
		return fmt.Errorf("wait for messages: %w", err)
	}
	return nil
}

// publishBatch publishes the oldest rows of healthy keys and retries failed rows whose pause is
// over. It reports whether more rows can be published now.
func (s *session) publishBatch(ctx context.Context) (bool, error) {
	s.held.ClearNotification()
	if err := s.finishChecks(ctx); err != nil {
		return false, err
	}
	rows, full, err := s.readRows(ctx)
	if err != nil {
		return false, err
	}
	done, err := s.publishRows(ctx, rows)
	return full || done > 0, err
}

// publishRows publishes rows, handles slow acknowledgements and records the result. It returns the
// number of rows that are on their streams.
func (s *session) publishRows(ctx context.Context, rows []row) (int, error) {
	result := outcome{acknowledged: make(map[string]uint64)}
	s.handleSlowAcks(ctx, &result)
	s.publish(ctx, rows, &result)
	if err := s.removePublished(ctx, result); err != nil {
		return 0, err
	}
	if result.restored != "" {
		if err := s.handleRestoredStream(ctx, result.restored); err != nil {
			return 0, err
		}
	}
	if result.restoredRevision > 0 {
		if err := s.handleRestoredDatabase(ctx, result.restoredRevision); err != nil {
			return 0, err
		}
	}
	if result.outage != nil {
		return 0, result.outage
	}
	return len(result.done), ctx.Err()
}

// readRows reads the rows to publish now. The failed rows of failing keys are read separately, so they never
// fill the batch. full reports whether more rows may wait.
func (s *session) readRows(ctx context.Context) (rows []row, full bool, err error) {
	excluded := make([]string, 0, len(s.failing)+len(s.slow)) // not nil: with NULL the query would return no rows
	for key := range s.failing {
		excluded = append(excluded, key)
	}
	for key := range s.slow {
		excluded = append(excluded, key)
	}
	if slow := len(s.slow) - s.retrying(); slow < s.cfg.Batch {
		if rows, err = s.queue.read(ctx, excluded, s.cfg.Batch, s.cfg.BatchBytes); err != nil {
			return nil, false, err
		}
	}
	s.cfg.Metrics.waiting.Set(float64(len(rows) + len(excluded)))
	retries, err := s.readRetries(ctx)
	oldest := time.Duration(0)
	for _, r := range slices.Concat(rows, retries) {
		oldest = max(oldest, r.age)
	}
	s.cfg.Metrics.oldest.Set(oldest.Seconds())
	return append(retries, rows...), len(rows) == s.cfg.Batch, err
}

// readRetries reads the rows of failing keys whose pause is over. A key whose row is gone is healthy again.
func (s *session) readRetries(ctx context.Context) ([]row, error) {
	due := make(map[string]int64)
	now := time.Now()
	limit := s.cfg.Batch - s.retrying()
	for key, b := range s.failing {
		if !s.isSlow(key) && !now.Before(b.until) && len(due) < limit {
			due[key] = b.row
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
			delete(due, r.key)
		}
		for key := range due {
			delete(s.failing, key)
		}
	}
	return rows, nil
}

// isSlow reports whether the key's last acknowledgement is missing.
func (s *session) isSlow(key string) bool {
	_, slow := s.slow[key]
	return slow
}

// retrying counts the failing keys with a message in flight.
func (s *session) retrying() int {
	n := 0
	for key := range s.slow {
		if _, failing := s.failing[key]; failing {
			n++
		}
	}
	return n
}

// removePublished removes acknowledged rows, also after Run was asked to end.
func (s *session) removePublished(ctx context.Context, result outcome) error {
	if len(result.done) == 0 {
		return nil
	}
	if err := s.hooks.acknowledged(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := s.queue.remove(ctx, result.done, result.acknowledged); err != nil {
		return err
	}
	s.published = true
	s.outageBackoff.Reset()
	if len(s.failing) == 0 {
		s.failureLog.Reset()
	}
	s.cfg.Metrics.published.Add(float64(len(result.done)))
	return nil
}

func (s *session) remember(subject string, last position) {
	if len(s.lastKnown) >= maxCachedSubjects {
		clear(s.lastKnown)
	}
	s.lastKnown[subject] = last
}

// backOff skips the row's key for a while.
func (s *session) backOff(ctx context.Context, r row, err error) {
	b := s.failing[r.key]
	if b == nil {
		b = &failingKey{backoff: s.cfg.Retry.Backoff()}
		s.failing[r.key] = b
	}
	pause := b.backoff.Next()
	b.row, b.until = r.id, time.Now().Add(pause)
	s.warn(ctx, "publishing an outbox message failed; retrying",
		slog.String(logkey.Subject, r.subject), slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
}

// warn counts a failure. It logs the first failure of an outage and then one per minute as warnings.
func (s *session) warn(ctx context.Context, message string, attrs ...slog.Attr) {
	s.cfg.Metrics.failures.Inc()
	s.cfg.Logger.LogAttrs(ctx, s.failureLog.Level(), message, attrs...)
}

// waitTimeout returns the maximum time to wait for a notification.
func (s *session) waitTimeout() time.Duration {
	next := s.cfg.Interval
	if s.unchecked > 0 {
		next = min(next, checkInterval)
	}
	if len(s.slow) > 0 {
		next = min(next, slowAckInterval)
	}
	for key, b := range s.failing {
		if !s.isSlow(key) {
			next = min(next, max(time.Until(b.until), slowAckInterval))
		}
	}
	return next
}

// waitForServer pauses after a failure of NATS. The pause ends when the connection is restored.
func (s *session) waitForServer(ctx context.Context, cause error) error {
	pause := s.outageBackoff.Next()
	s.warn(ctx, "outbox publisher failed; waiting for NATS",
		slog.Duration(logkey.RetryIn, pause), logkey.Error(cause))
	connected := s.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer s.cfg.Conn.RemoveStatusListener(connected)
	if err := retry.SleepOrWake(ctx, pause, connected); err != nil {
		return fmt.Errorf("wait for NATS: %w", err)
	}
	return nil
}
