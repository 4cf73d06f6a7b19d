package reference_test

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/generate/catalog"
	"lockstep.internal/tools/generate/reference"
)

func TestEveryEventOfTheProjectIsInTheReference(t *testing.T) {
	t.Parallel()
	c, err := catalog.Load(os.DirFS("../../../schemas/events"))
	require.NoError(t, err)
	page, err := reference.Events(c)
	require.NoError(t, err)
	for _, e := range c.Events {
		require.Contains(t, string(page), "\n### "+e.Name+"\n")
		for _, subject := range e.Subjects {
			require.Contains(t, string(page), "* subject `"+subject+"`\n")
		}
	}
}

func TestFieldsShowTypeAndWhetherTheyAreRequired(t *testing.T) {
	t.Parallel()
	c, err := catalog.Load(fstest.MapFS{"observed.tick.v1.schema.json": {Data: []byte(`{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"$id": "https://lockstep.dev/schemas/events/observed.tick.v1.schema.json",
		"title": "ObservedTick", "description": "The time.", "x-lockstep-subject": "observed.{agent}.tick", "type": "object",
		"required": ["at"],
		"properties": {
			"at": {"type": "string", "format": "date-time", "description": "Now."},
			"names": {"type": "array", "items": {"type": "string"}, "description": "Some | names."}
		}}`)}})
	require.NoError(t, err)
	page, err := reference.Events(c)
	require.NoError(t, err)
	require.Contains(t, string(page), "| `at` | string (date-time), required | Now. |\n")
	require.Contains(t, string(page), "| `names` | array of string | Some \\| names. |\n")
	require.Contains(t, string(page), "## Stream OBSERVED\n")
}
