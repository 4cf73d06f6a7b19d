package state

import (
	"context"
	"fmt"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/workspace"
)

const (
	adminUser       = "admin"
	defaultTemplate = "default"
)

// bootstrap stores the settings of the cell, and creates what a new cell needs: its id range, the default template and
// the first administrator. It keeps what exists.
func bootstrap(ctx context.Context, cfg Config, store *admin.Directory) error {
	if err := libpostgres.ReserveIDs(ctx, store.DB, cfg.Cell.Number); err != nil {
		return fmt.Errorf("reserve ids: %w", err)
	}
	if err := store.ConfigureCell(ctx, cfg.Workspace.settings()); err != nil {
		return fmt.Errorf("store the settings of the cell: %w", err)
	}
	spec := workspace.Spec{Image: cfg.Workspace.Image, Command: []string{"sleep", "infinity"}}
	if err := store.AddTemplate(ctx, workspace.Template{Name: defaultTemplate, Spec: spec}); err != nil {
		return fmt.Errorf("add the template %s: %w", defaultTemplate, err)
	}
	if !cfg.Bootstrap.AdminTokenFile.IsSet() {
		return nil
	}
	value, err := cfg.Bootstrap.AdminTokenFile.Read()
	if err != nil {
		return fmt.Errorf("read the administrator's token: %w", err)
	}
	hash, err := natsauth.HashToken(natsauth.TokenPersonal, value)
	if err != nil {
		return fmt.Errorf("the administrator's token: %w", err)
	}
	return createAdmin(ctx, store, hash[:])
}

// createAdmin creates the user admin with the token if they are missing. A revoked token stays revoked.
func createAdmin(ctx context.Context, store *admin.Directory, hash []byte) error {
	user, err := store.UserByName(ctx, adminUser)
	if fault.Is(err, errcode.NotFound) {
		user, err = store.CreateUser(ctx, adminUser, true)
	}
	if fault.Is(err, errcode.AlreadyExists) { // another replica created it
		user, err = store.UserByName(ctx, adminUser)
	}
	if err != nil {
		return fmt.Errorf("create the user %s: %w", adminUser, err)
	}
	_, err = store.CreateToken(ctx, directory.Token{UserID: user.ID, Name: "bootstrap", Scope: access.ScopeAdmin}, hash, 0)
	if err != nil && !fault.Is(err, errcode.AlreadyExists) {
		return fmt.Errorf("create the token of user %s: %w", adminUser, err)
	}
	return nil
}
