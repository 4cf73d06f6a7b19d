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
	longestReason = 1024
	burialTimeout = 10 * time.Second
	// service whose dead letters they are.
	service = "deploys"
)

// letter makes the copy for DEAD. Its original, as the letter names it, is on SINKS: there it is delivered again to this sink alone.
func letter(cell topology.Cell, sink string, e *entry, reason error) *nats.Msg {
	subject := e.stored.Subject
	if !e.again {
		subject = cell.Sink(sink, subject)
	}
	header := make(nats.Header, len(e.stored.Header)+6)
	for name, values := range e.stored.Header {
		if !strings.HasPrefix(name, "Nats-") {
			header[name] = values
		}
	}
	header.Set(cursor.DeadReasonHeader, headerText(reason.Error()))
	header.Set(cursor.DeadConsumerHeader, consumerName(sink))
	header.Set(cursor.DeadSubjectHeader, subject)
	header.Set(cursor.DeadStreamHeader, e.place.stream)
	header.Set(cursor.DeadSequenceHeader, strconv.FormatUint(e.place.sequence, 10))
	l := &nats.Msg{Subject: cell.Dead(service, subject), Header: header, Data: e.stored.Data}
	const idAllowance = 512
	if l.Size()+idAllowance > topology.MaxMessageSize {
		header.Set(cursor.DeadOmittedHeader, strconv.Itoa(len(l.Data)))
		l.Data = nil
	}
	return l
}

// headerText makes any text fit for a header, and for a column.
func headerText(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	if len(text) > longestReason {
		text = strings.ToValidUTF8(text[:longestReason], "")
	}
	return text
}

// bury puts the fact on DEAD.
func (p *pump) bury(ctx context.Context, e *entry, reason error) error {
	ctx, cancel := context.WithTimeout(ctx, burialTimeout)
	defer cancel()
	id := fmt.Sprintf("%s/%s/%d", consumerName(p.name), e.place.stream, e.place.sequence)
	if _, err := p.set.cfg.JetStream.PublishMsg(ctx, letter(p.set.cfg.Cell, p.name, e, reason), jetstream.WithMsgID(id)); err != nil {
		return fmt.Errorf("put fact %d of %s on DEAD: %w", e.place.sequence, e.place.stream, err)
	}
	p.set.metrics.facts.WithLabelValues(p.name, outcomeDead).Inc()
	p.logger.WarnContext(ctx, "a fact was put on DEAD", "stream", e.place.stream, "sequence", e.place.sequence, "subject", e.stored.Subject, "reason", reason)
	return nil
}
