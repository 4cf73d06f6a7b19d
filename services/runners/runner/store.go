package runner

import (
	"context"
	"errors"
	"time"
)

// ErrNoRunner is wrapped when a runner was deleted.
var ErrNoRunner = errors.New("the runner does not exist")

// Store has the runners and their managers.
type Store interface {
	// Runners returns all runners.
	Runners(ctx context.Context) ([]Runner, error)
	// RunnersByID returns those runners that exist.
	RunnersByID(ctx context.Context, ids ...int64) ([]Runner, error)
	// IDByToken returns the id of the runner with this token, and 0 if there is none.
	IDByToken(ctx context.Context, hash TokenHash) (int64, error)
	// Elsewhere returns the fault organization_moving if the organization has moved to another cell, or comes from one
	// and is not open here yet.
	Elsewhere(ctx context.Context, organizationID int64) error
	// StoreContact creates the manager or updates it, and returns its id. A runner that has limit managers loses the
	// one with the oldest contact. Empty texts keep what is stored. The error wraps [ErrNoRunner].
	StoreContact(ctx context.Context, contact Contact, limit int) (managerID int64, err error)
}

// Contact is a request of a manager.
type Contact struct {
	RunnerID int64
	SystemID string
	Info     Info
	Address  string
	At       time.Time
}

// Changes reports which runners changed. A subscription of libs/postgres implements it.
type Changes interface {
	// Changed receives a value when something changed.
	Changed() <-chan struct{}
	// Take returns the changes since the previous call. all means that any runner may have changed.
	Take() (ids []int64, all bool)
}
