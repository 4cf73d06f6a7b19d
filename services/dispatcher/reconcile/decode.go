package reconcile

import (
	"errors"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// DecodeAndCheck decodes a message and checks it against the policy. It returns a failure if the desired state must not
// be applied, and an error if the message has no readable workspace and revision. If the desired state terminates an
// orphan, Objects are those that may be deleted.
func DecodeAndCheck(
	cell topology.Cell, policy desired.Policy, subject string, header nats.Header, data []byte,
) (desired.Workspace, *failure.Failure, error) {
	w, err := desired.Decode(cell, policy.Agent, subject, header, data)
	if err != nil {
		var rejection *failure.Failure
		if !errors.As(err, &rejection) || w.Revision < 1 {
			return desired.Workspace{}, nil, err
		}
		return w, rejection, nil
	}
	if rejection := policy.Check(w); rejection != nil {
		return w, rejection, nil
	}
	if w.Target == events.DesiredTargetTerminated {
		w.Objects = policy.DeletableObjects(w)
	}
	return w, nil, nil
}
