package domain

import (
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// Creation is what NewWorkspace needs to know.
type Creation struct {
	// Name is a DNS-safe slug of at most 40 characters that begins with a letter.
	Name      string
	ProjectID int64
	AgentID   int64
	UserID    int64
	Template  string
	// Spec gets its defaults here.
	Spec           Spec
	IdempotencyKey string
	// NamespacePrefix defaults to DefaultNamespacePrefix.
	NamespacePrefix string
	Now             time.Time
}

// NewWorkspace makes a workspace that is wanted running. The fault invalid_argument names everything that is wrong.
func NewWorkspace(c Creation) (Workspace, error) {
	c.Spec = c.Spec.WithDefaults()
	var f faults
	f.name("name", c.Name)
	c.Spec.check(&f)
	if err := f.err("workspace " + strconv.Quote(c.Name)); err != nil {
		return Workspace{}, err
	}
	if c.NamespacePrefix == "" {
		c.NamespacePrefix = DefaultNamespacePrefix
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Workspace{}, fault.Wrap(err, errcode.Internal, "no randomness for the id of workspace %q", c.Name)
	}
	now := instant(c.Now)
	return Workspace{
		ID: id, Name: c.Name, ProjectID: c.ProjectID, AgentID: c.AgentID, UserID: c.UserID, Template: c.Template,
		Namespace: c.NamespacePrefix + strconv.FormatInt(c.AgentID, 10) + "-" + c.Name, IdempotencyKey: c.IdempotencyKey, CreatedAt: now,
		Spec: c.Spec, DesiredState: DesiredRunning, DesiredRevision: 1, DesiredStateChangedAt: now, DesiredStateSince: now,
		Cause:       Cause{Kind: events.DesiredStateCauseUser, UserID: c.UserID},
		ActualState: actualstate.CreationRequested, ActualStateChangedAt: now, Termination: actualstate.TerminationNone,
		ReconsiderAt: NextTick(), // for the policies
	}, nil
}

// SetDesired says what the user wants from now on. It is no change when that is wanted already. A restart of what is wanted stopped is a start.
// The fault workspace_terminated refuses everything but Terminated once that was wanted.
func (w Workspace) SetDesired(to DesiredState, userID int64, now time.Time) (Workspace, error) {
	if !slices.Contains(DesiredStates(), to) {
		return w, fault.New(errcode.InvalidArgument, "desired state %q is unknown; it is one of %q", to, DesiredStates())
	}
	if to == w.DesiredState {
		return w, nil
	}
	if err := w.refuseTerminated(); err != nil {
		return w, err
	}
	if to == DesiredRestartRequested && w.DesiredState == DesiredStopped {
		to = DesiredRunning
	}
	w = w.desireState(to, Cause{Kind: events.DesiredStateCauseUser, UserID: userID}, now)
	// The policies that hold for it are known where it is observed next.
	w.ReconsiderAt = NextTick()
	return w, nil
}

// Update replaces the spec. It is no change when it is the same already. The volume may grow and never shrinks.
func (w Workspace) Update(spec Spec, userID int64, now time.Time) (Workspace, error) {
	if err := w.refuseTerminated(); err != nil {
		return w, err
	}
	spec = spec.WithDefaults()
	var f faults
	spec.check(&f)
	f.noShrinking("volume_size", w.Spec.VolumeSize, spec.VolumeSize)
	if err := f.err("workspace " + strconv.Quote(w.Name)); err != nil {
		return w, err
	}
	if reflect.DeepEqual(spec.normal(), w.Spec.normal()) {
		return w, nil
	}
	w.Spec = spec
	return w.desire(Cause{Kind: events.DesiredStateCauseUser, UserID: userID}, now), nil
}

// Redispatch tells the cluster again what is wanted.
func (w Workspace) Redispatch(now time.Time) Workspace {
	return w.desire(Cause{Kind: events.DesiredStateCauseRedispatch}, now)
}

// desireState wants another state from now on.
func (w Workspace) desireState(to DesiredState, cause Cause, now time.Time) Workspace {
	w.DesiredState, w.DesiredStateSince, w.ExpiryWarnedOf = to, instant(now), time.Time{}
	if to == DesiredTerminated {
		// What its cluster shows is read otherwise from now on.
		w.ReconsiderAt = NextTick()
	}
	return w.desire(cause, now)
}

// NextTick is a time for ReconsiderAt that every agent's clock has reached.
func NextTick() time.Time { return time.Unix(0, 0).UTC() }

// WithWishOf is the workspace with everything that is wanted as it is of another version of it, and what its cluster says left alone.
func (w Workspace) WithWishOf(other Workspace) Workspace {
	w.Spec, w.DesiredState, w.DesiredRevision, w.DesiredStateChangedAt = other.Spec, other.DesiredState, other.DesiredRevision, other.DesiredStateChangedAt
	w.DesiredStateSince, w.ExpiryWarnedOf, w.AgeWarnedOf = other.DesiredStateSince, other.ExpiryWarnedOf, other.AgeWarnedOf
	w.Cause, w.Warnings, w.Drifts = other.Cause, other.Warnings, other.Drifts
	return w
}

// desire is the one way to a new revision.
func (w Workspace) desire(cause Cause, now time.Time) Workspace {
	w.DesiredRevision++
	w.DesiredStateChangedAt = instant(now)
	w.Cause = cause
	return w
}

func (w Workspace) refuseTerminated() error {
	if w.DesiredState != DesiredTerminated {
		return nil
	}
	return fault.New(errcode.WorkspaceTerminated,
		"workspace %q was asked to terminate, which is permanent; create another one", w.Name).
		With("workspace_id", w.ID.String())
}

// noShrinking refuses a volume smaller than it is.
func (f *faults) noShrinking(path, from, to string) {
	old, errOld := resource.ParseQuantity(from)
	wanted, errWanted := resource.ParseQuantity(to)
	if errOld == nil && errWanted == nil && wanted.Cmp(old) < 0 {
		f.addf(path, "%q is less than the %q the volume has; a volume cannot shrink", to, from)
	}
}

// instant is the precision of every time that is stored and told: a millisecond, in UTC.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
