package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// admissionFile is an example that documentation names.
func admissionFile(name string) string {
	return filepath.Join("..", "..", "deploy", "examples", "admission", name)
}

func TestAdmissionTestShowsTheDecision(t *testing.T) {
	t.Parallel()
	code, out, errs := run(t, "admission", "test", "--policy", admissionFile("users.yaml"),
		"--job", admissionFile("job.json"))
	require.Zero(t, code, errs)
	require.Equal(t, `DECISION   admitted
REASON     runners on which user bob has an account
TAGS       linux
ADDED      -
REMOVED    -

RUNNER   DESCRIPTION      TAKES IT   BECAUSE
31       Discovery One    yes        -
32       USCSS Nostromo   no         admission accepts other runners only
`, out)

	code, out, errs = run(t, "admission", "test", "--policy", admissionFile("zones.yaml"),
		"--job", admissionFile("job.json"))
	require.Zero(t, code, errs)
	require.Contains(t, out, "TAGS       linux, zone_b\nADDED      zone_b\n")
	require.Contains(t, out, "no         the runner lacks the tags zone_b\n")

	code, out, errs = run(t, "admission", "test", "--exit-status", "-o", "json",
		"--policy", admissionFile("projects.yaml"),
		"--job", `{"job":{"id":7,"tags":["linux"]},"project":{"id":9},"runners":[{"id":31,"tags":["linux"]}]}`)
	require.Equal(t, 8, code)
	require.Equal(t, "lockstep: the policy rejects the job\n", errs)
	const reason = "the policy allows no runner for the job; runner 31 is for the projects of the shop"
	var got admissionResult
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.JSONEq(t, `[{"id":7,"admission":"rejected","reason":"`+reason+`"}]`, string(got.Answer))
	got.Answer = nil
	require.Equal(t, admissionResult{
		Decision: "rejected", Cause: "admission_denied", Reason: reason, Tags: []string{"linux"}, AddedTags: []string{},
		RemovedTags: []string{}, Runners: []admissionRunner{{ID: 31, Because: "the job is rejected"}},
	}, got)

	code, out, errs = run(t, "admission", "test", "--policy", admissionFile("zones.yaml"),
		"--job", `[{"id":7,"variables":{"GITLAB_USER_LOGIN":"ada"},"tags":["linux"]}]`)
	require.Zero(t, code, errs)
	require.Contains(t, out, "ADDED      zone_a\n", "a payload names no runners")
}

func TestAdmissionTestRefusesInvalidInput(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(broken, []byte("rules:\n  - deny: true\n    if: user.nam == 'ada'\n"), 0o600))
	failing := filepath.Join(t.TempDir(), "failing.yaml")
	require.NoError(t, os.WriteFile(failing, []byte("rules: [{deny: true, if: 'groups[0].id == 1'}]"), 0o600))
	zones := admissionFile("zones.yaml")
	for want, args := range map[string][]string{
		"want --policy and --job":                              {"--job", "{}"},
		"standard input cannot be both the policy and the job": {"--policy", "-", "--job", "-"},
		"read the policy: open ":                               {"--policy", "none.yaml", "--job", "{}"},
		"read the job: open ":                                  {"--policy", zones, "--job", "none.json"},
		`unknown object member name "users"`:                   {"--policy", zones, "--job", `{"users":[]}`},
		broken + ":3:9: if: undefined field 'nam'":             {"--policy", broken, "--job", "{}"},
		failing + ":1:26: if: index out of bounds":             {"--policy", failing, "--job", "{}"},
	} {
		code, out, errs := run(t, append([]string{"admission", "test"}, args...)...)
		require.Equal(t, 2, code, errs)
		require.Empty(t, out)
		require.Contains(t, errs, want)
	}
}
