package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/devfile"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/vault"
	"lockstep.internal/services/state/workspace"
)

const (
	defaultTemplate     = "default"
	maxIdempotencyKey   = 64
	generatedNameLength = 8
)

type workspaceService struct {
	statev1connect.UnimplementedWorkspaceServiceHandler
	access

	prefix        string // of workspace namespaces
	pool          *pgxpool.Pool
	workspaces    *postgres.Workspaces
	accessChanges *postgres.AccessChanges
	ingestStores  *postgres.IngestStores
	secrets       *postgres.Secrets
	devfiles      devfile.Fetch
	encoder       publish.Encoder
	changes       *postgres.Changes
	jetStream     jetstream.JetStream
	cell          topology.Cell
	now           func() time.Time
}

func (s *workspaceService) CreateWorkspace(
	ctx context.Context,
	r *connect.Request[statev1.CreateWorkspaceRequest],
) (*connect.Response[statev1.CreateWorkspaceResponse], error) {
	w, err := s.create(ctx, r.Msg)
	if key := r.Msg.GetIdempotencyKey(); err != nil && key != "" {
		// A repeated request gets the workspace of the first one, whatever has changed since.
		first, findErr := s.workspaces.GetByIdempotencyKey(ctx, s.pool, caller(ctx).ID, key)
		if findErr == nil && s.allowWorkspace(ctx, first, authz.Read, postgres.WorkspaceReference{ID: first.ID}) == nil {
			w, err = first, nil
		}
	}
	if err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, w)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.CreateWorkspaceResponse{Workspace: messages[0]}), nil
}

// create creates and publishes the requested workspace.
func (s *workspaceService) create(
	ctx context.Context, m *statev1.CreateWorkspaceRequest,
) (workspace.Workspace, error) {
	creation, secrets, err := s.newCreation(ctx, m)
	if err != nil {
		return workspace.Workspace{}, err
	}
	var w workspace.Workspace
	err = libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if creation, err = s.withSettings(ctx, tx, creation); err != nil {
			return err
		}
		var created []workspace.Event
		if w, created, err = workspace.New(creation); err != nil {
			return err
		}
		if err := s.workspaces.CheckQuota(ctx, tx, w); err != nil {
			return err
		}
		if err := s.workspaces.Insert(ctx, tx, w); err != nil {
			return err
		}
		if err := s.publish(ctx, tx, workspace.Update{After: w, Events: created}); err != nil {
			return err
		}
		for kind, values := range secrets {
			if err := s.secrets.Put(ctx, tx, w.ID, kind, values); err != nil {
				return err
			}
		}
		return nil
	})
	return w, err
}

// withSettings returns the creation with the settings of its agent and the pull secrets of its project.
func (s *workspaceService) withSettings(
	ctx context.Context, tx pgx.Tx, c workspace.Creation,
) (workspace.Creation, error) {
	name, layers, err := s.directory.SettingsForCreation(ctx, tx, c.AgentID)
	if err != nil {
		return c, err
	}
	configured := layers.Configuration()
	if err := checkAgentImage(c.Spec, configured); err != nil {
		return c, err
	}
	c.Defaults, c.Maximums, c.Spec.StorageClass = configured.Defaults, layers.Maximums(name), configured.StorageClass
	c.Spec.PullSecretDigest, err = s.secrets.PullDigest(ctx, tx, c.ProjectID)
	return c, err
}

// checkAgentImage returns an error for what only the workspace agent can do.
func checkAgentImage(s workspace.Spec, configured agent.Configuration) error {
	field := ""
	switch {
	case configured.Manifests.AgentImage != "":
	case len(s.Projects) > 0:
		field = "projects"
	case len(s.PostStart) > 0:
		field = "post_start"
	case s.Editor != nil:
		field = "editor"
	}
	if field == "" {
		return nil
	}
	return fault.New(errcode.FailedPrecondition, "%s: workspaces of this agent have no workspace agent, which clones "+
		"projects and runs commands and editors: leave them out, or ask a maintainer to set agent_image", field).
		With("field", field)
}

// newCreation validates and authorizes a request. It returns the creation and the secret values.
func (s *workspaceService) newCreation(
	ctx context.Context,
	m *statev1.CreateWorkspaceRequest,
) (workspace.Creation, secretValues, error) {
	c := workspace.Creation{
		Name:           m.GetName(),
		ProjectID:      m.GetProjectId(),
		UserID:         caller(ctx).ID,
		Template:       m.GetTemplate(),
		IdempotencyKey: m.GetIdempotencyKey(),
		Now:            s.now(),

		NamespacePrefix: s.prefix,
	}
	if c.Template != "" && m.GetDevfile() != "" {
		return c, nil, fault.New(errcode.InvalidArgument, "give a template or a devfile, not both").With("field", "devfile")
	}
	if len(c.IdempotencyKey) > maxIdempotencyKey {
		return c, nil, fault.New(errcode.InvalidArgument,
			"idempotency_key has %d characters, the limit is %d", len(c.IdempotencyKey), maxIdempotencyKey).
			With("field", "idempotency_key")
	}
	secrets, err := secretsOf(m.GetOverrides())
	if err != nil {
		return c, nil, err
	}
	if c.ProjectID, err = s.resolveProject(ctx, c.ProjectID); err != nil {
		return c, nil, err
	}
	if err := s.allow(
		ctx,
		projectScope(c.ProjectID),
		false,
		authz.CreateWorkspace,
		fmt.Sprintf("project %d", c.ProjectID),
	); err != nil {
		return c, nil, err
	}
	if c.AgentID, err = s.resolveAgent(ctx, c.ProjectID, m.GetAgentId()); err != nil {
		return c, nil, err
	}
	if err := s.readSpec(ctx, &c, m.GetDevfile()); err != nil {
		return c, nil, err
	}
	c.Spec = override(c.Spec, m.GetOverrides())
	for kind, values := range secrets {
		c.Spec = withSecretNames(c.Spec, kind, values, s.secrets.Vault.Digest(values))
	}
	return c, secrets, nil
}

// readSpec fills a creation from the devfile, if there is one, or from the template. It fetches the parents of the
// devfile, so the caller must be authorized.
func (s *workspaceService) readSpec(ctx context.Context, c *workspace.Creation, text string) error {
	if text != "" {
		if err := s.fromDevfile(ctx, c, text); err != nil {
			return err
		}
	}
	if c.Name == "" {
		c.Name = "workspace-" + strings.ToLower(rand.Text()[:generatedNameLength])
	}
	if text != "" {
		return nil
	}
	c.Template = cmp.Or(c.Template, defaultTemplate)
	t, err := s.directory.Template(ctx, c.ProjectID, c.Template)
	c.Spec = t.Spec
	return err
}

// devfileTimeout limits how long all parents of a devfile take.
const devfileTimeout = 15 * time.Second

func (s *workspaceService) fromDevfile(ctx context.Context, c *workspace.Creation, text string) error {
	fetching, cancel := context.WithTimeout(ctx, devfileTimeout)
	defer cancel()
	d, err := devfile.Resolve(fetching, []byte(text), s.devfiles)
	if err != nil {
		return err
	}
	c.Template, c.Spec = workspace.TemplateDevfile, d.Spec
	if c.Name != "" {
		return nil
	}
	c.Name = d.Name
	if c.Name != "" && !workspace.ValidName(c.Name) {
		return fault.New(errcode.InvalidArgument,
			"the devfile's metadata.name %.80q is not a workspace name; give a name", c.Name).
			With("field", "name")
	}
	return nil
}

// resolveProject returns the requested project. Without one it returns the only project that the caller may read.
func (s *workspaceService) resolveProject(ctx context.Context, requested int64) (int64, error) {
	if requested != 0 {
		_, err := s.directory.Project(ctx, requested)
		return requested, err
	}
	visible, err := s.visible(ctx)
	if err != nil {
		return 0, err
	}
	found, err := s.directory.Projects(ctx, 0, visible, postgres.Page{Size: maxPageSize})
	if err != nil {
		return 0, err
	}
	if len(found) == 1 {
		return found[0].ID, nil
	}
	names := convertAll(found, func(p directory.Project) string { return fmt.Sprintf("%s (%d)", p.Path, p.ID) })
	return 0, ambiguous("project", names, "no project is available to you: ask an owner to give you a role")
}

// resolveAgent returns the requested agent of the project. Without one it returns the project's only agent.
func (s *workspaceService) resolveAgent(ctx context.Context, projectID, requested int64) (int64, error) {
	found, err := s.directory.Agents(ctx, []int64{projectID}, postgres.Page{Size: maxPageSize})
	if err != nil {
		return 0, err
	}
	var names []string
	var last int64
	for _, a := range found {
		if a.Revoked {
			continue
		}
		if a.ID == requested {
			return requested, nil
		}
		names, last = append(names, fmt.Sprintf("%s (%d)", a.Name, a.ID)), a.ID
	}
	if requested != 0 {
		return 0, fault.New(errcode.NotFound, "the project has no agent %d", requested)
	}
	if len(names) == 1 {
		return last, nil
	}
	return 0, ambiguous("agent", names, "the project has no agent: ask a maintainer to register one")
}

// ambiguous returns the error for a request without a project or agent id if there is not exactly one candidate. none
// is its message if there is no candidate.
func ambiguous(what string, names []string, none string) error {
	if len(names) == 0 {
		return fault.New(errcode.FailedPrecondition, "%s", none)
	}
	slices.Sort(names)
	return fault.New(errcode.InvalidArgument, "several %ss are possible: choose one of %s", what,
		strings.Join(names, ", ")).
		With("field", what+"_id")
}

func (s *workspaceService) GetWorkspace(
	ctx context.Context,
	r *connect.Request[statev1.GetWorkspaceRequest],
) (*connect.Response[statev1.GetWorkspaceResponse], error) {
	w, err := s.find(ctx, r.Msg.GetWorkspace(), authz.Read)
	if err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, w)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.GetWorkspaceResponse{Workspace: messages[0]}), nil
}

func (s *workspaceService) ListWorkspaces(
	ctx context.Context,
	r *connect.Request[statev1.ListWorkspacesRequest],
) (*connect.Response[statev1.ListWorkspacesResponse], error) {
	p, err := page(r.Msg.GetPageSize(), "")
	if err != nil {
		return nil, err
	}
	wp := postgres.WorkspacePage{Size: p.Size}
	if token := r.Msg.GetPageToken(); token != "" {
		if wp.After, err = uuid.Parse(token); err != nil {
			return nil, fault.New(errcode.InvalidArgument, "page_token: not a token returned by ListWorkspaces").
				With("field", "page_token")
		}
	}
	filter, err := s.filter(ctx, r.Msg.GetFilter())
	if err != nil {
		return nil, err
	}
	found, err := s.workspaces.List(ctx, s.pool, filter, wp)
	if err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, found...)
	if err != nil {
		return nil, err
	}
	out := &statev1.ListWorkspacesResponse{Workspaces: messages}
	if len(found) == wp.Size {
		out.NextPageToken = found[len(found)-1].ID.String()
	}
	return connect.NewResponse(out), nil
}

func (s *workspaceService) SetDesiredState(
	ctx context.Context,
	r *connect.Request[statev1.SetDesiredStateRequest],
) (*connect.Response[statev1.SetDesiredStateResponse], error) {
	to, ok := desiredStates()[r.Msg.GetDesiredState()]
	if !ok {
		return nil, fault.New(errcode.InvalidArgument,
			"desired_state is missing: give running, stopped, restart_requested or terminated").
			With("field", "desired_state")
	}
	if sessionOf(ctx).person != nil && to != workspace.DesiredRunning {
		return nil, fault.New(errcode.PermissionDenied, "the gateway's token permits to start workspaces only")
	}
	w, err := s.change(
		ctx,
		r.Msg.GetWorkspace(),
		noLock,
		func(_ pgx.Tx, w workspace.Workspace) (workspace.Workspace, []workspace.Event, error) {
			return w.SetDesired(to, caller(ctx).ID, s.now())
		},
	)
	if err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, w)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.SetDesiredStateResponse{Workspace: messages[0]}), nil
}

func (s *workspaceService) UpdateWorkspace(
	ctx context.Context,
	r *connect.Request[statev1.UpdateWorkspaceRequest],
) (*connect.Response[statev1.UpdateWorkspaceResponse], error) {
	secrets, err := secretsOf(r.Msg.GetOverrides())
	if err != nil {
		return nil, err
	}
	removed := map[vault.Kind][]string{
		vault.Env: r.Msg.GetRemovedSecretEnv(), vault.Files: r.Msg.GetRemovedSecretFiles(),
	}
	w, err := s.change(
		ctx,
		r.Msg.GetWorkspace(),
		s.directory.HoldSettings, // the maximums stay
		func(tx pgx.Tx, w workspace.Workspace) (workspace.Workspace, []workspace.Event, error) {
			env, err := without("removed_env", w.Spec.Env, r.Msg.GetRemovedEnv())
			if err != nil {
				return w, nil, err
			}
			next := w.Spec
			next.Env = env
			next = override(next, r.Msg.GetOverrides())
			for _, kind := range []vault.Kind{vault.Env, vault.Files} {
				if len(secrets[kind])+len(removed[kind]) == 0 {
					continue
				}
				stored, err := s.secrets.Get(ctx, tx, w.ID, kind)
				if err != nil {
					return w, nil, err
				}
				values, err := changeSecrets(kind, stored, secrets[kind], removed[kind])
				if err != nil {
					return w, nil, err
				}
				next = withSecretNames(next, kind, values, s.secrets.Vault.Digest(values))
				if err := s.secrets.Put(ctx, tx, w.ID, kind, values); err != nil {
					return w, nil, err
				}
			}
			name, layers, err := s.directory.SettingsOf(ctx, tx, w.AgentID)
			if err != nil {
				return w, nil, err
			}
			given := workspace.Spec{Projects: convertAll(r.Msg.GetOverrides().GetProjects(), clonedProjectOf)}
			if err := checkAgentImage(given, layers.Configuration()); err != nil {
				return w, nil, err
			}
			return w.SetSpec(next, layers.Maximums(name), caller(ctx).ID, s.now())
		},
	)
	if err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, w)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.UpdateWorkspaceResponse{Workspace: messages[0]}), nil
}

// find returns a workspace if the caller may act on it.
func (s *workspaceService) find(
	ctx context.Context,
	ref *statev1.WorkspaceReference,
	action authz.Action,
) (workspace.Workspace, error) {
	r, err := referenceOf(ref)
	if err != nil {
		return workspace.Workspace{}, err
	}
	w, err := s.workspaces.Get(ctx, s.pool, r)
	if err != nil {
		return workspace.Workspace{}, err
	}
	return w, s.allowWorkspace(ctx, w, action, r)
}

func (a access) allowWorkspace(
	ctx context.Context,
	w workspace.Workspace,
	action authz.Action,
	named postgres.WorkspaceReference,
) error {
	return a.allow(ctx, projectScope(w.ProjectID), w.UserID == caller(ctx).ID, action, "workspace "+named.String())
}

func referenceOf(ref *statev1.WorkspaceReference) (postgres.WorkspaceReference, error) {
	switch {
	case ref.GetId() != "":
		id, err := uuid.Parse(ref.GetId())
		if err != nil {
			return postgres.WorkspaceReference{}, fault.New(errcode.InvalidArgument,
				"workspace id %q is not a UUID", ref.GetId()).
				With("field", "workspace.id")
		}
		return postgres.WorkspaceReference{ID: id}, nil
	case ref.GetName() != "":
		return postgres.WorkspaceReference{Name: ref.GetName()}, nil
	default:
		return postgres.WorkspaceReference{}, fault.New(errcode.InvalidArgument,
			"workspace is missing: give its id or its name").
			With("field", "workspace")
	}
}
