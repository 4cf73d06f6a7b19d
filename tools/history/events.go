package history

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// Events checks each message of a stream: its type fits its subject, its source may write there, no
// public event is published twice, and no workspace's desired revision decreases.
func Events(cell topology.Cell, stream topology.Stream, records []Record) Findings {
	var f Findings
	c := eventCheck{
		cell:     cell,
		stream:   stream,
		subjects: map[string]*regexp.Regexp{},
		last:     map[string]int{},
		ids:      map[string]bool{},
	}
	for _, r := range records {
		if err := c.check(r); err != nil {
			f.addf("%s, sequence %d, %s: %v", stream.Name, r.Sequence, r.Subject, err)
		}
	}
	return f
}

type eventCheck struct {
	cell     topology.Cell
	stream   topology.Stream
	subjects map[string]*regexp.Regexp // by type
	last     map[string]int            // desired revision by workspace
	ids      map[string]bool           // of events, with their source
}

func (c *eventCheck) check(r Record) error {
	e, err := event.Decode(r.Header, r.Data)
	if err != nil {
		return fmt.Errorf("is no event: %w", err)
	}
	if err := events.Validate(e.Type(), e.Data()); err != nil {
		return fmt.Errorf("does not fit its schema: %w", err)
	}
	subject := c.subjects[e.Type()]
	if subject == nil {
		known, _ := events.Lookup(e.Type())
		subject = subjectPattern(c.cell, known.Subjects, c.stream.Family)
		c.subjects[e.Type()] = subject
	}
	if !subject.MatchString(r.Subject) {
		return fmt.Errorf("is no subject of %s", e.Type())
	}
	writer, err := writerOf(c.cell, r.Subject)
	if err != nil {
		return err
	}
	if writer != e.Source() {
		return fmt.Errorf("was written by %s, but only %s may write it", e.Source(), writer)
	}
	key := e.Source() + " " + e.ID()
	if c.stream.Name == topology.StreamWorkspaces && c.ids[key] {
		return fmt.Errorf("event %s is published twice", key)
	}
	c.ids[key] = true

	var data struct {
		WorkspaceID     string `json:"workspace_id"`
		DesiredRevision int    `json:"desired_revision"`
	}
	if err := json.Unmarshal(e.Data(), &data); err != nil {
		return fmt.Errorf("is no object: %w", err)
	}
	if data.DesiredRevision == 0 {
		return nil
	}
	if last := c.last[data.WorkspaceID]; data.DesiredRevision < last {
		return fmt.Errorf("the desired revision of workspace %s goes down from %d to %d", data.WorkspaceID, last,
			data.DesiredRevision)
	}
	c.last[data.WorkspaceID] = data.DesiredRevision
	return nil
}

// subjectPattern returns the pattern of a type's subjects, with any token for their parameters.
func subjectPattern(cell topology.Cell, subjects []string, family string) *regexp.Regexp {
	patterns := make([]string, 0, len(subjects))
	for _, subject := range subjects {
		// The log of desired states is a copy with another name.
		_, rest, _ := strings.Cut(subject, ".")
		pattern := regexp.QuoteMeta(cell.Prefix(family) + "." + rest)
		patterns = append(patterns, regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(pattern, `[^.]+`))
	}
	return regexp.MustCompile("^(?:" + strings.Join(patterns, "|") + ")$")
}

// writerOf returns who may write on a subject: the agent on its own subjects, relays on those about
// connections, runners on those of jobs and runners, admission and the gateway on their own, state on all others.
func writerOf(cell topology.Cell, subject string) (string, error) {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return "", fmt.Errorf("read the subject: %w", err)
	}
	switch parsed.Family {
	case topology.FamilyObserved, topology.FamilyApplied:
		agent, err := parsed.Agent()
		if err != nil {
			return "", fmt.Errorf("read the subject: %w", err)
		}
		component := map[string]string{
			topology.FamilyObserved: "watcher",
			topology.FamilyApplied:  "dispatcher",
		}[parsed.Family]
		return event.AgentSource(string(cell), agent, component), nil
	case topology.FamilyAdmission:
		return event.ServiceSource(string(cell), "admission"), nil
	case topology.FamilyJob, topology.FamilyRunner:
		return event.ServiceSource(string(cell), "runners"), nil
	case topology.FamilyAgent, topology.FamilyAudit:
		return event.ServiceSource(string(cell), "relay"), nil
	case topology.FamilyActivity:
		return event.ServiceSource(string(cell), "gateway"), nil
	default:
		return event.ServiceSource(string(cell), "state"), nil
	}
}
