// Package replay reads a range of the history of a stream in order, at full speed or at the
// original pace.
//
// The range ends at the last message that the stream has when the replay starts. Two replays of a
// range return the same messages. Messages that the stream has dropped are missing. A replay leaves
// nothing on the server.
package replay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Options select the messages. Subject is required; the other zero values select all at full speed.
type Options struct {
	// Subject is a filter below lockstep.<cell>., such as workspace.> or observed.7.>. Its first
	// token names the stream.
	Subject string
	// Also are more filters on the same stream. No two filters may overlap.
	Also []string
	// FromSequence and ToSequence are the first and last sequence; 0 for no bound.
	FromSequence, ToSequence uint64
	// FromTime and ToTime bound the time of storage; zero for no bound. FromTime excludes FromSequence.
	FromTime, ToTime time.Time
	// OriginalPace keeps the original time between messages.
	OriginalPace bool
}

const (
	// batch is the number of messages of a request.
	batch = 500
	// cleanupTimeout bounds the deletion of the replay's consumer.
	cleanupTimeout = 10 * time.Second
)

// Run calls take with each message of the range, in order, until its first error.
func Run(
	ctx context.Context,
	js jetstream.JetStream,
	cell topology.Cell,
	opts Options,
	take func(jetstream.Msg, *jetstream.MsgMetadata) error,
) error {
	name, err := streamOf(opts.Subject)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "read stream %s: %v", name, err)
	}
	end := stream.CachedInfo().State.LastSeq
	if opts.ToSequence != 0 {
		end = min(end, opts.ToSequence)
	}
	cfg, err := opts.consumer(cell)
	if err != nil {
		return err
	}
	consumer, err := stream.CreateConsumer(ctx, cfg)
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "read stream %s: %v", name, err)
	}
	info := consumer.CachedInfo()
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_ = stream.DeleteConsumer(cleanup, info.Name) // the server removes it after InactiveThreshold
	}()
	if info.NumPending == 0 {
		return nil
	}
	return drain(ctx, consumer, end, opts.ToTime, take)
}

func drain(
	ctx context.Context,
	consumer jetstream.Consumer,
	end uint64,
	until time.Time,
	take func(jetstream.Msg, *jetstream.MsgMetadata) error,
) error {
	messages, err := consumer.Messages(jetstream.PullMaxMessages(batch))
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	defer messages.Stop()
	for {
		msg, err := next(ctx, messages)
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if meta.Sequence.Stream > end || !until.IsZero() && meta.Timestamp.After(until) {
			return nil
		}
		if err := take(msg, meta); err != nil {
			return err
		}
		if meta.NumPending == 0 || meta.Sequence.Stream == end {
			return nil
		}
	}
}

// next waits for a message until ctx is done: at the original pace that may take long.
func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	msg, err := messages.Next(jetstream.NextContext(ctx))
	switch {
	case err == nil:
		return msg, nil
	case ctx.Err() != nil:
		return nil, fault.From(ctx.Err())
	default:
		return nil, fault.Wrap(err, errcode.Unavailable, "the replay failed: %v", err)
	}
}

func (o Options) consumer(cell topology.Cell) (jetstream.ConsumerConfig, error) {
	if o.FromSequence != 0 && !o.FromTime.IsZero() {
		return jetstream.ConsumerConfig{}, fault.New(errcode.InvalidArgument,
			"set either a first sequence or a first time, not both")
	}
	cfg := jetstream.ConsumerConfig{
		FilterSubjects:    o.filters(cell),
		AckPolicy:         jetstream.AckNonePolicy,
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		MemoryStorage:     true,
		InactiveThreshold: time.Minute,
	}
	if o.OriginalPace {
		cfg.ReplayPolicy = jetstream.ReplayOriginalPolicy
	}
	if o.FromSequence != 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, o.FromSequence
	}
	if !o.FromTime.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &o.FromTime
	}
	return cfg, nil
}

func (o Options) filters(cell topology.Cell) []string {
	filters := []string{topology.Root + "." + string(cell) + "." + o.Subject}
	for _, also := range o.Also {
		filters = append(filters, topology.Root+"."+string(cell)+"."+also)
	}
	return filters
}

// streamOf returns the stream of a subject filter.
func streamOf(subject string) (string, error) {
	family, _, _ := strings.Cut(subject, ".")
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
	return streams[i].Name, nil
}
