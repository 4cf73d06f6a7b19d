package gitlab

import (
	"context"
	"errors"
	"io"
	"time"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/services/runners/wire"
)

// ErrRegistrationOff means that registration tokens are not accepted (410).
var ErrRegistrationOff = errors.New("registration tokens are off")

// Runners manages runners. A token that is not valid is the fault permission_denied. It must be certain, since it
// disables a runner.
type Runners interface {
	// Verify records the contact of the manager.
	Verify(ctx context.Context, token, systemID string) (wire.Runner, error)
	// Register may fail with [ErrRegistrationOff].
	Register(ctx context.Context, request wire.RegisterRequest) (wire.Runner, error)
	// Create is called with the personal access token of a user.
	Create(ctx context.Context, userToken string, request wire.CreateRunnerRequest) (wire.Runner, error)
	ResetToken(ctx context.Context, token string) (wire.ResetToken, error)
	Delete(ctx context.Context, token string) error
	DeleteManager(ctx context.Context, token, systemID string) error
}

// Queue gives jobs to runners.
type Queue interface {
	// Request waits until there is a job, something else changed, or the context ends. It returns nil if there is no
	// job, which is no error, also when the context has ended. lastUpdate is what the runner shall repeat. The fault
	// conflict asks the runner to try again soon.
	Request(ctx context.Context, request wire.JobRequest) (job *wire.Job, lastUpdate string, err error)
}

// JobRef is a job and the token that a request has for it. Neither is checked.
type JobRef struct {
	ID    int64
	Token string
}

// JobState is the state of a job in answers. Its zero value means that the token is not that of the job.
type JobState struct {
	Status wire.JobStatus
	// Interval until the next request; 0 means none.
	Interval time.Duration
}

// UpdateResult is the result of an update.
type UpdateResult int

// The results.
const (
	// Stored: the state is stored (200).
	Stored UpdateResult = iota
	// AskAgain: the runner shall repeat the update after the interval (202).
	AskAgain
	// ResendTrace: the runner shall send the whole trace again, and then the update (412).
	ResendTrace
)

// Jobs serves running jobs. Each method returns the state of the job with every error, if the token is that of the job.
// A token that is not valid, a job that is not known, and one that has ended are the fault permission_denied.
type Jobs interface {
	// Authentic checks without a query that the cell made the token for the job. It may be void.
	Authentic(ctx context.Context, ref JobRef) error
	// Authorize checks the token before the body of a request is read.
	Authorize(ctx context.Context, ref JobRef, scope jobtoken.Scope) (JobState, error)
	// Update of a job that has ended repeats its result.
	Update(ctx context.Context, ref JobRef, request wire.UpdateRequest) (UpdateResult, JobState, error)
	// AppendTrace returns the size of the trace. Errors are those of package trace, too.
	AppendTrace(ctx context.Context, ref JobRef, offset int64, part []byte) (size int64, state JobState, err error)
}

// Upload describes an artifact.
type Upload struct {
	// Filename without folders.
	Filename string
	// Type is archive by default. Format is zip, gzip or raw; zip by default.
	Type, Format string
	// ExpireIn is a duration in words; empty means the default.
	ExpireIn string
}

// Download is an artifact that is sent.
type Download struct {
	Filename string
	// Location is where the artifact is; then Content is nil.
	Location string
	Size     int64
	Content  io.ReadCloser
}

// Artifacts stores artifacts.
type Artifacts interface {
	// Store reads the content to its end. Content that is not complete ends with an error other than [io.EOF]; then
	// nothing is stored. The fault payload_too_large and permission_denied are final for the runner; after unavailable
	// it tries again.
	Store(ctx context.Context, ref JobRef, upload Upload, content io.Reader) (JobState, error)
	// Open checks that the token allows to download the artifacts of the job. direct: the client follows redirects.
	Open(ctx context.Context, ref JobRef, direct bool) (Download, error)
}
