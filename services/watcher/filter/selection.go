package filter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"lockstep.internal/services/watcher/object"
)

// digestBytes is the length of a selection's digest: the beginning of its SHA-256.
const digestBytes = 8

// Selection selects the workloads to track by namespace and labels.
type Selection struct {
	namespaces []string // sorted; none for all
	selector   labels.Selector
}

// NewSelection selects by namespaces, none for all, and by a label selector, empty for all.
func NewSelection(namespaces []string, selector string) (Selection, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return Selection{}, fmt.Errorf("label selector: %w", err)
	}
	sorted := slices.Sorted(slices.Values(namespaces))
	return Selection{namespaces: slices.Compact(sorted), selector: parsed}, nil
}

// Namespaces returns the namespaces, none for all.
func (s Selection) Namespaces() []string { return slices.Clone(s.namespaces) }

// Selects reports whether a workload with these labels is selected. The caller checks the namespace. Objects of
// workspaces, of any agent, are never selected.
func (s Selection) Selects(l map[string]string) bool {
	_, isWorkspace := l[object.LabelAgent]
	return !isWorkspace && s.selector.Matches(labels.Set(l))
}

// Digest is equal for selections with equal settings.
func (s Selection) Digest() string {
	// Names of namespaces have neither spaces nor line ends.
	sum := sha256.Sum256([]byte(strings.Join(s.namespaces, " ") + "\n" + s.selector.String()))
	return hex.EncodeToString(sum[:digestBytes])
}
