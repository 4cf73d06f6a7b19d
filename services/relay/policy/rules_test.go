package policy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/services/relay/route"
)

func TestRulesOfServices(t *testing.T) {
	t.Parallel()
	rules, err := parseRules([]byte(`
callers:
- {subject: ci, agents: [7], targets: [kubernetes], read_only: true}
- {subject: gitlab-kas, projects: [3, 4], targets: [kubernetes, shop]}
- {subject: probe@ops, all_agents: true, targets: [shop]}
- {subject: gateway, all_agents: true, workspaces: true}
`))
	require.NoError(t, err)
	require.Equal(t, []Rule{
		{Subject: "ci", Agents: []int64{7}, Targets: []string{"kubernetes"}, ReadOnly: true},
		{Subject: "gitlab-kas", Projects: []int64{3, 4}, Targets: []string{"kubernetes", "shop"}},
		{Subject: "probe@ops", All: true, Targets: []string{"shop"}},
		{Subject: "gateway", All: true, Workspaces: true},
	}, rules)
	rules, err = parseRules(nil)
	require.NoError(t, err)
	require.Empty(t, rules)
}

func TestInvalidRulesAreRejected(t *testing.T) {
	t.Parallel()
	for text, wantErr := range map[string]string{
		`callers: [{agents: [7], targets: [shop]}]`:                               `subject ""`,
		`callers: [{subject: "a b", agents: [7], targets: [shop]}]`:               `subject "a b"`,
		"callers: [{subject: \"a\\n\", agents: [7], targets: [shop]}]":            `subject "a\n"`,
		`callers: [{subject: "a:b", agents: [7], targets: [shop]}]`:               `subject "a:b"`,
		`callers: [{subject: a, targets: [shop]}]`:                                "names no agents",
		`callers: [{subject: a, all_agents: false, targets: [shop]}]`:             "names no agents",
		`callers: [{subject: a, agents: [7]}]`:                                    "names no targets",
		`callers: [{subject: a, agents: [7], workspaces: true, read_only: true}]`: "read_only",
		`callers: [{subject: a, agents: [7], targets: ["hello.ws-7:22"]}]`:        `"hello.ws-7:22"`,
		`callers: [{subject: a, agents: [7], targets: ["*"]}]`:                    `"*" is not the name of a target`,
		`callers: [{subject: a, agents: [7], targets: [shop], readonly: true}]`:   "readonly",
		`callers: [{subject: a, agents: [7], agents: [8], targets: [shop]}]`:      "already set",
		`callers: [{subject: a, agents: ["7"], targets: [shop]}]`:                 "parse the rules",
		`callers: [{subject: b, agents: [7], targets: [shop]}, {subject: a}]`:     "callers[1]",
		`rules: []`: "rules",
	} {
		_, err := parseRules([]byte(text))
		require.ErrorContains(t, err, wantErr, text)
	}
	_, err := ReadRules(t.TempDir() + "/none")
	require.ErrorContains(t, err, "none")
}

func FuzzRules(f *testing.F) {
	f.Add([]byte("callers:\n- {subject: ci, agents: [7], targets: [kubernetes], read_only: true}"))
	f.Add([]byte("callers:\n- {subject: ci, all_agents: true, targets: [shop]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rules, err := parseRules(text)
		if err != nil {
			return
		}
		for _, r := range rules {
			require.Regexp(t, subject, r.Subject)
			require.True(t, len(r.Targets) > 0 || r.Workspaces)
			access := Access{Agent: directory.Agent{ID: 7}, Target: route.KubernetesAPI, ReadOnly: true}
			require.Error(t, CheckService(Caller{}, rules, access),
				"a caller without a subject has no access")
		}
	})
}
