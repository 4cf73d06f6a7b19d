package cursor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

// Headers of a message on DEAD, beside its own.
const (
	DeadReasonHeader   = "Lockstep-Dead-Reason"   // a sentence
	DeadConsumerHeader = "Lockstep-Dead-Consumer" // name of the consumer
	DeadSubjectHeader  = "Lockstep-Dead-Subject"  // where the message came from
	DeadStreamHeader   = "Lockstep-Dead-Stream"
	DeadSequenceHeader = "Lockstep-Dead-Sequence"
	DeadOmittedHeader  = "Lockstep-Dead-Omitted" // bytes of data left out, because with these headers the message would be too large
)

const longestReason = 1024

// deadLetter makes the copy for DEAD. Headers by which the original told JetStream how to store it are left out.
func deadLetter[T any](cfg Config[T], m *Message[T], reason error) *nats.Msg {
	letter := &nats.Msg{Subject: cfg.Cell.Dead(cfg.Service, m.Subject), Header: make(nats.Header, len(m.Header)+6), Data: m.Data}
	for name, values := range m.Header {
		if !strings.HasPrefix(name, "Nats-") {
			letter.Header[name] = values
		}
	}
	letter.Header.Set(DeadReasonHeader, headerText(reason.Error()))
	letter.Header.Set(DeadConsumerHeader, cfg.Name)
	letter.Header.Set(DeadSubjectHeader, m.Subject)
	letter.Header.Set(DeadStreamHeader, cfg.Stream)
	letter.Header.Set(DeadSequenceHeader, strconv.FormatUint(m.Sequence, 10))
	const idAllowance = 512
	if letter.Size()+idAllowance > topology.MaxMessageSize {
		letter.Header.Set(DeadOmittedHeader, strconv.Itoa(len(m.Data)))
		letter.Data = nil
	}
	return letter
}

// headerText makes any text fit for a header.
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

// bury puts the message on DEAD, and waits for as long as that takes. It returns an error only when ctx is done.
func (s *session[T]) bury(ctx context.Context, m *Message[T], reason error) error {
	letter := deadLetter(s.cfg, m, reason)
	id := fmt.Sprintf("%s/%s/%d/%d", s.cfg.Name, s.cfg.Stream, s.position.epoch, m.Sequence)
	pause := s.cfg.Retry.Backoff()
	for {
		_, err := s.cfg.JetStream.PublishMsg(ctx, letter, jetstream.WithMsgID(id))
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("put message %d on DEAD: %w", m.Sequence, ctx.Err())
		}
		s.trouble(ctx, fmt.Errorf("message %d cannot be put on DEAD: %w", m.Sequence, err))
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("put message %d on DEAD: %w", m.Sequence, err)
		}
	}
	s.count.dead.Inc()
	s.cfg.Logger.WarnContext(ctx, "a message was put on DEAD", "consumer", s.cfg.Name, "stream", s.cfg.Stream,
		"subject", m.Subject, "sequence", m.Sequence, "reason", reason)
	return nil
}
