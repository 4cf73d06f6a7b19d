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
	// FirstSeen is true if earlier versions of the object may be unknown: it was observed as [object.Initial] or
	// [object.Found], and no version is acknowledged since. It is false for a deletion.
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
