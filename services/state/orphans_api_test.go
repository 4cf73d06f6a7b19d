package state_test

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// exec runs a statement in the service's database.
func (b *fixture) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), `set search_path to state`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// orphan stores one as the ingest of observations does, and a pod that shows its image where there is one.
func (b *fixture) orphan(t *testing.T, agentID int64, namespace, name, label, image string) *statev1.OrphanReference {
	t.Helper()
	b.exec(
		t,
		`insert into orphans (agent_id, uid, workspace, namespace, name, seen_at) values ($1, $2, $3, $4, $5, now())`,
		agentID,
		"uid-"+namespace+name,
		label,
		namespace,
		name,
	)
	put := func(kind, name, data string) {
		b.exec(
			t,
			`insert into observed_objects (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted,
				data)
			values ($1, $2, $3, $4, 'u', 'c', 1, 1, false, $5)`,
			agentID,
			kind,
			namespace,
			name,
			data,
		)
	}
	put("deployment", name, `{"object": {"annotations": {"lockstep.dev/desired-revision": "4"}}, "spec_replicas": 1}`)
	if image != "" {
		put(
			"pod",
			name+"-x",
			fmt.Sprintf(
				`{"deployment": %q, "containers": [{"name": "setup", "init": true, "image": "other"}, {"name": "workspace",
					"image": %q}]}`,
				name,
				image,
			),
		)
	}
	return &statev1.OrphanReference{AgentId: agentID, Namespace: namespace, Name: name}
}

func TestOrphansNeedTheRoleToManageTheAgent(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, registered := admin.project()
	agent := registered.GetAgent().GetId()
	ada, adas := admin.user(b, "ada")
	label := uuid.NewString()
	ref := b.orphan(t, agent, "ws-9-left", "left", label, "registry.example/ide:7")
	put := func(role statev1.Role) {
		call(
			t,
			admin.directory.PutMembership,
			&statev1.PutMembershipRequest{
				Membership: &statev1.Membership{
					UserId:  ada,
					Scope:   statev1.ScopeKind_SCOPE_KIND_PROJECT,
					ScopeId: project,
					Role:    role,
				},
			},
		)
	}
	refusedAll := func(code errcode.Code) {
		t.Helper()
		refused(t, code, adas.workspaces.ListOrphans, &statev1.ListOrphansRequest{AgentId: agent})
		refused(t, code, adas.workspaces.AdoptOrphan, &statev1.AdoptOrphanRequest{Orphan: ref})
		refused(t, code, adas.workspaces.DeleteOrphan, &statev1.DeleteOrphanRequest{Orphan: ref})
		require.Empty(t, call(t, adas.workspaces.ListOrphans, &statev1.ListOrphansRequest{}).GetOrphans())
	}
	refusedAll(errcode.NotFound)
	put(statev1.Role_ROLE_DEVELOPER)
	refusedAll(errcode.PermissionDenied)
	put(statev1.Role_ROLE_MAINTAINER)
	found := call(t, adas.workspaces.ListOrphans, &statev1.ListOrphansRequest{}).GetOrphans()
	require.Len(t, found, 1)
	require.Equal(t, "registry.example/ide:7", found[0].GetImage())
	require.Equal(t, label, found[0].GetWorkspaceId())

	// Into another project only with the right to create workspaces there.
	other := call(
		t,
		admin.directory.CreateProject,
		&statev1.CreateProjectRequest{
			GroupId: call(t, admin.directory.ListProjects, &statev1.ListProjectsRequest{}).GetProjects()[0].GetGroupId(),
			Name:    "other",
		},
	).GetProject().
		GetId()
	refused(t, errcode.NotFound, adas.workspaces.AdoptOrphan, &statev1.AdoptOrphanRequest{Orphan: ref, ProjectId: other})
	refused(t, errcode.NotFound, adas.workspaces.AdoptOrphan, &statev1.AdoptOrphanRequest{Orphan: ref, UserId: 999_999})
	refused(
		t,
		errcode.NotFound,
		adas.workspaces.AdoptOrphan,
		&statev1.AdoptOrphanRequest{Orphan: &statev1.OrphanReference{AgentId: agent, Namespace: "ws-9-left", Name: "no"}},
	)
	w := call(
		t,
		adas.workspaces.AdoptOrphan,
		&statev1.AdoptOrphanRequest{
			Orphan:    ref,
			Overrides: &statev1.WorkspaceOverrides{SecretEnv: map[string]string{"TOKEN": "x"}},
		},
	).GetWorkspace()
	require.Equal(t, label, w.GetId())
	require.Equal(t, "left", w.GetName())
	require.Equal(t, "ws-9-left", w.GetNamespace())
	require.Equal(t, ada, w.GetUserId())
	require.Equal(t, "registry.example/ide:7", w.GetSpec().GetImage())
	require.Equal(t, []string{"TOKEN"}, w.GetSpec().GetSecretEnv())
	require.EqualValues(t, 5, w.GetDesiredRevision())
	require.Empty(t, call(t, adas.workspaces.ListOrphans, &statev1.ListOrphansRequest{}).GetOrphans())
	refused(t, errcode.NotFound, adas.workspaces.AdoptOrphan, &statev1.AdoptOrphanRequest{Orphan: ref})
}

func TestOrphanDeletionUsesARevisionAboveTheTerminatedWorkspace(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	_, registered := admin.project()
	agent := registered.GetAgent().GetId()
	w := call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "back"}).GetWorkspace()
	ref := b.orphan(t, agent, w.GetNamespace(), w.GetName(), w.GetId(), "")
	refused(t, errcode.FailedPrecondition, admin.workspaces.DeleteOrphan, &statev1.DeleteOrphanRequest{Orphan: ref})
	b.exec(
		t,
		`update workspaces set actual_state = 'terminated', desired_state = 'terminated', desired_revision = 9 where id = $1`,
		w.GetId(),
	)
	require.True(
		t,
		call(t, admin.workspaces.DeleteOrphan, &statev1.DeleteOrphanRequest{Orphan: ref}).GetOrphan().GetDeleting(),
	)
	conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var revision int64
	require.NoError(
		t,
		conn.QueryRow(t.Context(), `select desired_revision from state.orphans where workspace = $1`, w.GetId()).
			Scan(&revision),
	)
	require.EqualValues(t, 10, revision, "the dispatcher drops revisions that are not above the last applied one")
}

// TestAdoptionLocksInTheOrderOfChangesOfSettings adopts while a change of settings has locked those of the cell, and
// before it locks those of the agent.
func TestAdoptionLocksInTheOrderOfChangesOfSettings(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	_, registered := admin.project()
	agent := registered.GetAgent().GetId()
	ref := b.orphan(t, agent, "ws-9-left", "left", uuid.NewString(), "ide:1")
	conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	adopted := make(chan error, 1)
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `select from state.cell_settings for no key update`); err != nil {
			return err
		}
		go func() {
			_, err := admin.workspaces.AdoptOrphan(t.Context(), connect.NewRequest(&statev1.AdoptOrphanRequest{Orphan: ref}))
			adopted <- err
		}()
		b.awaitBlocked(t, conn)
		_, err := tx.Exec(t.Context(), `select from state.agents where id = $1 for no key update`, agent)
		return err
	}))
	require.NoError(t, <-adopted)
}

func TestRefusedAdoptionExplainsWhy(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, registered := admin.project()
	agent := registered.GetAgent().GetId()
	taken := call(
		t,
		admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "taken", ProjectId: project},
	).GetWorkspace()
	for name, test := range map[string]struct {
		namespace, name, label, image string
		code                          errcode.Code
	}{
		"a label that is not a UUID": {"ws-9-a", "a", "some.body", "ide:1", errcode.FailedPrecondition},
		"another spelling of an id": {
			"ws-9-b",
			"b",
			"0198C0DE-0000-7000-8000-000000000000",
			"ide:1",
			errcode.FailedPrecondition,
		},
		"a workspace's id":      {"ws-9-c", "c", taken.GetId(), "ide:1", errcode.FailedPrecondition},
		"a namespace elsewhere": {"kube-system", "d", uuid.NewString(), "ide:1", errcode.FailedPrecondition},
		"no image":              {"ws-9-e", "e", uuid.NewString(), "", errcode.InvalidArgument},
		"an invalid name":       {"ws-9-f", "f.g", uuid.NewString(), "ide:1", errcode.InvalidArgument},
		"a name that is taken":  {"ws-9-taken", "taken", uuid.NewString(), "ide:1", errcode.AlreadyExists},
	} {
		t.Run(name, func(t *testing.T) {
			ref := b.orphan(t, agent, test.namespace, test.name, test.label, test.image)
			refused(t, test.code, admin.workspaces.AdoptOrphan, &statev1.AdoptOrphanRequest{Orphan: ref})
			if test.label == taken.GetId() {
				refused(t, errcode.FailedPrecondition, admin.workspaces.DeleteOrphan, &statev1.DeleteOrphanRequest{Orphan: ref})
				return
			}
			deleting := call(t, admin.workspaces.DeleteOrphan, &statev1.DeleteOrphanRequest{Orphan: ref}).GetOrphan()
			require.True(t, deleting.GetDeleting())
			call(t, admin.workspaces.DeleteOrphan, &statev1.DeleteOrphanRequest{Orphan: ref})
			refused(
				t,
				errcode.FailedPrecondition,
				admin.workspaces.AdoptOrphan,
				&statev1.AdoptOrphanRequest{Orphan: ref, Template: "default"},
			)
		})
	}
	twin := b.orphan(t, agent, "ws-9-twin", "twin", "some.body", "ide:1")
	refused(t, errcode.FailedPrecondition, admin.workspaces.DeleteOrphan, &statev1.DeleteOrphanRequest{Orphan: twin})

	var names []string
	for token := ""; ; {
		page := call(t, admin.workspaces.ListOrphans, &statev1.ListOrphansRequest{PageSize: 3, PageToken: token})
		for _, o := range page.GetOrphans() {
			names = append(names, o.GetReference().GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Equal(t, []string{"d", "a", "b", "c", "e", "f.g", "taken", "twin"}, names)
	refused(t, errcode.InvalidArgument, admin.workspaces.ListOrphans, &statev1.ListOrphansRequest{PageToken: "x"})
}
