package api

import (
	"context"
	"crypto/ed25519"
	"time"

	"connectrpc.com/connect"

	libaccess "lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/persontoken"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/directory"
)

// Gateway is how the cell's gateway is known to the API.
type Gateway struct {
	// URL of its sign-in host, shown to people. Empty if there is none.
	URL string
	// PublicKeys verify the tokens with which it acts for people.
	PublicKeys []ed25519.PublicKey
	// Cell that the tokens are for.
	Cell topology.Cell
}

// maxGatewayTokenLifetime is the maximum lifetime of a personal access token that a gateway creates.
const maxGatewayTokenLifetime = 90 * 24 * time.Hour

// gatewayScopes are the scopes of tokens of gateways, by the methods that they permit.
func gatewayScopes() map[string]persontoken.Scope {
	return map[string]persontoken.Scope{
		statev1connect.WorkspaceServiceSetDesiredStateProcedure: persontoken.ScopeStartWorkspaces,
		statev1connect.TokenServiceCreateTokenProcedure:         persontoken.ScopeCreateTokens,
	}
}

// gatewaySession returns the session in which a gateway acts for a person. The person is never an administrator in it,
// and a token that is created in it has at most the scope write if the person is one.
func (a *authentication) gatewaySession(ctx context.Context, value string) (session, error) {
	person, err := persontoken.Verify(a.gateway.PublicKeys, a.gateway.Cell, value, a.now())
	if err != nil {
		return session{}, fault.Wrap(err, errcode.Unauthenticated, "%v", err)
	}
	user, err := a.directory.User(ctx, person.UserID)
	switch {
	case fault.Is(err, errcode.NotFound):
		return session{}, fault.Wrap(err, errcode.Unauthenticated, "user %d does not exist", person.UserID)
	case err != nil:
		return session{}, err
	case user.Blocked:
		return session{}, blocked(user)
	}
	token := directory.Token{UserID: user.ID, Scope: libaccess.ScopeAdmin, ExpiresAt: person.ExpiresAt}
	if user.Admin {
		user.Admin, token.Scope = false, libaccess.ScopeWrite
	}
	return session{user: user, token: token, person: &person}, nil
}

// permit returns nil if the session may call a method.
func (a *authentication) permit(s session, procedure string) error {
	if s.person == nil {
		return a.scopes.Check(s.token.Scope, procedure)
	}
	if scope, known := gatewayScopes()[procedure]; !known || !s.person.Permits(scope) {
		return fault.New(errcode.PermissionDenied, "the gateway's token does not permit %s", procedure)
	}
	return nil
}

type gatewayService struct {
	statev1connect.UnimplementedGatewayServiceHandler

	url string
}

func (s *gatewayService) GetGateway(
	context.Context, *connect.Request[statev1.GetGatewayRequest],
) (*connect.Response[statev1.GetGatewayResponse], error) {
	return connect.NewResponse(&statev1.GetGatewayResponse{Url: s.url}), nil
}
