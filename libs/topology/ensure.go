package topology

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
)

// Ensure creates the streams that are missing and updates those of a lower [Version]. It changes the
// number of replicas of those of the same version: the service that was started last decides. Replicas may call it
// concurrently. The error names the stream. The caller retries if the server is unavailable.
func Ensure(ctx context.Context, js jetstream.JetStream, cell Cell, opts Options) error {
	if err := ValidateCell(string(cell)); err != nil {
		return err
	}
	for _, stream := range Streams() {
		if err := ensure(ctx, js, stream.Config(cell, opts)); err != nil {
			return fmt.Errorf("stream %s: %w", stream.Name, err)
		}
	}
	return nil
}

func ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	_, err := js.CreateStream(ctx, want)
	if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return err //nolint:wrapcheck // Ensure names the stream.
	}
	have, err := js.Stream(ctx, want.Name)
	if err != nil {
		return err //nolint:wrapcheck // Ensure names the stream.
	}
	config := have.CachedInfo().Config
	version, err := strconv.Atoi(config.Metadata[versionKey])
	switch {
	case err != nil || version < Version:
	case version > Version || config.Replicas == want.Replicas:
		return nil
	default:
		config.Replicas = want.Replicas
		want = config
	}
	_, err = js.UpdateStream(ctx, want)
	return err //nolint:wrapcheck // Ensure names the stream.
}
