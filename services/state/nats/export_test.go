package nats

import (
	"bytes"
	"encoding/json"

	"lockstep.internal/schemas/gen/events"
)

// Sound is whether the data of an observation is taken without asking its schema.
func Sound(eventType string, data []byte) bool {
	var (
		d  any
		ok sound
	)
	switch eventType {
	case events.TypeObservedDeployment:
		into := &events.ObservedDeployment{}
		d, ok = into, func() bool { return soundDeployment(into) }
	case events.TypeObservedReplicaSet:
		into := &events.ObservedReplicaSet{}
		d, ok = into, func() bool { return soundReplicaSet(into) }
	default:
		into := &events.ObservedPod{}
		d, ok = into, func() bool { return soundPod(into) }
	}
	if json.Unmarshal(data, d) != nil {
		return false
	}
	again, err := json.Marshal(d)
	return err == nil && bytes.Equal(again, data) && ok()
}

// WithoutZeroBytes is withoutZeroBytes.
func WithoutZeroBytes(data []byte) []byte { return withoutZeroBytes(data) }
