// Package rpc calls the state service: on behalf of people, with tokens that it signs itself, and with their own
// tokens.
package rpc

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/persontoken"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

const (
	// timeout bounds a call.
	timeout = 10 * time.Second
	// maxAnswer limits an answer, in bytes.
	maxAnswer = 1 << 20
)

// State is a client of the state service. It is safe for concurrent use.
type State struct {
	workspaces statev1connect.WorkspaceServiceClient
	tokens     statev1connect.TokenServiceClient
	signer     *persontoken.Signer
	audience   string
	now        func() time.Time
}

// NewState returns a client of the state service at a URL. The audience is the name of this service.
func NewState(
	client connect.HTTPClient, url, audience string, signer *persontoken.Signer, now func() time.Time,
) *State {
	options := connect.WithClientOptions(
		connect.WithInterceptors(fault.NewInterceptor(nil)), connect.WithReadMaxBytes(maxAnswer))
	return &State{
		workspaces: statev1connect.NewWorkspaceServiceClient(client, url, options),
		tokens:     statev1connect.NewTokenServiceClient(client, url, options),
		signer:     signer, audience: audience, now: now,
	}
}

// as returns a request on behalf of a person, for one scope.
func as[T any](s *State, userID int64, scope persontoken.Scope, message *T) (*connect.Request[T], error) {
	token, err := s.signer.Sign(userID, []persontoken.Scope{scope}, s.now())
	if err != nil {
		return nil, fmt.Errorf("act for user %d: %w", userID, err)
	}
	return authorized(message, token), nil
}

func authorized[T any](message *T, token string) *connect.Request[T] {
	request := connect.NewRequest(message)
	request.Header().Set("Authorization", "Bearer "+token)
	return request
}

// Start sets the desired state of a workspace to running, on behalf of a person.
func (s *State) Start(ctx context.Context, userID int64, id string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := as(s, userID, persontoken.ScopeStartWorkspaces, &statev1.SetDesiredStateRequest{
		Workspace:    &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: id}},
		DesiredState: statev1.DesiredState_DESIRED_STATE_RUNNING,
	})
	if err != nil {
		return err
	}
	if _, err := s.workspaces.SetDesiredState(ctx, request); err != nil {
		return explain(err, "start the workspace")
	}
	return nil
}

// Create makes a personal access token of a person, on behalf of the person.
func (s *State) Create(ctx context.Context, userID int64, name string, expiresAt time.Time) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := as(s, userID, persontoken.ScopeCreateTokens, &statev1.CreateTokenRequest{
		Name: name, ExpiresAt: timestamppb.New(expiresAt),
	})
	if err != nil {
		return "", err
	}
	response, err := s.tokens.CreateToken(ctx, request)
	if err != nil {
		return "", explain(err, "create a token")
	}
	return response.Msg.GetValue(), nil
}

// Exchange returns an access token for this service from a personal access token.
func (s *State) Exchange(ctx context.Context, personal string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := s.tokens.ExchangeToken(ctx,
		authorized(&statev1.ExchangeTokenRequest{Audience: []string{s.audience}}, personal))
	if err != nil {
		return "", explain(err, "check the personal access token")
	}
	return response.Msg.GetAccessToken(), nil
}

// explain keeps refusals, and says of everything else that trying again may help.
func explain(err error, what string) error {
	for _, code := range []fault.Code{
		errcode.Unauthenticated, errcode.PermissionDenied, errcode.ResourceExhausted, errcode.NotFound,
		errcode.FailedPrecondition, errcode.InvalidArgument,
	} {
		if fault.Is(err, code) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return fault.Wrap(err, errcode.Unavailable, "the state service does not answer: %s again in a moment", what)
}
