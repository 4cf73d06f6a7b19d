package connectapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

type sessionKey struct{}

// session is who calls, and until when what it called with is valid: zero for ever.
type session struct {
	user    domain.User
	expires time.Time
}

// caller is the authenticated user of the call.
func caller(ctx context.Context) domain.User { return sessionOf(ctx).user }

func sessionOf(ctx context.Context) session {
	s, _ := ctx.Value(sessionKey{}).(session)
	return s
}

// authentication finds the user of every call by its personal access token, and refuses calls without a valid one.
type authentication struct {
	directory *postgres.Directory
	recent    *recent
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

// WrapStreamingClient is for clients only, which this interceptor is not.
func (a *authentication) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (a *authentication) authenticate(ctx context.Context, header http.Header) (context.Context, error) {
	scheme, value, found := strings.Cut(header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "bearer") {
		return nil, fault.New(errcode.Unauthenticated, "no personal access token was sent: log in, or send the header Authorization: Bearer <token>")
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
		return session{}, fault.Wrap(err, errcode.Unauthenticated, "the personal access token is not one: %v", err)
	}
	now := a.now()
	known, found, changes := a.recent.find(hash, now)
	if found {
		return known, nil
	}
	user, expires, err := a.directory.UserByToken(ctx, hash[:])
	if fault.Is(err, errcode.NotFound) {
		return session{}, fault.New(errcode.Unauthenticated, "the personal access token is unknown, expired or revoked: make a new one")
	}
	if err != nil {
		return session{}, err
	}
	if user.Blocked {
		return session{}, fault.New(errcode.PermissionDenied, "user %s is blocked: ask an administrator", user.Username)
	}
	s := session{user: user, expires: expires}
	a.recent.remember(hash, s, now, changes)
	return s, nil
}
