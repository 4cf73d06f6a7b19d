package environment

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/services/deploys/rollout"
)

// Annotations that say more of a group; each member may bear them.
const (
	// AnnotationSize is how many workloads make the group.
	AnnotationSize = "lockstep.dev/deploy-group-size"
	// AnnotationMembers are their names, or <kind>/<name>, separated by commas.
	AnnotationMembers = "lockstep.dev/deploy-group-members"
	// AnnotationScope is cluster for a group of workloads of several namespaces.
	AnnotationScope = "lockstep.dev/deploy-group-scope"
	// AnnotationCommit is what the workload was made from.
	AnnotationCommit = "lockstep.dev/commit"
	// AnnotationURL is where the environment can be reached.
	AnnotationURL = "lockstep.dev/url"
)

// maxName of a group, in bytes: it becomes a part of subjects. What is longer names none.
const maxName = 253

const (
	defaultLabel  = "lockstep.dev/deploy-group"
	defaultSettle = 30 * time.Second
)

// Rules that an operator sets.
type Rules struct {
	// Label that groups workloads, an annotation of the same name does too; defaults to
	// lockstep.dev/deploy-group.
	Label string
	// Settle is how long nothing may be heard of a group whose size nobody says, or whose members
	// name several commits, before it counts as whole; defaults to 30 s.
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

// Input is news of one member, or a tick when Member is nil.
type Input struct {
	AgentID    int64
	ObservedAt time.Time
	Member     *Member
}

// Member is how one workload of an environment stands.
type Member struct {
	Workload rollout.Key `json:"workload"`
	// State is [rollout.Running], [rollout.Completed] or [rollout.Failed]; empty for a member that
	// is none any more.
	State string `json:"state,omitempty"`
	// Unselected says of such a one that it is still there.
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

// same says that nothing of the member is news. What is empty and what is not there are the same:
// it goes through JSON.
func (m Member) same(o Member) bool {
	return m.Workload == o.Workload && m.State == o.State && m.RolloutID == o.RolloutID && m.Reconstructed == o.Reconstructed && m.Commit == o.Commit &&
		m.Size == o.Size && slices.Equal(m.Names, o.Names) && slices.Equal(m.Images, o.Images) && maps.Equal(m.Labels, o.Labels) &&
		maps.Equal(m.Annotations, o.Annotations)
}

// Change is an input and the environment it concerns.
type Change struct {
	Key   Key
	Input Input
}

// Changes gives what the step of a workload from one state to the next means to environments:
// nothing, one input, or, when it went from one group to another, two.
func (r Rules) Changes(before, after rollout.State) []Change {
	at := after.At
	was, old, had := r.member(before)
	is, now, has := r.member(after)
	var changes []Change
	if had && (!has || was != is) {
		gone := Member{Workload: old.Workload, Unselected: after.Standing().Unselected || has || after.Present()}
		changes = append(changes, Change{Key: was, Input: Input{AgentID: after.AgentID, ObservedAt: at, Member: &gone}})
	}
	if has && (!had || was != is || !now.same(old)) {
		changes = append(changes, Change{Key: is, Input: Input{AgentID: after.AgentID, ObservedAt: at, Member: &now}})
	}
	return changes
}

// member of an environment that the workload is, if it is one.
func (r Rules) member(s rollout.State) (Key, Member, bool) {
	standing := s.Standing()
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
