package postgres_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
	"lockstep.internal/services/state/workspace"
)

func TestOrganizationWithAgentsOrWorkspacesStays(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	w := b.inserted(workspace.Creation{Name: "w"})
	begin := func() error {
		_, err := b.directory().BeginMove(t.Context(), leaving("m1", directory.Organization{ID: 1}))
		return err
	}
	require.ErrorContains(t, begin(), "organization o (1) has 2 agents and 1 workspaces, which cannot move")
	contents, err := b.directory().CheckMove(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, move.Contents{Agents: 2, Workspaces: 1}, contents)
	for _, id := range []int64{7, 8} {
		_, err := b.directory().RevokeAgent(t.Context(), id)
		require.NoError(t, err)
	}
	require.ErrorContains(t, begin(), "has 0 agents and 1 workspaces")
	require.Equal(t, directory.ResidenceHere, b.residence(1).Residence, "a refused begin changes nothing")
	b.save(w.ID, func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredTerminated })
	require.NoError(t, begin())
	_, err = b.insert(workspace.Creation{Name: "late"})
	require.Equal(t, errcode.OrganizationMoving, fault.CodeOf(err), "%v", err)
}

// TestChangeThatIsNotCommittedDelaysTheBegin also shows that the export has it.
func TestChangeThatIsNotCommittedDelaysTheBegin(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(d *admin.Directory, tx pgx.Tx, o organization) error{
		"group": func(d *admin.Directory, tx pgx.Tx, o organization) error {
			_, err := d.Directory.CreateGroup(t.Context(), tx, directory.Group{OrganizationID: o.ID, Name: "late"})
			return err
		},
		"project": func(d *admin.Directory, tx pgx.Tx, o organization) error {
			_, err := d.Directory.CreateProject(t.Context(), tx, o.group.ID, "late")
			return err
		},
		"membership": func(d *admin.Directory, tx pgx.Tx, o organization) error {
			return d.Directory.PutMembership(t.Context(), tx, o.member(o.ben.ID))
		},
		"token": func(d *admin.Directory, tx pgx.Tx, o organization) error {
			hash := sha256.Sum256([]byte("late"))
			made := directory.Token{UserID: o.ben.ID, Name: "late", Scope: access.ScopeRead}
			_, err := d.Within(tx).CreateToken(t.Context(), made, hash[:], tokenLimit)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCell(t, 0)
			o := b.organization("acme")
			begun := make(chan error, 1)
			require.NoError(t, b.tx(func(tx pgx.Tx) error {
				if err := change(b.directory(), tx, o); err != nil {
					return err
				}
				go func() {
					_, err := b.directory().BeginMove(t.Context(), leaving("m1", o.Organization))
					begun <- err
				}()
				b.awaitBlocked(tx)
				return nil
			}))
			require.NoError(t, <-begun)
			content, err := b.directory().ExportOrganization(t.Context(), o.ID, "m1")
			require.NoError(t, err)
			require.Equal(t, 1+1+1+2+2+1+1+1, content.Records())
		})
	}
}

// awaitBlocked waits until a transaction blocks another one.
func (b *fixture) awaitBlocked(holder pgx.Tx) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		var blocks bool
		err := b.pool.QueryRow(b.t.Context(), `
			select exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))`,
			holder.Conn().PgConn().PID()).Scan(&blocks)
		require.NoError(c, err)
		require.True(c, blocks)
	}, time.Minute, 10*time.Millisecond, "no transaction waits")
}
