package natsconn

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// violationTTL is the time for which PermissionDenied reports a violation.
	violationTTL = 5 * time.Minute
	// maxViolations bounds the stored violations; the oldest is removed first.
	maxViolations = 64
)

// Violation is a permission violation.
type Violation struct {
	Operation string // publish or subscription; empty if the server's message has an unknown format
	Subject   string
	Count     uint64
	Last      time.Time
	Message   string // the server's
}

type violations struct {
	mu    sync.Mutex
	kept  []Violation
	total map[string]uint64 // by operation
}

var violationText = regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "([^"]*)"`)

func (v *violations) add(err error, now time.Time) {
	found := Violation{Count: 1, Last: now, Message: err.Error()}
	if match := violationText.FindStringSubmatch(err.Error()); match != nil {
		found.Operation, found.Subject = strings.ToLower(match[1]), match[2]
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.total == nil {
		v.total = map[string]uint64{}
	}
	v.total[found.Operation]++
	for i := range v.kept {
		if v.kept[i].Operation == found.Operation && v.kept[i].Subject == found.Subject {
			found.Count = v.kept[i].Count + 1
			v.kept[i] = found
			return
		}
	}
	if len(v.kept) == maxViolations {
		oldest := slices.MinFunc(v.kept, func(a, b Violation) int { return a.Last.Compare(b.Last) })
		v.kept = slices.DeleteFunc(v.kept, func(x Violation) bool { return x == oldest })
	}
	v.kept = append(v.kept, found)
}

// list returns what is kept, the latest first.
func (v *violations) list() []Violation {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := slices.Clone(v.kept)
	slices.SortFunc(list, func(a, b Violation) int { return b.Last.Compare(a.Last) })
	return list
}

func (v *violations) totals() map[string]uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.total)
}

// Violations returns the permission violations since Connect, the latest first; at most 64 subjects.
func (c *Conn) Violations() []Violation { return c.violations.list() }

// PermissionDenied returns the latest violation of the last five minutes as an error, or nil.
func (c *Conn) PermissionDenied() error {
	list := c.violations.list()
	if len(list) == 0 || time.Since(list[0].Last) > violationTTL {
		return nil
	}
	latest := list[0]
	if latest.Operation == "" {
		return fmt.Errorf("NATS denied a permission: %s", latest.Message)
	}
	return fmt.Errorf("NATS denied %s of %s, %d times, last at %s; give the user this permission or use another subject",
		latest.Operation, latest.Subject, latest.Count, latest.Last.UTC().Format(time.RFC3339))
}
