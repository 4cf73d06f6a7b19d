package failure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
)

// Explain converts the error of a request for an object into a [Failure]. A [Failure] in the chain is returned as
// it is.
func Explain(err error, object events.ObjectReference) *Failure {
	var known *Failure
	if errors.As(err, &known) && known != nil {
		return known
	}
	var about *events.ObjectReference
	if object.Name != "" {
		about = &object
	}
	if object.Kind == "Secret" {
		err = redactedError{err}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return explainTransport(err, about, Describe(object))
	}
	reason, message := explainStatus(status.Status(), Describe(object), object.Kind == "Secret")
	return Wrap(err, reason, about, "%s", message)
}

// redactedError hides the text of an error about a Secret: an admission controller may quote its values. The text
// stays out of logs and traces.
type redactedError struct{ cause error }

// Error returns the status reason and code, or the Go type, without the text.
func (w redactedError) Error() string {
	var status apierrors.APIStatus
	if errors.As(w.cause, &status) {
		return fmt.Sprintf("text redacted because it may contain Secret values: %s (%d)", status.Status().Reason,
			status.Status().Code)
	}
	return fmt.Sprintf("text redacted because it may contain Secret values: %T", w.cause)
}

// Unwrap returns the cause.
func (w redactedError) Unwrap() error { return w.cause }

// explainTransport explains network and context errors.
func explainTransport(err error, about *events.ObjectReference, what string) *Failure {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(
			err, Timeout, about,
			"the cluster did not answer in time when %s was applied; the dispatcher retries", nameOrWorkspace(what),
		)
	case errors.Is(err, context.Canceled):
		return Wrap(
			err, Internal, about,
			"the dispatcher was stopped while %s was applied; the next leader retries", nameOrWorkspace(what),
		)
	case about != nil && about.Kind == "Secret":
		return Wrap(err, Unreachable, about, "the cluster cannot be reached to apply %s; the dispatcher retries", what)
	default:
		return Wrap(
			err, Unreachable, about,
			"the cluster cannot be reached to apply %s (%v); the dispatcher retries", nameOrWorkspace(what), err,
		)
	}
}

func nameOrWorkspace(what string) string {
	if what == "" {
		return "the workspace"
	}
	return what
}

var (
	// The API server answers 500 when a manifest does not match its schema.
	typedPattern = regexp.MustCompile(
		`^failed to create (?:manager for existing fields|typed patch object) \([^)]*\): (.*)$`,
	)
	quotaPattern   = regexp.MustCompile(`exceeded quota: ([^,]+), requested: (.+), used: (.+), limited: (.+)$`)
	webhookPattern = regexp.MustCompile(
		`admission webhook "([^"]+)" denied the request(?: without explanation)?:? ?(.*)`,
	)
	policyPattern = regexp.MustCompile(
		`ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request: ?(.*)`,
	)
	brokenWebhookPattern = regexp.MustCompile(`failed calling webhook "([^"]+)"`)
	rbacPattern          = regexp.MustCompile(`User "([^"]+)" cannot (\w+) resource "([^"]+)"`)
	podSecurityPattern   = regexp.MustCompile(`violates PodSecurity "([^"]+)": ?(.*)`)
)

// explainStatus reads an answer of the API server. The details of a confidential object are left
// out.
func explainStatus(status metav1.Status, what string, confidential bool) (Reason, string) {
	what = nameOrWorkspace(what)
	detail := ": " + status.Message
	if confidential {
		detail = ""
	}
	if reason, message, ok := explainAdmission(status, what, confidential); ok {
		return reason, message
	}
	switch status.Reason { //nolint:exhaustive // the status code below maps the others
	case metav1.StatusReasonUnauthorized:
		return Unauthorized,
			"the cluster does not accept the dispatcher's credentials; an administrator of the cluster has to renew them"
	case metav1.StatusReasonForbidden:
		return Forbidden, "the cluster refuses " + what + detail
	case metav1.StatusReasonInvalid,
		metav1.StatusReasonBadRequest,
		metav1.StatusReasonUnsupportedMediaType,
		metav1.StatusReasonNotAcceptable:
		return explainInvalid(status, what, confidential)
	case metav1.StatusReasonConflict, metav1.StatusReasonAlreadyExists:
		return Conflict, what + " was changed by another client at the same time; the dispatcher retries"
	case metav1.StatusReasonNotFound:
		return explainNotFound(status, what)
	case metav1.StatusReasonMethodNotAllowed:
		return UnknownKind, "the cluster does not serve objects such as " + what
	case metav1.StatusReasonRequestEntityTooLarge:
		return TooLarge, what + " is larger than the cluster accepts; make the template smaller"
	case metav1.StatusReasonTooManyRequests:
		return Throttled, "the cluster is overloaded and rejected " + what + "; the dispatcher retries"
	case metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout:
		return Timeout, "the cluster did not finish applying " + what + " in time; the dispatcher retries"
	case metav1.StatusReasonServiceUnavailable:
		return Unreachable, "the cluster's API is not available; the dispatcher retries"
	}
	switch status.Code {
	case http.StatusTooManyRequests:
		return Throttled, "the cluster is overloaded and rejected " + what + "; the dispatcher retries"
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return Unreachable, "the cluster's API is not available; the dispatcher retries"
	case http.StatusGatewayTimeout:
		return Timeout, "the cluster did not finish applying " + what + " in time; the dispatcher retries"
	}
	return Internal, "the cluster failed to apply " + what + detail
}

// explainAdmission recognises rejections by their message text.
func explainAdmission(status metav1.Status, what string, confidential bool) (Reason, string, bool) {
	text := status.Message
	quote := func(detail string) string {
		if confidential || detail == "" {
			return ""
		}
		return ": " + detail
	}
	if terminating(status) {
		return NamespaceTerminating, what +
			" cannot be applied while its namespace is being deleted; the dispatcher retries when the deletion is complete", true
	}
	if m := typedPattern.FindStringSubmatch(text); m != nil {
		return Invalid, "the cluster does not accept " + what + quote(m[1]), true
	}
	if m := quotaPattern.FindStringSubmatch(text); m != nil {
		return QuotaExceeded, "the quota " + m[1] + " is exceeded by " + what + ": requested " + m[2] + ", used " + m[3] +
			", limit " + m[4] + ". Delete something, request less, or have the quota raised", true
	}
	if m := podSecurityPattern.FindStringSubmatch(text); m != nil {
		return PodSecurity, "the cluster's pod security " + m[1] + " does not allow " + what + quote(m[2]), true
	}
	if m := webhookPattern.FindStringSubmatch(text); m != nil {
		return AdmissionRefused, "the cluster's admission webhook " + m[1] + " refuses " + what + quote(m[2]), true
	}
	if m := policyPattern.FindStringSubmatch(text); m != nil {
		return AdmissionRefused, "the cluster's admission policy " + m[1] + " refuses " + what + quote(m[2]), true
	}
	if m := brokenWebhookPattern.FindStringSubmatch(text); m != nil {
		return AdmissionUnavailable, "the cluster's admission webhook " + m[1] +
			" failed; objects cannot be applied until a cluster administrator repairs it", true
	}
	if m := rbacPattern.FindStringSubmatch(text); m != nil {
		return Forbidden, "the dispatcher's account " + m[1] + " may not " + m[2] + " " + m[3] + " (" + what +
			"); an administrator of the cluster has to grant it", true
	}
	return "", "", false
}

func terminating(status metav1.Status) bool {
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			if cause.Type == corev1.NamespaceTerminatingCause {
				return true
			}
		}
	}
	return status.Reason == metav1.StatusReasonForbidden &&
		strings.Contains(status.Message, "because it is being terminated")
}

func explainInvalid(status metav1.Status, what string, confidential bool) (Reason, string) {
	var fields, immutable []string
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			if isImmutable(cause.Message) {
				immutable = append(immutable, cause.Field)
			}
			detail := cause.Field
			if !confidential {
				detail += ": " + cause.Message
			}
			fields = append(fields, detail)
		}
	}
	switch {
	case len(immutable) > 0:
		return Immutable, strings.Join(
			immutable, ", ",
		) + " of " + what + " cannot be changed any more; terminate the workspace and create it again, or revert the change"
	case !confidential && isImmutable(status.Message):
		return Immutable, what + " cannot be changed like this any more: " + status.Message
	case len(fields) > 0:
		return Invalid, "the cluster does not accept " + what + ": " + strings.Join(fields, "; ")
	case confidential:
		return Invalid, "the cluster does not accept " + what
	default:
		return Invalid, "the cluster does not accept " + what + ": " + status.Message
	}
}

func isImmutable(text string) bool {
	return strings.Contains(text, "immutable") || strings.Contains(text, "may not be changed") ||
		strings.Contains(text, "forbidden after creation") ||
		strings.Contains(text, "can not be less than status.capacity") ||
		strings.Contains(text, "field can not be less than")
}

func explainNotFound(status metav1.Status, what string) (Reason, string) {
	if status.Details != nil && status.Details.Kind == "namespaces" {
		return NamespaceMissing, "the namespace of " + what + " does not exist; the dispatcher creates it again"
	}
	if status.Details == nil || status.Details.Name == "" {
		return UnknownKind, "the cluster does not serve objects such as " + what
	}
	return Internal, what + " was deleted while it was applied; the dispatcher retries"
}
