package api

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
)

type sessionKey struct{}

// session is the caller and the expiry of its token; zero for never.
type session struct {
	user    directory.User
	expires time.Time
}

// caller returns the authenticated user of the call.
func caller(ctx context.Context) directory.User { return sessionOf(ctx).user }

func sessionOf(ctx context.Context) session {
	s, _ := ctx.Value(sessionKey{}).(session)
	return s
}

// authentication finds the user of each request by the personal access token, and refuses requests without a
// valid one.
type authentication struct {
	directory *postgres.Directory
	sessions  *sessionCache
	lookups   *tokenLookups
	logger    *slog.Logger
	now       func() time.Time
}

// handler authenticates requests by their headers, before their body is read. next gets the user by [caller].
func (a *authentication) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := a.authenticate(r.Context(), r.Header)
		if err != nil {
			fault.WriteConnect(w, r, a.logger, libpostgres.Unavailable(r.Context(), err))
			return
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (a *authentication) authenticate(ctx context.Context, header http.Header) (context.Context, error) {
	scheme, value, found := strings.Cut(header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "bearer") {
		return nil, fault.New(
			errcode.Unauthenticated,
			"the personal access token is missing: log in, or send the header Authorization: Bearer <token>",
		)
	}
	s, err := a.session(ctx, value)
	if err != nil {
		return nil, err
	}
	return context.WithValue(ctx, sessionKey{}, s), nil
}

func (a *authentication) session(ctx context.Context, value string) (session, error) {
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
	user, expires, err := a.directory.UserByToken(ctx, hash[:])
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
		return session{}, fault.New(errcode.PermissionDenied, "user %s is blocked: ask an administrator", user.Username)
	}
	s := session{user: user, expires: expires}
	a.sessions.add(hash, s, now, generation)
	return s, nil
}
