package access

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Handler authenticates requests by their headers: a request without an access token reaches neither next nor any
// memory for its body. It refuses tokens without the scope of the procedure, which the path names. reject writes the
// error response. next gets the caller by [CallerFrom]. Its context ends, with a fault as its cause, when the caller
// loses access, when its personal access token expires, or after StreamLifetime.
func (v *Verifier) Handler(reject func(http.ResponseWriter, *http.Request, error), next http.Handler) http.Handler {
	return v.handler(reject, next, func(held Scope, r *http.Request) error {
		return v.cfg.Scopes.Check(held, r.URL.Path)
	})
}

// HandlerFor is Handler for requests that all need the same scope, whatever their path.
func (v *Verifier) HandlerFor(
	needed Scope, reject func(http.ResponseWriter, *http.Request, error), next http.Handler,
) http.Handler {
	return v.handler(reject, next, func(held Scope, r *http.Request) error {
		return held.Require(needed, r.Method+" "+r.URL.Path)
	})
}

func (v *Verifier) handler(
	reject func(http.ResponseWriter, *http.Request, error), next http.Handler, permits func(Scope, *http.Request) error,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := v.authenticate(r.Header)
		if err != nil {
			reject(w, r, err)
			return
		}
		if err := permits(caller.Scope, r); err != nil {
			reject(w, r, err)
			return
		}
		ctx, release := v.bounded(WithCaller(r.Context(), caller), caller)
		defer release()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Interceptor is for Connect handlers inside of [Verifier.Handler]. It refuses requests that did not pass the Handler,
// and reports why the Handler ended a request. Install it inside the interceptor of package fault.
func (v *Verifier) Interceptor() connect.Interceptor { return interceptor{} }

type interceptor struct{}

func (interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		if err := requireCaller(ctx); err != nil {
			return nil, err
		}
		response, err := next(ctx, request)
		return response, endReason(ctx, err)
	}
}

func (interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := requireCaller(ctx); err != nil {
			return err
		}
		return endReason(ctx, next(ctx, conn))
	}
}

// WrapStreamingClient is for clients only, which this interceptor is not.
func (interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func requireCaller(ctx context.Context) error {
	if _, known := CallerFrom(ctx); !known {
		return errNoCaller
	}
	return nil
}

// endReason returns why the request was ended, which is more precise than the handler's error.
func endReason(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ended, ok := context.Cause(ctx).(*fault.Error); ok { //nolint:errorlint // the cause is never wrapped
		return ended
	}
	return err
}

func (v *Verifier) authenticate(header http.Header) (Caller, error) {
	values := header.Values("Authorization")
	if len(values) > 1 {
		return Caller{}, fault.New(errcode.Unauthenticated, "the header Authorization was sent more than once")
	}
	scheme, token, found := strings.Cut(header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "bearer") {
		return Caller{}, fault.New(
			errcode.Unauthenticated,
			"no access token was sent: request one from the state service, and send the header Authorization: Bearer <token>",
		)
	}
	return v.Verify(token)
}

// StreamEnd returns when a stream of a token that expires at tokenExpiresAt ends, and why. A zero tokenExpiresAt is
// never.
func StreamEnd(now time.Time, lifetime time.Duration, tokenExpiresAt time.Time) (time.Time, error) {
	end := now.Add(lifetime)
	if !tokenExpiresAt.IsZero() && tokenExpiresAt.Before(end) {
		return tokenExpiresAt, fault.New(errcode.Unauthenticated, "the token has expired: use a new one")
	}
	return end, fault.New(errcode.Unavailable, "the stream reached its maximum lifetime of %s: reconnect", lifetime)
}

// bounded returns a context that ends, with a fault as its cause, when the caller loses access, when its personal
// access token expires, or after StreamLifetime.
func (v *Verifier) bounded(ctx context.Context, caller Caller) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		now := v.cfg.Now()
		end, reason := StreamEnd(now, v.cfg.StreamLifetime, caller.TokenExpiresAt)
		limit := time.NewTimer(end.Sub(now))
		defer limit.Stop()
		for {
			changed := v.cfg.Directory.Changed()
			now, err := CurrentCaller(v.cfg.Directory, caller)
			if err == nil && now.Admin != caller.Admin {
				err = fault.New(errcode.Unavailable, "user %d is no longer an administrator: reconnect", caller.UserID)
			}
			if err != nil {
				cancel(err)
				return
			}
			select {
			case <-changed:
			case <-limit.C:
				cancel(reason)
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}
