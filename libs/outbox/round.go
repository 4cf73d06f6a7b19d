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

	"lockstep.internal/libs/jetstreamapi"
)

// roundTimeout is how long a round waits for acknowledgements.
const roundTimeout = 100 * time.Millisecond

// maxConflicts is the number of consecutive wrong-last-sequence refusals after which a key is failing.
const maxConflicts = 5

// outageError marks a failure of the server or the connection, not of one key.
type outageError struct{ error }

func (e outageError) Unwrap() error { return e.error }

var errDisconnected = outageError{errors.New("NATS is not connected")}

func isOutage(err error) bool {
	var outage outageError
	return errors.As(err, &outage)
}

// outcome is the result of publishing a batch.
type outcome struct {
	done             []int64           // rows that are on their streams
	acknowledged     map[string]uint64 // stream → highest sequence
	restored         string            // a stream that acknowledged an already used sequence
	restoredRevision int64             // a revision on a stream above any that the database has assigned
	outage           error
}

// position is the last message of a subject, as far as the session knows.
type position struct {
	sequence uint64
	revision int64
}

// sent is a row without an acknowledgement yet.
type sent struct {
	row    row
	future jetstream.PubAckFuture
	// before holds the last sequence of each stream before the row was sent. If the acknowledged sequence is not
	// higher, the stream was restored.
	before map[string]uint64
}

// publish sends rows in rounds. Each round sends one row per key and waits for all acknowledgements. So a key has at
// most one message in flight, and no message follows a failed one. A key with a slow acknowledgement is removed from
// the rounds; handleSlowAcks handles it later.
func (s *session) publish(ctx context.Context, rows []row, result *outcome) {
	waiting := groupByKey(rows)
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
		for i, err := range s.publishRound(ctx, waiting, result) {
			group := waiting[i]
			switch key := group[0].key; {
			case err == nil:
				delete(conflicts, key)
				next = append(next, group[1:])
			case errors.Is(err, errConflict) && conflicts[key] < maxConflicts:
				conflicts[key]++
				next = append(next, group)
			case errors.Is(err, errSlow):
			default:
				s.handleFailure(ctx, group[0], err, result)
			}
		}
		waiting = next
	}
}

// groupByKey groups rows by key. Groups are ordered by their first row.
func groupByKey(rows []row) [][]row {
	index := make(map[string]int, len(rows))
	var groups [][]row
	for _, r := range rows {
		i, known := index[r.key]
		if !known {
			i = len(groups)
			index[r.key] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}

var (
	// errConflict reports a rejected publish (wrong last sequence). The session has then read the subject's last
	// message.
	errConflict = errors.New("wrong last sequence several times: another program may write to this subject")
	// errSlow reports a missing acknowledgement.
	errSlow = errors.New("no acknowledgement yet")
)

// publishRound sends the first row of each group and returns an error per group.
func (s *session) publishRound(ctx context.Context, waiting [][]row, result *outcome) []error {
	before := maps.Clone(s.streams)
	round := make([]sent, len(waiting))
	errs := make([]error, len(waiting))
	for i, group := range waiting {
		s.hooks.publish(ctx, group[0])
		round[i] = sent{row: group[0], before: before}
		round[i].future, errs[i] = s.js.PublishMsgAsync(s.message(group[0]))
	}
	timeout := time.NewTimer(roundTimeout)
	defer timeout.Stop()
	expired := false
	for i, p := range round {
		if errs[i] != nil {
			continue
		}
		var ack *jetstream.PubAck
		var err error
		if !expired {
			select {
			case ack = <-p.future.Ok():
			case err = <-p.future.Err():
			case <-timeout.C:
				expired = true
			case <-ctx.Done():
				expired = true
			}
		}
		if ack == nil && err == nil {
			if ack, err = poll(p.future); errors.Is(err, errSlow) {
				s.slow[p.row.key] = p
			}
		}
		errs[i] = s.recordAck(ctx, p, ack, err, result)
	}
	return errs
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

// handleSlowAcks handles slow acknowledgements that have arrived.
func (s *session) handleSlowAcks(ctx context.Context, result *outcome) {
	for key, p := range s.slow {
		ack, err := poll(p.future)
		if errors.Is(err, errSlow) {
			continue
		}
		delete(s.slow, key)
		if err = s.recordAck(ctx, p, ack, err, result); err != nil && !errors.Is(err, errConflict) {
			s.handleFailure(ctx, p.row, err, result)
		}
	}
}

// recordAck records the server's answer to one publish.
func (s *session) recordAck(ctx context.Context, p sent, ack *jetstream.PubAck, err error, result *outcome) error {
	if isConflict(err) {
		s.cfg.Metrics.conflicts.Inc()
		if err := s.readLast(ctx, p.row, result); err != nil {
			return err
		}
		return errConflict
	}
	if err != nil {
		return err
	}
	delete(s.failing, p.row.key)
	result.done = append(result.done, p.row.id)
	if ack.Duplicate { // the sequence is that of the first message; later ones are unknown
		delete(s.lastKnown, p.row.subject)
		return nil
	}
	s.remember(p.row.subject, position{sequence: ack.Sequence, revision: p.row.id})
	if ack.Sequence <= p.before[ack.Stream] {
		result.restored = ack.Stream
	}
	s.streams[ack.Stream] = max(s.streams[ack.Stream], ack.Sequence)
	result.acknowledged[ack.Stream] = s.streams[ack.Stream]
	return nil
}

// skipPublished removes rows at or below their subject's last revision. They were already published: by this
// publisher, or by another one before or after a takeover.
func (s *session) skipPublished(waiting [][]row, result *outcome) [][]row {
	remaining := waiting[:0]
	for _, group := range waiting {
		for len(group) > 0 && group[0].id <= s.lastKnown[group[0].subject].revision {
			result.done = append(result.done, group[0].id)
			delete(s.failing, group[0].key)
			group = group[1:]
		}
		if len(group) > 0 {
			remaining = append(remaining, group)
		}
	}
	return remaining
}

// message builds the NATS message. JetStream accepts it only after the last known sequence of the subject. The
// session assumes that an unknown subject is empty; a rejection corrects it.
func (s *session) message(r row) *nats.Msg {
	header := make(nats.Header, len(r.header)+2)
	maps.Copy(header, r.header)
	header[RevisionHeader] = []string{strconv.FormatInt(r.id, 10)}
	sequence := s.lastKnown[r.subject].sequence
	header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(sequence, 10)}
	return &nats.Msg{Subject: r.subject, Header: header, Data: r.data}
}

func isConflict(err error) bool {
	var refusal *jetstream.APIError
	return errors.As(err, &refusal) &&
		(refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// readLast reads the last message of a subject after a refused publish.
func (s *session) readLast(ctx context.Context, r row, result *outcome) error {
	last, err := s.lastMessage(ctx, r.subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		delete(s.lastKnown, r.subject)
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
			// The stream has a revision that this database never assigned.
			result.restoredRevision = max(result.restoredRevision, revision)
			return errors.New("the stream is ahead of the database: the database was restored from an older copy")
		}
	}
	s.remember(r.subject, position{sequence: last.Sequence, revision: revision})
	return nil
}

func (s *session) lastMessage(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	name, err := s.streamOf(ctx, subject)
	if err != nil {
		return nil, fmt.Errorf("find the stream of %s: %w", subject, err)
	}
	last, err := jetstreamapi.Get(ctx, s.js, name, jetstreamapi.GetRequest{LastFor: subject})
	if err != nil {
		return nil, fmt.Errorf("read the last message of %s: %w", subject, err)
	}
	return last, nil
}

func (s *session) streamOf(ctx context.Context, subject string) (string, error) {
	if s.cfg.StreamOf != nil {
		return s.cfg.StreamOf(subject), nil
	}
	return s.js.StreamNameBySubject(ctx, subject) //nolint:wrapcheck // the caller wraps it
}

// revisionOf returns the revision of a message, 0 for a message without one.
func revisionOf(header nats.Header) int64 {
	revision, err := strconv.ParseInt(header.Get(RevisionHeader), 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// handleFailure handles a failed publish: it delays the key, or reports an outage when the server is
// the cause.
func (s *session) handleFailure(ctx context.Context, r row, err error, result *outcome) {
	switch {
	case ctx.Err() != nil: // Run ends; the row stays in the outbox
	case !s.cfg.Conn.IsConnected(), len(s.failing) >= maxFailing:
		clear(s.failing)
		result.outage = outageError{err}
	default:
		s.backOff(ctx, r, err)
	}
}
