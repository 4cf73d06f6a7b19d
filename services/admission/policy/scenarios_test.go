package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/payload"
)

func TestOnlyListedProjectsUseARunner(t *testing.T) {
	t.Parallel()
	p := load(t, "projects.yaml")
	require.Equal(t, payload.Answer{JobID: 7, Accepted: true}, evaluate(t, p, input()))
	require.Equal(t, payload.Answer{JobID: 7, Accepted: true}, evaluate(t, p, input(of(9, "shop/web"))))
	require.Equal(t, payload.Answer{
		JobID: 7, Reason: "the policy allows no runner for the job; runner 31 is for the projects of the shop",
	}, evaluate(t, p, input(of(9, "shop/other"), on(31))))
	require.Equal(t, payload.Answer{
		JobID: 7, Accepted: true, RejectRunners: []int64{31}, Reason: "runner 31 is for the projects of the shop",
	}, evaluate(t, p, input(of(9, "shop/other"))), "another runner is left")
}

func TestUsersAreRedirectedToTheirZone(t *testing.T) {
	t.Parallel()
	p := load(t, "zones.yaml")
	require.Equal(t, payload.Answer{
		JobID: 7, Accepted: true, AddTags: []string{"zone_a"}, Reason: "user ada belongs to zone_a",
	}, evaluate(t, p, input()))
	wrong := input(by("bob"))
	wrong.Job.Tags = []string{"linux", "zone_a"}
	require.Equal(t, payload.Answer{
		JobID: 7, Accepted: true, AddTags: []string{"zone_b"}, RemoveTags: []string{"zone_a"},
		Reason: "user bob belongs to zone_b",
	}, evaluate(t, p, wrong))
	require.Equal(t, payload.Answer{JobID: 7, Accepted: true}, evaluate(t, p, input(by("eve"))))
}

func TestEachRunnerHasItsUsers(t *testing.T) {
	t.Parallel()
	p := load(t, "users.yaml")
	require.Equal(t, payload.Answer{
		JobID: 7, Accepted: true, AcceptRunners: []int64{31, 32}, Reason: "runners on which user ada has an account",
	}, evaluate(t, p, input()))
	require.Equal(t, payload.Answer{
		JobID: 7, Accepted: true, AcceptRunners: []int64{31}, Reason: "runners on which user bob has an account",
	}, evaluate(t, p, input(by("bob"))))
	require.Equal(t, payload.Answer{
		JobID: 7, Reason: "the policy allows no runner for the job; runners on which user eve has an account",
	}, evaluate(t, p, input(by("eve"))))
}

func TestPoliciesOfTheDocumentationAreValid(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "admission.md"))
	require.NoError(t, err)
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		content, _, found := strings.Cut(block, "```")
		require.True(t, found)
		parse(t, content)
	}
}
