package api

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	libaccess "lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/persontoken"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
)

type sessionKey struct{}

// session is the caller and its token.
type session struct {
	user  directory.User
	token directory.Token
	// person is the token of a gateway that acts for the user; nil if the user calls with a personal access token.
	person *persontoken.Person
}

// caller returns the authenticated user of the call.
func caller(ctx context.Context) directory.User { return sessionOf(ctx).user }

func sessionOf(ctx context.Context) session {
	s, _ := ctx.Value(sessionKey{}).(session)
	return s
}

// authentication finds the user of each request by the personal access token or the token of a gateway, and refuses
// requests without a valid one.
type authentication struct {
	directory *postgres.Directory
	sessions  *sessionCache
	lookups   *tokenLookups
	changes   *postgres.AccessChanges
	scopes    libaccess.Scopes
	gateway   Gateway
	// streamLifetime is the maximum lifetime of a stream.
	streamLifetime time.Duration
	logger         *slog.Logger
	now            func() time.Time
}

// handler authenticates requests by their headers, before their body is read, and checks the scope of their token. next
// gets the user by [caller]. Its context ends, with a fault as its cause, when the user or the token loses access, when
// the token expires, or after streamLifetime.
func (a *authentication) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Subscribe first, so that no change is missed: the session cache knows of all earlier ones.
		changed := a.changes.Subscribe()
		defer changed.Close()
		token, err := bearer(r.Header)
		var s session
		if err == nil {
			s, err = a.session(r.Context(), token)
		}
		if err == nil {
			err = a.permit(s, r.URL.Path)
		}
		if err != nil {
			fault.WriteConnect(w, r, a.logger, libpostgres.Unavailable(r.Context(), err))
			return
		}
		ctx, release := a.bounded(context.WithValue(r.Context(), sessionKey{}, s), s, token, changed)
		defer release()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// bounded returns a context that ends with the access of the caller.
func (a *authentication) bounded(
	ctx context.Context, s session, token string, changed *accessSubscription,
) (context.Context, func()) {
	now := a.now()
	end, reason := libaccess.StreamEnd(now, a.streamLifetime, s.token.ExpiresAt)
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		limit := time.NewTimer(end.Sub(now))
		defer limit.Stop()
		for {
			select {
			case <-changed.Changed():
				if users, all := changed.Take(); !all && !slices.Contains(users, s.user.ID) {
					continue
				}
				if _, err := a.session(ctx, token); lostAccess(err) {
					cancel(err)
					return
				}
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

type accessSubscription = libpostgres.Subscription[int64]

// changedIn returns a function that reports whether there was a change since its previous call.
func changedIn(s *accessSubscription) func() bool {
	return func() bool {
		select {
		case <-s.Changed():
			s.Take()
			return true
		default:
			return false
		}
	}
}

// lostAccess reports whether an error of session is final. A database that is down is not.
func lostAccess(err error) bool {
	return fault.Is(err, errcode.Unauthenticated) || fault.Is(err, errcode.PermissionDenied)
}

// endReason returns why handler ended a request, which is more precise than the error of the method.
func endReason(ctx context.Context, err error) error {
	if ended, ok := context.Cause(ctx).(*fault.Error); ok && err != nil { //nolint:errorlint // the cause is never wrapped
		return ended
	}
	return err
}

// endReasons is an interceptor that returns endReason.
type endReasons struct{}

func (endReasons) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, request)
		return response, endReason(ctx, err)
	}
}

func (endReasons) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return endReason(ctx, next(ctx, conn))
	}
}

// WrapStreamingClient does nothing: this interceptor is for servers.
func (endReasons) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// bearer returns the token of a request.
func bearer(header http.Header) (string, error) {
	scheme, value, found := strings.Cut(header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "bearer") {
		return "", fault.New(
			errcode.Unauthenticated,
			"the personal access token is missing: log in, or send the header Authorization: Bearer <token>",
		)
	}
	return value, nil
}

func blocked(user directory.User) error {
	return fault.New(errcode.PermissionDenied, "user %s is blocked: ask an administrator", user.Username)
}

func (a *authentication) session(ctx context.Context, value string) (session, error) {
	if persontoken.Is(value) {
		return a.gatewaySession(ctx, value)
	}
	hash, err := natsauth.HashToken(natsauth.TokenPersonal, value)
	if err != nil {
		return session{}, fault.Wrap(err, errcode.Unauthenticated, "the personal access token is invalid: %v", err)
	}
	now := a.now()
	known, found, generation := a.sessions.find(hash, now)
	if found {
		return known, nil
	}
	end, err := a.lookups.begin(ctx, hash)
	if err != nil {
		return session{}, err
	}
	user, token, err := a.directory.UserByToken(ctx, hash[:])
	end(err)
	if fault.Is(err, errcode.NotFound) {
		return session{}, fault.New(
			errcode.Unauthenticated,
			"the personal access token is unknown, expired or revoked: create a new one",
		)
	}
	if err != nil {
		return session{}, err
	}
	if user.Blocked {
		return session{}, blocked(user)
	}
	s := session{user: user, token: token}
	a.sessions.add(hash, s, now, generation)
	return s, nil
}
