// Package publish encodes the events of the stream ADMISSION: each change of a prerequisite of a job, and the decision.
package publish

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/decide"
)

// Encoder encodes the messages of one cell. Its methods add the trace of the context to each message.
type Encoder struct {
	Cell topology.Cell
}

// OrderingKey is the part of the subjects within which the outbox keeps the order: one job.
const OrderingKey = `\.admission\.([0-9]+\.[0-9]+)\.`

// Changes returns the messages of a job after a change, in their order. before is nil for a new job. A decision has all
// prerequisites, so it is the only message of its change.
func (e Encoder) Changes(ctx context.Context, before *decide.Job, after decide.Job) ([]*nats.Msg, error) {
	decided, err := e.Decided(ctx, after)
	if err != nil {
		return nil, err
	}
	if decided != nil {
		return []*nats.Msg{decided}, nil
	}
	var known []decide.Prerequisite
	if before != nil {
		known = before.Prerequisites()
	}
	all := after.Prerequisites()
	var messages []*nats.Msg
	for _, p := range decide.Changed(known, all) {
		position := 1 + slices.IndexFunc(all, func(q decide.Prerequisite) bool {
			return q.ControllerID == p.ControllerID && q.State == p.State
		})
		id := fmt.Sprintf("%d/%d/%d/%d/%d/%s", after.JobID, after.Preparation, p.ControllerID, p.Revision, p.Attempt, p.State)
		m, err := e.message(ctx, after, "status", id, orBegun(p.At, after), events.AdmissionStatus{
			JobID: int(after.JobID), Preparation: int(after.Preparation), PipelineID: int(after.PipelineID),
			ProjectID: int(after.ProjectID), OrganizationID: int(after.OrganizationID), Prerequisite: prerequisite(p, position),
		})
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, nil
}

func orBegun(at time.Time, j decide.Job) time.Time {
	if at.IsZero() {
		return j.BegunAt
	}
	return at
}

// Decided returns the message of the decision about a job; nil without one.
func (e Encoder) Decided(ctx context.Context, j decide.Job) (*nats.Msg, error) {
	s := j.State
	data := events.AdmissionDecided{
		JobID: int(j.JobID), Preparation: int(j.Preparation), PipelineID: int(j.PipelineID), ProjectID: int(j.ProjectID),
		OrganizationID: int(j.OrganizationID), Tags: s.Definition.Tags,
		AddedTags: without(s.Definition.Tags, j.Tags), RemovedTags: without(j.Tags, s.Definition.Tags),
		AcceptedRunnerIds: ints(s.Definition.AcceptedRunners), RejectedRunnerIds: ints(s.Definition.RejectedRunners),
		DurationMs: int(max(j.EndedAt.Sub(j.BegunAt), 0).Milliseconds()),
	}
	switch {
	case s.Outcome == chain.Admitted:
		data.Outcome = events.AdmissionOutcomeAdmitted
	case s.Outcome == chain.Rejected && s.Cause == chain.CauseTimeout:
		data.Outcome = events.AdmissionOutcomeTimeout
	case s.Outcome == chain.Rejected:
		data.Outcome = events.AdmissionOutcomeDenied
	default:
		return nil, nil //nolint:nilnil // an open or canceled job has no decision
	}
	for i, p := range j.Prerequisites() {
		data.Prerequisites = append(data.Prerequisites, prerequisite(p, i+1))
	}
	for _, r := range s.Reasons {
		reason := events.AdmissionReason{Controller: r.Controller, Text: r.Text}
		if i := slices.IndexFunc(s.Records, func(rec chain.Record) bool { return rec.Name == r.Controller }); i >= 0 {
			reason.ControllerID = int(s.Records[i].ControllerID)
		}
		data.Reasons = append(data.Reasons, reason)
	}
	return e.message(ctx, j, "decided", fmt.Sprintf("%d/%d/decided", j.JobID, j.Preparation), j.EndedAt, data)
}

func (e Encoder) message(
	ctx context.Context, j decide.Job, name, id string, at time.Time, data any,
) (*nats.Msg, error) {
	subject := e.Cell.Admission(j.ProjectID, j.JobID, name)
	made, err := event.New(event.Attributes{
		Type: event.TypePrefix + "admission." + name + ".v1", Source: event.ServiceSource(string(e.Cell), "admission"),
		Subject: strconv.FormatInt(j.JobID, 10), ID: id, Time: at,
	}, data)
	if err != nil {
		return nil, fmt.Errorf("encode an event for %s: %w", subject, err)
	}
	header := nats.Header{}
	telemetry.Inject(ctx, header)
	if parent := header[event.TraceParent]; len(parent) > 0 {
		made.SetExtension(event.TraceParent, parent[0])
	}
	m, err := event.Encode(made, subject)
	if err != nil {
		return nil, fmt.Errorf("encode an event for %s: %w", subject, err)
	}
	return m, nil
}

func prerequisite(p decide.Prerequisite, position int) events.AdmissionPrerequisite {
	out := events.AdmissionPrerequisite{
		ControllerID: int(p.ControllerID), ControllerRevision: int(p.Revision), Name: p.Name,
		Level: events.AdmissionLevel(p.Level), Position: position, State: events.AdmissionState(p.State), DryRun: p.DryRun,
		Attempt: p.Attempt, Reason: p.Reason, AddedTags: p.Diff.AddedTags, RemovedTags: p.Diff.RemovedTags,
		AcceptedRunnerIds: ints(p.Diff.AcceptedRunners), RejectedRunnerIds: ints(p.Diff.RejectedRunners),
	}
	if !p.AskedAt.IsZero() {
		out.AskedAt = &p.AskedAt
		if p.Decided {
			out.DurationMs = int(max(p.At.Sub(p.AskedAt), 0).Milliseconds())
		}
	}
	return out
}

func ints(ids []int64) []int {
	var out []int
	for _, id := range ids {
		out = append(out, int(id))
	}
	return out
}

// without returns the items of a sorted list that the other one does not have.
func without(list, other []string) []string {
	var out []string
	for _, item := range list {
		if !slices.Contains(other, item) {
			out = append(out, item)
		}
	}
	slices.Sort(out)
	return out
}
