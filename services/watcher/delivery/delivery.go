package delivery

import (
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

// Delivery is a version to publish now.
type Delivery struct {
	object.Version

	// ResyncID of the full resync that the version is a member of; empty for a change.
	ResyncID string
	// FirstSeen is true until a version of the object is acknowledged. It is false for an object whose creation
	// was observed.
	FirstSeen bool
	// TooLarge is true when the server refused the version. Only its rejection can be published.
	TooLarge bool
	// Attempt counts from 1 for each version.
	Attempt int
}

// UpdateType returns full for a member of a resync, partial otherwise.
func (d Delivery) UpdateType() events.UpdateType {
	if d.ResyncID != "" {
		return events.UpdateTypeFull
	}
	return events.UpdateTypePartial
}
