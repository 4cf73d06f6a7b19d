package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/workspace"
)

func scanTemplate(row pgx.CollectableRow) (workspace.Template, error) {
	var t workspace.Template
	err := row.Scan(&t.ProjectID, &t.Name, &t.Spec, &t.UpdatedAt)
	return t, err //nolint:wrapcheck // the caller wraps it
}

// PutTemplate creates or replaces a template. It returns the fault of [directory.Organization.Changeable].
func (d *Directory) PutTemplate(ctx context.Context, t workspace.Template) (workspace.Template, error) {
	if t.ProjectID == 0 {
		return d.putTemplate(ctx, t)
	}
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) (err error) {
		if err := lockChangeable(ctx, tx, directory.Scope{Kind: directory.ScopeProject, ID: t.ProjectID}); err != nil {
			return err
		}
		t, err = d.Within(tx).putTemplate(ctx, t)
		return err
	})
	return t, err
}

func (d *Directory) putTemplate(ctx context.Context, t workspace.Template) (workspace.Template, error) {
	return one(ctx, d, fmt.Sprintf("template %q", t.Name), scanTemplate,
		putTemplate+` returning project_id, name, spec, updated_at`, t.ProjectID, t.Name, t.Spec, d.Now())
}

const putTemplate = `
	insert into templates (project_id, name, spec, updated_at) values ($1, $2, $3, $4)
	on conflict (project_id, name) do update set spec = excluded.spec, updated_at = excluded.updated_at`

func queueTemplate(batch *pgx.Batch, t workspace.Template) {
	batch.Queue(putTemplate, t.ProjectID, t.Name, t.Spec, t.UpdatedAt)
}

// AddTemplate creates a template if the name is free.
func (d *Directory) AddTemplate(ctx context.Context, t workspace.Template) error {
	_, err := d.DB.Exec(
		ctx,
		`insert into templates (project_id, name, spec, updated_at) values ($1, $2, $3, $4) on conflict do nothing`,
		t.ProjectID,
		t.Name,
		t.Spec,
		d.Now(),
	)
	if err != nil {
		return fmt.Errorf("add template %q: %w", t.Name, err)
	}
	return nil
}

// Template returns the project's template, or the one for all projects with that name.
func (d *Directory) Template(ctx context.Context, projectID int64, name string) (workspace.Template, error) {
	return one(ctx, d, fmt.Sprintf("template %q", name), scanTemplate, `
		select project_id, name, spec, updated_at from templates where name = $2 and project_id in (0, $1)
			order by project_id desc limit 1`, projectID, name)
}

// Templates lists the project's templates and those for all projects.
func (d *Directory) Templates(ctx context.Context, projectID int64) ([]workspace.Template, error) {
	return list(
		ctx,
		d,
		"templates",
		scanTemplate,
		`select project_id, name, spec, updated_at from templates where project_id in (0, $1) order by name, project_id`,
		projectID,
	)
}
