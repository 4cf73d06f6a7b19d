package cifile_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/cifile"
)

func TestExampleOfTheDocumentationIsValid(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../deploy/examples/pipeline/.gitlab-ci.yml")
	require.NoError(t, err)
	file, err := cifile.Parse(".gitlab-ci.yml", raw, cifile.Limits{})
	require.NoError(t, err)
	names, copies := []string{}, 0
	for _, j := range file.Jobs {
		names = append(names, j.Name)
		copies += j.Parallel.Copies()
	}
	require.Equal(t, []string{"compile", "unit", "lint", "publish"}, names)
	require.Equal(t, 6, copies)
}
