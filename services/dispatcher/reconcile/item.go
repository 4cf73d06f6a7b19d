package reconcile

import (
	"slices"

	"go.opentelemetry.io/otel/trace"

	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/kube"
)

// Job is the desired state of one workspace and the results that were published about it.
type Job struct {
	workspace desired.Workspace
	trace     trace.SpanContext

	// Only the worker that has the task uses these fields.
	packed    []byte              // the compressed workspace between two repairs
	applied   bool                // the last published result is applied
	repairs   int                 // number of repairs
	remaining []desired.Reference // of the last published terminating result
	reports   int                 // number of published terminating results
}

// hasChanged reports whether the result of an apply differs from the last published one.
func (j *Job) hasChanged(applied kube.Applied) bool {
	return !j.applied || len(applied.Repaired) > 0 || len(applied.Pruned) > 0
}

// hasProgress reports whether other objects remain than in the last published terminating result.
func (j *Job) hasProgress(remaining []desired.Reference) bool {
	return !slices.Equal(remaining, j.remaining)
}

// pack compresses the workspace until its next repair.
func (j *Job) pack() error {
	packed, err := desired.Pack(j.workspace)
	if err != nil {
		return err
	}
	j.packed, j.workspace.Objects, j.workspace.Secrets = packed, nil, nil
	return nil
}

// unpack reverses pack.
func (j *Job) unpack() error {
	if j.packed == nil {
		return nil
	}
	workspace, err := desired.Unpack(j.packed)
	if err != nil {
		return err
	}
	j.workspace, j.packed = workspace, nil
	return nil
}
