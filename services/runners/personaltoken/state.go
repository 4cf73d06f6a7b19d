package personaltoken

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// State exchanges tokens at the state service.
type State struct {
	client   statev1connect.TokenServiceClient
	audience string
}

// maxAnswer limits an answer of the state service, in bytes.
const maxAnswer = 64 << 10

// NewState returns a client of the state service at a URL. audience is the name of this service.
func NewState(client connect.HTTPClient, url, audience string) *State {
	return &State{audience: audience, client: statev1connect.NewTokenServiceClient(client, url,
		connect.WithInterceptors(fault.NewInterceptor(nil)), connect.WithReadMaxBytes(maxAnswer))}
}

// Exchange implements [Exchanger].
func (s *State) Exchange(ctx context.Context, personal string) (string, error) {
	request := connect.NewRequest(&statev1.ExchangeTokenRequest{Audience: []string{s.audience}})
	request.Header().Set("Authorization", "Bearer "+personal)
	response, err := s.client.ExchangeToken(ctx, request)
	switch {
	case err == nil:
		return response.Msg.GetAccessToken(), nil
	case fault.Is(err, errcode.Unauthenticated), fault.Is(err, errcode.PermissionDenied),
		fault.Is(err, errcode.ResourceExhausted):
		return "", fmt.Errorf("exchange the personal access token: %w", err)
	default:
		return "", fault.Wrap(err, errcode.Unavailable,
			"the state service did not check the personal access token: try again")
	}
}
