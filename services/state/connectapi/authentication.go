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

type userKey struct{}

// caller is the authenticated user of the call.
func caller(ctx context.Context) domain.User {
	u, _ := ctx.Value(userKey{}).(domain.User)
	return u
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
	user, err := a.user(ctx, value)
	if err != nil {
		return nil, err
	}
	return context.WithValue(ctx, userKey{}, user), nil
}

func (a *authentication) user(ctx context.Context, value string) (domain.User, error) {
	hash, err := natsauth.HashToken(natsauth.TokenPersonal, value)
	if err != nil {
		return domain.User{}, fault.Wrap(err, errcode.Unauthenticated, "the personal access token is not one: %v", err)
	}
	now := a.now()
	user, found, changes := a.recent.find(hash, now)
	if found {
		return user, nil
	}
	user, err = a.directory.UserByToken(ctx, hash[:])
	if fault.Is(err, errcode.NotFound) {
		return domain.User{}, fault.New(errcode.Unauthenticated, "the personal access token is unknown, expired or revoked: make a new one")
	}
	if err != nil {
		return domain.User{}, err
	}
	if user.Blocked {
		return domain.User{}, fault.New(errcode.PermissionDenied, "user %s is blocked: ask an administrator", user.Username)
	}
	a.recent.remember(hash, user, now, changes)
	return user, nil
}
