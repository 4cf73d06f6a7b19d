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

// Interceptor accepts requests with an access token and rejects others. Install it inside the
// interceptor of package fault. A handler gets the caller by [CallerFrom].
func (v *Verifier) Interceptor() connect.Interceptor { return interceptor{v} }

type interceptor struct{ *Verifier }

func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		caller, err := i.authenticate(request.Header())
		if err != nil {
			return nil, err
		}
		return next(WithCaller(ctx, caller), request)
	}
}

func (i interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		caller, err := i.authenticate(conn.RequestHeader())
		if err != nil {
			return err
		}
		ctx, release := i.bounded(WithCaller(ctx, caller), caller)
		defer release()
		err = next(ctx, conn)
		// The cause of the cancellation is more precise than the handler's error.
		if cut, ok := context.Cause(ctx).(*fault.Error); ok { //nolint:errorlint // the cause is never wrapped
			return cut
		}
		return err
	}
}

// WrapStreamingClient is for clients only, which this interceptor is not.
func (i interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// Handler is the Interceptor for plain HTTP. reject writes the error response.
func (v *Verifier) Handler(reject func(http.ResponseWriter, *http.Request, error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := v.authenticate(r.Header)
		if err != nil {
			reject(w, r, err)
			return
		}
		ctx, release := v.bounded(WithCaller(r.Context(), caller), caller)
		defer release()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
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

// bounded returns a context that ends, with a fault as its cause, when the caller loses access or
// after StreamLifetime.
func (v *Verifier) bounded(ctx context.Context, caller Caller) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		limit := time.NewTimer(v.cfg.StreamLifetime)
		defer limit.Stop()
		for {
			changed := v.cfg.Directory.Changed()
			now, err := v.caller(caller.UserID, caller.Admin)
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
				cancel(fault.New(errcode.Unavailable, "the stream reached its maximum lifetime of %s: reconnect",
					v.cfg.StreamLifetime))
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}
