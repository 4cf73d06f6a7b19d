package sink

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/topology"
)

const (
	maxReason         = 1024 // bytes
	deadLetterTimeout = 10 * time.Second
	service           = "deploys"
)

// newDeadLetter returns the copy of a fact for DEAD. Its subject is on SINKS: a retry reaches this
// sink only.
func newDeadLetter(cell topology.Cell, sink string, f *queued, reason error) *nats.Msg {
	subject := f.stored.Subject
	if !f.requested {
		subject = cell.Sink(sink, subject)
	}
	header := make(nats.Header, len(f.stored.Header)+6)
	for name, values := range f.stored.Header {
		if !strings.HasPrefix(name, "Nats-") {
			header[name] = values
		}
	}
	header.Set(cursor.DeadReasonHeader, headerText(reason.Error()))
	header.Set(cursor.DeadConsumerHeader, consumerName(sink))
	header.Set(cursor.DeadSubjectHeader, subject)
	header.Set(cursor.DeadStreamHeader, f.position.stream)
	header.Set(cursor.DeadSequenceHeader, strconv.FormatUint(f.position.sequence, 10))
	l := &nats.Msg{Subject: cell.Dead(service, subject), Header: header, Data: f.stored.Data}
	const idAllowance = 512
	if l.Size()+idAllowance > topology.MaxMessageSize {
		header.Set(cursor.DeadOmittedHeader, strconv.Itoa(len(l.Data)))
		l.Data = nil
	}
	return l
}

// headerText replaces the characters that neither a header nor a column can hold, and truncates the
// text.
func headerText(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return text
}

// deadLetter publishes the fact on DEAD.
func (w *worker) deadLetter(ctx context.Context, f *queued, reason error) error {
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	id := fmt.Sprintf("%s/%s/%d", consumerName(w.name), f.position.stream, f.position.sequence)
	msg := newDeadLetter(w.set.cfg.Cell, w.name, f, reason)
	if _, err := w.set.cfg.JetStream.PublishMsg(ctx, msg, jetstream.WithMsgID(id)); err != nil {
		return fmt.Errorf("dead-letter fact %d of %s: %w", f.position.sequence, f.position.stream, err)
	}
	w.logger.WarnContext(ctx, "dead-lettered a fact", "stream", f.position.stream, "sequence", f.position.sequence,
		"subject", f.stored.Subject, "reason", reason)
	return nil
}
