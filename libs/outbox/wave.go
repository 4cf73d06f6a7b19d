package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// slowAfter is how long the subjects of a wave wait for each other.
const slowAfter = 100 * time.Millisecond

// maxConflicts is how often in a row a message may be refused for its subject's last sequence before the subject is left out for a while.
const maxConflicts = 5

// outageError marks a failure of the server or of the way to it, not of a subject.
type outageError struct{ error }

func (e outageError) Unwrap() error { return e.error }

var errDisconnected = outageError{errors.New("NATS is not connected")}

func isOutage(err error) bool {
	var outage outageError
	return errors.As(err, &outage)
}

// outcome is what became of the rows of one batch.
type outcome struct {
	done             []int64           // rows that are on their streams
	acknowledged     map[string]uint64 // stream → highest sequence
	restored         string            // a stream that acknowledged a sequence it had given before
	restoredRevision int64             // a revision on a stream that the database has not given out yet
	outage           error
}

// position is where a subject ends, as far as the session knows.
type position struct {
	sequence uint64
	revision int64
}

// sent is a row whose acknowledgement is awaited.
type sent struct {
	row    row
	future jetstream.PubAckFuture
	// floor says how far the streams were before the row was sent: its own sequence is higher, unless the stream was restored.
	floor map[string]uint64
}

// publish sends rows in waves: the first row of every subject at once, then, when all those are acknowledged, the second, and so on. A subject
// thus never has two messages in flight, and what it fails at is not followed by a later one. A subject that takes longer than the others is
// taken out of the waves, to be collected later.
func (s *session) publish(ctx context.Context, rows []row, result *outcome) {
	waiting := chains(rows)
	conflicts := make(map[string]int)
	for ctx.Err() == nil && result.outage == nil {
		if waiting = s.skipPublished(waiting, result); len(waiting) == 0 {
			return
		}
		if !s.cfg.Conn.IsConnected() {
			result.outage = errDisconnected
			return
		}
		next := waiting[:0]
		for i, err := range s.wave(ctx, waiting, result) {
			chain := waiting[i]
			switch subject := chain[0].subject; {
			case err == nil:
				delete(conflicts, subject)
				next = append(next, chain[1:])
			case errors.Is(err, errResolved) && conflicts[subject] < maxConflicts:
				conflicts[subject]++
				next = append(next, chain)
			case errors.Is(err, errSlow):
			default:
				s.failed(ctx, chain[0], err, result)
			}
		}
		waiting = next
	}
}

var (
	// errResolved says that a publish was refused, and that the session now knows where the subject ends.
	errResolved = errors.New("refused again and again: does somebody else write to this subject?")
	// errSlow says that there is no answer yet.
	errSlow = errors.New("no acknowledgement yet")
)

// wave sends the first row of each chain and gives the outcome of each.
func (s *session) wave(ctx context.Context, waiting [][]row, result *outcome) []error {
	floor := maps.Clone(s.streams)
	wave := make([]sent, len(waiting))
	outcomes := make([]error, len(waiting))
	for i, chain := range waiting {
		s.hooks.publish(ctx, chain[0])
		wave[i] = sent{row: chain[0], floor: floor}
		wave[i].future, outcomes[i] = s.js.PublishMsgAsync(s.message(chain[0]))
	}
	patience := time.NewTimer(slowAfter)
	defer patience.Stop()
	expired := false
	for i, w := range wave {
		if outcomes[i] != nil {
			continue
		}
		var ack *jetstream.PubAck
		var err error
		if !expired {
			select {
			case ack = <-w.future.Ok():
			case err = <-w.future.Err():
			case <-patience.C:
				expired = true
			case <-ctx.Done():
				expired = true
			}
		}
		if ack == nil && err == nil {
			if ack, err = poll(w.future); errors.Is(err, errSlow) {
				s.pending[w.row.subject] = w
			}
		}
		outcomes[i] = s.answered(ctx, w, ack, err, result)
	}
	return outcomes
}

func poll(future jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-future.Ok():
		return ack, nil
	case err := <-future.Err():
		return nil, err
	default:
		return nil, errSlow
	}
}

// collect takes the answers that have come for slow subjects.
func (s *session) collect(ctx context.Context, result *outcome) {
	for subject, p := range s.pending {
		ack, err := poll(p.future)
		if errors.Is(err, errSlow) {
			continue
		}
		delete(s.pending, subject)
		if err = s.answered(ctx, p, ack, err, result); err != nil && !errors.Is(err, errResolved) {
			s.failed(ctx, p.row, err, result)
		}
	}
}

// answered takes note of an answer.
func (s *session) answered(ctx context.Context, a sent, ack *jetstream.PubAck, err error, result *outcome) error {
	if isConflict(err) {
		s.cfg.Metrics.conflicts.Inc()
		if err := s.resolve(ctx, a.row, result); err != nil {
			return err
		}
		return errResolved
	}
	if err != nil {
		return err
	}
	delete(s.blocked, a.row.subject)
	result.done = append(result.done, a.row.id)
	if ack.Duplicate { // the sequence is that of the first; what followed it is not known
		delete(s.remembered, a.row.subject)
		return nil
	}
	s.remember(a.row.subject, position{sequence: ack.Sequence, revision: a.row.id})
	if ack.Sequence <= a.floor[ack.Stream] {
		result.restored = ack.Stream
	}
	s.streams[ack.Stream] = max(s.streams[ack.Stream], ack.Sequence)
	result.acknowledged[ack.Stream] = s.streams[ack.Stream]
	return nil
}

// skipPublished takes out the rows at or below their subject's last revision: they were published before, by this publisher, by one before it that
// crashed, or by the one that took over while this one was paused.
func (s *session) skipPublished(waiting [][]row, result *outcome) [][]row {
	remaining := waiting[:0]
	for _, chain := range waiting {
		for len(chain) > 0 && chain[0].id <= s.remembered[chain[0].subject].revision {
			result.done = append(result.done, chain[0].id)
			delete(s.blocked, chain[0].subject)
			chain = chain[1:]
		}
		if len(chain) > 0 {
			remaining = append(remaining, chain)
		}
	}
	return remaining
}

// message makes the row a message that JetStream takes only if the subject's last sequence is the one remembered. Of a subject it
// knows nothing about, the session guesses that it is empty; the refusal corrects it.
func (s *session) message(r row) *nats.Msg {
	header := make(nats.Header, len(r.header)+2)
	maps.Copy(header, r.header)
	header[RevisionHeader] = []string{strconv.FormatInt(r.id, 10)}
	header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(s.remembered[r.subject].sequence, 10)}
	return &nats.Msg{Subject: r.subject, Header: header, Data: r.data}
}

func isConflict(err error) bool {
	var refusal *jetstream.APIError
	return errors.As(err, &refusal) &&
		(refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// resolve reads where a subject ends whose publish was refused.
func (s *session) resolve(ctx context.Context, r row, result *outcome) error {
	last, err := s.lastMessage(ctx, r.subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		delete(s.remembered, r.subject)
		return nil
	}
	if err != nil {
		return err
	}
	revision := revisionOf(last.Header)
	if revision >= r.id {
		highest, err := s.queue.highest(ctx)
		if err != nil {
			return err
		}
		if revision > highest {
			// The stream knows revisions that this database has not given out: nothing can be said about the row until the ids are lifted.
			result.restoredRevision = max(result.restoredRevision, revision)
			return errors.New("the stream is ahead of the database, which was restored from an older copy")
		}
	}
	s.remember(r.subject, position{sequence: last.Sequence, revision: revision})
	return nil
}

func (s *session) lastMessage(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	name, err := s.js.StreamNameBySubject(ctx, subject)
	if err != nil {
		return nil, fmt.Errorf("look for the stream of %s: %w", subject, err)
	}
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, err)
	}
	last, err := stream.GetLastMsgForSubject(ctx, subject)
	if err != nil {
		return nil, fmt.Errorf("read the last message of %s: %w", subject, err)
	}
	return last, nil
}

// revisionOf reads the revision of a message; one that has none precedes all that have.
func revisionOf(header nats.Header) int64 {
	revision, err := strconv.ParseInt(header.Get(RevisionHeader), 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// failed sorts a failure: of the subject, which is left out for a while, or of the server.
func (s *session) failed(ctx context.Context, r row, err error, result *outcome) {
	switch {
	case ctx.Err() != nil: // asked to end: the row stays
	case !s.cfg.Conn.IsConnected(), len(s.blocked) >= maxBlocked:
		clear(s.blocked)
		result.outage = outageError{err}
	default:
		s.block(ctx, r, err)
	}
}
