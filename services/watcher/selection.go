package watcher

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"lockstep.internal/services/watcher/kube"
)

// Selection says which workloads are followed.
type Selection struct {
	namespaces []string // sorted; none for all
	selector   labels.Selector
}

// NewSelection selects by namespaces, none for all, and by a label selector, empty for everything.
func NewSelection(namespaces []string, selector string) (Selection, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return Selection{}, fmt.Errorf("label selector: %w", err)
	}
	sorted := slices.Sorted(slices.Values(namespaces))
	return Selection{namespaces: slices.Compact(sorted), selector: parsed}, nil
}

// Selects tells by its labels whether a workload in one of the namespaces is followed. The objects of workspaces never are, whoever's they are: what
// becomes of those is told otherwise.
func (s Selection) Selects(l map[string]string) bool {
	_, isWorkspace := l[LabelAgent]
	return !isWorkspace && s.selector.Matches(labels.Set(l))
}

// Digest is equal for settings that select the same in the same words.
func (s Selection) Digest() string {
	// Names of namespaces have neither spaces nor line ends.
	sum := sha256.Sum256([]byte(strings.Join(s.namespaces, " ") + "\n" + s.selector.String()))
	return hex.EncodeToString(sum[:digestBytes])
}

// scope is what is watched for it.
func (s Selection) scope(annotations []string) kube.Scope {
	return kube.Workloads(kube.Following{Namespaces: s.namespaces, Selects: s.Selects, Annotations: annotations})
}
