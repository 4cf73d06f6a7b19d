package forward

import (
	"errors"
	"net/http"

	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// failureOf classifies the error of a stream for [route.AfterFailure]. reused reports whether the stream had carried a
// request before.
func failureOf(err error, reused bool) route.Failure {
	if reset, ok := errors.AsType[*tunnel.ResetError](err); ok {
		switch reset.Reason { //nolint:exhaustive // all others are final
		case tunnel.NotAccepted:
			return route.NotAccepted
		case tunnel.Overloaded:
			return route.Overloaded
		}
	}
	switch {
	case errors.Is(err, tunnel.ErrClosed), errors.Is(err, connections.ErrSilent):
		return route.ConnectionLost
	case reused && errors.Is(err, errNoResponse):
		return route.ClosedWhileIdle
	}
	return route.Final
}

// hasBody reports whether a request has a body, part of which may have been sent.
func hasBody(request *http.Request) bool { return request.Body != nil && request.Body != http.NoBody }

// isRepeatable reports whether a request may be sent on another stream after it was sent on one.
func isRepeatable(request *http.Request) bool { return isReplayable(request) && !hasBody(request) }

// isReplayable reports whether a request has a safe method (RFC 9110, section 9.2.1) and does not upgrade. PUT and
// DELETE are idempotent, but are not retried.
func isReplayable(request *http.Request) bool {
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return request.Header.Get("Upgrade") == ""
	}
	return false
}
