package move

import (
	"fmt"
	"strings"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Phase is how far a move is.
type Phase string

// The phases of a departure.
const (
	// Copying: directory and runners are copied. The move can be canceled.
	Copying Phase = "copying"
	// Moved: the organization belongs to the target, which does not know it yet.
	Moved Phase = "moved"
	// HandingOver: pipelines follow one by one.
	HandingOver Phase = "handing_over"
	// Ending: all pipelines have moved.
	Ending Phase = "ending"
	Done   Phase = "done"
	// Canceling: the organization works here again, and the target removes what it has.
	Canceling Phase = "canceling"
	Canceled  Phase = "canceled"
)

// The phases of an arrival, besides [Done] and [Canceled].
const (
	// Arriving organizations cannot be changed here yet.
	Arriving Phase = "arriving"
	// Open organizations work here, and their pipelines follow.
	Open Phase = "open"
)

// Ended reports whether nothing follows the phase.
func (p Phase) Ended() bool { return p == Done || p == Canceled }

// Move is a move of an organization from this cell, or to it.
type Move struct {
	ID             string
	OrganizationID int64
	// Arrival: the organization comes from the other cell.
	Arrival bool
	// Cell is the other one. URL is where its runners service is; empty for an arrival.
	Cell topology.Cell
	URL  string
	// Number is larger than that of every earlier move of the organization that was not canceled.
	Number int64
	Phase  Phase
	// Message is why the move waits, or was canceled.
	Message   string
	StartedBy int64
	StartedAt time.Time
	// CancelAt is when a move that is still copying is canceled.
	CancelAt time.Time
	EndedAt  time.Time
}

// Action is what is done next.
type Action string

// The actions.
const (
	ActionCopy     Action = "copy"
	ActionOpen     Action = "open"
	ActionHandOver Action = "hand over"
	ActionEnd      Action = "end"
	ActionUndo     Action = "undo"
	ActionNone     Action = ""
)

// Next returns the move as it is now, and what is done next. A move that copies for too long is canceled.
func (m Move) Next(now time.Time) (Move, Action) {
	if m.Phase == Copying && !now.Before(m.CancelAt) {
		reason := fmt.Sprintf("not copied within %s", m.CancelAt.Sub(m.StartedAt))
		if m.Message != "" {
			reason += ": " + m.Message
		}
		m.Phase, m.Message = Canceling, reason
	}
	switch m.Phase {
	case Copying:
		return m, ActionCopy
	case Moved:
		return m, ActionOpen
	case HandingOver:
		return m, ActionHandOver
	case Ending:
		return m, ActionEnd
	case Canceling:
		return m, ActionUndo
	case Done, Canceled, Arriving, Open:
	}
	return m, ActionNone
}

// Succeeded returns the move after its action.
func (m Move) Succeeded(now time.Time) Move {
	next := map[Phase]Phase{
		Copying: Moved, Moved: HandingOver, HandingOver: Ending, Ending: Done, Canceling: Canceled,
	}
	m.Phase = next[m.Phase]
	m.Message, _, _ = strings.Cut(m.Message, notUndone)
	if m.Phase != Canceled {
		m.Message = ""
	}
	if m.Phase.Ended() {
		m.EndedAt = now
	}
	return m
}

// Failed returns the move after its action failed. Before the point of no return, an error that stays cancels the move.
func (m Move) Failed(err error) Move {
	message := fault.From(err).Message
	switch {
	case m.Phase == Canceling:
		// The reason of the cancellation stays.
		reason, _, _ := strings.Cut(m.Message, notUndone)
		message = reason + notUndone + message
	case m.Phase == Copying && final(err), m.Phase == Moved && canceledThere(err):
		m.Phase = Canceling
	case refused(err):
		message += "; run the command again to give the move new tokens"
	}
	m.Message = bounded(message)
	return m
}

// detailPhase is the detail of a fault with the phase of an arrival.
const detailPhase = "phase"

// ErrArrivalCanceled returns the fault of an arrival that cannot go on because it was canceled.
func ErrArrivalCanceled(id string) error {
	return fault.New(errcode.FailedPrecondition, "move %s was canceled in the other cell", id).
		With(detailPhase, string(Canceled))
}

// canceledThere reports whether the target has canceled the arrival: it will never open the organization.
func canceledThere(err error) bool { return fault.From(err).Details[detailPhase] == string(Canceled) }

// notUndone separates why a move was canceled from why that takes a while.
const notUndone = "; not undone yet: "

// final reports whether an error stays when the request is repeated.
func final(err error) bool {
	switch fault.CodeOf(err) {
	case errcode.InvalidArgument, errcode.NotFound, errcode.AlreadyExists, errcode.FailedPrecondition,
		errcode.Unimplemented, errcode.PayloadTooLarge, errcode.QuotaExceeded:
		return true
	default:
		return false
	}
}

// maxMessage limits the message of a move, in bytes.
const maxMessage = 2000

func bounded(text string) string {
	if len(text) > maxMessage {
		return strings.ToValidUTF8(text[:maxMessage], "") // the cut may be within a character
	}
	return text
}

// Cancel returns the canceled move. Fault failed_precondition after the point of no return.
func (m Move) Cancel() (Move, error) {
	switch m.Phase {
	case Canceling, Canceled:
		return m, nil
	case Copying:
		m.Phase, m.Message = Canceling, "canceled by an administrator"
		return m, nil
	case Moved, HandingOver, Ending, Done, Arriving, Open:
	}
	return m, fault.New(errcode.FailedPrecondition,
		"organization %d belongs to cell %s already: a move can be canceled while it copies; move it back instead",
		m.OrganizationID, m.Cell)
}

// maxID is the longest id of a move that another cell may choose.
const maxID = 64

// ValidateIDs checks the ids that another cell sends.
func (m Move) ValidateIDs() error {
	switch {
	case m.ID == "" || len(m.ID) > maxID:
		return fault.New(errcode.InvalidArgument, "move_id has %d bytes, from 1 to %d are allowed", len(m.ID), maxID)
	case m.OrganizationID <= 0:
		return fault.New(errcode.InvalidArgument, "organization_id: %d is not an id", m.OrganizationID)
	default:
		return nil
	}
}

// ValidateArrival checks what another cell tells about an organization that comes from it.
func (m Move) ValidateArrival(own topology.Cell) error {
	if err := m.ValidateIDs(); err != nil {
		return err
	}
	if err := topology.ValidateCell(string(m.Cell)); err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "from_cell: %v", err)
	}
	switch {
	case m.Number <= 0:
		return fault.New(errcode.InvalidArgument, "number: %d is not positive", m.Number)
	case m.Cell == own:
		return fault.New(errcode.InvalidArgument, "organization %d is in cell %s already: name another cell",
			m.OrganizationID, own)
	default:
		return nil
	}
}
