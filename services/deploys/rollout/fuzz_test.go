package rollout_test

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// randomInput returns an input with random values, which no cluster produces.
func randomInput(rng *rand.Rand, kind string, now time.Time) rollout.Input {
	small := func() int { return rng.IntN(5) }
	name := func() string { return []string{"", "web-a", "web-b", "web-c"}[rng.IntN(4)] }
	meta := func(object string) events.ObjectMeta {
		created := now.Add(-time.Duration(rng.IntN(1e6)) * time.Millisecond)
		m := events.ObjectMeta{
			ClusterUID: "cluster", Namespace: "shop", Name: object, UID: "u" + strconv.Itoa(rng.IntN(4)), ObservedAt: now,
			CreatedAt:       &created,
			ResourceVersion: strconv.Itoa(rng.IntN(400)), Verb: events.VerbUpserted, FirstSeen: rng.IntN(4) == 0,
		}
		if rng.IntN(12) == 0 {
			m.Verb = events.VerbDeleted
		}
		if rng.IntN(30) == 0 {
			m.DeletedAt = &now
		}
		if rng.IntN(40) == 0 {
			m.ResourceVersion = []string{"", "x", "007"}[rng.IntN(3)]
		}
		return m
	}
	in := rollout.Input{AgentID: int64(rng.IntN(2)), ObservedAt: now, HasBaseline: rng.IntN(2) == 0}
	if rng.IntN(60) == 0 {
		in.Epoch = 1
	}
	switch rng.IntN(8) {
	case 0:
	case 1:
		in.Absence = &rollout.Absence{ListVersion: strconv.Itoa(rng.IntN(400))}
	case 2, 3, 4:
		history := []int{small(), small()}
		in.Revision = &events.ObservedWorkloadRevision{
			Object: meta(name()), Workload: "web", WorkloadUID: "u" + strconv.Itoa(rng.IntN(4)), Revision: rng.IntN(9),
			RevisionHistory: history, TemplateHash: name(),
		}
	default:
		w := &events.ObservedWorkload{
			Object: meta("web"), Kind: events.WorkloadKind(kind), Unselected: rng.IntN(30) == 0,
			SkippedVersions: max(0, small()-2),
			Generation:      rng.IntN(9), ObservedGeneration: rng.IntN(9), Paused: rng.IntN(5) == 0,
			Strategy:  []string{"RollingUpdate", "Recreate", "OnDelete"}[rng.IntN(3)],
			Partition: rng.IntN(3), Revision: rng.IntN(9), TemplateGeneration: rng.IntN(9), CurrentRevision: name(),
			UpdateRevision: name(), HasStatus: true,
			Replicas: small(), UpdatedReplicas: small(), ReadyReplicas: small(), AvailableReplicas: small(),
			TerminatingReplicas: new(small()),
		}
		if rng.IntN(2) == 0 {
			w.SpecReplicas = new(rng.IntN(4))
			w.Replicas, w.UpdatedReplicas, w.ReadyReplicas, w.AvailableReplicas = *w.SpecReplicas, *w.SpecReplicas,
				*w.SpecReplicas, *w.SpecReplicas
		}
		if rng.IntN(9) > 0 {
			w.Template = template{image: name(), restartedAt: name()}.observed(now)
		}
		if rng.IntN(30) == 0 {
			w.Revision = 1 << 50
			w.TemplateGeneration = 1 << 50
		}
		w.Conditions = []events.Condition{{
			Type: []string{"Progressing", "ReplicaFailure"}[rng.IntN(2)], Status: []string{"True", "False"}[rng.IntN(2)],
			Reason:  []string{"ProgressDeadlineExceeded", "NewReplicaSetAvailable", "ReplicaSetCreateError"}[rng.IntN(3)],
			Message: `ReplicaSet "` + name() + `"`, LastUpdateTime: &now,
		}}
		in.Workload = w
	}
	return in
}

// randomPods returns a list of pods with random values.
func randomPods(rng *rand.Rand, now time.Time) rollout.Input {
	pod := events.WaitingPod{Name: "web-x"}
	if rng.IntN(3) == 0 {
		pod.Conditions = []events.Condition{{Type: "PodScheduled", Status: "False", Reason: "Unschedulable"}}
	} else {
		pod.Containers = []events.ContainerState{{
			Name: "main", State: events.ContainerStatusWaiting,
			Reason: []string{"CrashLoopBackOff", "ErrImagePull", "ContainerCreating"}[rng.IntN(3)],
		}}
	}
	return rollout.Input{AgentID: 7, ObservedAt: now, Pods: &events.ObservedWorkloadPods{
		Object: events.ObjectMeta{
			ClusterUID: "cluster", Namespace: "shop", Name: "web", UID: "u" + strconv.Itoa(rng.IntN(4)), ObservedAt: now,
			ResourceVersion: strconv.Itoa(rng.IntN(400)),
		},
		RevisionName: []string{"web-a", "web-b", "web-c", "1", "2"}[rng.IntN(5)],
		ListVersion:  []string{strconv.Itoa(rng.IntN(1000)), "x", ""}[rng.IntN(3)],
		Pods:         []events.WaitingPod{pod},
	}}
}

// FuzzAdvance applies random inputs. Advance does not panic. The size of the state is limited, and the state
// round-trips through JSON. No rollout starts or ends twice, or ends before it starts.
func FuzzAdvance(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind byte) {
		checkRandomInputs(t, seed, kind, func(*cluster, time.Time) {})
	})
}

// checkRandomInputs applies random inputs and checks the state after each. It calls afterInput after each of them.
func checkRandomInputs(t *testing.T, seed uint64, kind byte, afterInput func(c *cluster, now time.Time)) *cluster {
	rng, lists := rand.New(rand.NewPCG(seed, 11)), rand.New(rand.NewPCG(seed, 17))
	c := &cluster{fixture: newFixture(t, kinds()[int(kind)%3], seed)}
	now := startTime
	for range 150 {
		now = now.Add(time.Duration(rng.IntN(20_000)) * time.Millisecond)
		c.deliver(randomInput(rng, c.kind, now))
		c.deliver(randomPods(lists, now))
		raw := encode(t, c.state)
		require.Less(t, len(raw), 120_000)
		var back rollout.State
		require.NoError(t, json.Unmarshal([]byte(raw), &back))
		require.Equal(t, raw, encode(t, back))
		if wake := c.state.Wake(); !wake.IsZero() && rng.IntN(3) == 0 {
			c.deliver(rollout.Input{AgentID: 7, ObservedAt: wake})
		}
		afterInput(c, now)
	}
	c.checkFacts()
	return c
}

// FuzzRelease checks the same when the cluster is released to other projects. A rollout in flight then ends and has no
// further facts.
func FuzzRelease(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind byte) {
		releases := rand.New(rand.NewPCG(seed, 13))
		var at []int // number of facts after each release
		c := checkRandomInputs(t, seed, kind, func(c *cluster, now time.Time) {
			if releases.IntN(20) > 0 {
				return
			}
			before := len(c.facts)
			c.deliver(rollout.Input{ObservedAt: now, Released: true})
			require.False(t, c.state.InFlight())
			require.True(t, c.state.Wake().IsZero())
			for _, fact := range c.facts[before:] {
				require.Contains(t, []events.Fact{events.FactGap, events.FactUnknown}, fact.Fact)
			}
			serial := c.state.Serial
			c.deliver(rollout.Input{ObservedAt: now, Released: true})
			require.Equal(t, serial, c.state.Serial, "a repeated release has no effect")
			at = append(at, len(c.facts))
		})
		earlier, last := map[string]bool{}, 0
		for _, until := range append(at, len(c.facts)) {
			for _, fact := range c.facts[last:until] {
				require.False(t, fact.Rollout != nil && earlier[fact.Rollout.ID], "%s of a rollout of a previous project",
					fact.Fact)
			}
			for _, fact := range c.facts[last:until] {
				if fact.Rollout != nil {
					earlier[fact.Rollout.ID] = true
				}
			}
			last = until
		}
	})
}
