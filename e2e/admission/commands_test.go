package admission_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/cli"
)

// lockstep runs a command and returns its output.
func (c *cell) lockstep(args ...string) string {
	c.t.Helper()
	var out, errs bytes.Buffer
	require.Zero(c.t, cli.Run(c.t.Context(), append([]string{"--client", c.ClientFile()}, args...), &out, &errs, "v0"),
		"%v: %s", args, errs.String())
	return out.String()
}

// A policy is tried on earlier jobs, then in dry run, then enforced. The commands tell what it does.
func TestPolicyIsReplayedThenTriedThenEnforced(t *testing.T) {
	t.Parallel()
	c := start(t)
	user := strconv.FormatInt(c.user(), 10)
	c.runner("in zone a", "zone_a")
	policy := filepath.Join(t.TempDir(), "zones.yaml")
	require.NoError(t, os.WriteFile(policy, []byte(`
data: {zones: {"`+user+`": zone_a}}
rules:
  - if: job.name == "deploy"
    deny: true
    reason: nobody deploys today
  - if: string(user.id) in data.zones
    add_tags_expression: "[data.zones[string(user.id)]]"
    reason_expression: '"user " + string(user.id) + " belongs to " + data.zones[string(user.id)]'
`), 0o600))
	_, deployed := c.pipeline(c.project, "deploy: {script: [make]}\n")
	c.await(deployed.GetId(), runnersv1.JobState_JOB_STATE_PENDING)

	var replayed struct {
		Jobs    int `json:"jobs"`
		Changes []struct {
			JobID  int64    `json:"job_id"`
			Would  string   `json:"would"`
			Tags   []string `json:"tags"`
			Reason string   `json:"reason"`
		} `json:"changes"`
	}
	out := c.lockstep("admission", "replay", "--policy", policy, "--since", "1h", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &replayed), out)
	require.Equal(t, 2, replayed.Jobs)
	require.Len(t, replayed.Changes, 2, out)
	require.Equal(t, "change", replayed.Changes[0].Would)
	require.Equal(t, []string{"zone_a"}, replayed.Changes[0].Tags)
	require.Equal(t, deployed.GetId(), replayed.Changes[1].JobID)
	require.Equal(t, "reject", replayed.Changes[1].Would)
	require.Equal(t, "policy: nobody deploys today", replayed.Changes[1].Reason)
	require.Contains(t, c.lockstep("admission", "replay", "--policy", policy, "--since", "1h"), "nobody deploys today")

	c.lockstep("admission", "controllers", "create", "zones", "--instance", "--mutating", "--policy", policy, "--mode", "dry_run")
	_, tried := c.pipeline(c.project, job)
	require.Empty(t, c.await(tried.GetId(), runnersv1.JobState_JOB_STATE_PENDING).GetTags())
	require.Contains(t, c.lockstep("admission", "explain", strconv.FormatInt(tried.GetId(), 10)), "accepted (dry run)")

	listed := c.lockstep("admission", "controllers", "list", "--instance")
	require.Contains(t, listed, "dry_run")
	id := strings.Fields(strings.Split(listed, "\n")[1])[0]
	require.Contains(t, c.lockstep("admission", "controllers", "update", id, "--mode", "enforced"), "enforced")
	require.Contains(t, c.lockstep("admission", "controllers", "get", id), "nobody deploys today")
	_, enforced := c.pipeline(c.project, job)
	require.Equal(t, []string{"zone_a"}, c.await(enforced.GetId(), runnersv1.JobState_JOB_STATE_PENDING).GetTags())
	explained := c.lockstep("admission", "explain", strconv.FormatInt(enforced.GetId(), 10))
	require.Contains(t, explained, "user "+user+" belongs to zone_a")
	project := strconv.FormatInt(c.project, 10)
	require.Eventually(t, func() bool {
		return strings.Contains(c.lockstep("admission", "decisions", "--project", project), "belongs to zone_a")
	}, soon, 10*time.Millisecond)
	c.lockstep("admission", "controllers", "delete", id, "--yes")
	_, free := c.pipeline(c.project, job)
	require.Empty(t, c.await(free.GetId(), runnersv1.JobState_JOB_STATE_PENDING).GetTags())
}
