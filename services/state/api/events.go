package api

import (
	"context"
	"errors"
	"strconv"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/authz"
)

const (
	defaultEventPage = 100
	maxEventPage     = 1000
)

func (s *workspaceService) ListWorkspaceEvents(
	ctx context.Context,
	r *connect.Request[statev1.ListWorkspaceEventsRequest],
) (*connect.Response[statev1.ListWorkspaceEventsResponse], error) {
	size := int(r.Msg.GetPageSize())
	if size == 0 {
		size = defaultEventPage
	}
	if size < 0 || size > maxEventPage {
		return nil, fault.New(errcode.InvalidArgument,
			"page_size %d must be 1 to %d, or 0 for %d", size, maxEventPage, defaultEventPage).
			With("field", "page_size")
	}
	from := uint64(1)
	if token := r.Msg.GetPageToken(); token != "" {
		var err error
		if from, err = strconv.ParseUint(token, 10, 64); err != nil || from == 0 {
			return nil, fault.New(errcode.InvalidArgument, "page_token: not a token returned by ListWorkspaceEvents").
				With("field", "page_token")
		}
	}
	w, err := s.find(ctx, r.Msg.GetWorkspace(), authz.Read)
	if err != nil {
		return nil, err
	}
	stream, err := s.jetStream.Stream(ctx, topology.StreamWorkspaces)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Unavailable, "the events of workspaces cannot be read now: try again")
	}
	out := &statev1.ListWorkspaceEventsResponse{}
	for filter := s.cell.WorkspaceAll(w.ProjectID, w.ID.String()); ; {
		msg, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(filter))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return connect.NewResponse(out), nil
		}
		if err != nil {
			return nil, fault.Wrap(err, errcode.Unavailable, "the events of workspace %q cannot be read now: try again", w.Name)
		}
		if len(out.GetEvents()) == size {
			out.NextPageToken = strconv.FormatUint(msg.Sequence, 10)
			return connect.NewResponse(out), nil
		}
		one, err := workspaceEvent(msg)
		if err != nil {
			return nil, err
		}
		out.Events = append(out.Events, one)
		from = msg.Sequence + 1
	}
}

func workspaceEvent(msg *jetstream.RawStreamMsg) (*statev1.WorkspaceEvent, error) {
	e, err := event.Decode(msg.Header, msg.Data)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "message %d of WORKSPACES is not an event", msg.Sequence)
	}
	raw, err := event.MarshalStructured(e)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "message %d of WORKSPACES is not an event", msg.Sequence)
	}
	return &statev1.WorkspaceEvent{
		Sequence:   msg.Sequence,
		Id:         e.ID(),
		Type:       e.Type(),
		Time:       timestamp(e.Time()),
		CloudEvent: string(raw),
	}, nil
}
