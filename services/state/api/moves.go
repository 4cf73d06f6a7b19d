package api

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/idrange"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/move"
)

type moveService struct {
	statev1connect.UnimplementedMoveServiceHandler
	access

	cell     topology.Cell
	ids      idrange.Range
	sessions *sessionCache
}

const (
	// exportedRecords and exportedBytes bound the records in a message of an export.
	exportedRecords = 500
	exportedBytes   = 1 << 20
	// importedRecords is the maximum number of records in a message of an import.
	importedRecords = 1000
	// maxAccessChanges is the maximum number of revoked tokens, and of blocked users, at the end of a move.
	maxAccessChanges = move.MaxRecords
)

func (s *moveService) CheckMove(
	ctx context.Context,
	r *connect.Request[statev1.CheckMoveRequest],
) (*connect.Response[statev1.CheckMoveResponse], error) {
	if err := id("organization_id", r.Msg.GetOrganizationId()); err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	contents, err := s.directory.CheckMove(ctx, r.Msg.GetOrganizationId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.CheckMoveResponse{
		Agents: int64(contents.Agents), Workspaces: int64(contents.Workspaces),
	}), nil
}

func (s *moveService) BeginMove(
	ctx context.Context,
	r *connect.Request[statev1.BeginMoveRequest],
) (*connect.Response[statev1.BeginMoveResponse], error) {
	m := move.Move{
		ID: r.Msg.GetMoveId(), OrganizationID: r.Msg.GetOrganizationId(), Direction: move.DirectionOut,
		OtherCell: topology.Cell(r.Msg.GetToCell()),
	}
	if err := m.Validate(s.cell); err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	m, err := s.directory.BeginMove(ctx, m)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.BeginMoveResponse{Move: moveMessage(m)}), nil
}

func (s *moveService) ExportOrganization(
	ctx context.Context,
	r *connect.Request[statev1.ExportOrganizationRequest],
	stream *connect.ServerStream[statev1.ExportOrganizationResponse],
) error {
	if err := move.ValidateID(r.Msg.GetMoveId(), r.Msg.GetOrganizationId()); err != nil {
		return err
	}
	if err := s.administer(ctx); err != nil {
		return err
	}
	content, err := s.directory.ExportOrganization(ctx, r.Msg.GetOrganizationId(), r.Msg.GetMoveId())
	if err != nil {
		return err
	}
	var message statev1.ExportOrganizationResponse
	bytes := 0
	for _, record := range moveRecords(content) {
		message.Records = append(message.Records, record)
		bytes += proto.Size(record)
		if len(message.GetRecords()) < exportedRecords && bytes < exportedBytes {
			continue
		}
		if err := stream.Send(&message); err != nil {
			return fmt.Errorf("send an export: %w", err)
		}
		message.Records, bytes = nil, 0
	}
	if len(message.GetRecords()) == 0 {
		return nil
	}
	if err := stream.Send(&message); err != nil {
		return fmt.Errorf("send an export: %w", err)
	}
	return nil
}

func (s *moveService) ImportOrganization(
	ctx context.Context,
	stream *connect.ClientStream[statev1.ImportOrganizationRequest],
) (*connect.Response[statev1.ImportOrganizationResponse], error) {
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	m, content, err := s.readImport(stream)
	if err != nil {
		return nil, err
	}
	defer s.sessions.invalidate()
	if m, err = s.directory.ImportOrganization(ctx, m, content, s.ids); err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ImportOrganizationResponse{Move: moveMessage(m)}), nil
}

// readImport reads and checks all messages of an import.
func (s *moveService) readImport(
	stream *connect.ClientStream[statev1.ImportOrganizationRequest],
) (move.Move, move.Content, error) {
	var m move.Move
	var reader *move.Reader
	for stream.Receive() {
		message := stream.Msg()
		if reader == nil {
			m = move.Move{
				ID: message.GetMoveId(), OrganizationID: message.GetOrganizationId(), Direction: move.DirectionIn,
				OtherCell: topology.Cell(message.GetFromCell()),
			}
			if err := m.Validate(s.cell); err != nil {
				return m, move.Content{}, err
			}
			reader = move.NewReader(m.OrganizationID)
		}
		if n := len(message.GetRecords()); n > importedRecords {
			return m, move.Content{}, fault.New(errcode.InvalidArgument,
				"a message of an import has %d records, the limit is %d: send more messages", n, importedRecords).
				With("field", "records")
		}
		for _, record := range message.GetRecords() {
			if err := reader.Grow(proto.Size(record)); err != nil {
				return m, move.Content{}, err
			}
			if err := readRecord(reader, record); err != nil {
				return m, move.Content{}, err
			}
		}
	}
	if err := stream.Err(); err != nil {
		return m, move.Content{}, fmt.Errorf("read an import: %w", err)
	}
	if reader == nil {
		return m, move.Content{}, move.ValidateID("", 0)
	}
	content, err := reader.Content()
	return m, content, err
}

func (s *moveService) EndMove(
	ctx context.Context,
	r *connect.Request[statev1.EndMoveRequest],
) (*connect.Response[statev1.EndMoveResponse], error) {
	if err := move.ValidateID(r.Msg.GetMoveId(), r.Msg.GetOrganizationId()); err != nil {
		return nil, err
	}
	outcome := moveOutcomes()[r.Msg.GetOutcome()]
	if outcome == move.OutcomeNone {
		return nil, fault.New(errcode.InvalidArgument, "outcome is missing: give moved or canceled").With("field", "outcome")
	}
	changes := move.AccessChanges{RevokedTokens: r.Msg.GetRevokedTokens(), BlockedUsers: r.Msg.GetBlockedUsers()}
	if n := max(len(changes.RevokedTokens), len(changes.BlockedUsers)); n > maxAccessChanges {
		return nil, fault.New(errcode.InvalidArgument, "revoked_tokens or blocked_users has %d ids, the limit is %d", n,
			maxAccessChanges).With("field", "revoked_tokens")
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	defer s.sessions.invalidate()
	m, since, err := s.directory.EndMove(ctx, r.Msg.GetOrganizationId(), r.Msg.GetMoveId(), outcome, changes)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.EndMoveResponse{
		Move: moveMessage(m), RevokedTokens: since.RevokedTokens, BlockedUsers: since.BlockedUsers,
	}), nil
}

func (s *moveService) GetMove(
	ctx context.Context,
	r *connect.Request[statev1.GetMoveRequest],
) (*connect.Response[statev1.GetMoveResponse], error) {
	if err := id("organization_id", r.Msg.GetOrganizationId()); err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	m, err := s.directory.Move(ctx, r.Msg.GetOrganizationId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.GetMoveResponse{Move: moveMessage(m)}), nil
}
