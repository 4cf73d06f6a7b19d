package admission_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
)

// The transaction that begins the admission of jobs has little time for policies. The jobs that are left are evaluated
// after it, and decided in the same way.
func TestSlowPolicyDecidesAllJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	stop := f.start()
	f.create(project, projectID, &admissionv1.ControllerSettings{Name: "slow", Mutating: true, Policy: slowPolicy})
	stop()
	const jobs = 20
	for id := range jobs { // one batch for the service that starts
		f.prepare(prepared(9001+id, "docker"))
	}
	f.start()
	for id := range jobs {
		d := f.decided(9001 + id)
		require.Equal(t, events.AdmissionOutcomeAdmitted, d.Outcome, "%+v", d)
		require.Equal(t, []string{"docker", "linux"}, d.Tags)
		require.Len(t, d.Prerequisites, 1)
	}
}

// slowPolicy takes milliseconds.
const slowPolicy = `
rules:
  - if: >-
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all(a, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all(b,
      [0, 1, 2, 3, 4].all(c, a + b + c < 100)))
    add_tags: [linux]
`
