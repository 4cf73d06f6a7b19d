package e2e_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// TestForgedRollouts has an agent of another project, with real credentials, say of somebody else's cluster what its own watcher has said, and worse.
func TestForgedRollouts(t *testing.T) {
	t.Parallel()
	s := startWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}})
	victim := s.shopDeployment("forged", 2)
	victim.image(secondImage)
	facts := []string{"started 1", "completed 1", "started 2", "completed 2"}
	victim.requireFacts(facts...)
	// The last word on that rollout is that its old pods are gone.
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(victim.facts(), func(f events.DeployFact) bool { return f.Fact == events.FactDrained && f.Rollout.Revision == 2 })
	}, patience, clusterTick)
	before := s.records(topology.FamilyDeploy)

	api, err := s.Client()
	require.NoError(t, err)
	own, _, err := stack.RegisterAgent(t.Context(), api, s.newProject("forger"), "forger")
	require.NoError(t, err)
	s.secrets.add(own.Token)
	s.secrets.add(own.CurveSeed)
	i := s.intrude(own, "none")
	said := i.forges(strconv.FormatInt(s.agent, 10))
	require.Greater(t, said, 10)

	// Every lie is on DEAD and says why; nothing was told, and the owner goes on as if nothing had been.
	dead := stack.Cell.Prefix(topology.FamilyDead) + ".deploys.observed." + strconv.FormatInt(own.AgentID, 10) + "."
	lies := func() (found []record) {
		for _, r := range s.records(topology.FamilyDead) {
			if strings.HasPrefix(r.subject, dead) {
				found = append(found, r)
			}
		}
		return found
	}
	require.Eventually(t, func() bool { return len(lies()) >= said }, patience, clusterTick)
	for _, lie := range lies() {
		require.Contains(t, lie.header.Get("Lockstep-Dead-Reason"), fmt.Sprintf("whose agent reported it first; agent %d is of project", own.AgentID))
	}
	after := s.records(topology.FamilyDeploy)
	require.Len(t, after, len(before))
	for n := range before {
		require.Equal(t, before[n].header.Get("ce-id"), after[n].header.Get("ce-id"))
	}
	victim.image(thirdImage)
	victim.requireFacts(append(facts, "started 3", "completed 3")...)
	require.Len(t, lies(), said)
	require.Empty(t, i.complaints, "the server took all of it: the subjects were the forger's own")
}

// forges says as its own what the watcher of the victim has said of workloads, once as it was and once as the end of everything, and returns how much that is.
func (i *attacker) forges(victim string) int {
	i.t.Helper()
	own := strconv.FormatInt(i.own.AgentID, 10)
	prefix := stack.Cell.Prefix(topology.FamilyObserved) + "."
	said := 0
	for _, r := range i.s.records(topology.FamilyObserved) {
		rest, ofVictim := strings.CutPrefix(r.subject, prefix+victim+".")
		if !ofVictim || strings.HasPrefix(rest, "resync") && !strings.Contains(string(r.data), "workloads") || !strings.HasPrefix(rest, topology.TokenWorkload+".") && rest != "resync" {
			continue
		}
		for n, data := range [][]byte{r.data, i.worse(r.data)} {
			header := nats.Header{}
			for key, values := range r.header {
				if !strings.HasPrefix(key, "Nats-") {
					header[key] = slices.Clone(values)
				}
			}
			header.Set("ce-source", strings.Replace(r.header.Get("ce-source"), "/"+victim+"/", "/"+own+"/", 1))
			header.Set("ce-id", fmt.Sprintf("lie-%d-%d", r.sequence, n))
			i.published(&nats.Msg{Subject: prefix + own + "." + rest, Header: header, Data: data})
			said++
		}
	}
	i.flush()
	return said
}

// worse is the observation as one that comes after all others and deletes; what is none is said again under another id.
func (i *attacker) worse(data []byte) []byte {
	i.t.Helper()
	var said map[string]any
	require.NoError(i.t, json.Unmarshal(data, &said))
	if object, is := said["object"].(map[string]any); is {
		object["resource_version"], object["verb"], object["observed_at"] = "999999999", "deleted", time.Now().UTC().Add(time.Minute).Format(time.RFC3339Nano)
	} else {
		said["resync_id"], said["count"] = "forged", 0
	}
	raw, err := json.Marshal(said)
	require.NoError(i.t, err)
	return raw
}
