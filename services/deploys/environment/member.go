package environment

import (
	"cmp"
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
	// AnnotationURL is the URL of the environment. It is ignored unless [WebURL] accepts it.
	AnnotationURL = "lockstep.dev/url"
)

// maxName is the maximum length of a group's name in bytes, because subjects contain the name. A longer name is
// ignored.
const maxName = 253

const (
	defaultLabel  = "lockstep.dev/deploy-group"
	defaultSettle = 30 * time.Second
)

// Rules are the settings from the configuration.
type Rules struct {
	// Label, or annotation, that groups workloads. Defaults to lockstep.dev/deploy-group.
	Label string
	// Settle is the time without changes after which a group without a size, or with several commits, is complete.
	// Defaults to 30 s.
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
	// Message explains the state [rollout.Failed].
	Message string `json:"message,omitempty"`
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

// explanation is why a failed member fails its environment.
func (m Member) explanation() string {
	return m.Workload.Kind + " " + m.Workload.Name + ": " + cmp.Or(m.Message, "does not complete")
}

// same reports whether two states of a member are equal. Empty and nil are equal, because JSON does
// not distinguish them. Another message is no change.
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

// Changes returns the inputs for environments that a change of a workload causes: none, one, or two if the workload
// moved to another group.
func (r Rules) Changes(before, after rollout.State) []Change {
	at := after.At
	oldKey, oldMember, existed := r.member(before)
	newKey, newMember, exists := r.member(after)
	moved := existed && exists && oldKey != newKey
	var changes []Change
	if existed && !exists || moved {
		removed := Member{
			Workload: oldMember.Workload, Unselected: after.Status().Unselected || exists || after.Present(),
		}
		changes = append(changes,
			Change{Key: oldKey, Input: Input{AgentID: after.AgentID, ObservedAt: at, Member: &removed}})
	}
	if exists && (!existed || moved || !newMember.same(oldMember)) {
		changes = append(changes,
			Change{Key: newKey, Input: Input{AgentID: after.AgentID, ObservedAt: at, Member: &newMember}})
	}
	return changes
}

// member returns the environment of a workload and the workload as its member. It returns false if the workload belongs
// to no environment.
func (r Rules) member(s rollout.State) (Key, Member, bool) {
	status := s.Status()
	if status.State == "" {
		return Key{}, Member{}, false
	}
	group := status.Labels[r.label()]
	if group == "" {
		group = status.Annotations[r.label()]
	}
	if group == "" || len(group) > maxName {
		return Key{}, Member{}, false
	}
	key := Key{ClusterUID: s.Key.ClusterUID, Namespace: s.Key.Namespace, Name: group}
	if status.Annotations[AnnotationScope] == "cluster" {
		key.Namespace = ""
	}
	m := Member{
		Workload: s.Key, State: status.State, Message: status.Message, RolloutID: status.RolloutID,
		Reconstructed: status.Reconstructed,
		Commit:        status.Annotations[AnnotationCommit], Labels: status.Labels, Annotations: status.Annotations,
	}
	if size, err := strconv.Atoi(status.Annotations[AnnotationSize]); err == nil && size > 0 {
		m.Size = size
	}
	for name := range strings.SplitSeq(status.Annotations[AnnotationMembers], ",") {
		if name = strings.TrimSpace(name); name != "" {
			m.Names = append(m.Names, name)
		}
	}
	for _, image := range status.Images {
		m.Images = append(m.Images, image.Image)
	}
	return key, m, true
}
