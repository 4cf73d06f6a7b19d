// Package replay reads a stretch of a stream's history again, in order, at full speed or at the
// pace it happened.
//
// The stretch ends where the stream ended when the replay began, so that a replay of a live stream
// ends too, and two replays of the same stretch give the same messages. Messages that the stream
// has dropped meanwhile (age, size, a newer one on the same subject) are not there to be replayed.
// Nothing of a replay is left on the server.
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

// Options of a replay. The zero value replays a whole stream at full speed.
type Options struct {
	// Subject is a filter below lockstep.<cell>., such as workspace.> or observed.7.>. It names the
	// stream by its first token.
	Subject string
	// Also are further filters on the same stream, none of which has a subject in common with another.
	Also []string
	// FromSequence and ToSequence bound the stretch, both included; 0 means from the beginning, to
	// the end.
	FromSequence, ToSequence uint64
	// FromTime and ToTime bound it by the time of storing; zero means from the beginning, to the
	// end. FromSequence and FromTime exclude each other.
	FromTime, ToTime time.Time
	// OriginalPace keeps the time between messages as it was.
	OriginalPace bool
}

// batch is how many messages are asked for at once.
const batch = 500

// Run gives each message of the stretch to take, in order, and stops at its first error.
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
		return fault.Wrap(err, errcode.Unavailable, "stream %s cannot be read: %v", name, err)
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
		return fault.Wrap(err, errcode.Unavailable, "stream %s cannot be read: %v", name, err)
	}
	info := consumer.CachedInfo()
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = stream.DeleteConsumer(cleanup, info.Name) // the server removes it by itself soon
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

// next waits as long as the caller does: at the original pace a message may be long in coming.
func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	msg, err := messages.Next(jetstream.NextContext(ctx))
	switch {
	case err == nil:
		return msg, nil
	case ctx.Err() != nil:
		return nil, fault.From(ctx.Err())
	default:
		return nil, fault.Wrap(err, errcode.Unavailable, "the replay broke off: %v", err)
	}
}

func (o Options) consumer(cell topology.Cell) (jetstream.ConsumerConfig, error) {
	if o.FromSequence != 0 && !o.FromTime.IsZero() {
		return jetstream.ConsumerConfig{}, fault.New(
			errcode.InvalidArgument,
			"a replay begins at a sequence or at a time, not both",
		)
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

// streamOf finds the stream that captures a subject filter.
func streamOf(subject string) (string, error) {
	family, _, _ := strings.Cut(subject, ".")
	streams := topology.Streams()
	i := slices.IndexFunc(streams, func(s topology.Stream) bool { return s.Family == family })
	if i < 0 {
		families := make([]string, len(streams))
		for i, s := range streams {
			families[i] = s.Family
		}
		return "", fault.New(
			errcode.InvalidArgument,
			"subject %q must begin with one of %s, as in workspace.>",
			subject,
			strings.Join(families, ", "),
		)
	}
	return streams[i].Name, nil
}
