package runner

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Limits of settings.
const (
	// MaxTags of a runner, and MaxTag, the length of one in bytes.
	MaxTags = 50
	MaxTag  = 255
	// MaxText of a description and of a maintenance note, in bytes.
	MaxText = 1 << 10
	// MaxTimeout of jobs.
	MaxTimeout = 30 * 24 * time.Hour
	// MaxProjects of a runner, and MaxServed, the users or groups that it serves.
	MaxProjects = 1000
	MaxServed   = 1000
)

// Settings of a runner, which its users change.
type Settings struct {
	Description     string
	MaintenanceNote string
	// Tags that jobs ask for, sorted and without duplicates.
	Tags []string
	// RunUntagged: the runner takes jobs without tags, too.
	RunUntagged bool
	// Locked: a runner of projects cannot be linked to more of them.
	Locked bool
	// Protected: the runner takes protected jobs only.
	Protected bool
	// Paused: the runner takes no jobs.
	Paused bool
	// MaximumTimeout of jobs on the runner, in whole seconds; 0 for none.
	MaximumTimeout time.Duration
	// UserIDs and GroupIDs are those that the runner serves, for admission. None means all.
	UserIDs, GroupIDs []int64
}

// Normalized returns the settings with sorted tags and ids, without duplicates and without blank tags.
func (s Settings) Normalized() Settings {
	tags := make([]string, 0, len(s.Tags))
	for _, tag := range s.Tags {
		if tag = strings.TrimSpace(tag); tag != "" {
			tags = append(tags, tag)
		}
	}
	s.Tags, s.UserIDs, s.GroupIDs = sorted(tags), sorted(s.UserIDs), sorted(s.GroupIDs)
	return s
}

// sorted returns a sorted copy without duplicates; nil for none.
func sorted[T int64 | string](values []T) []T {
	if len(values) == 0 {
		return nil
	}
	values = slices.Clone(values)
	slices.Sort(values)
	return slices.Compact(values)
}

// Validate returns the fault invalid_argument with the errors of all fields, or nil. The settings are normalized.
func (s Settings) Validate() error {
	var p problems
	p.text("description", s.Description, MaxText)
	p.text("maintenance_note", s.MaintenanceNote, MaxText)
	if len(s.Tags) > MaxTags {
		p.addf("tags", "%d tags are more than %d", len(s.Tags), MaxTags)
	}
	for _, tag := range s.Tags {
		p.text("tags", tag, MaxTag)
		if strings.Contains(tag, ",") {
			p.addf("tags", "a tag contains a comma: use one tag for each")
		}
	}
	if len(s.Tags) == 0 && !s.RunUntagged {
		p.addf("tags", "the runner has no tags and takes no jobs without tags: add a tag, or set run_untagged")
	}
	switch {
	case s.MaximumTimeout < 0 || s.MaximumTimeout > MaxTimeout:
		p.addf("maximum_timeout", "%s is not between 0 and %s", s.MaximumTimeout, MaxTimeout)
	case s.MaximumTimeout%time.Second != 0:
		p.addf("maximum_timeout", "%s is not in whole seconds", s.MaximumTimeout)
	}
	p.ids("user_ids", s.UserIDs)
	p.ids("group_ids", s.GroupIDs)
	return p.err("the runner")
}

// problems collects one error for each field.
type problems struct {
	fields   []string
	messages map[string]string
}

func (p *problems) addf(field, format string, args ...any) {
	if _, known := p.messages[field]; known {
		return
	}
	if p.messages == nil {
		p.messages = map[string]string{}
	}
	p.fields = append(p.fields, field)
	p.messages[field] = fmt.Sprintf(format, args...)
}

// text checks what PostgreSQL and JSON can store.
func (p *problems) text(field, text string, limit int) {
	switch {
	case len(text) > limit:
		p.addf(field, "a text of %d bytes is longer than %d", len(text), limit)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		p.addf(field, "a text is not UTF-8, or has a NUL")
	}
}

func (p *problems) ids(field string, ids []int64) {
	if len(ids) > MaxServed {
		p.addf(field, "%d ids are more than %d", len(ids), MaxServed)
	}
	for _, id := range ids {
		if id <= 0 {
			p.addf(field, "%d is not an id", id)
		}
	}
}

func (p *problems) err(what string) error {
	if len(p.fields) == 0 {
		return nil
	}
	parts := make([]string, len(p.fields))
	for i, field := range p.fields {
		parts[i] = field + ": " + p.messages[field]
	}
	e := fault.New(errcode.InvalidArgument, "%s is not valid: %s", what, strings.Join(parts, "; "))
	e.Details = p.messages
	return e
}
