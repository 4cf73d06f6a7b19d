package lastvalue

import (
	"context"

	"lockstep.internal/libs/stored"
)

// advance applies what follows the last applied message, up to the sequence.
func (f *following) advance(ctx context.Context, until uint64) error {
	reader := stored.Reader{JetStream: f.cfg.JetStream, Stream: f.cfg.Stream}
	return reader.Read(ctx, f.cfg.Subjects, f.last.sequence+1, until, func(m stored.Message) error {
		f.cfg.Handler.Apply(ctx, Message{Subject: m.Subject, Header: m.Header, Data: m.Data, Sequence: m.Sequence})
		f.last = messageIDOf(m.Header, m.Sequence)
		return nil
	})
}
