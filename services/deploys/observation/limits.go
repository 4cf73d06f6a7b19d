package observation

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Limits of the texts in an observation. Cluster users choose these texts; without limits, a fact could exceed the
// message size of NATS. A longer value is truncated, the same way each time, and the rollout is still reported.
const (
	// maxKeyBytes limits each value that becomes part of a key.
	maxKeyBytes = 253
	// maxMapBytes limits the total size of labels, and of annotations.
	maxMapBytes     = 16 << 10
	maxImages       = 64
	maxImageBytes   = 512
	maxConditions   = 20
	maxMessageBytes = 2 << 10
	maxReasonBytes  = 500
	// maxVersionDigits is larger than the length of any real resource version.
	maxVersionDigits = 39
)

// limitWorkload truncates the texts and lists in w that exceed a limit.
func limitWorkload(w *events.ObservedWorkload) {
	limitMap(w.Object.Labels)
	limitMap(w.Object.Annotations)
	limitText(&w.Strategy, maxKeyBytes)
	w.Conditions = w.Conditions[:min(len(w.Conditions), maxConditions)]
	for i := range w.Conditions {
		c := &w.Conditions[i]
		for _, text := range []*string{&c.Type, &c.Status, &c.Reason} {
			limitText(text, maxKeyBytes)
		}
		limitText(&c.Message, maxMessageBytes)
	}
	t := w.Template
	if t == nil {
		return
	}
	limitMap(t.Labels)
	limitMap(t.Annotations)
	for _, text := range []*string{&t.ChangedBy, &t.Digest, &t.RestartedAt} {
		limitText(text, maxKeyBytes)
	}
	t.Images = t.Images[:min(len(t.Images), maxImages)]
	for i := range t.Images {
		limitText(&t.Images[i].Container, maxKeyBytes)
		limitText(&t.Images[i].Image, maxImageBytes)
	}
}

func limitText(text *string, limit int) {
	if len(*text) > limit {
		*text = strings.ToValidUTF8((*text)[:limit], "")
	}
}

// limitMap deletes the largest entries until the rest fits.
func limitMap(entries map[string]string) {
	total := 0
	for key, value := range entries {
		total += len(key) + len(value)
	}
	if total <= maxMapBytes {
		return
	}
	size := func(key string) int { return len(key) + len(entries[key]) }
	largestFirst := slices.SortedFunc(maps.Keys(entries), func(a, b string) int {
		return cmp.Or(size(b)-size(a), strings.Compare(a, b))
	})
	for _, key := range largestFirst {
		if total <= maxMapBytes {
			return
		}
		total -= size(key)
		delete(entries, key)
	}
}

// checkKey checks a value that becomes part of a key.
func checkKey(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s: is empty", field)
	}
	return checkOptionalKey(field, value)
}

func checkOptionalKey(field, value string) error {
	if len(value) > maxKeyBytes {
		return fmt.Errorf("%s: has %d bytes, the limit is %d", field, len(value), maxKeyBytes)
	}
	return nil
}

// checkName checks the name of a Kubernetes object: lowercase letters, digits, and dashes and dots inside.
func checkName(field, value string) error {
	if err := checkKey(field, value); err != nil {
		return err
	}
	for i := range len(value) {
		switch c := value[i]; {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
		case (c == '-' || c == '.') && 0 < i && i < len(value)-1:
		default:
			return fmt.Errorf("%s %.80q: not a Kubernetes object name", field, value)
		}
	}
	return nil
}

// checkVersion checks that a resource version can be ordered: decimal, without leading zeros.
func checkVersion(field, value string) error {
	tooLong := len(value) > maxVersionDigits
	leadingZero := len(value) > 1 && value[0] == '0'
	if value == "" || tooLong || leadingZero || strings.Trim(value, "0123456789") != "" {
		return fmt.Errorf("%s %.80q: not a decimal resource version", field, value)
	}
	return nil
}

// checkTimes checks that each given time lies between the years 1970 and 9998. PostgreSQL can store these times.
func checkTimes(fields string, times ...*time.Time) error {
	for _, t := range times {
		if t != nil && (t.Year() < 1970 || t.Year() >= 9999) {
			return errors.New(fields + ": missing, or outside of the years 1970 to 9998")
		}
	}
	return nil
}

// LowerVersion reports whether resource version a is lower than b.
func LowerVersion(a, b string) bool {
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return a < b
}
