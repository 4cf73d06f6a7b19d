package reconcile

import (
	"go.opentelemetry.io/otel/trace"

	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/kube"
)

// Item is the desired state of one workspace and the results that were published about it.
type Item struct {
	workspace desired.Workspace
	trace     trace.SpanContext

	// Only the worker that has the task uses these fields.
	packed    []byte         // the compressed workspace between two repairs
	applied   bool           // the last published result is applied
	repairs   int            // number of repairs
	remaining kube.Remaining // of the last published terminating result
	reports   int            // number of published terminating results
}

// hasChanged reports whether the result of an apply differs from the last published one.
func (i *Item) hasChanged(applied kube.Applied) bool {
	return !i.applied || len(applied.Repaired) > 0 || len(applied.Pruned) > 0
}

// pack compresses the workspace until its next repair.
func (i *Item) pack() error {
	packed, err := desired.Pack(i.workspace)
	if err != nil {
		return err
	}
	i.packed, i.workspace.Objects, i.workspace.Secrets = packed, nil, nil
	return nil
}

// unpack reverses pack.
func (i *Item) unpack() error {
	if i.packed == nil {
		return nil
	}
	workspace, err := desired.Unpack(i.packed)
	if err != nil {
		return err
	}
	i.workspace, i.packed = workspace, nil
	return nil
}
