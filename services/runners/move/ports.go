package move

import (
	"context"
	"io"

	"lockstep.internal/libs/topology"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// Tokens are personal access tokens of administrators of the source and of the target.
type Tokens struct {
	Source, Target string
	// Replaced are earlier ones of the source, of which [MaxReplaced] are kept.
	Replaced []string
}

// MaxReplaced is how many replaced tokens a move keeps, until it revokes them.
const MaxReplaced = 16

// TokenStore has the tokens of moves.
type TokenStore interface {
	// Tokens returns the tokens of a move.
	Tokens(ctx context.Context, m Move) (Tokens, error)
	// Ended returns moves from this cell that have ended and still have tokens.
	Ended(ctx context.Context) ([]Move, error)
	// ForgetTokens erases the tokens of a move that has ended.
	ForgetTokens(ctx context.Context, m Move) error
}

// Store is the database of the source.
type Store interface {
	TokenStore

	// Departures returns the moves from this cell that have not ended.
	Departures(ctx context.Context) ([]Move, error)
	// Change stores phase and message of a move whose phase is still the given one; otherwise it returns false. Jobs wait
	// for runners again after [Canceling]. The tokens are kept until [TokenStore.ForgetTokens].
	Change(ctx context.Context, m Move, from Phase) (bool, error)
	// Runners calls send with the rows of the organization's runners and their managers.
	Runners(ctx context.Context, organizationID int64, send func(*runnersv1.MovedRow) error) error
	// Next returns a pipeline of the organization without jobs that a runner has; those that have not ended come first. It
	// returns 0 if there is none, and whether any pipeline is left.
	Next(ctx context.Context, organizationID int64) (id int64, left bool, err error)
	// Artifacts returns the artifacts of a pipeline.
	Artifacts(ctx context.Context, pipelineID int64) ([]Artifact, error)
	// Pipeline calls send with all that is stored of a pipeline but its artifacts.
	Pipeline(ctx context.Context, pipelineID int64, send func(Piece) error) error
	// ForgetPipeline removes a pipeline that the target has, and publishes that its jobs have moved.
	ForgetPipeline(ctx context.Context, pipelineID int64) error
	// ForgetRunners removes the runners of the organization.
	ForgetRunners(ctx context.Context, organizationID int64) error
	// ForgetMovedJobs removes what is left of jobs whose runners cannot repeat a request any more.
	ForgetMovedJobs(ctx context.Context) error
}

// Artifact is an artifact of a job that moves.
type Artifact struct {
	JobID        int64
	Type, Format string
	SHA256       []byte
	Size         int64
	// Object is the key of the content in this cell.
	Object string
	// Row is the row with the key that it has in the target, to which [Artifact.In] gives the key there.
	Row []byte
}

// Piece is a part of a pipeline. One field is set.
type Piece struct {
	Row   *runnersv1.MovedRow
	Trace *runnersv1.MovedTracePart
}

// Objects is the store of the content of artifacts. The error of content that does not exist is the fault not_found.
type Objects interface {
	Open(ctx context.Context, key string) (io.ReadCloser, int64, error)
}

// State is the state service of the source.
type State interface {
	Begin(ctx context.Context, token string, m Move) error
	// Export calls send with the records of the directory, in their order.
	Export(ctx context.Context, token string, m Move, send func([]*statev1.MoveRecord) error) error
	// Revoke revokes the token with which it is called. Fault unauthenticated for one that is not valid any more.
	Revoke(ctx context.Context, token string) error
	// End ends a move and returns what the target has to know.
	End(ctx context.Context, token string, m Move, outcome statev1.MoveOutcome) (*statev1.EndMoveResponse, error)
}

// Target is the runners service of the target. Errors are faults.
type Target interface {
	Begin(ctx context.Context, m Move, copyTo func(Arrival) error) error
	// Open returns a fault for which [CanceledThere] is true if the arrival was canceled.
	Open(ctx context.Context, m Move) error
	// Artifact stores content and returns its key.
	Artifact(ctx context.Context, m Move, a Artifact, content io.Reader) (object string, err error)
	Pipeline(ctx context.Context, m Move, pipelineID int64, copyTo func(send func(Piece) error) error) error
	End(ctx context.Context, m Move, outcome statev1.MoveOutcome, source *statev1.EndMoveResponse) error
}

// Arrival is what a target gets of an organization: the records first, and then the rows.
type Arrival interface {
	Records(records []*statev1.MoveRecord) error
	Row(row *runnersv1.MovedRow) error
}

// Map is the cell map.
type Map interface {
	// PutMoved announces that the organization is in another cell.
	PutMoved(ctx context.Context, organizationID int64, to topology.Cell, number int64) error
}
