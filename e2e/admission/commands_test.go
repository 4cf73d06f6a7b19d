package admission_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
)

// A policy is tried on earlier jobs, then in dry run, then enforced. The commands show what it does.
func TestPolicyIsReplayedThenTriedThenEnforced(t *testing.T) {
	t.Parallel()
	c := start(t)
	lockstep := fixture.NewCLI(t).With(client.Variable + "=" + c.ClientFile()).OK
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
	out := lockstep("admission", "replay", "--policy", policy, "--since", "1h", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &replayed), out)
	require.Equal(t, 2, replayed.Jobs)
	require.Len(t, replayed.Changes, 2, out)
	require.Equal(t, "change", replayed.Changes[0].Would)
	require.Equal(t, []string{"zone_a"}, replayed.Changes[0].Tags)
	require.Equal(t, deployed.GetId(), replayed.Changes[1].JobID)
	require.Equal(t, "reject", replayed.Changes[1].Would)
	require.Equal(t, "policy: nobody deploys today", replayed.Changes[1].Reason)
	require.Contains(t, lockstep("admission", "replay", "--policy", policy, "--since", "1h"), "nobody deploys today")

	lockstep("admission", "controllers", "create", "zones", "--instance", "--mutating", "--policy", policy, "--mode",
		"dry_run")
	_, tried := c.pipeline(c.project, job)
	require.Empty(t, c.await(tried.GetId(), runnersv1.JobState_JOB_STATE_PENDING).GetTags())
	require.Contains(t, lockstep("admission", "explain", strconv.FormatInt(tried.GetId(), 10)), "accepted (dry run)")

	listed := lockstep("admission", "controllers", "list", "--instance")
	require.Contains(t, listed, "dry_run")
	id := strings.Fields(strings.Split(listed, "\n")[1])[0]
	require.Contains(t, lockstep("admission", "controllers", "update", id, "--mode", "enforced"), "enforced")
	require.Contains(t, lockstep("admission", "controllers", "get", id), "nobody deploys today")
	require.Contains(t, lockstep("__complete", "admission", "controllers", "get", ""), id+"\tzones instance\n")
	require.Contains(t, lockstep("__complete", "admission", "controllers", "reorder", "--instance", ""), id+"\tzones")
	_, enforced := c.pipeline(c.project, job)
	require.Equal(t, []string{"zone_a"}, c.await(enforced.GetId(), runnersv1.JobState_JOB_STATE_PENDING).GetTags())
	explained := lockstep("admission", "explain", strconv.FormatInt(enforced.GetId(), 10))
	require.Contains(t, explained, "user "+user+" belongs to zone_a")
	project := strconv.FormatInt(c.project, 10)
	require.Eventually(t, func() bool {
		return strings.Contains(lockstep("admission", "decisions", "--project", project), "belongs to zone_a")
	}, soon, 10*time.Millisecond)
	require.Contains(t, lockstep("__complete", "admission", "explain", ""),
		strconv.FormatInt(enforced.GetId(), 10)+"\ttest admitted ")
	require.NotContains(t, explained, "REQUEST TO", "a policy needs no request")
	lockstep("admission", "controllers", "delete", id, "--yes")
	_, free := c.pipeline(c.project, job)
	require.Empty(t, c.await(free.GetId(), runnersv1.JobState_JOB_STATE_PENDING).GetTags())

	asked := make(chan struct{}, 1)
	c.create(at(admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT, c.project, newController(t, "web", asked,
		func(w http.ResponseWriter, q question) { q.write(w, q.accept()) }).settings()))
	c.runner("for web", "web")
	_, requested := c.pipeline(c.project, job)
	c.await(requested.GetId(), runnersv1.JobState_JOB_STATE_PENDING)
	require.Regexp(t, `(?m)^web +1 .+ 200 +accepted$`,
		lockstep("admission", "explain", strconv.FormatInt(requested.GetId(), 10)))
}
