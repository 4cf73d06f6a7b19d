package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
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

// authentication finds the user of each call by the personal access token, and refuses calls without a
// valid one.
type authentication struct {
	directory *postgres.Directory
	sessions  *sessionCache
	now       func() time.Time
}

func (a *authentication) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, err := a.authenticate(ctx, request.Header())
		if err != nil {
			return nil, err
		}
		return next(ctx, request)
	}
}

func (a *authentication) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, err := a.authenticate(ctx, conn.RequestHeader())
		if err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

// WrapStreamingClient does nothing: this interceptor is for servers.
func (a *authentication) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
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
	user, expires, err := a.directory.UserByToken(ctx, hash[:])
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
