package natsconn

import (
	"errors"
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

// violation is a permission violation.
type violation struct {
	operation string // publish or subscription; empty if the server's message has an unknown format
	subject   string
	count     uint64
	last      time.Time
	message   string // the server's
}

type violations struct {
	mu    sync.Mutex
	kept  []violation
	total map[string]uint64 // by operation
}

var violationText = regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "([^"]*)"`)

func violationOf(err error) violation {
	found := violation{count: 1, message: err.Error()}
	if match := violationText.FindStringSubmatch(err.Error()); match != nil {
		found.operation, found.subject = strings.ToLower(match[1]), match[2]
	}
	return found
}

func (v violation) String() string {
	if v.operation == "" {
		return "NATS denied a permission: " + v.message
	}
	return fmt.Sprintf("NATS denied %s of %s", v.operation, v.subject)
}

func (v *violations) add(err error, now time.Time) {
	found := violationOf(err)
	found.last = now
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.total == nil {
		v.total = map[string]uint64{}
	}
	v.total[found.operation]++
	for i := range v.kept {
		if v.kept[i].operation == found.operation && v.kept[i].subject == found.subject {
			found.count = v.kept[i].count + 1
			v.kept[i] = found
			return
		}
	}
	if len(v.kept) == maxViolations {
		oldest := slices.MinFunc(v.kept, func(a, b violation) int { return a.last.Compare(b.last) })
		v.kept = slices.DeleteFunc(v.kept, func(x violation) bool { return x == oldest })
	}
	v.kept = append(v.kept, found)
}

// latest returns the latest violation, if there is one.
func (v *violations) latest() (latest violation, found bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.kept) == 0 {
		return violation{}, false
	}
	return slices.MaxFunc(v.kept, func(a, b violation) int { return a.last.Compare(b.last) }), true
}

func (v *violations) totals() map[string]uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.total)
}

// PermissionDenied returns the latest violation of the last five minutes as an error, or nil.
func (c *Conn) PermissionDenied() error {
	latest, found := c.violations.latest()
	if !found || time.Since(latest.last) > violationTTL {
		return nil
	}
	if latest.operation == "" {
		return errors.New(latest.String())
	}
	return fmt.Errorf("%s, %d times, last at %s; give the user this permission or use another subject",
		latest, latest.count, latest.last.UTC().Format(time.RFC3339))
}
