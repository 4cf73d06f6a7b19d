package arrival

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/postgres"
)

type service struct {
	runnersv1connect.UnimplementedArrivalServiceHandler

	cfg Config
}

func (s *service) DescribeCell(
	ctx context.Context, _ *connect.Request[runnersv1.DescribeCellRequest],
) (*connect.Response[runnersv1.DescribeCellResponse], error) {
	response := &runnersv1.DescribeCellResponse{Cell: string(s.cfg.Cell)}
	err := s.cfg.Store.InstanceRunners(ctx, func(row *runnersv1.MovedRow) error {
		row.Table = "runners"
		response.Runners = append(response.Runners, row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(response), nil
}

// messages reads the messages of a stream.
type messages[T any] struct {
	stream *connect.ClientStream[T]
}

// next returns the next message. A stream that ends before its last message is an error.
func (m messages[T]) next() (*T, error) {
	if m.stream.Receive() {
		return m.stream.Msg(), nil
	}
	if err := m.stream.Err(); err != nil {
		return nil, err //nolint:wrapcheck // the caller is gone
	}
	return nil, fault.New(errcode.InvalidArgument, "the stream ended before its last message")
}

// drain reads what is left, so that the caller gets the answer.
func (m messages[T]) drain() {
	for m.stream.Receive() {
	}
}

func (s *service) BeginArrival(
	ctx context.Context, stream *connect.ClientStream[runnersv1.BeginArrivalRequest],
) (*connect.Response[runnersv1.BeginArrivalResponse], error) {
	all := messages[runnersv1.BeginArrivalRequest]{stream}
	defer all.drain()
	first, err := all.next()
	if err != nil {
		return nil, err
	}
	caller, _ := access.CallerFrom(ctx)
	a := first.GetArrival()
	m := move.Move{
		ID: a.GetMoveId(), OrganizationID: a.GetOrganizationId(), Arrival: true, Cell: topology.Cell(a.GetFromCell()),
		Number: a.GetNumber(), StartedBy: caller.UserID,
	}
	if err := m.ValidateArrival(s.cfg.Cell); err != nil {
		return nil, err
	}
	begun, err := s.cfg.Store.BeginArrival(ctx, m)
	if err != nil {
		return nil, err
	}
	if begun {
		err = s.receive(ctx, m, first, all)
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.BeginArrivalResponse{}), nil
}

// receive stores the directory at the state service, and then the runners.
func (s *service) receive(
	ctx context.Context, m move.Move, first *runnersv1.BeginArrivalRequest, all messages[runnersv1.BeginArrivalRequest],
) error {
	f := &feed{all: all, message: first}
	if err := s.cfg.State.Import(ctx, tokenOf(ctx), m, f.records); err != nil {
		return fmt.Errorf("import the directory: %w", err)
	}
	return s.cfg.Store.StoreRunners(ctx, m.ID, f.rows)
}

// feed reads records, and then rows, of an organization. What was read of a message is removed from it.
type feed struct {
	all     messages[runnersv1.BeginArrivalRequest]
	message *runnersv1.BeginArrivalRequest
}

// records returns the next records; none when rows follow, or nothing.
func (f *feed) records() ([]*statev1.MoveRecord, error) {
	for {
		if records := f.message.GetRecords(); len(records) > 0 {
			f.message.Records = nil
			return records, nil
		}
		if len(f.message.GetRows()) > 0 || f.message.GetComplete() {
			return nil, nil
		}
		if err := f.advance(); err != nil {
			return nil, err
		}
	}
}

// rows returns the next rows; none at the end.
func (f *feed) rows() ([]*runnersv1.MovedRow, error) {
	for {
		if len(f.message.GetRecords()) > 0 {
			return nil, fault.New(errcode.InvalidArgument, "records: the directory comes before all rows")
		}
		if rows := f.message.GetRows(); len(rows) > 0 {
			f.message.Rows = nil
			return rows, nil
		}
		if f.message.GetComplete() {
			return nil, nil
		}
		if err := f.advance(); err != nil {
			return nil, err
		}
	}
}

func (f *feed) advance() (err error) {
	f.message, err = f.all.next()
	return err
}

func (s *service) OpenArrival(
	ctx context.Context, r *connect.Request[runnersv1.OpenArrivalRequest],
) (*connect.Response[runnersv1.OpenArrivalResponse], error) {
	m, err := s.cfg.Store.Arrival(ctx, r.Msg.GetMoveId())
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, fault.New(errcode.FailedPrecondition, "move %.64q has not begun in this cell", r.Msg.GetMoveId())
	}
	if err := s.cfg.Store.OpenArrival(ctx, *m); err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.OpenArrivalResponse{}), nil
}

// content reads the content of an artifact from a stream.
type content struct {
	all  messages[runnersv1.StoreArtifactRequest]
	rest []byte
}

// Read implements [io.Reader].
func (c *content) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if !c.all.stream.Receive() {
			if err := c.all.stream.Err(); err != nil {
				return 0, err //nolint:wrapcheck // an [io.Reader]
			}
			return 0, io.EOF
		}
		c.rest = c.all.stream.Msg().GetContent()
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (s *service) StoreArtifact(
	ctx context.Context, stream *connect.ClientStream[runnersv1.StoreArtifactRequest],
) (*connect.Response[runnersv1.StoreArtifactResponse], error) {
	all := messages[runnersv1.StoreArtifactRequest]{stream}
	defer all.drain()
	first, err := all.next()
	if err != nil {
		return nil, err
	}
	kind, err := artifact.ParseKind(first.GetType(), first.GetFormat())
	if err != nil {
		return nil, err
	}
	if first.GetJobId() <= 0 {
		return nil, fault.New(errcode.InvalidArgument, "job_id: %d is not an id", first.GetJobId())
	}
	m, err := s.cfg.Store.Arrival(ctx, first.GetMoveId())
	if err != nil {
		return nil, err
	}
	if m == nil || m.Phase != move.Open {
		return nil, fault.New(errcode.FailedPrecondition, "move %.64q is not open in this cell", first.GetMoveId())
	}
	received, err := artifact.Receive(ctx, s.cfg.Objects, artifact.Upload{
		JobID: first.GetJobId(), Kind: kind, Limit: s.cfg.Sizes.Of(kind.Type), Bounds: s.cfg.Bounds,
	}, &content{all: all, rest: first.GetContent()})
	if err != nil {
		return nil, fmt.Errorf("receive an artifact of job %d: %w", first.GetJobId(), err)
	}
	sum, err := hex.DecodeString(received.Info.SHA256)
	if err != nil || !bytes.Equal(sum, first.GetSha256()) {
		return nil, fault.New(errcode.InvalidArgument, "the content of an artifact of job %d is not complete",
			first.GetJobId())
	}
	return connect.NewResponse(&runnersv1.StoreArtifactResponse{Object: received.Key}), nil
}

func (s *service) StorePipeline(
	ctx context.Context, stream *connect.ClientStream[runnersv1.StorePipelineRequest],
) (*connect.Response[runnersv1.StorePipelineResponse], error) {
	all := messages[runnersv1.StorePipelineRequest]{stream}
	defer all.drain()
	message, err := all.next()
	if err != nil {
		return nil, err
	}
	used := false
	err = s.cfg.Store.StorePipeline(ctx, message.GetMoveId(), message.GetPipelineId(), func() (postgres.Piece, error) {
		if used {
			var err error
			if message, err = all.next(); err != nil {
				return postgres.Piece{}, err
			}
		}
		used = true
		return postgres.Piece{
			Rows: message.GetRows(), Traces: message.GetTraceParts(), Complete: message.GetComplete(),
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.StorePipelineResponse{}), nil
}

func (s *service) EndArrival(
	ctx context.Context, r *connect.Request[runnersv1.EndArrivalRequest],
) (*connect.Response[runnersv1.EndArrivalResponse], error) {
	m := move.Move{ID: r.Msg.GetMoveId(), OrganizationID: r.Msg.GetOrganizationId(), Arrival: true}
	if err := m.ValidateIDs(); err != nil {
		return nil, err
	}
	moved := r.Msg.GetOutcome() == statev1.MoveOutcome_MOVE_OUTCOME_MOVED
	if !moved && r.Msg.GetOutcome() != statev1.MoveOutcome_MOVE_OUTCOME_CANCELED {
		return nil, fault.New(errcode.InvalidArgument, "outcome: %s is not possible", r.Msg.GetOutcome())
	}
	err := s.cfg.State.EndArrival(ctx, tokenOf(ctx), &statev1.EndMoveRequest{
		OrganizationId: m.OrganizationID, MoveId: m.ID, Outcome: r.Msg.GetOutcome(),
		RevokedTokens: r.Msg.GetRevokedTokens(), BlockedUsers: r.Msg.GetBlockedUsers(),
	})
	if err != nil {
		return nil, fmt.Errorf("end the move at the state service: %w", err)
	}
	if moved {
		err = s.cfg.Store.CompleteArrival(ctx, m)
	} else {
		err = s.cfg.Store.CancelArrival(ctx, m)
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.EndArrivalResponse{}), nil
}
