package observed

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep.internal/schemas/gen/events"
)

// Whoever may write into a cluster decides on much of what is said of it, and must not make facts that no stream takes or states that no memory holds. What
// is longer than any honest object has is cut off, always in the same way: a rollout is told of all the same.
const (
	// maxTexts bounds the sum of the keys and values of labels, and of annotations, in bytes.
	maxTexts      = 16 << 10
	maxImages     = 64
	maxImage      = 512
	maxConditions = 20
	maxMessage    = 2 << 10
)

// named checks a name that the cluster has checked already, if it is one.
func named(field, value string) error {
	if err := token(field, value, 1); err != nil {
		return err
	}
	if !isName(value) {
		return fmt.Errorf("%s %.80q: is no name in Kubernetes", field, value)
	}
	return nil
}

// isName says whether Kubernetes lets these objects be called so: lower-case letters, digits, and in between them also dashes and dots.
func isName(value string) bool {
	for i := range len(value) {
		switch c := value[i]; {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
		case (c == '-' || c == '.') && 0 < i && i < len(value)-1:
		default:
			return false
		}
	}
	return value != ""
}

// clip is the beginning of a text.
func clip(text *string, most int) {
	if len(*text) > most {
		*text = strings.ToValidUTF8((*text)[:most], "")
	}
}

// lighten takes the largest entries out until the rest is small enough.
func lighten(texts map[string]string) {
	size := 0
	for key, value := range texts {
		size += len(key) + len(value)
	}
	if size <= maxTexts {
		return
	}
	weight := func(key string) int { return len(key) + len(texts[key]) }
	for _, key := range slices.SortedFunc(maps.Keys(texts), func(a, b string) int { return cmp.Or(weight(b)-weight(a), strings.Compare(a, b)) }) {
		if size <= maxTexts {
			return
		}
		size -= weight(key)
		delete(texts, key)
	}
}

// bound cuts off what is too long of a workload. Maps and templates are shared with observations that said the same before and may be being read: they were bounded
// then, and what is short enough is not written.
func bound(w *events.ObservedWorkload) {
	lighten(w.Object.Labels)
	lighten(w.Object.Annotations)
	clip(&w.Strategy, maxToken)
	w.Conditions = w.Conditions[:min(len(w.Conditions), maxConditions)]
	for i := range w.Conditions {
		c := &w.Conditions[i]
		for _, text := range []*string{&c.Type, &c.Status, &c.Reason} {
			clip(text, maxToken)
		}
		clip(&c.Message, maxMessage)
	}
	t := w.Template
	if t == nil {
		return
	}
	lighten(t.Labels)
	lighten(t.Annotations)
	for _, text := range []*string{&t.ChangedBy, &t.Digest, &t.RestartedAt} {
		clip(text, maxToken)
	}
	if len(t.Images) > maxImages {
		t.Images = t.Images[:maxImages]
	}
	for i := range t.Images {
		clip(&t.Images[i].Container, maxToken)
		clip(&t.Images[i].Image, maxImage)
	}
}
