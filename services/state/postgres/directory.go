package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// Directory stores who there is and who may do what. Every change is told on the stream DIRECTORY in the transaction that makes it.
// Its errors are faults.
type Directory struct {
	// DB is a pool, or a transaction: see Within.
	DB   Database
	Cell topology.Cell
	Now  func() time.Time
}

// Database is a pool of connections, or one transaction.
type Database interface {
	Querier
	postgres.Beginner
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Within is the directory as the transaction sees it: who holds a transaction waits for no second connection.
func (d *Directory) Within(tx pgx.Tx) *Directory {
	return &Directory{DB: tx, Cell: d.Cell, Now: d.Now}
}

// Page asks for one page of a list ordered by id. After is the last id of the page before.
type Page struct {
	After int64
	Size  int
}

// PostgreSQL error codes.
const (
	uniqueViolation     = "23505"
	foreignKeyViolation = "23503"
)

// asFault turns a broken constraint into what it means to the caller.
func asFault(err error, exists, missing string) error {
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return fault.Wrap(err, errcode.NotFound, "%s does not exist", missing)
	case errors.As(err, &pgErr) && pgErr.Code == uniqueViolation:
		return fault.Wrap(err, errcode.AlreadyExists, "%s exists already", exists)
	case errors.As(err, &pgErr) && pgErr.Code == foreignKeyViolation:
		return fault.Wrap(err, errcode.NotFound, "%s does not exist", missing)
	default:
		return err
	}
}

// tell puts a directory event into the outbox. The subject's key is the entry's id.
func (d *Directory) tell(ctx context.Context, tx pgx.Tx, kind, key string, data any) error {
	e, err := event.New(event.Attributes{
		Type:    event.TypePrefix + "directory." + kind + ".v1",
		Source:  event.ServiceSource(string(d.Cell), "state"),
		Subject: kind + "/" + key,
		ID:      uuid.Must(uuid.NewV7()).String(),
		Time:    d.Now(),
	}, data)
	if err != nil {
		return fmt.Errorf("directory event: %w", err)
	}
	msg, err := event.Encode(e, d.Cell.Directory(kind, key))
	if err != nil {
		return fmt.Errorf("directory event: %w", err)
	}
	if err := outbox.Insert(ctx, tx, msg); err != nil {
		return fmt.Errorf("directory event: %w", err)
	}
	return nil
}

func key(id int64) string { return strconv.FormatInt(id, 10) }

// CreateOrganization makes an organization; already_exists when the name is taken.
func (d *Directory) CreateOrganization(ctx context.Context, name string) (domain.Organization, error) {
	o := domain.Organization{Name: name}
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `insert into organizations (name) values ($1) returning id`, name).Scan(&o.ID); err != nil {
			return asFault(err, fmt.Sprintf("organization %q", name), "")
		}
		return d.tell(ctx, tx, "organization", key(o.ID), events.DirectoryOrganization{OrganizationID: int(o.ID)})
	})
	return o, err
}

// CreateGroup makes a group in an organization, or in a group of it.
func (d *Directory) CreateGroup(ctx context.Context, g domain.Group) (domain.Group, error) {
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if g.ParentID != 0 {
			err := tx.QueryRow(ctx, `select organization_id from groups where id = $1`, g.ParentID).Scan(&g.OrganizationID)
			if err != nil {
				return asFault(err, "", fmt.Sprintf("group %d", g.ParentID))
			}
		}
		err := tx.QueryRow(ctx, `insert into groups (organization_id, parent_group_id, name) values ($1, nullif($2, 0), $3) returning id`,
			g.OrganizationID, g.ParentID, g.Name).Scan(&g.ID)
		if err != nil {
			return asFault(err, fmt.Sprintf("group %q", g.Name), fmt.Sprintf("organization %d", g.OrganizationID))
		}
		return d.tell(ctx, tx, "group", key(g.ID), events.DirectoryGroup{GroupID: int(g.ID), OrganizationID: int(g.OrganizationID), ParentGroupID: int(g.ParentID)})
	})
	return g, err
}

// CreateProject makes a project in a group.
func (d *Directory) CreateProject(ctx context.Context, groupID int64, name string) (domain.Project, error) {
	var p domain.Project
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		var id int64
		err := tx.QueryRow(ctx, `insert into projects (organization_id, group_id, name) select organization_id, id, $2 from groups where id = $1 returning id`,
			groupID, name).Scan(&id)
		if err != nil {
			return asFault(err, fmt.Sprintf("project %q", name), fmt.Sprintf("group %d", groupID))
		}
		if p, err = project(ctx, tx, id); err != nil {
			return err
		}
		return d.tell(ctx, tx, "project", key(id), events.DirectoryProject{ProjectID: int(id), GroupID: int(groupID), OrganizationID: int(p.OrganizationID)})
	})
	return p, err
}

// projectPaths gives every project with its path.
const projectPaths = `
	with recursive paths as (
		select g.id, o.name || '/' || g.name as path from groups g join organizations o on o.id = g.organization_id where g.parent_group_id is null
		union all
		select g.id, p.path || '/' || g.name from groups g join paths p on p.id = g.parent_group_id
	)
	select p.id, p.organization_id, p.group_id, p.name, paths.path || '/' || p.name from projects p join paths on paths.id = p.group_id`

func scanProject(row pgx.CollectableRow) (domain.Project, error) {
	var p domain.Project
	err := row.Scan(&p.ID, &p.OrganizationID, &p.GroupID, &p.Name, &p.Path)
	return p, err //nolint:wrapcheck // the query's caller says what it asked for
}

func project(ctx context.Context, tx pgx.Tx, id int64) (domain.Project, error) {
	rows, err := tx.Query(ctx, projectPaths+` where p.id = $1`, id)
	if err != nil {
		return domain.Project{}, fmt.Errorf("read project %d: %w", id, err)
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanProject)
	return p, asFault(err, "", fmt.Sprintf("project %d", id))
}

// CreateUser makes a user; already_exists when the name is taken.
func (d *Directory) CreateUser(ctx context.Context, username string, admin bool) (domain.User, error) {
	u := domain.User{Username: username, Admin: admin}
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `insert into users (username, admin) values ($1, $2) returning id`, username, admin).Scan(&u.ID); err != nil {
			return asFault(err, fmt.Sprintf("user %q", username), "")
		}
		return d.tellUser(ctx, tx, u)
	})
	return u, err
}

// BlockUser refuses a user everything from now on.
func (d *Directory) BlockUser(ctx context.Context, id int64) (domain.User, error) {
	u := domain.User{ID: id, Blocked: true}
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `update users set state = 'blocked' where id = $1 returning username, admin`, id).Scan(&u.Username, &u.Admin)
		if err != nil {
			return asFault(err, "", fmt.Sprintf("user %d", id))
		}
		return d.tellUser(ctx, tx, u)
	})
	return u, err
}

func (d *Directory) tellUser(ctx context.Context, tx pgx.Tx, u domain.User) error {
	s := events.UserStateActive
	if u.Blocked {
		s = events.UserStateBlocked
	}
	return d.tell(ctx, tx, "user", key(u.ID), events.DirectoryUser{UserID: int(u.ID), State: s, Admin: u.Admin})
}

// PutMembership gives a user a role in a scope, in place of an earlier one.
func (d *Directory) PutMembership(ctx context.Context, m domain.Membership) error {
	return postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		// The user's row is the lock of its memberships.
		var one int
		if err := tx.QueryRow(ctx, `select 1 from users where id = $1 for update`, m.UserID).Scan(&one); err != nil {
			return asFault(err, "", fmt.Sprintf("user %d", m.UserID))
		}
		_, err := tx.Exec(ctx, `
			insert into memberships (user_id, scope, scope_id, role) values ($1, $2, $3, $4)
			on conflict (user_id, scope, scope_id) do update set role = excluded.role`, m.UserID, m.Scope.Kind, m.Scope.ID, m.Role)
		if err != nil {
			return fmt.Errorf("store membership: %w", err)
		}
		if _, err := tx.Exec(ctx, `delete from ended_memberships where user_id = $1 and scope = $2 and scope_id = $3`, m.UserID, m.Scope.Kind, m.Scope.ID); err != nil {
			return fmt.Errorf("store membership: %w", err)
		}
		return d.tellMembership(ctx, tx, m, false)
	})
}

// DeleteMembership takes a user's role in a scope away; not_found when there is none.
func (d *Directory) DeleteMembership(ctx context.Context, userID int64, scope domain.Scope) error {
	return postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		m := domain.Membership{UserID: userID, Scope: scope}
		var one int
		if err := tx.QueryRow(ctx, `select 1 from users where id = $1 for update`, userID).Scan(&one); err != nil {
			return asFault(err, "", fmt.Sprintf("user %d", userID))
		}
		err := tx.QueryRow(ctx, `delete from memberships where user_id = $1 and scope = $2 and scope_id = $3 returning role`,
			userID, scope.Kind, scope.ID).Scan(&m.Role)
		if err != nil {
			return asFault(err, "", fmt.Sprintf("membership of user %d in %s %d", userID, scope.Kind, scope.ID))
		}
		_, err = tx.Exec(ctx, `
			insert into ended_memberships (user_id, scope, scope_id, role) values ($1, $2, $3, $4)
			on conflict (user_id, scope, scope_id) do update set role = excluded.role`, userID, scope.Kind, scope.ID, m.Role)
		if err != nil {
			return fmt.Errorf("remember that a membership ended: %w", err)
		}
		return d.tellMembership(ctx, tx, m, true)
	})
}

func (d *Directory) tellMembership(ctx context.Context, tx pgx.Tx, m domain.Membership, deleted bool) error {
	return d.tell(ctx, tx, "membership", fmt.Sprintf("%d-%s-%d", m.UserID, m.Scope.Kind, m.Scope.ID), events.DirectoryMembership{
		UserID: int(m.UserID), Scope: events.MembershipScope(m.Scope.Kind), ScopeID: int(m.Scope.ID), Role: events.MembershipRole(m.Role), Deleted: deleted,
	})
}

// RegisterAgent makes an agent in a project.
func (d *Directory) RegisterAgent(ctx context.Context, a domain.Agent) (domain.Agent, error) {
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			insert into agents (project_id, name, token_hash, curve_public_key, created_at, entry_form) values ($1, $2, $3, $4, $5, $6) returning id, created_at, configuration_revision`,
			a.ProjectID, a.Name, a.TokenHash, a.CurvePublicKey, d.Now(), agentEntryForm).Scan(&a.ID, &a.CreatedAt, &a.ConfigurationRevision)
		if err != nil {
			return asFault(err, fmt.Sprintf("agent %q in project %d", a.Name, a.ProjectID), fmt.Sprintf("project %d", a.ProjectID))
		}
		a.Configuration = domain.DefaultAgentConfiguration()
		if err := d.tellAgent(ctx, tx, a); err != nil {
			return err
		}
		return d.tellConfiguration(ctx, tx, a)
	})
	return a, err
}

// RevokeAgent voids an agent's credentials for ever.
func (d *Directory) RevokeAgent(ctx context.Context, id int64) (domain.Agent, error) {
	var a domain.Agent
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `update agents set revoked_at = coalesce(revoked_at, $2) where id = $1 returning `+agentColumns, id, d.Now())
		if err != nil {
			return fmt.Errorf("revoke agent %d: %w", id, err)
		}
		if a, err = pgx.CollectExactlyOneRow(rows, scanAgent); err != nil {
			return asFault(err, "", fmt.Sprintf("agent %d", id))
		}
		return d.tellAgent(ctx, tx, a)
	})
	return a, err
}

func (d *Directory) tellAgent(ctx context.Context, tx pgx.Tx, a domain.Agent) error {
	return d.tell(ctx, tx, "agent", key(a.ID), events.DirectoryAgent{
		AgentID: int(a.ID), ProjectID: int(a.ProjectID), CurvePublicKey: a.CurvePublicKey, TokenHash: hex.EncodeToString(a.TokenHash), Revoked: a.Revoked,
	})
}

// idsPerCell is how many ids one cell may give out: 2^40.
const idsPerCell = int64(1) << 40

// ReserveIDs moves the ids of a new cell into its own range. It does nothing when they are there already, and refuses to move a cell that has given out ids.
func (d *Directory) ReserveIDs(ctx context.Context, cell int64) error {
	return postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		first := cell*idsPerCell + 1
		var last int64
		var called bool
		if err := tx.QueryRow(ctx, `select last_value, is_called from ids`).Scan(&last, &called); err != nil {
			return fmt.Errorf("read the ids given out: %w", err)
		}
		if last >= first && last < first+idsPerCell {
			return nil
		}
		if called {
			return fmt.Errorf("cell number %d begins with id %d, but this database has given out ids up to %d: a cell keeps its number", cell, first, last)
		}
		if _, err := tx.Exec(ctx, `select setval('ids', $1, false)`, first); err != nil {
			return fmt.Errorf("reserve ids: %w", err)
		}
		return nil
	})
}
