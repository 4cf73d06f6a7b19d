package sink

import (
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
)

// Read reads a message of DEPLOYS: a CloudEvent whose data is a CDEvent that carries the fact as its custom data.
func Read(header nats.Header, data []byte) (event.Event, events.DeployFact, error) {
	e, err := event.Decode(header, data)
	if err != nil {
		return event.Event{}, events.DeployFact{}, err
	}
	var cd struct {
		CustomData *events.DeployFact `json:"customData"` //nolint:tagliatelle // as CDEvents spells it
	}
	if err := json.Unmarshal(e.DataEncoded, &cd); err != nil {
		return event.Event{}, events.DeployFact{}, fmt.Errorf("event %s is no CDEvent: %w", e.ID(), err)
	}
	if cd.CustomData == nil || cd.CustomData.Fact == "" || cd.CustomData.Workload.Name == "" {
		return event.Event{}, events.DeployFact{}, fmt.Errorf("event %s carries no fact", e.ID())
	}
	return e, *cd.CustomData, nil
}
