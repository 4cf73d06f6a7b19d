package publish

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/runners/job"
)

// Admission is an event of the admission service about a preparation of a job.
type Admission struct {
	JobID, Preparation int64
	Prerequisites      []job.Prerequisite
	// Decision is nil before the decision.
	Decision *job.Decision
}

// maxReason is the maximum number of characters that a job keeps of the reasons of a decision.
const maxReason = 2000

// DecodeAdmission returns the content of a message of the stream ADMISSION.
func DecodeAdmission(cell topology.Cell, subject string, header nats.Header, content []byte) (Admission, error) {
	e, err := event.Decode(header, content)
	if err != nil {
		return Admission{}, fmt.Errorf("decode an event of admission: %w", err)
	}
	decoded, err := events.DecodeAny(e.Type(), e.Data())
	if err != nil {
		return Admission{}, fmt.Errorf("decode an event of admission: %w", err)
	}
	var out Admission
	var want string
	switch d := decoded.(type) {
	case *events.AdmissionStatus:
		want = cell.Admission(int64(d.ProjectID), int64(d.JobID), "status")
		out = Admission{JobID: int64(d.JobID), Preparation: int64(d.Preparation)}
		out.Prerequisites, err = prerequisites([]events.AdmissionPrerequisite{d.Prerequisite})
	case *events.AdmissionDecided:
		want = cell.Admission(int64(d.ProjectID), int64(d.JobID), "decided")
		out = Admission{JobID: int64(d.JobID), Preparation: int64(d.Preparation), Decision: decision(d)}
		out.Prerequisites, err = prerequisites(d.Prerequisites)
	default:
		return Admission{}, fmt.Errorf("an event of type %s is not about admission", e.Type())
	}
	if err == nil && subject != want {
		err = fmt.Errorf("an event about job %d is not allowed on subject %s", out.JobID, subject)
	}
	return out, err
}

func decision(d *events.AdmissionDecided) *job.Decision {
	tags := slices.Sorted(slices.Values(d.Tags))
	return &job.Decision{
		Preparation: int64(d.Preparation), Outcome: job.Outcome(d.Outcome), Tags: slices.Compact(tags),
		AcceptedRunners: convert[int64](d.AcceptedRunnerIds), RejectedRunners: convert[int64](d.RejectedRunnerIds),
		Reason: reasonOf(d.Reasons),
	}
}

// reasonOf returns all reasons in one line, each with its controller.
func reasonOf(reasons []events.AdmissionReason) string {
	texts := make([]string, len(reasons))
	for i, r := range reasons {
		texts[i] = cmp.Or(r.Controller, "admission") + ": " + r.Text
	}
	text := []rune(strings.Join(texts, "; "))
	return string(text[:min(len(text), maxReason)])
}

// prerequisites returns them as the service stores them: the names of the fields are the same.
func prerequisites(list []events.AdmissionPrerequisite) ([]job.Prerequisite, error) {
	content, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode prerequisites: %w", err)
	}
	var out []job.Prerequisite
	if err := json.Unmarshal(content, &out); err != nil {
		return nil, fmt.Errorf("decode prerequisites: %w", err)
	}
	return out, nil
}
