package cli

import (
	"context"
	"net/http"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// streamRetry is the pause before a lost stream is opened again.
const streamRetry = time.Second

var errStreamEnded error = fault.New(errcode.Unavailable, "the server ended the stream")

// streamState is what is known about a stream that is opened again when the server is lost.
type streamState struct {
	note func(string)
	// begun: the server has answered once. answered: it has answered this attempt. lost: that was noted.
	begun, answered, lost bool
}

// answer takes the header of a response; it is empty if the server cannot be reached.
func (s *streamState) answer(header http.Header) {
	s.answered = len(header) > 0
	s.begun = s.begun || s.answered
}

// receive is called with each message, or when the stream lasts. A server that is not ready answers, and ends it.
func (s *streamState) receive() {
	if s.lost {
		s.lost = false
		s.note("connected to the server again")
	}
}

// serverAhead is how long before this program a server may see that a deadline has passed.
const serverAhead = time.Second

// followStream calls follow, which reads a stream of a server, until it succeeds, or fails with another reason than a
// lost server. note is called once when a server that answered is lost, and once when it sends messages again.
func followStream(
	ctx context.Context, note func(string), follow func(ctx context.Context, state *streamState) error,
) error {
	state := &streamState{note: note}
	for {
		state.answered = false
		err := follow(ctx, state)
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // the caller ended ctx
		}
		// The server knows the deadline too, and may see it a moment before.
		if deadline, has := ctx.Deadline(); has && fault.Is(err, errcode.DeadlineExceeded) &&
			time.Until(deadline) < serverAhead {
			<-ctx.Done()
			return nil
		}
		// A token that was valid when the stream began may be replaced.
		again := fault.Is(err, errcode.Unavailable) || fault.Is(err, errcode.DeadlineExceeded) ||
			state.answered && fault.Is(err, errcode.Unauthenticated)
		if !state.begun || !again {
			return err
		}
		if !state.lost {
			state.lost = true
			note("lost the server; connecting again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(streamRetry):
		}
	}
}
