package execution

import (
	"context"
	"time"

	"lockstep.internal/services/runners/job"
)

// TracePart is a part of a trace as readers see it: masked values are stars.
type TracePart struct {
	// Offset of the first byte of Data in the trace.
	Offset int64
	Data   []byte
	// Size of the whole trace so far. It never shrinks.
	Size int64
	// State of the job. The trace of a job that has ended does not grow.
	State job.State
}

// End returns the offset after the part.
func (p TracePart) End() int64 { return p.Offset + int64(len(p.Data)) }

// Complete reports that nothing follows the part.
func (p TracePart) Complete() bool { return p.State.Final() && p.End() >= p.Size }

// TraceStore reads traces. A job that does not exist is the fault not_found.
type TraceStore interface {
	// ReadTrace returns at most limit bytes from an offset on. Beyond the end of the trace there are none.
	ReadTrace(ctx context.Context, jobID, offset int64, limit int) (TracePart, error)
	// Watch records until when somebody reads the trace while it grows: its runner then sends it more often, and readers
	// are notified of what it sends after the call.
	Watch(ctx context.Context, jobID int64, until time.Time) error
}
