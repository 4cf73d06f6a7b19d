package failure

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"lockstep.internal/schemas/gen/events"
)

// Reason is the machine-readable kind of a failure. A reason is a promise: it is never renamed.
type Reason string

// Reasons that are the request's fault, or the policy's.
const (
	// Malformed events, NotAllowed and TooLarge are refused by the agent itself.
	Malformed  Reason = "Malformed"
	NotAllowed Reason = "NotAllowed"
	TooLarge   Reason = "TooLarge"
	// Superseded: the cluster has a newer revision already.
	Superseded Reason = "Superseded"
	// Conflict: a namespace or object of this name belongs to somebody else.
	Conflict Reason = "Conflict"
	// Invalid: the API server does not accept a field. Immutable: not any more.
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

// Reasons that usually pass.
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

// Passes tells a reason that usually passes by itself, and of which the user's workspace may not
// suffer.
func (r Reason) Passes() bool {
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

// Failure is an error with a reason and a sentence for users.
type Failure struct { //nolint:errname // the word that everything else says: apply_failed, failed_total, reason of a failure
	Reason  Reason
	Message string
	// Object that it is about; nil when it is about the whole workspace.
	Object *events.ObjectReference
	// Final failures are not retried before a new revision comes.
	Final bool
	// ClusterRevision is the newer revision that the cluster has, where that is the failure; 0
	// otherwise.
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

// Refusal makes a failure that is final.
func Refusal(reason Reason, object *events.ObjectReference, format string, args ...any) *Failure {
	f := New(reason, object, format, args...)
	f.Final = true
	return f
}

// Superseding is the refusal of a revision by a cluster that has a newer one.
func Superseding(clusterRevision, revision int64) *Failure {
	f := Refusal(
		Superseded, nil,
		"the cluster already has revision %d of the workspace, which is newer than revision %d; the control plane goes beyond it by itself",
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

// clean makes one line of valid UTF-8 that is at most MaxMessage long.
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
