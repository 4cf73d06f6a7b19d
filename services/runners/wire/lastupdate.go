package wire

import (
	"strconv"
	"strings"
)

// LastUpdate is the position up to which a runner's request for a job has seen changes. It names the cell and the
// incarnation of what is counted, since positions of others mean nothing here.
type LastUpdate struct {
	Cell string
	// Incarnation changes when positions start again: after a failover, a restore or a move.
	Incarnation string
	Position    uint64
}

// maxLastUpdate bounds the text of a LastUpdate in bytes.
const maxLastUpdate = 255

// String returns the value of the header X-GitLab-Last-Update. Cell and Incarnation must not contain a slash.
func (u LastUpdate) String() string {
	return u.Cell + "/" + u.Incarnation + "/" + strconv.FormatUint(u.Position, 10)
}

// ParseLastUpdate reads what a runner sends as last_update. It returns false for everything that [LastUpdate.String]
// does not make; such a value counts as absent.
func ParseLastUpdate(text string) (LastUpdate, bool) {
	parts := strings.Split(text, "/")
	if len(text) > maxLastUpdate || len(parts) != 3 {
		return LastUpdate{}, false
	}
	position, err := strconv.ParseUint(parts[2], 10, 64)
	u := LastUpdate{Cell: parts[0], Incarnation: parts[1], Position: position}
	return u, err == nil && u.String() == text
}

// Since returns the position of a text that was made in the same cell and incarnation as u, and 0 for any other text.
// A position beyond that of u counts as 0, too: it was lost in a failover.
func (u LastUpdate) Since(text string) uint64 {
	last, ok := ParseLastUpdate(text)
	if !ok || last.Cell != u.Cell || last.Incarnation != u.Incarnation || last.Position > u.Position {
		return 0
	}
	return last.Position
}
