package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/lockstep/relay/v1/relayv1connect"
	"lockstep.internal/services/relay/policy"
)

// Scopes returns the scope that each method needs.
func Scopes() access.Scopes {
	return access.Scopes{
		relayv1connect.RelayServiceConnectedAgentsByIdProcedure:       access.ScopeRead,
		relayv1connect.RelayServiceConnectedAgentsForProjectProcedure: access.ScopeRead,
		relayv1connect.RelayServiceGetPodsProcedure:                   access.ScopeRead,
		relayv1connect.RelayServiceListRelaysProcedure:                access.ScopeRead,
	}
}

type callerKey struct{}

// callerFrom returns the caller of a request.
func callerFrom(ctx context.Context) policy.Caller {
	c, _ := ctx.Value(callerKey{}).(policy.Caller)
	return c
}

// bodyTimeout is the time that a client has to send a request.
const bodyTimeout = 30 * time.Second

// authenticate finds the caller of each request by its header, and checks the scope of its token, before the body is
// read. It reads the body within bodyTimeout: the listener, which also streams bodies, sets no deadline.
func authenticate(d Dependencies, next http.Handler) http.Handler {
	needed := Scopes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := d.Callers.Caller(r.Header)
		if err != nil {
			fault.WriteConnect(w, r, d.Logger, err)
			return
		}
		if err := needed.Check(c.Scope, r.URL.Path); err != nil {
			fault.WriteConnect(w, r, d.Logger, err)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // only recorders of tests fail
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			if _, tooLarge := errors.AsType[*http.MaxBytesError](err); !tooLarge {
				err = fault.Wrap(err, errcode.DeadlineExceeded, "the body of the request did not arrive within %s", bodyTimeout)
			}
			fault.WriteConnect(w, r, d.Logger, err)
			return
		}
		_ = control.SetReadDeadline(time.Time{})
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}
