package connectapi

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
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

func (s *workspaceService) ListOrphans(ctx context.Context, r *connect.Request[statev1.ListOrphansRequest]) (*connect.Response[statev1.ListOrphansResponse], error) {
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
	found, err := s.observations.Orphans(ctx, s.pool, agents, after, p.Size)
	if err != nil {
		return nil, err
	}
	sightings, err := s.observations.Sight(ctx, s.pool, found)
	if err != nil {
		return nil, err
	}
	out := &statev1.ListOrphansResponse{}
	for i, o := range found {
		out.Orphans = append(out.Orphans, orphan(o, sightings[i]))
	}
	if len(found) == p.Size {
		last := found[len(found)-1]
		out.NextPageToken = last.String() + "/" + last.UID
	}
	return connect.NewResponse(out), nil
}

func (s *workspaceService) AdoptOrphan(ctx context.Context, r *connect.Request[statev1.AdoptOrphanRequest]) (*connect.Response[statev1.AdoptOrphanResponse], error) {
	agent, err := s.orphansAgent(ctx, r.Msg.GetOrphan())
	if err != nil {
		return nil, err
	}
	c := domain.Creation{ProjectID: r.Msg.GetProjectId(), UserID: r.Msg.GetUserId(), Template: r.Msg.GetTemplate(), Now: s.now()}
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
	if err := s.allow(ctx, projectScope(c.ProjectID), false, authz.CreateWorkspace, fmt.Sprintf("project %d", c.ProjectID)); err != nil {
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
	var w domain.Workspace
	err = libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		w, err = s.adopt(ctx, tx, r.Msg, c, secrets)
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.AdoptOrphanResponse{Workspace: workspace(w)}), nil
}

// adopt makes the workspace in place of the orphan. The creation has the template's spec.
func (s *workspaceService) adopt(ctx context.Context, tx pgx.Tx, m *statev1.AdoptOrphanRequest, c domain.Creation, secrets secretValues) (domain.Workspace, error) {
	o, sighting, err := s.lockOrphan(ctx, tx, m.GetOrphan())
	if err != nil {
		return domain.Workspace{}, err
	}
	if m.GetTemplate() == "" {
		if sighting.Image == "" && m.GetOverrides().GetImage() == "" {
			return domain.Workspace{}, fault.New(errcode.InvalidArgument, "no pod of orphan %s tells its image: give an image, or a template that has the right one", o).
				With("field", "overrides.image")
		}
		c.Spec.Image = sighting.Image
	}
	c.Spec = override(c.Spec, m.GetOverrides())
	for kind, values := range secrets {
		c.Spec = describe(c.Spec, kind, values, s.secrets.Vault.Digest(values))
	}
	w, err := o.Adopt(sighting, c)
	if err != nil {
		return w, err
	}
	owners, err := s.observations.Owners(ctx, tx, []uuid.UUID{w.ID})
	if err != nil {
		return w, err
	}
	if agentID, there := owners[w.ID]; there {
		return w, fault.New(errcode.FailedPrecondition,
			"orphan %s cannot be adopted: its label names workspace %s of agent %d. Give it another label %s (a UUID), or delete it", o, w.ID, agentID, domain.LabelWorkspace)
	}
	if err := s.workspaces.Insert(ctx, tx, w); err != nil {
		return w, err
	}
	for kind, values := range secrets {
		if err := s.secrets.Put(ctx, tx, w.ID, kind, values); err != nil {
			return w, err
		}
	}
	return w, s.observations.DropOrphan(ctx, tx, o)
}

func (s *workspaceService) DeleteOrphan(ctx context.Context, r *connect.Request[statev1.DeleteOrphanRequest]) (*connect.Response[statev1.DeleteOrphanResponse], error) {
	if _, err := s.orphansAgent(ctx, r.Msg.GetOrphan()); err != nil {
		return nil, err
	}
	var after domain.Orphan
	var sighting domain.Sighting
	err := libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var before domain.Orphan
		var err error
		if before, sighting, err = s.lockOrphan(ctx, tx, r.Msg.GetOrphan()); err != nil {
			return err
		}
		ended, err := s.endedRevision(ctx, tx, before)
		if err != nil {
			return err
		}
		highest, deleting, err := s.observations.OtherDeletions(ctx, tx, before)
		if err != nil {
			return err
		}
		if deleting {
			return fault.New(errcode.FailedPrecondition, "another orphan of agent %d that names workspace %q is being deleted: wait until it is gone", before.AgentID, before.Label)
		}
		after = before.Delete(caller(ctx).ID, max(highest, ended, sighting.Revision))
		return s.observations.SaveOrphan(ctx, tx, postgres.OrphanSaving{Before: before, After: after}, s.now())
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.DeleteOrphanResponse{Orphan: orphan(after, sighting)}), nil
}

// endedRevision is the last revision of the terminated workspace that the orphan's label names, since the dispatcher takes none that is not above
// it; 0 where it names none. It keeps a living workspace from being deleted as an orphan.
func (s *workspaceService) endedRevision(ctx context.Context, tx pgx.Tx, o domain.Orphan) (int64, error) {
	id, err := uuid.Parse(o.Label)
	if err != nil {
		return 0, nil //nolint:nilerr // a label that is no id names no workspace
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
		return 0, fault.New(errcode.FailedPrecondition, "%s is no orphan: its label names workspace %q", o, w.Name)
	default:
		return w.DesiredRevision, nil
	}
}

// lockOrphan locks the orphan that a request names.
func (s *workspaceService) lockOrphan(ctx context.Context, tx pgx.Tx, ref *statev1.OrphanReference) (domain.Orphan, domain.Sighting, error) {
	o, err := s.observations.LockOrphan(ctx, tx, ref.GetAgentId(), ref.GetNamespace(), ref.GetName())
	if err != nil {
		return o, domain.Sighting{}, err
	}
	sightings, err := s.observations.Sight(ctx, tx, []domain.Orphan{o})
	if err != nil {
		return o, domain.Sighting{}, err
	}
	return o, sightings[0], nil
}

// orphansAgent is the agent of an orphan that the caller may decide upon.
func (s *workspaceService) orphansAgent(ctx context.Context, ref *statev1.OrphanReference) (domain.Agent, error) {
	if err := id("orphan.agent_id", ref.GetAgentId()); err != nil {
		return domain.Agent{}, err
	}
	for _, f := range []struct{ name, value string }{{"orphan.namespace", ref.GetNamespace()}, {"orphan.name", ref.GetName()}} {
		if f.value == "" {
			return domain.Agent{}, fault.New(errcode.InvalidArgument, "%s is missing", f.name).With("field", f.name)
		}
	}
	return s.managedAgent(ctx, ref.GetAgentId())
}

func (s *workspaceService) managedAgent(ctx context.Context, agentID int64) (domain.Agent, error) {
	a, err := s.directory.Agent(ctx, agentID)
	if err != nil {
		return domain.Agent{}, err
	}
	return a, s.allow(ctx, projectScope(a.ProjectID), false, authz.ManageAgents, fmt.Sprintf("agent %d", a.ID))
}

// managedAgents are the agent asked for, or all that the caller may manage: nil for every one.
func (s *workspaceService) managedAgents(ctx context.Context, asked int64) ([]int64, error) {
	if asked != 0 {
		_, err := s.managedAgent(ctx, asked)
		return []int64{asked}, err
	}
	visible, err := s.visible(ctx)
	if err != nil || visible == nil {
		return nil, err
	}
	agents := []int64{} // not nil: that would be every one
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
func orphanAfter(token string) (domain.Orphan, error) {
	if token == "" {
		return domain.Orphan{}, nil
	}
	const parts = 4
	split := strings.SplitN(token, "/", parts)
	agentID, err := strconv.ParseInt(split[0], 10, 64)
	if err != nil || len(split) != parts {
		return domain.Orphan{}, fault.New(errcode.InvalidArgument, "page_token is not one that a page before gave").With("field", "page_token")
	}
	return domain.Orphan{AgentID: agentID, Namespace: split[1], Name: split[2], UID: split[3]}, nil
}

func orphan(o domain.Orphan, s domain.Sighting) *statev1.Orphan {
	return &statev1.Orphan{
		Reference: &statev1.OrphanReference{AgentId: o.AgentID, Namespace: o.Namespace, Name: o.Name},
		Uid:       o.UID, WorkspaceId: o.Label, Image: s.Image, SeenAt: timestamp(o.SeenAt), Deleting: o.IsBeingDeleted(), Message: o.Message,
	}
}
