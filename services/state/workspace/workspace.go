package workspace

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/state/actualstate"
)

// DefaultNamespacePrefix is the default prefix of workspace namespaces. Dispatchers refuse other namespaces.
const DefaultNamespacePrefix = natsauth.DefaultNamespacePrefix

// CheckNamespacePrefix returns an error unless each workspace of agents with ids up to lastAgent can have a namespace
// with the prefix.
func CheckNamespacePrefix(prefix string, lastAgent int64) error {
	longest := namespace(prefix, lastAgent, strings.Repeat("x", maxName))
	if prefix != "" && len(validation.IsDNS1123Label(longest)) == 0 {
		return nil
	}
	return fmt.Errorf("%.80q is not a prefix of a namespace name: use 1 to %d characters of a-z, 0-9 and -, such as %s",
		prefix, validation.DNS1123LabelMaxLength+len(prefix)-len(longest), DefaultNamespacePrefix)
}

// namespace returns the name of a workspace's namespace.
func namespace(prefix string, agent int64, name string) string {
	return prefix + strconv.FormatInt(agent, 10) + "-" + name
}

// Labels and annotations of the objects that Lockstep applies.
const (
	// LabelAgent holds the agent id. Every object has it.
	LabelAgent = "lockstep.dev/agent"
	// LabelWorkspace holds the workspace id. Every object has it.
	LabelWorkspace = "lockstep.dev/workspace"
	// LabelWorkspaceName holds the name of the workspace and of its Deployment. Every object has it.
	LabelWorkspaceName = "lockstep.dev/workspace-name"
	// AnnotationDesiredRevision holds the desired revision that the Deployment was applied with.
	AnnotationDesiredRevision = "lockstep.dev/desired-revision"
)

// Workspace is a development environment on a Kubernetes cluster. Every field is stored.
type Workspace struct {
	// Static after creation.

	ID        uuid.UUID
	Name      string
	ProjectID int64
	AgentID   int64
	UserID    int64
	Template  string
	Namespace string
	// IdempotencyKey of the request that created the workspace. Empty without one.
	IdempotencyKey string
	CreatedAt      time.Time

	// The desired state: users and policies change it.

	Spec         Spec
	DesiredState DesiredState
	// DesiredRevision grows with every change that the cluster must apply.
	DesiredRevision int64
	// DesiredStateChangedAt is the time of the last desired revision, also of a new spec, a drift or a redispatch.
	DesiredStateChangedAt time.Time
	// DesiredStateSince is the last change of DesiredState itself. Policies count from here.
	DesiredStateSince time.Time
	// WarnedStateDeadline is the deadline in the last warning about DesiredState; zero without a warning.
	WarnedStateDeadline time.Time
	// WarnedAgeDeadline is the deadline in the last warning about the workspace's age; zero without a warning.
	WarnedAgeDeadline time.Time
	// WarnedIdleDeadline is the deadline in the last warning about an idle workspace; zero without a warning.
	WarnedIdleDeadline time.Time
	// ExtendedUntil is the time before which an idle workspace is not stopped; zero without an extension.
	ExtendedUntil time.Time
	// LastActivity is read under the lock of the workspace, and not stored with the rest.
	LastActivity Activity
	// CountsProcesses is true while the policies count running processes as activity. Expire sets it.
	CountsProcesses bool

	// Shares let other people enter.
	Shares []Share

	// The actual state: reports of the cluster change it.

	ActualState actualstate.State
	// ActualStateRevision counts the changes of ActualState and Reason.
	ActualStateRevision  int64
	ActualStateChangedAt time.Time
	// Reason is a machine-readable code, Message is text for the user. Failed and error always have both.
	Reason, Message string
	// AppliedRevision is the last revision that the dispatcher applied completely, at AppliedAt.
	AppliedRevision int64
	AppliedAt       time.Time
	// AppliedUID and AppliedGeneration identify the Deployment after the last apply. A higher generation means a
	// change by another client.
	AppliedUID        string
	AppliedGeneration int64
	// ApplyError is the error of the last apply; nil if it succeeded.
	ApplyError  *actualstate.ApplyError
	Termination actualstate.Termination
	// RemainingReason and RemainingMessage are of the last report that objects remain.
	RemainingReason, RemainingMessage string
	// RecomputeAt is the next time, by the agent's clock or the stream's, at which the state is recomputed without a new
	// event. Zero means never.
	RecomputeAt time.Time
}

// SecretEnvName is the name of the Secret with the secret variables. Its keys are the variable names.
func (w Workspace) SecretEnvName() string { return w.Name + "-env" }

// SecretFilesName is the name of the Secret with the secret files. SecretFileKey makes its keys.
func (w Workspace) SecretFilesName() string { return w.Name + "-files" }

// PullSecretName is the name of the Secret with the pull secrets of the project.
func (w Workspace) PullSecretName() string { return w.Name + "-pull" }

// SecretFileKey turns the path of a secret file into a key of the Secret. Keys allow fewer characters
// than paths, so a hash of the path keeps keys unique.
func SecretFileKey(path string) string {
	const readable = 100
	sum := sha256.Sum256([]byte(path))
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		default:
			return '_'
		}
	}, path)
	return hex.EncodeToString(sum[:8]) + "-" + name[max(0, len(name)-readable):]
}

// Timestamp truncates a time to the precision of every stored and published time: milliseconds, in UTC.
func Timestamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
