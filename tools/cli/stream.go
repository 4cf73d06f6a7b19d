package cli

import (
	"context"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// streamRetry is the pause before a lost stream is opened again.
const streamRetry = time.Second

var errStreamEnded error = fault.New(errcode.Unavailable, "the server ended the stream")

// followStream calls follow, which reads a stream of a server, until it succeeds, or fails with another reason than a
// lost server. follow calls connected when the server has answered. note is called once when a server that answered is
// lost, and once when it is back.
func followStream(
	ctx context.Context, note func(string), follow func(ctx context.Context, connected func()) error,
) error {
	for begun, lost := false, false; ; {
		connected := false
		err := follow(ctx, func() {
			if lost {
				note("connected to the server again")
			}
			begun, connected, lost = true, true, false
		})
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // the caller ended ctx
		}
		// A token that was valid when the stream began may be replaced.
		again := fault.Is(err, errcode.Unavailable) || fault.Is(err, errcode.DeadlineExceeded) ||
			connected && fault.Is(err, errcode.Unauthenticated)
		if !begun || !again {
			return err
		}
		if !lost {
			note("lost the server; connecting again")
		}
		lost = true
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(streamRetry):
		}
	}
}
