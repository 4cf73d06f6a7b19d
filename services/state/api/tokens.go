package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	libaccess "lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
)

type tokenService struct {
	statev1connect.UnimplementedTokenServiceHandler
	access

	issuer    Issuer
	sessions  *sessionCache
	maxTokens int
	now       func() time.Time
	// cell that new tokens name.
	cell topology.Cell
}

// Issuer exchanges a personal access token of the user for an access token.
type Issuer interface {
	Issue(user directory.User, personal directory.Token, audience []string) (token string, expires time.Time, err error)
}

// maxAudience limits the services that one access token is for.
const maxAudience = 16

func (s *tokenService) CreateToken(
	ctx context.Context,
	r *connect.Request[statev1.CreateTokenRequest],
) (*connect.Response[statev1.CreateTokenResponse], error) {
	if err := displayName("name", r.Msg.GetName()); err != nil {
		return nil, err
	}
	own := sessionOf(ctx).token
	latest := own.ExpiresAt // zero for never
	if sessionOf(ctx).person != nil {
		latest = s.now().Add(maxGatewayTokenLifetime)
	}
	t := directory.Token{Name: r.Msg.GetName(), Scope: own.Scope, CreatedBy: own.ID}
	if r.Msg.GetScope() != statev1.TokenScope_TOKEN_SCOPE_UNSPECIFIED {
		if t.Scope = tokenScopes()[r.Msg.GetScope()]; !t.Scope.Valid() {
			return nil, fault.New(errcode.InvalidArgument, "scope %d is unknown: use %s", r.Msg.GetScope(),
				libaccess.ScopeNames).With("field", "scope")
		}
		if err := own.Scope.Require(t.Scope, "a token with this scope"); err != nil {
			return nil, err
		}
	}
	if r.Msg.GetExpiresAt() != nil {
		t.ExpiresAt = r.Msg.GetExpiresAt().AsTime()
		if !t.ExpiresAt.After(s.now()) {
			return nil, fault.New(errcode.InvalidArgument, "expires_at %s is in the past", t.ExpiresAt.Format(time.RFC3339)).
				With("field", "expires_at")
		}
	}
	if !latest.IsZero() && (t.ExpiresAt.IsZero() || t.ExpiresAt.After(latest)) {
		return nil, tooLong(latest, sessionOf(ctx).person != nil)
	}
	var err error
	if t.UserID, err = s.owner(ctx, r.Msg.GetUserId()); err != nil {
		return nil, err
	}
	value, err := natsauth.NewPersonalToken(s.cell, t.UserID)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "make a token")
	}
	hash, err := natsauth.HashToken(natsauth.TokenPersonal, value)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "make a token")
	}
	if t, err = s.directory.CreateToken(ctx, t, hash[:], s.maxTokens); err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.CreateTokenResponse{Token: accessToken(t), Value: value}), nil
}

// tooLong is the error for a new token that would expire after latest.
func tooLong(latest time.Time, gateway bool) error {
	reason := "the new token must not outlive your own, which expires at %s: choose an earlier expiry (--expires-in)"
	if gateway {
		reason = "a token that the gateway creates expires: choose an expiry until %s"
	}
	return fault.New(errcode.InvalidArgument, reason, latest.UTC().Format(time.RFC3339)).With("field", "expires_at")
}

func (s *tokenService) ListTokens(
	ctx context.Context,
	r *connect.Request[statev1.ListTokensRequest],
) (*connect.Response[statev1.ListTokensResponse], error) {
	owner, err := s.owner(ctx, r.Msg.GetUserId())
	if err != nil {
		return nil, err
	}
	found, err := s.directory.Tokens(ctx, owner)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ListTokensResponse{Tokens: convertAll(found, accessToken)}), nil
}

func (s *tokenService) RevokeToken(
	ctx context.Context,
	r *connect.Request[statev1.RevokeTokenRequest],
) (*connect.Response[statev1.RevokeTokenResponse], error) {
	tokenID := r.Msg.GetId()
	switch {
	case !r.Msg.GetOwn():
		if err := id("id", tokenID); err != nil {
			return nil, err
		}
	case tokenID != 0:
		return nil, fault.New(errcode.InvalidArgument, "id and own are set: choose one").With("field", "own")
	default:
		tokenID = sessionOf(ctx).token.ID
	}
	t, err := s.directory.Token(ctx, tokenID)
	if err != nil {
		return nil, err
	}
	if t.UserID != caller(ctx).ID && !caller(ctx).Admin {
		return nil, fault.New(errcode.NotFound, "token %d does not exist", t.ID)
	}
	defer s.sessions.invalidate()
	spare := postgres.Spare{Caller: sessionOf(ctx).token.ID, OtherUsers: r.Msg.GetKeepOtherUsers()}
	// The end of the caller's own token ends this request, maybe before the answer of the database.
	revoked, err := s.directory.RevokeToken(context.WithoutCancel(ctx), t, spare)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.RevokeTokenResponse{Revoked: convertAll(revoked, accessToken)}), nil
}

func (s *tokenService) ExchangeToken(
	ctx context.Context,
	r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	audience := r.Msg.GetAudience()
	if len(audience) == 0 || len(audience) > maxAudience {
		return nil, fault.New(errcode.InvalidArgument, "audience must name 1 to %d services, such as deploys", maxAudience).
			With("field", "audience")
	}
	for _, name := range audience {
		if directory.CheckName(name) != nil {
			return nil, fault.New(errcode.InvalidArgument,
				"audience %q is not a service name: use 1 to 40 characters of a-z, 0-9 and -", name).
				With("field", "audience")
		}
	}
	by := sessionOf(ctx)
	token, expires, err := s.issuer.Issue(by.user, by.token, audience)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ExchangeTokenResponse{AccessToken: token, ExpiresAt: timestamp(expires)}), nil
}
