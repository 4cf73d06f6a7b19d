package connections

import (
	"cmp"
	"fmt"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/route"
)

// RetryState records which connections a request has tried. The zero value is a new request.
type RetryState struct {
	// Deadline until which the request waits for an agent, if its caller has one. Zero is [Config.AgentTimeout] after
	// the first call of [Pool.Open].
	Deadline time.Time
	// Agent names the agent in errors. Defaults to its id.
	Agent string

	startedAt time.Time
	tried     map[int64]bool // connections
	// rounds in which every connection was tried.
	rounds int
	// err is the last error.
	err error
	// overloaded reports whether an agent had too many streams in this round.
	overloaded bool
}

// RecordFailure records that a stream of the request failed with err. It reports whether to retry the request on
// another stream of [Pool.Open].
func (s *RetryState) RecordFailure(on *Stream, err error, f route.Failure, r route.RetryConditions) bool {
	switch route.AfterFailure(f, r) {
	case route.RetryElsewhere:
		s.markTried(on.Connection.ID, err)
		s.overloaded = s.overloaded || f == route.Overloaded
		return true
	case route.RetryAnywhere:
		return true
	case route.Fail:
	}
	return false
}

// markTried keeps [Pool.Open] from choosing the connection in this round.
func (s *RetryState) markTried(connection int64, err error) {
	if s.tried == nil {
		s.tried = map[int64]bool{}
	}
	s.tried[connection], s.err = true, err
}

// nextRound allows every connection again.
func (s *RetryState) nextRound() {
	clear(s.tried)
	s.rounds++
	s.overloaded = false
}

// roundRetry bounds the pauses between rounds.
var roundRetry = retry.Policy{Min: 200 * time.Millisecond, Max: 5 * time.Second}

// roundTimer fires when the next round begins; never if no connection was tried.
func (s *RetryState) roundTimer() (fired <-chan time.Time, stop func() bool) {
	if len(s.tried) == 0 {
		return nil, func() bool { return false }
	}
	timer := time.NewTimer(roundRetry.Delay(s.rounds + 1))
	return timer.C, timer.Stop
}

// timeout is the fault of a request that waited for too long.
func (s *RetryState) timeout(err error, to route.Destination) error {
	waited := time.Since(s.startedAt).Round(100 * time.Millisecond)
	if s.err != nil {
		return fault.Wrap(err, errcode.Unavailable,
			"%s could not be reached within %s; last error: %v", s.describe(to), waited, s.err)
	}
	return fault.Wrap(err, errcode.Unavailable,
		"%s is not connected; the request waited for %s: check that the agent runs and can reach a relay",
		s.describe(to), waited)
}

// describe names what the request waits for.
func (s *RetryState) describe(to route.Destination) string {
	agent := cmp.Or(s.Agent, fmt.Sprintf("agent %d", to.AgentID))
	if to.ConnectionID != 0 {
		return fmt.Sprintf("connection %d of %s", to.ConnectionID, agent)
	}
	return agent
}
