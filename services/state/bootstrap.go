package state

import (
	"context"
	"fmt"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

const (
	adminUser       = "admin"
	defaultTemplate = "default"
)

// bootstrap makes what a new cell begins with: its range of ids, the template default, and the first administrator. It changes nothing that is there.
func bootstrap(ctx context.Context, cfg Config, directory *postgres.Directory) error {
	if err := directory.ReserveIDs(ctx, cfg.Cell.Number); err != nil {
		return fmt.Errorf("reserve ids: %w", err)
	}
	spec := domain.Spec{Image: cfg.Workspace.Image, Command: []string{"sleep", "infinity"}}.WithDefaults()
	if err := directory.AddTemplate(ctx, domain.Template{Name: defaultTemplate, Spec: spec}); err != nil {
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
	return admin(ctx, directory, hash[:])
}

// admin makes the user admin and gives it the token, unless they are there. A token that was revoked stays so.
func admin(ctx context.Context, directory *postgres.Directory, hash []byte) error {
	user, err := directory.UserByName(ctx, adminUser)
	if fault.Is(err, errcode.NotFound) {
		user, err = directory.CreateUser(ctx, adminUser, true)
	}
	if fault.Is(err, errcode.AlreadyExists) { // another replica was faster
		user, err = directory.UserByName(ctx, adminUser)
	}
	if err != nil {
		return fmt.Errorf("make the user %s: %w", adminUser, err)
	}
	_, err = directory.CreateToken(ctx, domain.Token{UserID: user.ID, Name: "bootstrap"}, hash)
	if err != nil && !fault.Is(err, errcode.AlreadyExists) {
		return fmt.Errorf("give the user %s its token: %w", adminUser, err)
	}
	return nil
}
