package failure

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"lockstep.internal/schemas/gen/events"
)

// Reason is the machine-readable kind of a failure. Reasons are part of the API and are never renamed.
type Reason string

// Reasons that need a change of the request, a policy or the cluster. The failure is retried unless it is Final.
const (
	// Malformed events, and workspaces that are NotAllowed or TooLarge, are rejected by the agent itself.
	Malformed  Reason = "Malformed"
	NotAllowed Reason = "NotAllowed"
	TooLarge   Reason = "TooLarge"
	// Superseded: the cluster has a newer revision already.
	Superseded Reason = "Superseded"
	// Conflict: a namespace or object of this name exists and does not belong to the workspace.
	Conflict Reason = "Conflict"
	// Invalid: the API server rejects a field. Immutable: the field can no longer be changed.
	Invalid   Reason = "Invalid"
	Immutable Reason = "Immutable"
	// QuotaExceeded, PodSecurity, Forbidden and AdmissionRefused are rules of the cluster.
	QuotaExceeded    Reason = "QuotaExceeded"
	PodSecurity      Reason = "PodSecurity"
	Forbidden        Reason = "Forbidden"
	AdmissionRefused Reason = "AdmissionRefused"
	// UnknownKind: the cluster does not serve the kind.
	UnknownKind Reason = "UnknownKind"
	// SecretRefused: the control plane does not give the values of a Secret, or they cannot be
	// opened.
	SecretRefused Reason = "SecretRefused"
)

// Temporary reasons.
const (
	NamespaceTerminating Reason = "NamespaceTerminating"
	NamespaceMissing     Reason = "NamespaceMissing"
	ObjectTerminating    Reason = "ObjectTerminating"
	AdmissionUnavailable Reason = "AdmissionUnavailable"
	SecretUnavailable    Reason = "SecretUnavailable"
	Unauthorized         Reason = "Unauthorized"
	Throttled            Reason = "Throttled"
	Timeout              Reason = "Timeout"
	Unreachable          Reason = "Unreachable"
	Internal             Reason = "Internal"
)

// IsTemporary reports whether the reason usually disappears without a change.
func (r Reason) IsTemporary() bool {
	switch r {
	case NamespaceTerminating,
		NamespaceMissing,
		ObjectTerminating,
		AdmissionUnavailable,
		SecretUnavailable,
		Unauthorized,
		Throttled,
		Timeout,
		Unreachable,
		Internal:
		return true
	default:
		return false
	}
}

// MaxMessage is the longest message in bytes.
const MaxMessage = 1024

// Failure is an error with a reason and a message for users.
//
//nolint:errname // the established term: apply_failed, failed_total, failure reason
type Failure struct {
	Reason  Reason
	Message string
	// Object that it is about; nil when it is about the whole workspace.
	Object *events.ObjectReference
	// Final failures are not retried. The next attempt is for a new revision.
	Final bool
	// ClusterRevision is the inventory's revision when Reason is Superseded, else 0.
	ClusterRevision int64

	cause error
}

// New makes a failure that is retried.
func New(reason Reason, object *events.ObjectReference, format string, args ...any) *Failure {
	return &Failure{Reason: reason, Object: object, Message: clean(fmt.Sprintf(format, args...))}
}

// Wrap makes a failure that keeps its cause for the log.
func Wrap(cause error, reason Reason, object *events.ObjectReference, format string, args ...any) *Failure {
	f := New(reason, object, format, args...)
	f.cause = cause
	return f
}

// NewFinal returns a final failure.
func NewFinal(reason Reason, object *events.ObjectReference, format string, args ...any) *Failure {
	f := New(reason, object, format, args...)
	f.Final = true
	return f
}

// NewSuperseded returns the failure of a revision that is lower than the inventory's.
func NewSuperseded(clusterRevision, revision int64) *Failure {
	f := NewFinal(
		Superseded, nil,
		"the cluster already has revision %d of the workspace, which is newer than revision %d; "+
			"the control plane creates a higher revision automatically",
		clusterRevision, revision,
	)
	f.ClusterRevision = clusterRevision
	return f
}

// Error is the reason and the message.
func (f *Failure) Error() string { return string(f.Reason) + ": " + f.Message }

// Unwrap returns the cause, nil when there is none.
func (f *Failure) Unwrap() error { return f.cause }

// Describe names an object for people: Deployment ws-7-blog/blog.
func Describe(object events.ObjectReference) string {
	name := object.Name
	if object.Namespace != "" {
		name = object.Namespace + "/" + object.Name
	}
	if object.Kind == "" {
		return name
	}
	return object.Kind + " " + name
}

// clean returns one line of valid UTF-8 of at most MaxMessage bytes.
func clean(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), isBreak), " ")
	if len(text) <= MaxMessage {
		return text
	}
	const ellipsis = "…"
	cut := MaxMessage - len(ellipsis)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}

func isBreak(r rune) bool { return r == ' ' || r < 0x20 || r == 0x7f }
