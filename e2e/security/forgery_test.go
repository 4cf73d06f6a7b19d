package security_test

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

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// TestForgeryRejected lets an agent with real credentials report on a cluster of another project.
func TestForgeryRejected(t *testing.T) {
	t.Parallel()
	s := fixture.StartWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}})
	victim := s.NewDeployment("forged", 2)
	victim.SetImage(fixture.SecondImage)
	facts := []string{"started 1", "completed 1", "started 2", "completed 2"}
	victim.RequireFacts(facts...)
	// The last fact of each rollout is that its old pods are gone.
	awaitDrained(s, "forged", 2)
	before := s.Records(topology.FamilyDeploy)

	api, err := s.Client()
	require.NoError(t, err)
	project := s.NewProject("forger")
	own, _, err := stack.RegisterAgent(t.Context(), api, project, "forger")
	require.NoError(t, err)
	s.Secrets.Add(own.Token)
	s.Secrets.Add(own.CurveSeed)
	i := newAttacker(s, own, "none")
	count := i.forgeFacts(strconv.FormatInt(s.AgentID, 10))
	require.Greater(t, count, 10)

	// Every forged report becomes a dead letter with a reason. No fact is published, and the
	// owner's reports still count.
	dead := stack.Cell.Prefix(topology.FamilyDead) + ".deploys.observed." + strconv.FormatInt(own.AgentID, 10) + "."
	forged := func() (found []fixture.Record) {
		for _, r := range s.Records(topology.FamilyDead) {
			if strings.HasPrefix(r.Subject, dead) {
				found = append(found, r)
			}
		}
		return found
	}
	require.Eventually(t, func() bool { return len(forged()) >= count }, fixture.Timeout, fixture.PollInterval)
	for _, letter := range forged() {
		reason := fmt.Sprintf("whose agent reported it first; agent %d belongs to project", own.AgentID)
		require.Contains(t, letter.Header.Get("Lockstep-Dead-Reason"), reason)
	}
	after := s.Records(topology.FamilyDeploy)
	require.Len(t, after, len(before))
	for n := range before {
		require.Equal(t, before[n].Header.Get("ce-id"), after[n].Header.Get("ce-id"))
	}
	victim.SetImage(fixture.ThirdImage)
	victim.RequireFacts(append(facts, "started 3", "completed 3")...)
	require.Len(t, forged(), count)
	require.Empty(t, i.violations, "the server accepts it: the subjects are the forger's own")
	awaitDrained(s, "forged", 3)
	moveCluster(s, project, own.AgentID)
}

// moveCluster moves the cluster to another project, as the dead letters advise. Then reports of the
// former project's agent are refused, also on a replay.
func moveCluster(s *fixture.System, to, agent int64) {
	t := s.T
	t.Helper()
	cli := s.CLI()
	letters := cli.DeadLetters("--service", "deploys")
	command := fmt.Sprintf("deploys clusters release %s --to %d", clusterUID(s), to)
	require.Contains(t, letters[0].Reason, "an administrator runs: lockstep "+command)
	same := func() {
		t.Helper()
		code, _, note := cli.Run("replay", "--through", "deploys")
		require.Zero(t, code, note)
		require.Contains(t, note, " 0 different, 0 not published, 0 published but not detected")
		require.Regexp(t, fmt.Sprintf(`agent %d .*: rejected \d+ messages`, agent), note)
		cli.OK("rebuild", "deploys", "--check")
	}
	same()
	count := len(s.Records(topology.FamilyDeploy))
	cli.OK(append(strings.Fields(command), "--yes")...)
	require.Regexp(t, clusterUID(s)+` +\S+/\S+ .* user admin `, cli.OK("deploys", "clusters"))
	late := &fixture.Workload{System: s, Namespace: "forged", Kind: "deployment"}
	late.SetImage(fixture.SecondImage)
	reason := fmt.Sprintf("to which an administrator assigned it; agent %d belongs to project %d", s.AgentID, s.ProjectID)
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(cli.DeadLetters("--service", "deploys"), func(l fixture.DeadLetter) bool {
			return strings.Contains(l.Reason, reason)
		})
	}, fixture.Timeout, fixture.PollInterval)
	require.Len(t, s.Records(topology.FamilyDeploy), count, "without a running rollout nothing is published")
	same()
}

// forgeFacts publishes the victim's observations as the attacker's own, unchanged and as deletions,
// and returns how many.
func (i *attacker) forgeFacts(victim string) int {
	i.t.Helper()
	own := strconv.FormatInt(i.own.AgentID, 10)
	prefix := stack.Cell.Prefix(topology.FamilyObserved) + "."
	count := 0
	for _, r := range i.s.Records(topology.FamilyObserved) {
		rest, ofVictim := strings.CutPrefix(r.Subject, prefix+victim+".")
		if !ofVictim || strings.HasPrefix(rest, "resync") && !strings.Contains(string(r.Data), "workloads") ||
			!strings.HasPrefix(rest, topology.TokenWorkload+".") && rest != "resync" {
			continue
		}
		for n, data := range [][]byte{r.Data, i.falsify(r.Data)} {
			header := nats.Header{}
			for key, values := range r.Header {
				if !strings.HasPrefix(key, "Nats-") {
					header[key] = slices.Clone(values)
				}
			}
			header.Set("ce-source", strings.Replace(r.Header.Get("ce-source"), "/"+victim+"/", "/"+own+"/", 1))
			header.Set("ce-id", fmt.Sprintf("forged-%d-%d", r.Sequence, n))
			i.publish(&nats.Msg{Subject: prefix + own + "." + rest, Header: header, Data: data})
			count++
		}
	}
	i.flush()
	return count
}

// falsify turns an observation into a later deletion, and gives any other message another id.
func (i *attacker) falsify(data []byte) []byte {
	i.t.Helper()
	var message map[string]any
	require.NoError(i.t, json.Unmarshal(data, &message))
	if object, is := message["object"].(map[string]any); is {
		object["resource_version"], object["verb"] = "999999999", "deleted"
		object["observed_at"] = time.Now().UTC().Add(time.Minute).Format(time.RFC3339Nano)
	} else {
		message["resync_id"], message["count"] = "forged", 0
	}
	raw, err := json.Marshal(message)
	require.NoError(i.t, err)
	return raw
}
