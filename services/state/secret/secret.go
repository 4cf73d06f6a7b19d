// Package secret decides which secret values of a workspace are sealed for which agent. It reads them from a
// [Store] and connects to nothing itself.
package secret

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/vault"
	"lockstep.internal/services/state/workspace"
)

// Request is an agent's request for the values of a Secret.
type Request struct {
	seal.Request

	// AgentID is the authenticated agent.
	AgentID     int64
	WorkspaceID uuid.UUID
}

// Store reads what an answer needs.
type Store interface {
	// Agent returns fault not_found for an unknown agent.
	Agent(ctx context.Context, id int64) (agent.Agent, error)
	// Workspace returns fault not_found for an unknown workspace.
	Workspace(ctx context.Context, id uuid.UUID) (workspace.Workspace, error)
	// Values returns the values of a kind that belongs to workspaces.
	Values(ctx context.Context, workspaceID uuid.UUID, kind vault.Kind) (seal.Values, error)
	// PullConfig returns the content of the Secret with the pull secrets of a project.
	PullConfig(ctx context.Context, projectID int64) (seal.Values, error)
}

// Sealer answers requests. It is safe for concurrent use.
type Sealer struct {
	Store Store
	Key   seal.Key
}

// Seal returns the requested values in a box that only the agent can open.
func (s *Sealer) Seal(ctx context.Context, r Request) ([]byte, error) {
	a, err := s.Store.Agent(ctx, r.AgentID)
	if err != nil {
		return nil, err
	}
	w, err := s.Store.Workspace(ctx, r.WorkspaceID)
	if err != nil {
		return nil, err
	}
	kind, err := Authorize(r, a, w)
	if err != nil {
		return nil, err
	}
	values, err := s.values(ctx, w, kind)
	if err != nil {
		return nil, err
	}
	box, err := values.Seal(r.Label(w.ID.String()), a.CurvePublicKey, s.Key)
	if err != nil {
		return nil, fmt.Errorf("seal the secrets of workspace %s: %w", w.ID, err)
	}
	return box, nil
}

// values returns the content of the Secret of a kind.
func (s *Sealer) values(ctx context.Context, w workspace.Workspace, kind vault.Kind) (seal.Values, error) {
	if kind == vault.Pull {
		return s.Store.PullConfig(ctx, w.ProjectID)
	}
	values, err := s.Store.Values(ctx, w.ID, kind)
	if err == nil && kind == vault.Files {
		values = byKey(values)
	}
	return values, err
}

// Authorize returns the kind of values that the agent may get. It returns the fault not_found if the agent does not
// have the workspace, so the agent does not learn that it exists. It returns the fault conflict if the values have
// changed since the agent's revision.
func Authorize(r Request, a agent.Agent, w workspace.Workspace) (vault.Kind, error) {
	if w.AgentID != r.AgentID || a.Revoked {
		return "", fault.New(errcode.NotFound, "workspace %s does not exist", r.WorkspaceID)
	}
	if r.Digest != "" {
		if r.Name == w.PullSecretName() && r.Digest == w.Spec.PullSecretDigest {
			return vault.Pull, nil
		}
		switch r.Digest {
		case w.Spec.SecretEnvDigest:
			return vault.Env, nil
		case w.Spec.SecretFilesDigest:
			return vault.Files, nil
		}
	}
	return "", fault.New(errcode.Conflict,
		"the values of Secret %q have changed: request them with the newer revision", r.Name)
}

// byKey returns the values with Secret keys instead of file paths.
func byKey(files seal.Values) seal.Values {
	named := make(seal.Values, len(files))
	for path, content := range files {
		named[workspace.SecretFileKey(path)] = content
	}
	return named
}
