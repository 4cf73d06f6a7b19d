package chain

import (
	"slices"
	"strings"
	"time"
)

// Outcome is how admission ended.
type Outcome string

// The outcomes. The empty outcome is open.
const (
	Admitted Outcome = "admitted"
	Rejected Outcome = "rejected"
	// Canceled: the job was canceled before.
	Canceled Outcome = "canceled"
)

// Cause tells why a job was rejected.
type Cause string

// The causes.
const (
	// CauseDenied: a controller rejected the job.
	CauseDenied Cause = "admission_denied"
	// CauseTimeout: a controller with the failure policy deny failed or did not answer in time.
	CauseTimeout Cause = "admission_timeout"
	// CauseNoRunner: no existing runner can take the job as the controllers changed it.
	CauseNoRunner Cause = "no_matching_runner"
)

// Verdict is what became of the question to a controller.
type Verdict string

// The verdicts.
const (
	VerdictAccepted Verdict = "accepted"
	VerdictRejected Verdict = "rejected"
	// VerdictRetried: an attempt failed, and another follows.
	VerdictRetried  Verdict = "retried"
	VerdictFailed   Verdict = "failed"
	VerdictTimedOut Verdict = "timed_out"
	// VerdictSkipped: the controller does not care about the job, is disabled, or was deleted.
	VerdictSkipped Verdict = "skipped"
)

// Record is what happened with one controller. Records are for people.
type Record struct {
	ControllerID int64   `json:"controller_id"`
	Revision     int64   `json:"revision"`
	Name         string  `json:"name"`
	Level        Level   `json:"level"`
	Attempt      int     `json:"attempt,omitempty"`
	DryRun       bool    `json:"dry_run,omitempty"`
	Verdict      Verdict `json:"verdict"`
	// Effective decisions changed the job, rejected it or, for an acceptance, let it pass.
	Effective bool   `json:"effective,omitempty"`
	Diff      Diff   `json:"diff,omitzero"`
	Reason    string `json:"reason,omitempty"`
	// AskedAt is the zero time if the controller was not asked.
	AskedAt time.Time `json:"asked_at,omitzero"`
	At      time.Time `json:"at"`
}

// Reason is a reason of a controller. The name is empty for a reason of the chain.
type Reason struct {
	Controller string `json:"controller,omitempty"`
	Text       string `json:"text"`
}

// Reasons are in the order of the chain.
type Reasons []Reason

// String returns all reasons in one line, each with its controller.
func (r Reasons) String() string {
	texts := make([]string, len(r))
	for i, reason := range r {
		texts[i] = reason.Text
		if reason.Controller != "" {
			texts[i] = reason.Controller + ": " + reason.Text
		}
	}
	return strings.Join(texts, "; ")
}

// State is the admission of one job. It is immutable: [Advance] returns another one. It may be stored as JSON.
type State struct {
	Job Job `json:"job"`
	// Definition as the controllers have changed it.
	Definition Definition `json:"definition"`
	// Waiting are the controllers that have not decided. The first one is asked.
	Waiting []Controller `json:"waiting,omitempty"`
	// Attempt of the first one, counted from 1.
	Attempt int `json:"attempt,omitempty"`
	// FirstAttempt of its round: a round begins when the controller changes.
	FirstAttempt int       `json:"first_attempt,omitempty"`
	AskedAt      time.Time `json:"asked_at,omitzero"`

	Outcome Outcome  `json:"outcome,omitempty"`
	Cause   Cause    `json:"cause,omitempty"`
	Reasons Reasons  `json:"reasons,omitempty"`
	Records []Record `json:"records,omitempty"`
}

// original returns the definition before any controller.
func (j Job) original() Definition { return Definition{Tags: sorted(j.Tags)} }

// clone returns a state that may be changed.
func (s *State) clone() State {
	out := *s
	out.Waiting, out.Reasons, out.Records = slices.Clone(s.Waiting), slices.Clone(s.Reasons), slices.Clone(s.Records)
	return out
}
