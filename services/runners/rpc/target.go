package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/runners/move"
)

// Target is the runners service of the other cell. It is a [move.Target].
type Target struct {
	client runnersv1connect.ArrivalServiceClient
	token  string
	// cell is this one.
	cell topology.Cell
}

var _ move.Target = Target{}

// NewTarget returns a client of the runners service at a URL, with a personal access token of its cell. The HTTP client
// has no timeout of its own.
func NewTarget(client connect.HTTPClient, url, token string, own topology.Cell) Target {
	return Target{runnersv1connect.NewArrivalServiceClient(client, url, options()), token, own}
}

// Describe returns the name of the other cell and the runners of its instance.
func (t Target) Describe(ctx context.Context) (*runnersv1.DescribeCellResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	response, err := t.client.DescribeCell(ctx, authorized(&runnersv1.DescribeCellRequest{}, t.token))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

// upload is a stream to the other cell.
type upload[Request, Response any] struct {
	stream *connect.ClientStreamForClient[Request, Response]
	cancel context.CancelFunc
	ended  bool
}

func newUpload[Request, Response any](
	ctx context.Context, cancel context.CancelFunc, token string,
	open func(ctx context.Context) *connect.ClientStreamForClient[Request, Response],
) *upload[Request, Response] {
	u := &upload[Request, Response]{stream: open(ctx), cancel: cancel}
	u.stream.RequestHeader().Set("Authorization", "Bearer "+token)
	return u
}

// send sends a message. After the other cell has answered, it does nothing: the answer counts.
func (u *upload[Request, Response]) send(message *Request) error {
	if u.ended {
		return nil
	}
	err := u.stream.Send(message)
	if errors.Is(err, io.EOF) {
		u.ended = true
		return nil
	}
	return err //nolint:wrapcheck // a fault
}

// finish returns the answer. After an error of this side, the other one stores nothing.
func (u *upload[Request, Response]) finish(err error) (*Response, error) {
	if err != nil {
		u.cancel()
		_, _ = u.stream.CloseAndReceive()
		return nil, err
	}
	response, err := u.stream.CloseAndReceive()
	if err != nil {
		return nil, err //nolint:wrapcheck // a fault
	}
	return response.Msg, nil
}

// arrival sends an organization.
type arrival struct {
	*upload[runnersv1.BeginArrivalRequest, runnersv1.BeginArrivalResponse]

	rows []*runnersv1.MovedRow
}

// maxRows is how many rows are sent in a message.
const maxRows = 100

// Records implements [move.Arrival].
func (a *arrival) Records(records []*statev1.MoveRecord) error {
	return a.send(&runnersv1.BeginArrivalRequest{Records: records})
}

// Row implements [move.Arrival].
func (a *arrival) Row(row *runnersv1.MovedRow) error {
	a.rows = append(a.rows, row)
	if len(a.rows) < maxRows {
		return nil
	}
	return a.flush(false)
}

func (a *arrival) flush(complete bool) error {
	rows := a.rows
	a.rows = nil
	return a.send(&runnersv1.BeginArrivalRequest{Rows: rows, Complete: complete})
}

// Begin implements [move.Target].
func (t Target) Begin(ctx context.Context, m move.Move, copyTo func(move.Arrival) error) error {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	a := &arrival{upload: newUpload(ctx, cancel, t.token, t.client.BeginArrival)}
	err := a.send(&runnersv1.BeginArrivalRequest{Arrival: &runnersv1.MovedArrival{
		MoveId: m.ID, OrganizationId: m.OrganizationID, FromCell: string(t.cell), Number: m.Number,
	}})
	if err == nil {
		err = copyTo(a)
	}
	if err == nil {
		err = a.flush(true)
	}
	_, err = a.finish(err)
	return err
}

// Open implements [move.Target].
func (t Target) Open(ctx context.Context, m move.Move) error {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	_, err := t.client.OpenArrival(ctx, authorized(&runnersv1.OpenArrivalRequest{MoveId: m.ID}, t.token))
	return err
}

const (
	// contentPart is how much content a message has, in bytes.
	contentPart = 256 << 10
	// slowest is the speed of content below which a connection is given up, in bytes per second.
	slowest = 256 << 10
)

// Artifact implements [move.Target].
func (t Target) Artifact(ctx context.Context, m move.Move, a move.Artifact, content io.Reader) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, longTimeout+time.Duration(a.Size/slowest)*time.Second)
	defer cancel()
	u := newUpload(ctx, cancel, t.token, t.client.StoreArtifact)
	message := &runnersv1.StoreArtifactRequest{
		MoveId: m.ID, JobId: a.JobID, Type: a.Type, Format: a.Format, Sha256: a.SHA256,
	}
	buffer := make([]byte, contentPart)
	var err error
	for err == nil {
		var n int
		n, err = io.ReadFull(content, buffer)
		if ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && !ended {
			err = fault.Wrap(err, errcode.Unavailable, "the content of an artifact of job %d cannot be read", a.JobID)
			break
		} else if ended && n == 0 {
			break
		}
		message.Content = buffer[:n]
		if sent := u.send(message); sent != nil {
			err = sent
			break
		}
		message = &runnersv1.StoreArtifactRequest{}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	response, err := u.finish(err)
	return response.GetObject(), err
}

// pieces gathers pieces of a pipeline for one message.
type pieces struct {
	*upload[runnersv1.StorePipelineRequest, runnersv1.StorePipelineResponse]

	message *runnersv1.StorePipelineRequest
	size    int
}

func (p *pieces) add(piece move.Piece) error {
	if piece.Row != nil {
		p.message.Rows = append(p.message.Rows, piece.Row)
		p.size += len(piece.Row.GetContent())
	}
	if piece.Trace != nil {
		p.message.TraceParts = append(p.message.TraceParts, piece.Trace)
		p.size += len(piece.Trace.GetData())
	}
	if p.size < contentPart && len(p.message.GetRows())+len(p.message.GetTraceParts()) < maxRows {
		return nil
	}
	return p.flush()
}

func (p *pieces) flush() error {
	message := p.message
	p.message, p.size = &runnersv1.StorePipelineRequest{}, 0
	return p.send(message)
}

// Pipeline implements [move.Target].
func (t Target) Pipeline(
	ctx context.Context, m move.Move, pipelineID int64, copyTo func(send func(move.Piece) error) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	p := &pieces{
		upload:  newUpload(ctx, cancel, t.token, t.client.StorePipeline),
		message: &runnersv1.StorePipelineRequest{MoveId: m.ID, PipelineId: pipelineID},
	}
	err := copyTo(p.add)
	if err == nil {
		p.message.Complete = true
		err = p.flush()
	}
	_, err = p.finish(err)
	return err
}

// End implements [move.Target].
func (t Target) End(
	ctx context.Context, m move.Move, outcome statev1.MoveOutcome, source *statev1.EndMoveResponse,
) error {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	_, err := t.client.EndArrival(ctx, authorized(&runnersv1.EndArrivalRequest{
		MoveId: m.ID, OrganizationId: m.OrganizationID, Outcome: outcome, RevokedTokens: source.GetRevokedTokens(),
		BlockedUsers: source.GetBlockedUsers(),
	}, t.token))
	if err != nil {
		return fmt.Errorf("end move %s: %w", m.ID, err)
	}
	return nil
}
