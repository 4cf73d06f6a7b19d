package secret_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/secret"
	"lockstep.internal/services/state/vault"
	"lockstep.internal/services/state/workspace"
)

func request(digest string) secret.Request {
	return secret.Request{
		Request:     seal.Request{Name: "values", Digest: digest},
		AgentID:     7,
		WorkspaceID: uuid.UUID{1},
	}
}

func TestAgentsGetOnlyCurrentValuesOfTheirWorkspaces(t *testing.T) {
	t.Parallel()
	both := workspace.Spec{SecretEnvDigest: "env", SecretFilesDigest: "files"}
	for name, test := range map[string]struct {
		digest  string
		owner   int64 // agent of the workspace
		revoked bool
		spec    workspace.Spec
		want    vault.Kind
		code    errcode.Code
	}{
		"environment":                {digest: "env", owner: 7, spec: both, want: vault.Env},
		"files":                      {digest: "files", owner: 7, spec: both, want: vault.Files},
		"workspace of another agent": {digest: "env", owner: 8, spec: both, code: errcode.NotFound},
		"revoked agent":              {digest: "env", owner: 7, spec: both, revoked: true, code: errcode.NotFound},
		"digest of older values":     {digest: "old", owner: 7, spec: both, code: errcode.Conflict},
		"no digest":                  {owner: 7, spec: both, code: errcode.Conflict},
		"no digest, no values":       {owner: 7, code: errcode.Conflict},
		"no digest, another agent":   {owner: 8, code: errcode.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := workspace.Workspace{ID: uuid.UUID{1}, AgentID: test.owner, Spec: test.spec}
			kind, err := secret.Authorize(request(test.digest), agent.Agent{Revoked: test.revoked}, w)
			require.Equal(t, test.want, kind)
			if test.code == "" {
				require.NoError(t, err)
				return
			}
			require.True(t, fault.Is(err, test.code), "%v", err)
		})
	}
}

// store has one agent and one workspace.
type store struct {
	agent     agent.Agent
	workspace workspace.Workspace
	values    map[vault.Kind]seal.Values
}

func (s store) Agent(context.Context, int64) (agent.Agent, error) { return s.agent, nil }

func (s store) Workspace(context.Context, uuid.UUID) (workspace.Workspace, error) {
	return s.workspace, nil
}

func (s store) Values(_ context.Context, _ uuid.UUID, kind vault.Kind) (seal.Values, error) {
	return s.values[kind], nil
}

func (s store) PullConfig(_ context.Context, projectID int64) (seal.Values, error) {
	return seal.Values{fmt.Sprint("project ", projectID): seal.NewValue("p")}, nil
}

// TestPullSecretsAreThoseOfTheProject also gives other values the digest of the pull secrets.
func TestPullSecretsAreThoseOfTheProject(t *testing.T) {
	t.Parallel()
	key, err := seal.GenerateKey()
	require.NoError(t, err)
	s := &secret.Sealer{Key: key, Store: store{
		agent: agent.Agent{ID: 7, CurvePublicKey: key.Public()},
		workspace: workspace.Workspace{
			ID: uuid.UUID{1}, AgentID: 7, ProjectID: 4, Name: "ide",
			Spec: workspace.Spec{SecretEnvDigest: "same", PullSecretDigest: "same"},
		},
		values: map[vault.Kind]seal.Values{vault.Env: {"TOKEN": seal.NewValue("t")}},
	}}
	for name, want := range map[string]string{"ide-pull": "project 4", "ide-env": "TOKEN"} {
		r := request("same")
		r.Name = name
		box, err := s.Seal(t.Context(), r)
		require.NoError(t, err)
		values, err := seal.OpenValues(box, r.Label(r.WorkspaceID.String()), key.Public(), key)
		require.NoError(t, err)
		require.Contains(t, values, want)
	}
	r := request("old")
	r.Name = "ide-pull"
	_, err = s.Seal(t.Context(), r)
	require.True(t, fault.Is(err, errcode.Conflict))
}

func TestOnlyTheAgentOpensTheBox(t *testing.T) {
	t.Parallel()
	sealer, err := seal.GenerateKey()
	require.NoError(t, err)
	recipient, err := seal.GenerateKey()
	require.NoError(t, err)
	other, err := seal.GenerateKey()
	require.NoError(t, err)
	s := &secret.Sealer{Key: sealer, Store: store{
		agent: agent.Agent{ID: 7, CurvePublicKey: recipient.Public()},
		workspace: workspace.Workspace{
			ID: uuid.UUID{1}, AgentID: 7, Spec: workspace.Spec{SecretEnvDigest: "env", SecretFilesDigest: "files"},
		},
		values: map[vault.Kind]seal.Values{
			vault.Env:   {"TOKEN": seal.NewValue("t")},
			vault.Files: {"/etc/app/key": seal.NewValue("k")},
		},
	}}
	for digest, key := range map[string]string{"env": "TOKEN", "files": workspace.SecretFileKey("/etc/app/key")} {
		r := request(digest)
		box, err := s.Seal(t.Context(), r)
		require.NoError(t, err)
		values, err := seal.OpenValues(box, r.Label(r.WorkspaceID.String()), sealer.Public(), recipient)
		require.NoError(t, err)
		require.Len(t, values, 1)
		require.Contains(t, values, key)
		_, err = seal.OpenValues(box, r.Label(r.WorkspaceID.String()), sealer.Public(), other)
		require.Error(t, err, "another agent")
	}
}
