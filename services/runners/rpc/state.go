package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/runners/move"
)

const (
	// shortTimeout bounds calls that change a few rows, longTimeout those that move a directory or a pipeline.
	shortTimeout = 30 * time.Second
	longTimeout  = 10 * time.Minute
	// maxAnswer limits a message from another service, in bytes.
	maxAnswer = 16 << 20
)

func options() connect.ClientOption {
	return connect.WithClientOptions(connect.WithInterceptors(fault.NewInterceptor(nil)),
		connect.WithReadMaxBytes(maxAnswer))
}

// authorized returns a request with a personal access token.
func authorized[T any](message *T, token string) *connect.Request[T] {
	request := connect.NewRequest(message)
	request.Header().Set("Authorization", "Bearer "+token)
	return request
}

// State is the state service of this cell. It is a [move.State].
type State struct {
	client statev1connect.MoveServiceClient
	tokens statev1connect.TokenServiceClient
}

var _ move.State = State{}

// NewState returns a client of the state service at a URL. The client has no timeout of its own.
func NewState(client connect.HTTPClient, url string) State {
	return State{
		statev1connect.NewMoveServiceClient(client, url, options()),
		statev1connect.NewTokenServiceClient(client, url, options()),
	}
}

// Check implements [move.Directory].
func (s State) Check(ctx context.Context, token string, organizationID int64) (*statev1.CheckMoveResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	response, err := s.client.CheckMove(ctx, authorized(&statev1.CheckMoveRequest{OrganizationId: organizationID}, token))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

// Revoke implements [move.State].
func (s State) Revoke(ctx context.Context, token string) error {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	_, err := s.tokens.RevokeToken(ctx, authorized(&statev1.RevokeTokenRequest{Own: true}, token))
	return err
}

// Begin implements [move.State].
func (s State) Begin(ctx context.Context, token string, m move.Move) error {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	_, err := s.client.BeginMove(ctx, authorized(&statev1.BeginMoveRequest{
		OrganizationId: m.OrganizationID, MoveId: m.ID, ToCell: string(m.Cell),
	}, token))
	return err
}

// Export implements [move.State].
func (s State) Export(
	ctx context.Context, token string, m move.Move, send func([]*statev1.MoveRecord) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	stream, err := s.client.ExportOrganization(ctx, authorized(&statev1.ExportOrganizationRequest{
		OrganizationId: m.OrganizationID, MoveId: m.ID,
	}, token))
	if err != nil {
		return err
	}
	for stream.Receive() {
		if err := send(stream.Msg().GetRecords()); err != nil {
			return errors.Join(err, stream.Close())
		}
	}
	return errors.Join(stream.Err(), stream.Close())
}

// End implements [move.State].
func (s State) End(
	ctx context.Context, token string, m move.Move, outcome statev1.MoveOutcome,
) (*statev1.EndMoveResponse, error) {
	return s.end(ctx, token, &statev1.EndMoveRequest{OrganizationId: m.OrganizationID, MoveId: m.ID, Outcome: outcome})
}

// EndArrival ends a move to this cell.
func (s State) EndArrival(ctx context.Context, token string, request *statev1.EndMoveRequest) error {
	_, err := s.end(ctx, token, request)
	return err
}

func (s State) end(
	ctx context.Context, token string, request *statev1.EndMoveRequest,
) (*statev1.EndMoveResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	response, err := s.client.EndMove(ctx, authorized(request, token))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

// Import imports the directory of an organization from another cell. next returns no records at the end.
func (s State) Import(
	ctx context.Context, token string, m move.Move, next func() ([]*statev1.MoveRecord, error),
) error {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	stream := s.client.ImportOrganization(ctx)
	stream.RequestHeader().Set("Authorization", "Bearer "+token)
	head := &statev1.ImportOrganizationRequest{
		MoveId: m.ID, OrganizationId: m.OrganizationID, FromCell: string(m.Cell),
	}
	for {
		records, err := next()
		if err != nil {
			cancel() // nothing is imported
			_, _ = stream.CloseAndReceive()
			return err
		}
		if len(records) == 0 {
			break
		}
		head.Records = records
		if err := stream.Send(head); err != nil && !errors.Is(err, io.EOF) {
			return err //nolint:wrapcheck // a fault
		} else if err != nil {
			break // the answer tells why
		}
		head = &statev1.ImportOrganizationRequest{}
	}
	_, err := stream.CloseAndReceive()
	return err //nolint:wrapcheck // a fault
}
