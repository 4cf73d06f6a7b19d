// Package replay reads a range of the history of a stream in order, at full speed or at the
// original pace.
//
// The range ends at the last message that the stream has when the replay starts. Two replays of a
// range return the same messages. Messages that the stream has dropped are missing. A replay needs no
// consumer and changes nothing on the server.
package replay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Options select the messages. Subject is required; the other zero values select all at full speed.
type Options struct {
	// Subject is a filter below lockstep.<cell>., such as workspace.> or observed.7.>. Its first
	// token names the stream.
	Subject string
	// Also are more filters on the same stream, for few messages: they are held in memory. No two filters may overlap.
	Also []string
	// FromSequence and ToSequence are the first and last sequence; 0 for no bound.
	FromSequence, ToSequence uint64
	// FromTime and ToTime bound the time of storage; zero for no bound. FromTime excludes FromSequence.
	FromTime, ToTime time.Time
	// OriginalPace keeps the original time between messages.
	OriginalPace bool
}

// errEnd reports the end of the range.
var errEnd = errors.New("end of the range")

// Run calls take with each message of the range, in order, until its first error.
func Run(
	ctx context.Context, js jetstream.JetStream, cell topology.Cell, opts Options, take func(stored.Message) error,
) error {
	name, err := streamOf(opts.Subject)
	if err != nil {
		return err
	}
	if opts.FromSequence != 0 && !opts.FromTime.IsZero() {
		return fault.New(errcode.InvalidArgument, "set either a first sequence or a first time, not both")
	}
	r := &run{
		reader: stored.Reader{JetStream: js, Stream: name}, cell: cell, opts: opts, take: take,
		from: max(1, opts.FromSequence),
	}
	err = r.run(ctx)
	switch {
	case r.failed != nil:
		return r.failed
	case err == nil, errors.Is(err, errEnd):
		return nil
	case ctx.Err() != nil:
		return fault.From(ctx.Err())
	default:
		return fault.Wrap(err, errcode.Unavailable, "read stream %s: %v", name, err)
	}
}

// run is one call of Run.
type run struct {
	reader   stored.Reader
	cell     topology.Cell
	opts     Options
	take     func(stored.Message) error
	failed   error // the error of take
	from, to uint64
	also     []stored.Message // not taken yet
	last     time.Time        // of the message that was taken last
}

func (r *run) run(ctx context.Context) error {
	stream, err := r.reader.JetStream.Stream(ctx, r.reader.Stream)
	if err != nil {
		return err //nolint:wrapcheck // Run names the stream.
	}
	r.to = stream.CachedInfo().State.LastSeq
	if r.opts.ToSequence != 0 {
		r.to = min(r.to, r.opts.ToSequence)
	}
	if !r.opts.FromTime.IsZero() {
		first, err := r.reader.Since(ctx, r.opts.FromTime)
		if first == nil || err != nil {
			return err
		}
		r.from = first.Sequence
	}
	for _, subject := range r.opts.Also {
		err := r.read(ctx, subject, func(m stored.Message) error {
			r.also = append(r.also, m)
			return nil
		})
		if err != nil {
			return err
		}
	}
	slices.SortFunc(r.also, func(a, b stored.Message) int { return cmp.Compare(a.Sequence, b.Sequence) })
	err = r.read(ctx, r.opts.Subject, func(m stored.Message) error {
		if err := r.deliverAlso(ctx, m.Sequence); err != nil {
			return err
		}
		return r.deliver(ctx, m)
	})
	if err != nil {
		return err
	}
	return r.deliverAlso(ctx, r.to)
}

func (r *run) read(ctx context.Context, subject string, take func(stored.Message) error) error {
	subject = topology.Root + "." + string(r.cell) + "." + subject
	return r.reader.Read(ctx, subject, r.from, r.to, take)
}

// deliverAlso delivers the messages of the other subjects up to the sequence.
func (r *run) deliverAlso(ctx context.Context, to uint64) error {
	for len(r.also) > 0 && r.also[0].Sequence <= to {
		if err := r.deliver(ctx, r.also[0]); err != nil {
			return err
		}
		r.also = r.also[1:]
	}
	return nil
}

func (r *run) deliver(ctx context.Context, m stored.Message) error {
	if !r.opts.ToTime.IsZero() && m.Stored.After(r.opts.ToTime) {
		return errEnd
	}
	if r.opts.OriginalPace && !r.last.IsZero() {
		if err := retry.Sleep(ctx, m.Stored.Sub(r.last)); err != nil {
			return err
		}
	}
	r.last = m.Stored
	r.failed = r.take(m)
	return r.failed
}

// streamOf returns the stream of a subject filter.
func streamOf(subject string) (string, error) {
	family, rest, _ := strings.Cut(subject, ".")
	streams := topology.Streams()
	i := slices.IndexFunc(streams, func(s topology.Stream) bool { return s.Family == family })
	if i < 0 {
		families := make([]string, len(streams))
		for i, s := range streams {
			families[i] = s.Family
		}
		return "", fault.New(errcode.InvalidArgument, "subject %q must begin with one of %s, such as workspace.>", subject,
			strings.Join(families, ", "))
	}
	if rest == "" {
		return "", fault.New(errcode.InvalidArgument, "subject %q is only the beginning of subjects: use %q", subject,
			family+".>")
	}
	return streams[i].Name, nil
}
