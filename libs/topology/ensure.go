package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Ensure creates the streams and the buckets [BucketCells] and [BucketGateway] if they are missing, and updates those
// of a lower [Version]. It changes the replicas and the storage of those of the same version: the service that was
// started last decides. A stream that shrinks loses its oldest messages, unless it has DiscardNew. Replicas may call it
// concurrently. Streams that shrink come first, so a server with exactly as much storage as the streams need suffices.
// The error names the stream. The caller retries if the server is unavailable.
func Ensure(ctx context.Context, js jetstream.JetStream, cell Cell, opts Options) error {
	if err := ValidateCell(string(cell)); err != nil {
		return err
	}
	wanted := []jetstream.StreamConfig{cellsConfig(cell, opts), gatewayConfig(cell, opts)}
	for _, stream := range Streams() {
		wanted = append(wanted, stream.Config(cell, opts))
	}
	changes := make([]streamChange, 0, len(wanted))
	for _, want := range wanted {
		change, err := compare(ctx, js, want)
		if err != nil {
			return fmt.Errorf("stream %s: %w", want.Name, err)
		}
		changes = append(changes, change)
	}
	slices.SortStableFunc(changes, func(a, b streamChange) int { return cmp.Compare(a.growth, b.growth) })
	for _, change := range changes {
		if err := change.apply(ctx, js); err != nil {
			return fmt.Errorf("stream %s: %w", change.want.Name, explain(err, opts))
		}
	}
	return nil
}

// streamChange is what is missing between a stream and its declaration.
type streamChange struct {
	want   jetstream.StreamConfig
	create bool
	update bool
	growth int64 // in bytes of the server's storage
}

// compare looks the stream up first. NATS refuses to create a stream without enough free storage, even if it exists.
func compare(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (streamChange, error) {
	stream, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return streamChange{want: want, create: true, growth: want.MaxBytes}, nil
	}
	if err != nil {
		return streamChange{}, err //nolint:wrapcheck // Ensure names the stream.
	}
	have := stream.CachedInfo().Config
	version, _ := strconv.Atoi(have.Metadata[versionKey]) // 0 of a stream that somebody else created
	switch {
	case version < Version:
		return streamChange{want: want, update: true, growth: want.MaxBytes - have.MaxBytes}, nil
	case version > Version || have.Replicas == want.Replicas && have.MaxBytes == want.MaxBytes:
		return streamChange{want: want}, nil
	default:
		growth := want.MaxBytes - have.MaxBytes
		have.Replicas, have.MaxBytes = want.Replicas, want.MaxBytes
		return streamChange{want: have, update: true, growth: growth}, nil
	}
}

// changeTimeout bounds the change of one stream, which the servers of a cluster agree on.
const changeTimeout = 10 * time.Second

func (c streamChange) apply(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var err error
	switch {
	case c.create:
		_, err = js.CreateStream(ctx, c.want)
	case c.update:
		_, err = js.UpdateStream(ctx, c.want)
	}
	return err //nolint:wrapcheck // Ensure names the stream.
}

// codeInsufficientStorage is the error of a server whose storage is smaller than all streams together.
const codeInsufficientStorage = jetstream.ErrorCode(10047)

// explain says what to do about an error of the server.
func explain(err error, opts Options) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == codeInsufficientStorage {
		return fmt.Errorf("all streams together reserve %d bytes, and the NATS server has less storage: "+
			"free disk space, raise max_file_store of the server, or lower streams.storage: %w", opts.storage(), err)
	}
	return err
}
