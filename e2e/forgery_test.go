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
	// The last word on each rollout is that its old pods are gone.
	s.awaitDrained("forged", 2)
	before := s.records(topology.FamilyDeploy)

	api, err := s.Client()
	require.NoError(t, err)
	project := s.newProject("forger")
	own, _, err := stack.RegisterAgent(t.Context(), api, project, "forger")
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
	s.awaitDrained("forged", 3)
	s.clusterMoves(project, own.AgentID)
}

// clusterMoves has an administrator give the cluster to another project, as the letters on DEAD say: from then on it is its last project's agent that is refused, and
// whoever reads the stream again finds the same.
func (s *system) clusterMoves(to, agent int64) {
	t := s.t
	t.Helper()
	cli := s.commandLine()
	letters := cli.deadLetters("--service", "deploys")
	command := fmt.Sprintf("deploys clusters release %s --to %d", s.clusterUID(), to)
	require.Contains(t, letters[0].Reason, "an administrator runs: lockstep "+command)
	same := func() {
		t.Helper()
		code, _, note := cli.run("replay", "--through", "deploys")
		require.Zero(t, code, note)
		require.Contains(t, note, " 0 were published otherwise, 0 were not published, 0 were published and are not said")
		require.Regexp(t, fmt.Sprintf(`agent %d, .* messages are refused`, agent), note)
		cli.ok("rebuild", "deploys", "--check")
	}
	same()
	told := len(s.records(topology.FamilyDeploy))
	cli.ok(append(strings.Fields(command), "--yes")...)
	require.Regexp(t, fmt.Sprintf(`%s +%d .* user \d+ `, s.clusterUID(), to), cli.ok("deploys", "clusters"))
	late := &shop{system: s, namespace: "forged", kind: "deployment"}
	late.image(secondImage)
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(cli.deadLetters("--service", "deploys"), func(l deadLetter) bool {
			return strings.Contains(l.Reason, fmt.Sprintf("which an administrator gave it to; agent %d is of project %d", s.agent, s.project))
		})
	}, patience, clusterTick)
	require.Len(t, s.records(topology.FamilyDeploy), told, "nothing was under way, so nothing is told")
	same()
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
