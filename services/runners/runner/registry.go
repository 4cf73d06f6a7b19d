package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/routable"
	"lockstep.internal/schemas/gen/errcode"
)

// Config of a registry.
type Config struct {
	// Store and Changes. Required. Changes reports all as soon as it follows the store.
	Store   Store
	Changes Changes
	// Logger. Required.
	Logger *slog.Logger
	// Now returns the time. Defaults to [time.Now].
	Now func() time.Time
	// ContactEvery returns how long the stored contact of a manager stays as it is. Defaults to a random time between 40
	// and 55 minutes, as in GitLab.
	ContactEvery func() time.Duration
	// MaxManagers of a runner. Defaults to 1000.
	MaxManagers int
	// Retry is the pause between two attempts to read the store. Defaults to between 100 ms and 10 s.
	Retry retry.Policy
}

// Registry is the copy of the runners of the cell. It is safe for concurrent use.
type Registry struct {
	cfg      Config
	unknown  *tokenLookups
	contacts *contacts
	// loading holds an element while the store is read.
	loading chan struct{}
	// wake receives a value when wanted has an id.
	wake chan struct{}

	mu      sync.RWMutex
	byID    map[int64]*Runner
	byToken map[TokenHash]*Runner
	// sorted are all runners by id; nil after a change.
	sorted  []*Runner
	changed chan struct{} // closed with the next change
	// wanted are runners that Refresh could not read.
	wanted map[int64]struct{}
	loaded bool
}

// NewRegistry returns an empty registry. [Registry.Run] fills it.
func NewRegistry(cfg Config) *Registry {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.ContactEvery == nil {
		cfg.ContactEvery = contactEvery
	}
	cfg.MaxManagers = cmp.Or(cfg.MaxManagers, 1000)
	cfg.Retry = cfg.Retry.OrDefault(retry.Policy{Min: 100 * time.Millisecond, Max: 10 * time.Second})
	return &Registry{
		cfg: cfg, unknown: newTokenLookups(), contacts: newContacts(cfg),
		loading: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		byID: map[int64]*Runner{}, byToken: map[TokenHash]*Runner{}, changed: make(chan struct{}),
		wanted: map[int64]struct{}{},
	}
}

// Run follows the changes until ctx is done. It calls ready when the runners are loaded for the first time. It may be
// called once.
func (r *Registry) Run(ctx context.Context, ready func()) {
	var failures retry.FailureLog
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.cfg.Changes.Changed():
		case <-r.wake:
		}
		ids, all := r.cfg.Changes.Take()
		ids = append(ids, r.takeWanted()...)
		if !all && len(ids) == 0 {
			continue
		}
		err := r.cfg.Retry.Do(ctx, func() error { return r.load(ctx, all, ids) }, func(err error, pause time.Duration) {
			r.cfg.Logger.Log(ctx, failures.Level(), "reading runners failed", logkey.Error(err),
				slog.Duration(logkey.RetryIn, pause))
		})
		if err != nil {
			return // ctx has ended
		}
		failures.Reset()
		if all {
			ready()
		}
	}
}

func (r *Registry) takeWanted() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]int64, 0, len(r.wanted))
	for id := range r.wanted {
		ids = append(ids, id)
	}
	clear(r.wanted)
	return ids
}

// Refresh reads runners that this replica has changed. When it returns without an error, the change is effective here.
// After an error, [Registry.Run] reads them.
func (r *Registry) Refresh(ctx context.Context, ids ...int64) error {
	err := r.load(ctx, false, ids)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	for _, id := range ids {
		r.wanted[id] = struct{}{}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return err
}

// load reads the runners, or all, and replaces them.
func (r *Registry) load(ctx context.Context, all bool, ids []int64) error {
	select {
	case r.loading <- struct{}{}:
		defer func() { <-r.loading }()
	case <-ctx.Done():
		return fmt.Errorf("wait for another read of runners: %w", ctx.Err())
	}
	read, err := r.read(ctx, all, ids)
	if err != nil {
		return fmt.Errorf("read runners: %w", err)
	}
	found := make(map[int64]*Runner, len(read))
	for i := range read {
		found[read[i].ID] = &read[i]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if all {
		ids = ids[:0:0]
		for id := range r.byID {
			ids = append(ids, id)
		}
		r.unknown.forget()
		r.loaded = true
	}
	changed := false
	for _, id := range ids {
		if _, exists := found[id]; !exists {
			changed = r.remove(id) || changed
		}
	}
	for _, runner := range found {
		changed = r.put(runner) || changed
	}
	if changed {
		r.sorted = nil
		close(r.changed)
		r.changed = make(chan struct{})
	}
	return nil
}

func (r *Registry) read(ctx context.Context, all bool, ids []int64) ([]Runner, error) {
	if all {
		return r.cfg.Store.Runners(ctx)
	}
	return r.cfg.Store.RunnersByID(ctx, ids...)
}

// put is called with the mutex held, as remove is. Both report whether something changed.
func (r *Registry) put(runner *Runner) bool {
	if known, exists := r.byID[runner.ID]; exists {
		if known.Revision == runner.Revision && known.TokenHash == runner.TokenHash {
			return false
		}
		delete(r.byToken, known.TokenHash)
	}
	r.byID[runner.ID], r.byToken[runner.TokenHash] = runner, runner
	return true
}

func (r *Registry) remove(id int64) bool {
	known, exists := r.byID[id]
	if exists {
		delete(r.byToken, known.TokenHash)
		delete(r.byID, id)
		r.contacts.forget(id)
	}
	return exists
}

// Check is a health check. It fails before the runners are loaded.
func (r *Registry) Check(context.Context) error {
	if !r.isLoaded() {
		return errors.New("the runners are not loaded yet")
	}
	return nil
}

func (r *Registry) isLoaded() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.loaded
}

// Changed returns a channel that is closed by the next change of a runner. Get it before the question whose answer may
// change. A contact of a manager is no change.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changed
}

// Runner returns the runner, and false if it does not exist. The caller does not change it: a change is another value.
func (r *Registry) Runner(id int64) (*Runner, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	runner, found := r.byID[id]
	return runner, found
}

// All returns all runners by id. The caller does not change them, nor the slice.
func (r *Registry) All() []*Runner {
	r.mu.RLock()
	all := r.sorted
	r.mu.RUnlock()
	if all != nil {
		return all
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sorted == nil {
		r.sorted = make([]*Runner, 0, len(r.byID))
		for _, runner := range r.byID {
			r.sorted = append(r.sorted, runner)
		}
		slices.SortFunc(r.sorted, func(a, b *Runner) int { return cmp.Compare(a.ID, b.ID) })
	}
	return r.sorted
}

// Authenticate returns the runner with this token, which the caller does not change. A token that is not known here is
// looked up in the store, since another replica may have created it just now. Faults: permission_denied for a token
// that is certainly not valid; unavailable before the runners are loaded; resource_exhausted if too many unknown tokens
// are looked up at once.
func (r *Registry) Authenticate(ctx context.Context, token string) (*Runner, error) {
	hash, err := HashToken(token)
	if err != nil {
		return nil, fault.Wrap(err, errcode.PermissionDenied, "the token of the runner is not valid: %v", err)
	}
	if !r.isLoaded() {
		return nil, fault.New(errcode.Unavailable, "the runners are not loaded yet: try again")
	}
	runner := r.withToken(hash)
	if runner == nil {
		if runner, err = r.lookUp(ctx, token, hash); err != nil {
			return nil, err
		}
	}
	if runner == nil {
		return nil, fault.New(errcode.PermissionDenied,
			"the token of the runner is unknown: the runner was deleted, or its token was reset")
	}
	if runner.Expired(r.cfg.Now()) {
		return nil, fault.New(errcode.PermissionDenied, "the token of runner %d expired at %s: reset it", runner.ID,
			runner.TokenExpiresAt.Format(time.RFC3339))
	}
	return runner, nil
}

func (r *Registry) withToken(hash TokenHash) *Runner {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byToken[hash]
}

// lookUp returns the runner with a token that the copy does not have; nil if there is none.
func (r *Registry) lookUp(ctx context.Context, token string, hash TokenHash) (*Runner, error) {
	known, end, err := r.unknown.begin(ctx, hash)
	if known || err != nil {
		return nil, err
	}
	id, err := r.cfg.Store.IDByToken(ctx, hash)
	if err == nil && id == 0 {
		err = r.elsewhere(ctx, token)
	}
	end(err == nil && id == 0)
	if err != nil {
		return nil, fmt.Errorf("look up the token of a runner: %w", err)
	}
	if id == 0 {
		return nil, nil //nolint:nilnil // no runner has the token, which the caller checks
	}
	if err := r.Refresh(ctx, id); err != nil {
		return nil, err
	}
	return r.withToken(hash), nil
}

// elsewhere returns a fault for a token whose organization is in another cell: a runner must not take it for invalid.
func (r *Registry) elsewhere(ctx context.Context, token string) error {
	parsed, err := routable.Parse(token)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformedToken, err)
	}
	if parsed.Payload.Organization == 0 {
		return nil
	}
	return r.cfg.Store.Elsewhere(ctx, parsed.Payload.Organization)
}
