package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock is the Lease. It records what the election learns from the API server.
type lock struct {
	resourcelock.Interface

	ensureNamespace func(context.Context) error

	mu       sync.Mutex
	answered time.Time // last answer of the API server
	err      error     // of the last request
	holder   string
	sawOther bool // another replica has held the Lease
}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.record(record, err)
	return record, raw, err //nolint:wrapcheck // as the wrapped lock
}

func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, record)
	if apierrors.IsNotFound(err) { // the namespace does not exist
		if err = l.ensureNamespace(ctx); err == nil {
			err = l.Interface.Create(ctx, record)
		}
	}
	l.record(&record, err)
	return err //nolint:wrapcheck // as the wrapped lock
}

func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	l.record(&record, err)
	return err //nolint:wrapcheck // as the wrapped lock
}

func (l *lock) record(record *resourcelock.LeaderElectionRecord, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	if isAnswer(err) {
		l.answered = time.Now()
	}
	if err != nil || record == nil {
		return
	}
	l.holder = record.HolderIdentity
	l.sawOther = l.sawOther || record.HolderIdentity != "" && record.HolderIdentity != l.Identity()
}

// isAnswer reports whether a working API server answered: with success, or with a refusal that is
// part of an election.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) &&
		(apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err))
}

// release empties the Lease if this process still holds it, so that other replicas need not wait
// until it expires. A renewal that this process abandoned may still arrive in between; then release
// reads and empties the Lease again.
func (l *lock) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for {
		record, _, err := l.Get(ctx)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the lease: %w", err)
		}
		if record.HolderIdentity != l.Identity() {
			return nil
		}
		now := metav1.Now()
		err = l.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) || ctx.Err() != nil {
			return fmt.Errorf("empty the lease: %w", err)
		}
	}
}
