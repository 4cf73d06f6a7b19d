package failure_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestExplain(t *testing.T) {
	t.Parallel()
	volume := events.ObjectReference{ApiVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ws-7-blog", Name: "data"}
	volumes := schema.GroupResource{Resource: "persistentvolumeclaims"}
	statusError := func(code int32, reason metav1.StatusReason, message string) error {
		return &apierrors.StatusError{
			ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message},
		}
	}
	terminating := apierrors.NewForbidden(
		volumes, "data", errors.New("unable to create new content in namespace ws-7-blog because it is being terminated"),
	)
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	immutable := apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolumeClaim"}, "data",
		field.ErrorList{field.Invalid(field.NewPath("spec", "selector"), "x", "field is immutable")})
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolumeClaim"}, "data",
		field.ErrorList{field.Required(field.NewPath("spec", "accessModes"), "at least 1 access mode is required")})
	for _, test := range []struct {
		name   string
		err    error
		reason failure.Reason
		texts  []string
	}{
		{
			"quota", apierrors.NewForbidden(volumes, "data",
				errors.New("exceeded quota: limit, requested: requests.storage=9Gi, used: requests.storage=2Gi, "+
					"limited: requests.storage=10Gi")),
			failure.QuotaExceeded,
			[]string{
				"quota limit is exceeded by PersistentVolumeClaim ws-7-blog/data",
				"requested requests.storage=9Gi", "used requests.storage=2Gi", "limit requests.storage=10Gi",
			},
		},
		{
			"pod security", apierrors.NewForbidden(volumes, "data",
				errors.New(`violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false`)),
			failure.PodSecurity,
			[]string{"restricted:latest", "allowPrivilegeEscalation"},
		},
		{
			"permission", statusError(403, metav1.StatusReasonForbidden,
				`persistentvolumeclaims "data" is forbidden: User "system:serviceaccount:a:b" cannot patch `+
					`resource "persistentvolumeclaims" in API group "" in the namespace "ws-7-blog"`),
			failure.Forbidden,
			[]string{"system:serviceaccount:a:b", "may not patch persistentvolumeclaims"},
		},
		{
			"other prohibition",
			apierrors.NewForbidden(volumes, "data", errors.New("maximum cpu usage per Container is 1")),
			failure.Forbidden,
			[]string{"maximum cpu usage"},
		},
		{
			"webhook",
			statusError(403, "", `admission webhook "policy.example.test" denied the request: no images from there`),
			failure.AdmissionRefused,
			[]string{"policy.example.test", "no images from there"},
		},
		{
			"policy", statusError(422, metav1.StatusReasonInvalid,
				`persistentvolumeclaims "data" is forbidden: `+
					`ValidatingAdmissionPolicy 'p' with binding 'b' denied request: too large`),
			failure.AdmissionRefused,
			[]string{"policy p", "too large"},
		},
		{
			"broken webhook", statusError(500, metav1.StatusReasonInternalError,
				`Internal error occurred: failed calling webhook "w.example.test": connection refused`),
			failure.AdmissionUnavailable,
			[]string{"w.example.test failed", "until a cluster administrator repairs it"},
		},
		{
			"typed", statusError(500, "",
				`failed to create typed patch object `+
					`(ws-7-blog/data; v1, Kind=PersistentVolumeClaim): .spec.x: field not declared in schema`),
			failure.Invalid,
			[]string{".spec.x: field not declared"},
		},
		{"immutable", immutable, failure.Immutable, []string{"spec.selector", "terminate the workspace"}},
		{"invalid", invalid, failure.Invalid, []string{"spec.accessModes", "access mode is required"}},
		{"bad request", apierrors.NewBadRequest("strict decoding error"), failure.Invalid, []string{"strict decoding error"}},
		{"terminating", terminating, failure.NamespaceTerminating, []string{"being deleted"}},
		{
			"no namespace",
			apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ws-7-blog"),
			failure.NamespaceMissing,
			[]string{"PersistentVolumeClaim ws-7-blog/data does not exist; the dispatcher creates it again"},
		},
		{
			"no such kind",
			statusError(404, metav1.StatusReasonNotFound, "the server could not find the requested resource"),
			failure.UnknownKind,
			nil,
		},
		{"deleted meanwhile", apierrors.NewNotFound(volumes, "data"), failure.Internal, nil},
		{"conflict", apierrors.NewConflict(volumes, "data", errors.New("changed")), failure.Conflict, nil},
		{"credentials", apierrors.NewUnauthorized("no"), failure.Unauthorized, nil},
		{
			"throttled", apierrors.NewTooManyRequests("slow down", 1), failure.Throttled,
			[]string{"rejected PersistentVolumeClaim ws-7-blog/data; the dispatcher retries"},
		},
		{"timeout", apierrors.NewTimeoutError("late", 1), failure.Timeout, nil},
		{"server timeout", apierrors.NewServerTimeout(volumes, "patch", 1), failure.Timeout, nil},
		{"unavailable", apierrors.NewServiceUnavailable("starting"), failure.Unreachable, nil},
		{"gateway", statusError(502, "", "bad gateway"), failure.Unreachable, nil},
		{"too large", apierrors.NewRequestEntityTooLargeError("limit is 3MB"), failure.TooLarge, nil},
		{"internal", apierrors.NewInternalError(errors.New("etcd is full")), failure.Internal, []string{"etcd is full"}},
		{"deadline", fmt.Errorf("apply: %w", context.DeadlineExceeded), failure.Timeout, nil},
		{"canceled", context.Canceled, failure.Internal, nil},
		{"network", io.ErrUnexpectedEOF, failure.Unreachable, []string{"unexpected EOF"}},
		{"known", fmt.Errorf("x: %w", failure.New(failure.SecretRefused, nil, "no")), failure.SecretRefused, []string{"no"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := failure.Explain(fmt.Errorf("apply it: %w", test.err), volume)
			require.Equal(t, test.reason, f.Reason, f.Message)
			for _, text := range test.texts {
				require.Contains(t, f.Message, text)
			}
			require.False(t, f.Final)
			if test.name != "known" {
				require.ErrorIs(t, f, test.err)
				require.Equal(t, &volume, f.Object)
			}
		})
	}
}

func TestSecretsAreNotQuoted(t *testing.T) {
	t.Parallel()
	secret := events.ObjectReference{ApiVersion: "v1", Kind: "Secret", Namespace: "ws-7-blog", Name: "variables"}
	secrets := schema.GroupResource{Resource: "secrets"}
	for _, err := range []error{
		apierrors.NewBadRequest("cannot decode hunter2"),
		apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "variables",
			field.ErrorList{field.Invalid(field.NewPath("data"), "hunter2", "is bad: hunter2")}),
		apierrors.NewForbidden(secrets, "variables", errors.New("because of hunter2")),
		apierrors.NewForbidden(secrets, "variables", errors.New(`admission webhook "w" denied the request: hunter2`)),
		apierrors.NewInternalError(errors.New("hunter2")),
		errors.New("write hunter2: broken pipe"),
	} {
		f := failure.Explain(err, secret)
		require.NotContains(t, f.Message, "hunter2")
		require.NotContains(t, f.Unwrap().Error(), "hunter2", "the cause is logged")
		require.ErrorIs(t, f, err, "errors.Is still finds the cause")
		require.Contains(t, f.Message, "Secret ws-7-blog/variables")
	}
}

func FuzzExplain(f *testing.F) {
	f.Add(int32(403), "Forbidden", "exceeded quota: a, requested: b, used: c, limited: d", "Deployment")
	f.Add(int32(0), "", "\xff\n"+strings.Repeat("é", 2000), "")
	f.Fuzz(func(t *testing.T, code int32, reason, message, kind string) {
		err := &apierrors.StatusError{
			ErrStatus: metav1.Status{
				Code:    code,
				Reason:  metav1.StatusReason(reason),
				Message: message,
				Details: &metav1.StatusDetails{
					Causes: []metav1.StatusCause{{Field: message, Message: message}},
				},
			},
		}
		explained := failure.Explain(err, events.ObjectReference{Kind: kind, Name: "n"})
		require.NotEmpty(t, explained.Reason)
		require.NotEmpty(t, explained.Message)
		require.LessOrEqual(t, len(explained.Message), failure.MaxMessage)
		require.True(t, utf8.ValidString(explained.Message))
		require.NotContains(t, explained.Message, "\n")
	})
}
