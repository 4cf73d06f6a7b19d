package environment

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/services/deploys/rollout"
)

// Annotations of a group, on any of its members.
const (
	// AnnotationSize is the number of workloads of the group.
	AnnotationSize = "lockstep.dev/deploy-group-size"
	// AnnotationMembers are their names, or <kind>/<name>, separated by commas.
	AnnotationMembers = "lockstep.dev/deploy-group-members"
	// AnnotationScope is cluster for a group that spans namespaces.
	AnnotationScope = "lockstep.dev/deploy-group-scope"
	// AnnotationCommit is the commit that the workload was built from.
	AnnotationCommit = "lockstep.dev/commit"
	// AnnotationURL is the URL of the environment.
	AnnotationURL = "lockstep.dev/url"
)

// maxName bounds the name of a group, in bytes, because it is a part of subjects. A longer name is
// ignored.
const maxName = 253

const (
	defaultLabel  = "lockstep.dev/deploy-group"
	defaultSettle = 30 * time.Second
)

// Rules are the settings of an operator.
type Rules struct {
	// Label, or annotation, that groups workloads. Defaults to lockstep.dev/deploy-group.
	Label string
	// Settle is how long a group without a size, or with several commits, must not change to be
	// complete. Defaults to 30 s.
	Settle time.Duration
}

func (r Rules) label() string {
	if r.Label == "" {
		return defaultLabel
	}
	return r.Label
}

func (r Rules) settle() time.Duration {
	if r.Settle <= 0 {
		return defaultSettle
	}
	return r.Settle
}

// Input is the state of one member, or a tick if Member is nil.
type Input struct {
	AgentID    int64
	ObservedAt time.Time
	Member     *Member
}

// Member is the state of one workload of an environment.
type Member struct {
	Workload rollout.Key `json:"workload"`
	// State is [rollout.Running], [rollout.Completed] or [rollout.Failed]; empty for a removed
	// member.
	State string `json:"state,omitempty"`
	// Unselected means that a removed member still exists.
	Unselected bool `json:"unselected,omitempty"`
	// RolloutID of its newest rollout.
	RolloutID     string `json:"rollout_id,omitempty"`
	Reconstructed bool   `json:"reconstructed,omitempty"`

	Commit      string            `json:"commit,omitempty"`
	Size        int               `json:"size,omitempty"`
	Names       []string          `json:"names,omitempty"`
	Images      []string          `json:"images,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// same reports whether two states of a member are equal. Empty and nil are equal, because JSON does
// not distinguish them.
func (m Member) same(o Member) bool {
	return m.Workload == o.Workload && m.State == o.State && m.RolloutID == o.RolloutID &&
		m.Reconstructed == o.Reconstructed && m.Commit == o.Commit && m.Size == o.Size &&
		slices.Equal(m.Names, o.Names) && slices.Equal(m.Images, o.Images) &&
		maps.Equal(m.Labels, o.Labels) && maps.Equal(m.Annotations, o.Annotations)
}

// Change is an input for one environment.
type Change struct {
	Key   Key
	Input Input
}

// Changes returns the inputs for environments that follow from a change of a workload: none, one,
// or two if it moved to another group.
func (r Rules) Changes(before, after rollout.State) []Change {
	at := after.At
	was, old, had := r.member(before)
	is, now, has := r.member(after)
	var changes []Change
	if had && (!has || was != is) {
		gone := Member{Workload: old.Workload, Unselected: after.Status().Unselected || has || after.Present()}
		changes = append(changes, Change{Key: was, Input: Input{AgentID: after.AgentID, ObservedAt: at, Member: &gone}})
	}
	if has && (!had || was != is || !now.same(old)) {
		changes = append(changes, Change{Key: is, Input: Input{AgentID: after.AgentID, ObservedAt: at, Member: &now}})
	}
	return changes
}

// member returns the workload as a member of its environment, and false if it has none.
func (r Rules) member(s rollout.State) (Key, Member, bool) {
	standing := s.Status()
	if standing.State == "" {
		return Key{}, Member{}, false
	}
	group := standing.Labels[r.label()]
	if group == "" {
		group = standing.Annotations[r.label()]
	}
	if group == "" || len(group) > maxName {
		return Key{}, Member{}, false
	}
	key := Key{ClusterUID: s.Key.ClusterUID, Namespace: s.Key.Namespace, Name: group}
	if standing.Annotations[AnnotationScope] == "cluster" {
		key.Namespace = ""
	}
	m := Member{
		Workload: s.Key, State: standing.State, RolloutID: standing.RolloutID, Reconstructed: standing.Reconstructed,
		Commit: standing.Annotations[AnnotationCommit], Labels: standing.Labels, Annotations: standing.Annotations,
	}
	if size, err := strconv.Atoi(standing.Annotations[AnnotationSize]); err == nil && size > 0 {
		m.Size = size
	}
	for name := range strings.SplitSeq(standing.Annotations[AnnotationMembers], ",") {
		if name = strings.TrimSpace(name); name != "" {
			m.Names = append(m.Names, name)
		}
	}
	for _, image := range standing.Images {
		m.Images = append(m.Images, image.Image)
	}
	return key, m, true
}
