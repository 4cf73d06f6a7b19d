package move

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/runner"
)

// Departures stores moves for people; a [postgres.Moves].
type Departures interface {
	Begin(ctx context.Context, m Move, tokens Tokens) (Move, error)
	Latest(ctx context.Context, organizationID int64) (Move, error)
	List(ctx context.Context) ([]Move, error)
	Change(ctx context.Context, m Move, from Phase) (bool, error)
	Waiting(ctx context.Context, organizationID int64) ([]job.Job, error)
	Counts(ctx context.Context, organizationID int64) (Counts, error)
}

// Arrivals stores moves to this cell; a [postgres.Arrivals].
type Arrivals interface {
	// LatestArrival returns the latest move of an organization to this cell. Fault not_found.
	LatestArrival(ctx context.Context, organizationID int64) (Move, error)
	// CancelArrival removes what has arrived, and can be repeated. Fault failed_precondition for one that is open.
	CancelArrival(ctx context.Context, m Move) error
}

// Directory is the state service of this cell.
type Directory interface {
	// Check returns what an organization has that cannot move.
	Check(ctx context.Context, token string, organizationID int64) (*statev1.CheckMoveResponse, error)
	EndArrival(ctx context.Context, token string, request *statev1.EndMoveRequest) error
}

// Config of a service. All fields are required.
type Config struct {
	Store     Departures
	Arrivals  Arrivals
	Directory Directory
	Cell      topology.Cell
	// Missing is the setting without which this cell cannot move an organization; empty if there is none.
	Missing string
	// Describe describes the cell of a runners service.
	Describe func(ctx context.Context, url, token string) (*runnersv1.DescribeCellResponse, error)
	// Caller returns the user of a personal access token of this cell.
	Caller func(ctx context.Context, token string) (access.Caller, error)
	// Exists reports whether this cell has the organization.
	Exists  func(organizationID int64) bool
	Runners func() []*runner.Runner
	Place   func(projectID int64) (runner.Place, bool)
	// Timeout is how long a move may copy.
	Timeout time.Duration
	Now     func() time.Time
}

// Service begins and cancels moves for administrators. Errors are faults. It is safe for concurrent use.
type Service struct{ cfg Config }

// NewService returns a service.
func NewService(cfg Config) *Service { return &Service{cfg} }

// Destination is where an organization is moved to.
type Destination struct {
	Cell topology.Cell
	URL  string
	// Token is a personal access token of an administrator there.
	Token string
}

func (s *Service) missing() error {
	return fault.New(errcode.FailedPrecondition, "organizations cannot be moved from cell %s without %s: set it",
		s.cfg.Cell, s.cfg.Missing)
}

// describe checks the destination and the organization, and returns what the other cell says about itself.
func (s *Service) describe(
	ctx context.Context, organizationID int64, to Destination,
) (*runnersv1.DescribeCellResponse, error) {
	if s.cfg.Missing != "" {
		return nil, s.missing()
	}
	if organizationID <= 0 || !s.cfg.Exists(organizationID) {
		return nil, fault.New(errcode.NotFound, "organization %d does not exist in cell %s", organizationID, s.cfg.Cell)
	}
	if err := topology.ValidateCell(string(to.Cell)); err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "to_cell: %v", err).With("field", "to_cell")
	}
	if to.Cell == s.cfg.Cell {
		return nil, fault.New(errcode.InvalidArgument, "to_cell: organization %d is in cell %s already",
			organizationID, to.Cell).With("field", "to_cell")
	}
	u, err := url.Parse(to.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil {
		return nil, fault.New(errcode.InvalidArgument,
			"to_url: %q is not a URL such as https://runners.eu-2.example", to.URL).
			With("field", "to_url")
	}
	there, err := s.cfg.Describe(ctx, to.URL, to.Token)
	if err != nil {
		return nil, fmt.Errorf("ask cell %s: %w", to.Cell, explain(err, to.Cell))
	}
	if there.GetCell() != string(to.Cell) {
		return nil, fault.New(errcode.InvalidArgument, "to_url: %s is the address of cell %s, not of %s",
			to.URL, there.GetCell(), to.Cell).With("field", "to_url")
	}
	return there, nil
}

// explain keeps a token that the other cell refuses from looking like that of the request.
func explain(err error, cell topology.Cell) error {
	if refused(err) {
		return fault.Wrap(err, errcode.FailedPrecondition,
			"cell %s refuses the token for it: use a personal access token of an administrator there, with the scope admin: %s",
			cell, fault.From(err).Message)
	}
	return err
}

// Result is a report with its counts.
type Result struct {
	Report

	Counts  Counts
	Waiting int
	// Agents and Workspaces cannot move.
	Agents, Workspaces int64
}

// Report returns what a move would change. token is a personal access token of an administrator of this cell.
func (s *Service) Report(ctx context.Context, organizationID int64, to Destination, token string) (Result, error) {
	there, err := s.describe(ctx, organizationID, to)
	if err != nil {
		return Result{}, err
	}
	staying, err := s.cfg.Directory.Check(ctx, token, organizationID)
	if err != nil {
		return Result{}, fmt.Errorf("ask the state service what cannot move: %w", explain(err, s.cfg.Cell))
	}
	instance, err := InstanceRunners(there.GetRunners())
	if err != nil {
		return Result{}, err
	}
	waiting, err := s.cfg.Store.Waiting(ctx, organizationID)
	if err != nil {
		return Result{}, err
	}
	counts, err := s.cfg.Store.Counts(ctx, organizationID)
	if err != nil {
		return Result{}, err
	}
	situation := Situation{
		OrganizationID: organizationID, Waiting: waiting, Runners: s.cfg.Runners(), There: instance, Place: s.cfg.Place,
		Now: s.cfg.Now(),
	}
	return Result{
		Report: situation.Report(), Counts: counts, Waiting: len(waiting),
		Agents: staying.GetAgents(), Workspaces: staying.GetWorkspaces(),
	}, nil
}

// Start begins a move, or gives a move that goes on new tokens. token is a personal access token of an administrator of
// this cell.
func (s *Service) Start(
	ctx context.Context, organizationID int64, to Destination, token string, startedBy int64,
) (Move, error) {
	if _, err := s.describe(ctx, organizationID, to); err != nil {
		return Move{}, err
	}
	caller, err := s.cfg.Caller(ctx, token)
	if err != nil {
		return Move{}, fmt.Errorf("check the token for this cell: %w", explain(err, s.cfg.Cell))
	}
	if !caller.Admin || !caller.Scope.Includes(access.ScopeAdmin) {
		return Move{}, fault.New(errcode.InvalidArgument,
			"token: it is not that of an administrator of this cell with the scope admin").With("field", "token")
	}
	now := s.cfg.Now().UTC().Truncate(time.Millisecond)
	return s.cfg.Store.Begin(ctx, Move{
		ID: uuid.NewString(), OrganizationID: organizationID, Cell: to.Cell, URL: to.URL, Phase: Copying,
		StartedBy: startedBy, StartedAt: now, CancelAt: now.Add(s.cfg.Timeout),
	}, Tokens{Source: token, Target: to.Token})
}

// Get returns the latest move of an organization from this cell, and how many pipelines are left.
func (s *Service) Get(ctx context.Context, organizationID int64) (Move, Counts, error) {
	m, err := s.cfg.Store.Latest(ctx, organizationID)
	if err != nil {
		return Move{}, Counts{}, err
	}
	if m.Phase.Ended() {
		return m, Counts{}, nil
	}
	counts, err := s.cfg.Store.Counts(ctx, organizationID)
	return m, counts, err
}

// List returns the moves from this cell and to it, the newest first.
func (s *Service) List(ctx context.Context) ([]Move, error) { return s.cfg.Store.List(ctx) }

// Cancel cancels the move of an organization that is still copying.
func (s *Service) Cancel(ctx context.Context, organizationID int64) (Move, error) {
	m, err := s.cfg.Store.Latest(ctx, organizationID)
	if err != nil {
		return Move{}, err
	}
	canceled, err := m.Cancel()
	if err != nil || canceled.Phase == m.Phase {
		return canceled, err
	}
	changed, err := s.cfg.Store.Change(ctx, canceled, m.Phase)
	if err != nil {
		return Move{}, err
	}
	if !changed {
		return Move{}, fault.New(errcode.Conflict, "the move of organization %d went on meanwhile: look at it again",
			organizationID)
	}
	return canceled, nil
}

// CancelArrival cancels the latest move of an organization to this cell, whose source does not answer. token is a
// personal access token of an administrator of this cell. It can be repeated: the runners are removed first, so that
// the source cannot open the organization here any more, and then the directory.
func (s *Service) CancelArrival(ctx context.Context, organizationID int64, token string) (Move, error) {
	if s.cfg.Missing != "" {
		return Move{}, s.missing()
	}
	m, err := s.cfg.Arrivals.LatestArrival(ctx, organizationID)
	if err != nil {
		return Move{}, err
	}
	if err := s.cfg.Arrivals.CancelArrival(ctx, m); err != nil {
		return Move{}, err
	}
	err = s.cfg.Directory.EndArrival(ctx, token, &statev1.EndMoveRequest{
		OrganizationId: m.OrganizationID, MoveId: m.ID, Outcome: statev1.MoveOutcome_MOVE_OUTCOME_CANCELED,
	})
	if err != nil {
		return Move{}, fmt.Errorf("cancel the arrival at the state service: %w", explain(err, s.cfg.Cell))
	}
	return s.cfg.Arrivals.LatestArrival(ctx, organizationID)
}
