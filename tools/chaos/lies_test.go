package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/history"
)

// lie is a falsified recording that the judgement must notice.
type lie struct {
	name  string
	plant func(t *testing.T, r *Recording)
	found string // words of a finding
}

// lies are planted in the recording of a correct run.
var lies = []lie{
	{"a start is lost", func(t *testing.T, r *Recording) {
		r.drop(r.find(t, topology.FamilyDeploy, ".started", 0))
	}, "has sequence"},
	{"the end of a rollout is lost", func(t *testing.T, r *Recording) {
		r.drop(r.find(t, topology.FamilyDeploy, ".completed", 0))
	}, "has no end"},
	{"a removal is lost", func(t *testing.T, r *Recording) {
		r.drop(r.find(t, topology.FamilyDeploy, ".removed", 0))
	}, "is reported as deleted 0 times, want 1"},
	{"all facts of a workload are lost", func(t *testing.T, r *Recording) {
		subject, _, _ := strings.Cut(r.Messages[r.find(t, topology.FamilyDeploy, ".started", 0)].Subject, ".started")
		r.dropAll(func(m Message) bool { return strings.HasPrefix(m.Subject, subject+".") })
	}, "is missing"},
	{"a workload with traces is lost in an outage", func(t *testing.T, r *Recording) {
		fact, err := factOf(r.Messages[r.find(t, topology.FamilyDeploy, ".removed", 0)].Record)
		require.NoError(t, err)
		uid := []byte(fact.Workload.UID)
		r.dropAll(func(m Message) bool { return m.Family == topology.FamilyDeploy && bytes.Contains(m.Data, uid) })
		isLease := func(v history.ObjectVersion) bool {
			_, is := v.Object.(*coordinationv1.Lease)
			return is
		}
		first, last := r.Versions[slices.IndexFunc(r.Versions, isLease)], r.Versions[len(r.Versions)-1]
		next := first.Object.(*coordinationv1.Lease).DeepCopy()
		next.ResourceVersion, next.Spec.HolderIdentity = last.Object.GetResourceVersion(), new("another")
		r.Versions = append(slices.DeleteFunc(r.Versions, isLease), first, history.ObjectVersion{At: last.At, Object: next})
	}, "is missing"},
	{"a fact is published twice", func(t *testing.T, r *Recording) {
		at := r.find(t, topology.FamilyDeploy, ".completed", 0)
		r.Messages = slices.Insert(r.Messages, at, r.Messages[at])
	}, "has sequence"},
	{"two facts change places", func(t *testing.T, r *Recording) {
		at := r.find(t, topology.FamilyDeploy, ".started", 0)
		of, _, _ := strings.Cut(r.Messages[at].Subject, ".started")
		next := r.find(t, topology.FamilyDeploy, "", at+1, of+".")
		r.Messages[at], r.Messages[next] = r.Messages[next], r.Messages[at]
	}, "has sequence"},
	{"a rollout is invented", func(t *testing.T, r *Recording) {
		r.Versions = slices.DeleteFunc(r.Versions, func(v history.ObjectVersion) bool {
			set, is := v.Object.(*appsv1.ReplicaSet)
			return is && set.Namespace == workloadsNamespace && strings.HasPrefix(set.Name, "web-0-")
		})
	}, "did not happen"},
	{"a fact names another revision", func(t *testing.T, r *Recording) {
		at := r.find(t, topology.FamilyDeploy, ".completed", 0)
		r.edit(t, at, func(data map[string]any) {
			rollout := data["customData"].(map[string]any)["rollout"].(map[string]any)
			rollout["id"] = rollout["id"].(string) + "0"
		})
	}, "has not started"},
	{"a completed rollout is reported as superseded", func(t *testing.T, r *Recording) {
		at := r.find(t, topology.FamilyDeploy, ".completed", 0)
		r.Messages[at].Subject = strings.TrimSuffix(r.Messages[at].Subject, "completed") + "superseded"
		r.Messages[at].Header["ce-type"] = []string{"dev.cdeventsx.lockstep-rollout.superseded.0.1.0"}
		r.edit(t, at, func(data map[string]any) {
			data["customData"].(map[string]any)["fact"] = "superseded"
			data["context"].(map[string]any)["type"] = "dev.cdeventsx.lockstep-rollout.superseded.0.1.0"
			data["subject"].(map[string]any)["content"] = map[string]any{}
		})
	}, "unexpected end superseded"},
	{"an answered change is lost", func(t *testing.T, r *Recording) {
		r.drop(r.find(t, topology.FamilyWorkspace, ".desired_state_changed", 0))
	}, "goes from revision"},
	{"the last answered change is lost everywhere", func(t *testing.T, r *Recording) {
		last := r.Calls[slices.IndexFunc(r.Calls, func(c Call) bool { return c.Revision > 1 })].Workspace
		revision := 0
		for _, c := range r.Calls {
			if c.Workspace == last && !c.Refused {
				revision = c.Revision
			}
		}
		r.dropAll(func(m Message) bool {
			var e struct {
				WorkspaceID     string `json:"workspace_id"`
				DesiredRevision int    `json:"desired_revision"`
			}
			return json.Unmarshal(m.Data, &e) == nil && e.WorkspaceID == last && e.DesiredRevision >= revision
		})
	}, "which is not published"},
	{"a workspace is lost", func(t *testing.T, r *Recording) {
		id := []byte(r.Desired[0].Workspace)
		r.dropAll(func(m Message) bool { return bytes.Contains(m.Data, id) })
		r.Versions = slices.DeleteFunc(r.Versions, func(v history.ObjectVersion) bool {
			return v.Object.GetLabels()[labelWorkspace] == string(id)
		})
	}, "which is not published"},
	{"a workspace changes before it is created", func(t *testing.T, r *Recording) {
		created := r.find(t, topology.FamilyWorkspace, ".created", 0)
		of, _, _ := strings.Cut(r.Messages[created].Subject, "created")
		next := r.find(t, topology.FamilyWorkspace, "", created+1, of)
		r.Messages[created], r.Messages[next] = r.Messages[next], r.Messages[created]
	}, "changes before it is created"},
	{"a restart completes before the stop", func(t *testing.T, r *Recording) {
		at := slices.IndexFunc(r.Messages, func(m Message) bool {
			return m.Family == topology.FamilyWorkspace && bytes.Contains(m.Data, []byte(`"restart_completed"`))
		})
		require.Positive(t, at, "no restart")
		stop := slices.IndexFunc(r.Messages, func(m Message) bool {
			return strings.HasPrefix(m.Subject, strings.TrimSuffix(r.Messages[at].Subject, "desired_state_changed")) &&
				bytes.Contains(m.Data, []byte(`"to":"stopped"`))
		})
		require.Positive(t, stop, "no stop")
		moved := r.Messages[at]
		r.Messages = slices.Insert(slices.Delete(r.Messages, at, at+1), stop, moved)
	}, "the restart completes before the workspace is stopped"},
	{"the last state is lost", func(t *testing.T, r *Recording) {
		last := -1
		for i, m := range r.Messages {
			of := "." + r.Desired[0].Workspace + ".state_changed"
			if m.Family == topology.FamilyWorkspace && strings.HasSuffix(m.Subject, of) {
				last = i
			}
		}
		require.Positive(t, last)
		r.drop(last)
	}, "its user was answered"},
	{"an event is published twice", func(t *testing.T, r *Recording) {
		at := r.find(t, topology.FamilyWorkspace, ".state_changed", 0)
		r.Messages = slices.Insert(r.Messages, at, r.Messages[at])
	}, "is published twice"},
	{"a revision is applied that nobody desired", func(t *testing.T, r *Recording) {
		at := slices.IndexFunc(r.Messages, func(m Message) bool { return m.Header.Get("ce-type") == events.TypeApplied })
		r.edit(t, at, func(data map[string]any) { data["desired_revision"] = 1000 })
	}, "is applied and was never desired"},
	{"a desired state is not sent", func(t *testing.T, r *Recording) {
		r.drop(r.find(t, topology.FamilyDesiredLog, "", 0))
	}, "is published and not sent"},
	{"a message is dead", func(t *testing.T, r *Recording) {
		dead := r.Messages[r.find(t, topology.FamilyApplied, "", 0)]
		dead.Family = topology.FamilyDead
		r.Messages = append(r.Messages, dead)
	}, "stream DEAD has a message"},
	{"an event contains a secret", func(t *testing.T, r *Recording) {
		r.edit(t, r.find(t, topology.FamilyDesiredLog, "", 0), func(data map[string]any) { data["name"] = r.Secrets[0] })
	}, "contains the secret"},
	{"the cluster has another setting", func(t *testing.T, r *Recording) {
		at := slices.IndexFunc(r.Desired, func(d Desired) bool { return !d.Terminated })
		require.GreaterOrEqual(t, at, 0)
		r.Desired[at].Number += "0"
	}, "the cluster has"},
	{"the cluster keeps a terminated workspace", func(t *testing.T, r *Recording) {
		r.Desired[0].Terminated = !r.Desired[0].Terminated
	}, "terminated is"},
	{"the cluster has a workspace that nobody created", func(t *testing.T, r *Recording) {
		r.Desired = slices.DeleteFunc(r.Desired, func(d Desired) bool { return !d.Terminated })
	}, "which nobody created"},
	{"a volume was replaced", func(t *testing.T, r *Recording) {
		at := slices.IndexFunc(r.Versions, func(v history.ObjectVersion) bool {
			_, is := v.Object.(*corev1.PersistentVolumeClaim)
			return is
		})
		again := r.Versions[at]
		claim := again.Object.(*corev1.PersistentVolumeClaim).DeepCopy()
		claim.UID = types.UID("another")
		again.Object = claim
		r.Versions = append(r.Versions, again)
	}, "was created again"},
	{"a user has too many workspaces", func(_ *testing.T, r *Recording) {
		for range workspacesPerUser + 1 {
			r.Calls = append(r.Calls, Call{User: "user-0", Created: true, Call: history.Call{Refused: true}})
		}
	}, "the quota is"},
	{"a quota refuses too early", func(_ *testing.T, r *Recording) {
		r.Calls = append(r.Calls, Call{User: "somebody", OverQuota: true, Call: history.Call{Refused: true}})
	}, "is refused a workspace by the quota"},
	{"another agent answers", func(_ *testing.T, r *Recording) { r.Relayed[0].Agent += "-other" }, "is answered with"},
	{"another request is answered", func(_ *testing.T, r *Recording) {
		r.Relayed[0].Answer = r.Relayed[len(r.Relayed)-1].Answer
	}, "is answered with"},
}

// requireLiesFound plants each lie in a copy of the recording. Of the observations, which make the most messages, it
// keeps the traces of rollouts.
func requireLiesFound(t *testing.T, recording Recording) {
	t.Helper()
	recording.dropAll(func(m Message) bool {
		return m.Family == topology.FamilyObserved && m.Header.Get("ce-type") != events.TypeObservedWorkloadRevision
	})
	require.Empty(t, Judge(recording))
	for _, l := range lies {
		t.Run(l.name, func(t *testing.T) {
			falsified := recording.clone()
			l.plant(t, &falsified)
			found := Judge(falsified)
			require.True(t, slices.ContainsFunc(found, func(finding string) bool { return strings.Contains(finding, l.found) }),
				"no finding has %q: %v", l.found, found)
		})
	}
}

// clone copies what lies change.
func (r *Recording) clone() Recording {
	c := *r
	c.Calls, c.Desired, c.Relayed = slices.Clone(r.Calls), slices.Clone(r.Desired), slices.Clone(r.Relayed)
	c.Versions, c.Messages = slices.Clone(r.Versions), slices.Clone(r.Messages)
	return c
}

// find returns the first message from an index on with the suffix, and the prefix if one is given.
func (r *Recording) find(t *testing.T, family, suffix string, from int, prefix ...string) int {
	t.Helper()
	for i := from; i < len(r.Messages); i++ {
		m := r.Messages[i]
		isOurs := family != topology.FamilyDeploy || strings.Contains(m.Subject, "."+workloadsNamespace+".")
		if m.Family == family && isOurs && strings.HasSuffix(m.Subject, suffix) &&
			(len(prefix) == 0 || strings.HasPrefix(m.Subject, prefix[0])) {
			return i
		}
	}
	require.Fail(t, "the recording has no such message", "%s %s %v", family, suffix, prefix)
	return -1
}

func (r *Recording) drop(at int) { r.Messages = slices.Delete(r.Messages, at, at+1) }

func (r *Recording) dropAll(which func(Message) bool) {
	r.Messages = slices.DeleteFunc(r.Messages, which)
}

// edit changes the data of a message.
func (r *Recording) edit(t *testing.T, at int, change func(data map[string]any)) {
	t.Helper()
	var data map[string]any
	require.NoError(t, json.Unmarshal(r.Messages[at].Data, &data))
	change(data)
	raw, err := json.Marshal(data)
	require.NoError(t, err)
	r.Messages[at].Data = raw
}
