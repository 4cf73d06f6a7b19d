package api

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

func (s *workspaceService) ListOrphans(
	ctx context.Context,
	r *connect.Request[statev1.ListOrphansRequest],
) (*connect.Response[statev1.ListOrphansResponse], error) {
	p, err := page(r.Msg.GetPageSize(), "")
	if err != nil {
		return nil, err
	}
	after, err := orphanAfter(r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	agents, err := s.managedAgents(ctx, r.Msg.GetAgentId())
	if err != nil {
		return nil, err
	}
	found, err := s.ingestStores.Orphans(ctx, s.pool, agents, after, p.Size)
	if err != nil {
		return nil, err
	}
	observed, err := s.ingestStores.OrphanObservations(ctx, s.pool, found)
	if err != nil {
		return nil, err
	}
	out := &statev1.ListOrphansResponse{}
	for i, o := range found {
		out.Orphans = append(out.Orphans, orphanMessage(o, observed[i]))
	}
	if len(found) == p.Size {
		last := found[len(found)-1]
		out.NextPageToken = last.String() + "/" + last.UID
	}
	return connect.NewResponse(out), nil
}

func (s *workspaceService) AdoptOrphan(
	ctx context.Context,
	r *connect.Request[statev1.AdoptOrphanRequest],
) (*connect.Response[statev1.AdoptOrphanResponse], error) {
	agent, err := s.orphansAgent(ctx, r.Msg.GetOrphan())
	if err != nil {
		return nil, err
	}
	c := workspace.Creation{
		ProjectID: r.Msg.GetProjectId(),
		AgentID:   agent.ID,
		UserID:    r.Msg.GetUserId(),
		Template:  r.Msg.GetTemplate(),
		Now:       s.now(),

		NamespacePrefix: s.prefix,
	}
	if c.ProjectID == 0 {
		c.ProjectID = agent.ProjectID
	}
	if c.UserID == 0 {
		c.UserID = caller(ctx).ID
	}
	if c.Template == "" {
		c.Template = defaultTemplate
	}
	if _, err := s.directory.Project(ctx, c.ProjectID); err != nil {
		return nil, err
	}
	if err := s.allow(
		ctx,
		projectScope(c.ProjectID),
		false,
		authz.CreateWorkspace,
		fmt.Sprintf("project %d", c.ProjectID),
	); err != nil {
		return nil, err
	}
	secrets, err := secretsOf(r.Msg.GetOverrides())
	if err != nil {
		return nil, err
	}
	template, err := s.directory.Template(ctx, c.ProjectID, c.Template)
	if err != nil {
		return nil, err
	}
	c.Spec = template.Spec
	var w workspace.Workspace
	err = libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		w, err = s.adopt(ctx, tx, r.Msg, c, secrets)
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.AdoptOrphanResponse{Workspace: workspaceMessage(w)}), nil
}

// adopt replaces the orphan by a workspace. c.Spec must be the spec of the template.
func (s *workspaceService) adopt(
	ctx context.Context,
	tx pgx.Tx,
	m *statev1.AdoptOrphanRequest,
	c workspace.Creation,
	secrets secretValues,
) (workspace.Workspace, error) {
	c, err := s.withSettings(ctx, tx, c)
	if err != nil {
		return workspace.Workspace{}, err
	}
	o, observed, err := s.lockOrphan(ctx, tx, m.GetOrphan())
	if err != nil {
		return workspace.Workspace{}, err
	}
	if m.GetTemplate() == "" {
		if observed.Image == "" && m.GetOverrides().GetImage() == "" {
			return workspace.Workspace{}, fault.New(errcode.InvalidArgument,
				"no pod of orphan %s reports its image: give an image, or a template with the right one", o).
				With("field", "overrides.image")
		}
		c.Spec.Image = observed.Image
	}
	c.Spec = override(c.Spec, m.GetOverrides())
	for kind, values := range secrets {
		c.Spec = withSecretNames(c.Spec, kind, values, s.secrets.Vault.Digest(values))
	}
	w, created, err := o.Adopt(observed, c)
	if err != nil {
		return w, err
	}
	agents, err := s.ingestStores.In(tx).WorkspaceAgents(ctx, []uuid.UUID{w.ID})
	if err != nil {
		return w, err
	}
	if agentID, exists := agents[w.ID]; exists {
		return w, fault.New(
			errcode.FailedPrecondition,
			"orphan %s cannot be adopted: its label names workspace %s of agent %d. Set the label %s to another UUID, "+
				"or delete the orphan",
			o,
			w.ID,
			agentID,
			workspace.LabelWorkspace,
		)
	}
	if err := s.workspaces.Insert(ctx, tx, w); err != nil {
		return w, err
	}
	if err := s.publish(ctx, tx, workspace.Update{After: w, Events: created}); err != nil {
		return w, err
	}
	for kind, values := range secrets {
		if err := s.secrets.Put(ctx, tx, w.ID, kind, values); err != nil {
			return w, err
		}
	}
	return w, s.ingestStores.In(tx).RemoveOrphan(ctx, o)
}

func (s *workspaceService) DeleteOrphan(
	ctx context.Context,
	r *connect.Request[statev1.DeleteOrphanRequest],
) (*connect.Response[statev1.DeleteOrphanResponse], error) {
	if _, err := s.orphansAgent(ctx, r.Msg.GetOrphan()); err != nil {
		return nil, err
	}
	var after orphan.Orphan
	var observed orphan.Observation
	err := libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var before orphan.Orphan
		var err error
		if before, observed, err = s.lockOrphan(ctx, tx, r.Msg.GetOrphan()); err != nil {
			return err
		}
		ended, err := s.terminatedRevision(ctx, tx, before)
		if err != nil {
			return err
		}
		others, err := s.ingestStores.In(tx).LockDeletions(ctx, []int64{before.AgentID}, []string{before.Label})
		if err != nil {
			return err
		}
		if after, err = before.Delete(caller(ctx).ID, max(ended, observed.Revision), others); err != nil {
			return err
		}
		if err := s.ingestStores.In(tx).SaveOrphan(ctx, after); err != nil {
			return err
		}
		messages, err := s.encoder.Orphan(ctx, orphan.Update{Before: before, After: after, At: s.now()})
		if err != nil {
			return err
		}
		return s.ingestStores.In(tx).InsertMessages(ctx, messages...)
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.DeleteOrphanResponse{Orphan: orphanMessage(after, observed)}), nil
}

// terminatedRevision returns the last revision of the terminated workspace that the label names; 0 without one. The
// dispatcher drops revisions that are not above it. It fails if the workspace is not terminated: then the Deployment is
// not an orphan.
func (s *workspaceService) terminatedRevision(ctx context.Context, tx pgx.Tx, o orphan.Orphan) (int64, error) {
	id, err := uuid.Parse(o.Label)
	if err != nil {
		return 0, nil //nolint:nilerr // the label names no workspace
	}
	w, err := s.workspaces.Get(ctx, tx, postgres.WorkspaceReference{ID: id})
	switch {
	case fault.Is(err, errcode.NotFound):
		return 0, nil
	case err != nil:
		return 0, err
	case w.AgentID != o.AgentID:
		return 0, nil
	case w.ActualState != actualstate.Terminated:
		return 0, fault.New(errcode.FailedPrecondition, "%s is not an orphan: its label names workspace %q", o, w.Name)
	default:
		return w.DesiredRevision, nil
	}
}

// lockOrphan locks the orphan that a request names.
func (s *workspaceService) lockOrphan(
	ctx context.Context,
	tx pgx.Tx,
	ref *statev1.OrphanReference,
) (orphan.Orphan, orphan.Observation, error) {
	o, err := s.ingestStores.In(tx).LockOrphan(ctx, ref.GetAgentId(), ref.GetNamespace(), ref.GetName())
	if err != nil {
		return o, orphan.Observation{}, err
	}
	observed, err := s.ingestStores.OrphanObservations(ctx, tx, []orphan.Orphan{o})
	if err != nil {
		return o, orphan.Observation{}, err
	}
	return o, observed[0], nil
}

// orphansAgent returns the agent of an orphan that the caller may manage.
func (s *workspaceService) orphansAgent(ctx context.Context, ref *statev1.OrphanReference) (agent.Agent, error) {
	if err := id("orphan.agent_id", ref.GetAgentId()); err != nil {
		return agent.Agent{}, err
	}
	for _, f := range []struct{ name, value string }{
		{"orphan.namespace", ref.GetNamespace()}, {"orphan.name", ref.GetName()},
	} {
		if f.value == "" {
			return agent.Agent{}, fault.New(errcode.InvalidArgument, "%s is missing", f.name).With("field", f.name)
		}
	}
	return s.managedAgent(ctx, ref.GetAgentId())
}

func (s *workspaceService) managedAgent(ctx context.Context, agentID int64) (agent.Agent, error) {
	a, err := s.directory.Agent(ctx, agentID)
	if err != nil {
		return agent.Agent{}, err
	}
	return a, s.allow(ctx, projectScope(a.ProjectID), false, authz.ManageAgents, fmt.Sprintf("agent %d", a.ID))
}

// managedAgents returns the given agent, or all that the caller may manage; nil for every agent.
func (s *workspaceService) managedAgents(ctx context.Context, asked int64) ([]int64, error) {
	if asked != 0 {
		_, err := s.managedAgent(ctx, asked)
		return []int64{asked}, err
	}
	visible, err := s.visible(ctx)
	if err != nil || visible == nil {
		return nil, err
	}
	agents := []int64{} // nil would mean every agent
	for p := (postgres.Page{Size: maxPageSize}); ; {
		found, err := s.directory.Agents(ctx, visible, p)
		if err != nil {
			return nil, err
		}
		for _, a := range found {
			role, err := s.directory.Role(ctx, caller(ctx).ID, projectScope(a.ProjectID))
			if err != nil {
				return nil, fmt.Errorf("authorize: %w", err)
			}
			if authz.Allowed(caller(ctx), role, false, authz.ManageAgents) {
				agents = append(agents, a.ID)
			}
		}
		if len(found) < p.Size {
			return agents, nil
		}
		p.After = found[len(found)-1].ID
	}
}

// orphanAfter reads a page token: agent/namespace/name/uid.
func orphanAfter(token string) (orphan.Orphan, error) {
	if token == "" {
		return orphan.Orphan{}, nil
	}
	const parts = 4
	split := strings.SplitN(token, "/", parts)
	agentID, err := strconv.ParseInt(split[0], 10, 64)
	if err != nil || len(split) != parts {
		return orphan.Orphan{}, fault.New(errcode.InvalidArgument, "page_token: not a token returned by ListOrphans").
			With("field", "page_token")
	}
	return orphan.Orphan{AgentID: agentID, Namespace: split[1], Name: split[2], UID: split[3]}, nil
}

func orphanMessage(o orphan.Orphan, s orphan.Observation) *statev1.Orphan {
	return &statev1.Orphan{
		Reference:   &statev1.OrphanReference{AgentId: o.AgentID, Namespace: o.Namespace, Name: o.Name},
		Uid:         o.UID,
		WorkspaceId: o.Label,
		Image:       s.Image,
		SeenAt:      timestamp(o.SeenAt),
		Deleting:    o.BeingDeleted(),
		Message:     o.Message,
	}
}
